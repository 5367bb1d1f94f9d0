"""How the seeds of one trainer are cut among workers that each keep a share of their own, as graphlearn-torch does."""

from __future__ import annotations

from gnnkit.errors import PlanError


def worker_seed_ranges(num_seeds: int, batch_size: int, num_workers: int) -> list[tuple[int, int]]:
    """The half-open range of seeds of each worker.

    Whole batches are dealt evenly, one more to the first workers where they do not come out even; the last worker also has the
    seeds that fill no batch. Ranges are contiguous and may be empty.

    Args:
        num_seeds: Seeds in all.
        batch_size: Seeds per batch, at least 1.
        num_workers: Workers, at least 1.

    Raises:
        PlanError: A number is too small.
    """
    if num_seeds < 0 or batch_size < 1 or num_workers < 1:
        raise PlanError(f"cannot deal {num_seeds} seeds in batches of {batch_size} to {num_workers} workers")
    share, more = divmod(num_seeds // batch_size, num_workers)
    bounds = [(worker * share + min(worker, more)) * batch_size for worker in range(num_workers)] + [num_seeds]
    return list(zip(bounds[:-1], bounds[1:], strict=True))
