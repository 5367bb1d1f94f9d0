"""What came of checking an exported job, and how that shows itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnkit.export.proof.comparison import Difference
from gnnkit.rendering import Shown
from gnnkit.units import format_count, format_duration

if TYPE_CHECKING:
    from gnnkit.ui.cards import Card

_MOST_SHOWN = 20


@dataclass(frozen=True, repr=False)
class VerifyReport(Shown):
    """Whether an exported job gives the notebook's batches.

    Attributes:
        name: The job's name.
        launcher: What started it.
        nodes: Nodes that it ran on.
        procs_per_node: Ranks of each.
        batches: Batches that were compared, over all ranks.
        epoch_batches: Batches of the whole epoch, over all ranks.
        values: Tensors and other attributes that were compared.
        notes: What was other than it will be on the cluster, a sentence each.
        differences: Every tensor that is not the same, in the order of the epoch's batches.
        elapsed_s: Seconds that it took.
    """

    name: str
    launcher: str
    nodes: int
    procs_per_node: int
    batches: int
    epoch_batches: int
    values: int
    notes: tuple[str, ...]
    differences: tuple[Difference, ...]
    elapsed_s: float

    @property
    def equal(self) -> bool:
        """Whether every tensor of every batch was the same, on every rank at every step."""
        return not self.differences

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.procs_per_node

    def _card(self) -> Card:
        from gnnkit.ui.cards import Card, Table

        compared = f"{format_count(self.batches)} of an epoch's {format_count(self.epoch_batches)}"
        compared = f"all {format_count(self.batches)} of an epoch" if self.batches == self.epoch_batches else compared
        rows = [
            ("batches", f"{compared}, {format_count(self.values)} tensors and other attributes: {self._verdict()}"),
            ("ranks", f"{self.nodes} x {self.procs_per_node}, started by {self.launcher}"),
            ("time", format_duration(self.elapsed_s)),
            *(("note", note) for note in self.notes),
        ]
        notice = None if self.equal else f"first difference: {self.differences[0]}"
        shown = self.differences[:_MOST_SHOWN]
        table = Table(
            ("batch", "rank", "step", "tensor", "what"),
            [(str(one.batch_index), str(one.rank), str(one.step), one.tensor, one.what) for one in shown],
        )
        more = f", the first {len(shown)} of {format_count(len(self.differences))}" if len(self.differences) > len(shown) else ""
        sections = [] if self.equal else [(f"differences{more}", table)]
        return Card(f"export check {self.name}", "ok" if self.equal else "failed", rows, notice, sections)

    def _verdict(self) -> str:
        if self.equal:
            return "equal, to the last bit"
        batches = len({(one.rank, one.step) for one in self.differences})
        return f"{format_count(batches)} batch{'es' if batches != 1 else ''} differ{'s' if batches == 1 else ''}"
