"""The Ray cluster that an engine works on: joined, or started on this host."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from gnnkit.bounds import MOST_THREADS, check_seconds, is_real, keep_whole_number, size_in_bytes
from gnnkit.errors import PlanError

PlacementStrategy: TypeAlias = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]

LOCAL = "local"
_ADDRESS = "RAY_ADDRESS"
# What Ray's own object store takes at least.
_LEAST_STORE = 75 << 20


@dataclass(frozen=True)
class RayCluster:
    """The fields of ``gnnkit.Ray``, which says what they mean; a driver is told of these.

    Raises:
        PlanError: A value is unusable.
    """

    num_workers: int = 2
    address: str | None = None
    cpus_per_worker: int = 1
    num_cpus: int | None = None
    object_store_memory: int | str = 128 << 20
    runtime_env: Mapping[str, Any] | None = None
    resources: Mapping[str, float] | None = None
    placement_strategy: PlacementStrategy = "PACK"
    pending_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        keep_whole_number(self, "num_workers", 1, MOST_THREADS)
        keep_whole_number(self, "cpus_per_worker", 1, MOST_THREADS)
        size = size_in_bytes("object_store_memory", self.object_store_memory, f"at least {_LEAST_STORE}", least=_LEAST_STORE)
        object.__setattr__(self, "object_store_memory", size)
        if self.num_cpus is not None:
            keep_whole_number(self, "num_cpus", self.num_workers * self.cpus_per_worker)
        check_seconds("pending_timeout_s", self.pending_timeout_s)
        if self.placement_strategy not in get_args(PlacementStrategy):
            strategies = ", ".join(map(repr, get_args(PlacementStrategy)))
            raise PlanError(f"placement_strategy={self.placement_strategy!r} is no strategy of Ray", f"one of {strategies}")
        for name, amount in dict(self.resources or {}).items():
            if name in ("CPU", "GPU") or not is_real(amount) or amount <= 0:
                raise PlanError(
                    f"resources={dict(self.resources or {})!r}: {name!r} is {amount!r}, where each rank reserves a positive number of a"
                    " resource that the cluster names itself",
                    "cpus_per_worker= for processors, device= for GPUs, and resources={'name': amount} for the others",
                )
        try:
            json.dumps(self.runtime_env)
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"runtime_env={self.runtime_env!r} is no JSON: {error}", "plain dictionaries, lists, texts and numbers"
            ) from error
        if self.address is not None and (not isinstance(self.address, str) or not self.address or "://" in self.address):
            raise PlanError(
                f"address={self.address!r} is no address of a Ray cluster that a driver can join",
                "'<host>:<port>' of its head node, 'auto' on one of its nodes, or 'local'; ray:// clients have no driver of their own",
            )

    @property
    def joined(self) -> str | None:
        """The address of the cluster to join; None where one is started on this host."""
        address = self.address or os.environ.get(_ADDRESS) or LOCAL
        return None if address == LOCAL else address

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form, with the address resolved; ``RayCluster(**value)`` reverses it."""
        return {**asdict(self), "address": self.joined or LOCAL}
