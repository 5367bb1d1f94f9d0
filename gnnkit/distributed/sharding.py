"""Which trainer gets which seeds of which server: contiguous shares, cut by fractions before anybody knows how many seeds there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnkit.cluster.serving.shares import Fraction, fractions
from gnnkit.errors import PlanError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ServerSlice:
    """A trainer's fraction of what a server has.

    Attributes:
        server_rank: The server.
        start_numerator: The fraction begins at ``start_numerator / denominator``,
        end_numerator: and ends before ``end_numerator / denominator``.
        denominator: Number of trainers.

    Raises:
        PlanError: The numbers are no fraction.
    """

    server_rank: int
    start_numerator: int
    end_numerator: int
    denominator: int

    def __post_init__(self) -> None:
        if self.denominator < 1 or not 0 <= self.start_numerator <= self.end_numerator <= self.denominator:
            raise PlanError(
                f"{self.start_numerator}/{self.denominator} to {self.end_numerator}/{self.denominator} is no fraction of a server",
                "numerators go from 0 to the denominator, which is at least 1",
            )

    def slice_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fraction of a tensor ``[n, ...]``: a view, or the tensor itself where it is all of it."""
        start, end = Fraction(self.server_rank, self.start_numerator, self.end_numerator, self.denominator).bounds(len(tensor))
        return tensor if (start, end) == (0, len(tensor)) else tensor[start:end]


def compute_server_assignments(num_servers: int, num_compute_nodes: int, compute_rank: int) -> dict[int, ServerSlice]:
    """What one trainer gets of which servers; servers of which it gets nothing are left out.

    Over all trainers every element of every server is assigned exactly once, and each trainer asks at most
    ``ceil(num_servers / num_compute_nodes) + 1`` servers. Fractions are even, numbers are where servers have as many seeds as each other.

    Args:
        num_servers: Servers, at least 1.
        num_compute_nodes: Trainers, at least 1.
        compute_rank: The trainer.

    Raises:
        PlanError: A number is too small, or there is no such trainer.
    """
    for name, value in (("num_servers", num_servers), ("num_compute_nodes", num_compute_nodes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PlanError(f"{name} must be a whole number of at least 1, got {value!r}")
    if isinstance(compute_rank, bool) or not isinstance(compute_rank, int) or not 0 <= compute_rank < num_compute_nodes:
        raise PlanError(f"there is no compute_rank {compute_rank!r} of {num_compute_nodes}", f"ranks go from 0 to {num_compute_nodes - 1}")
    return {share.piece: ServerSlice(*share) for share in fractions(num_servers, num_compute_nodes, compute_rank)}
