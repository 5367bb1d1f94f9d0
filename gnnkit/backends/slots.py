"""How many slots the ring has, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass

from gnnkit.backends.scheduler import Job
from gnnkit.backends.worker_pool import PoolOptions
from gnnkit.errors import MemoryLimitError, PlanError
from gnnkit.host import available_memory
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.preflight import check_ring_memory
from gnnkit.runtime.ring import Ring, slot_size

# Slots that batches of the user's may lie in: the one in use, the one before it that a loop still names, and one more.
_LEASED = 3
# A slot is larger than the largest batch so far by this part.
_HEADROOM = 0.25
_LEAST_SLOT = 4096


@dataclass(frozen=True)
class SlotPlan:
    """What rings of one loader look like.

    Attributes:
        options: The backend's options.
        plan: The loader's plan.
    """

    options: PoolOptions
    plan: LoaderPlan

    @property
    def in_flight_each(self) -> int:
        """Batches that a process is given at a time."""
        return max(self.options.worker_concurrency, self.options.threads_per_worker)

    def wanted(self, num_workers: int) -> int:
        """Slots for so many processes, where ``channel_size`` allows as many."""
        return num_workers * self.in_flight_each + self.plan.runtime.prefetch + _LEASED

    @staticmethod
    def window(num_slots: int) -> int:
        """Steps that may be under way: at least one slot stays for sampling, whatever the user holds."""
        return max(1, num_slots - min(_LEASED, num_slots // 2))

    def ring(self, largest: int, num_workers: int) -> Ring[Job]:
        """A ring for batches of up to ``largest`` bytes, and somewhat more, from so many processes.

        Raises:
            PlanError: ``channel_size`` does not hold two of them.
            MemoryLimitError: It does not fit.
        """
        needed, bound = max(_LEAST_SLOT, largest), self.options.channel_bytes
        size = slot_size(needed + int(needed * _HEADROOM))
        # Fewer slots where memory is short; half of it is left for everybody else.
        num_slots = min(self.wanted(num_workers), max(2, available_memory() // 2 // size))
        if bound is not None:
            if bound // slot_size(needed) < 2:
                raise PlanError(
                    f"channel_size={self.options.channel_size!r} does not hold two batches of {needed / 1e6:.1f} MB",
                    "raise channel_size, lower batch_size or num_neighbors, or leave channel_size out",
                )
            size = size if bound // size >= 2 else slot_size(needed)
            num_slots = min(num_slots, bound // size)
        check_ring_memory(num_slots * size, num_slots)
        try:
            return Ring(num_slots, size, pinned_for=self.plan.runtime.pin_device)
        except OSError as error:
            raise MemoryLimitError(
                f"no shared memory of {num_slots * size / 1e6:.0f} MB for batches: {error}", "lower batch_size"
            ) from error
