"""Two lists of recorded batches compared, and the report of a check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnkit.export.recording import RecordedBatch
from gnnkit.loader.digest import ValueDigest
from gnnkit.rendering import Shown
from gnnkit.units import format_count, format_duration

if TYPE_CHECKING:
    from gnnkit.ui.cards import Card


@dataclass(frozen=True)
class Difference:
    """One attribute of one batch that is not the same.

    Attributes:
        batch_index: The batch, in the epoch's list.
        rank: Whose it is.
        step: Which of the rank's.
        tensor: The attribute: ``"x"``, ``"paper.x"``; empty where the whole batch is missing, too many or another one.
        what: How it differs, in words.
    """

    batch_index: int
    rank: int
    step: int
    tensor: str
    what: str

    def __str__(self) -> str:
        tensor = f", {self.tensor}" if self.tensor else ""
        return f"batch {self.batch_index} (rank {self.rank}, step {self.step}){tensor}: {self.what}"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing batches.

    Attributes:
        batches: Batches that were to come, over all ranks.
        values: Attributes that were compared.
        differences: Every difference, in the order of the epoch's list of batches.
    """

    batches: int
    values: int
    differences: tuple[Difference, ...]


def compare(wanted: Sequence[RecordedBatch], found: Iterable[RecordedBatch]) -> Comparison:
    """Compares what every rank should have been given, step by step, with what it was given.

    Args:
        wanted: Every batch of every rank.
        found: The same of the job.
    """
    came = {(batch.rank, batch.step): batch for batch in found}
    places: dict[tuple[tuple[str, ValueDigest], ...], int] = {}
    for batch in wanted:
        places.setdefault(_content(batch.values), batch.batch_index)
    differences: list[Difference] = []
    for batch in wanted:
        differences += _differences(batch, came.pop((batch.rank, batch.step), None), places)
    differences += [Difference(batch.batch_index, batch.rank, batch.step, "", "more than the epoch has") for batch in came.values()]
    differences.sort(key=lambda one: (one.batch_index, one.rank, one.step))
    return Comparison(len(wanted), sum(len(batch.values) for batch in wanted), tuple(differences))


def _content(values: Mapping[str, ValueDigest]) -> tuple[tuple[str, ValueDigest], ...]:
    return tuple(sorted(values.items()))


def _differences(
    wanted: RecordedBatch, found: RecordedBatch | None, places: Mapping[tuple[tuple[str, ValueDigest], ...], int]
) -> list[Difference]:
    """Returns the differences of one batch from the expected one.

    Args:
        wanted: The expected batch.
        found: The recorded one; None where there is none.
        places: Where in the epoch a batch of some content belongs.
    """

    def difference(tensor: str, what: str) -> Difference:
        return Difference(wanted.batch_index, wanted.rank, wanted.step, tensor, what)

    if found is None:
        return [difference("", "did not come")]
    if found.values == wanted.values:
        return []
    place = places.get(_content(found.values))
    if place is not None:
        return [difference("", f"batch {place} came in its place")]
    both = [name for name in wanted.values if name in found.values]
    pairs = [(name, wanted.values[name], found.values[name]) for name in both]
    return [
        *(difference(name, "is missing") for name in wanted.values if name not in found.values),
        *(difference(name, "is in the job's batches only") for name in found.values if name not in wanted.values),
        *(difference(name, _what(before, after)) for name, before, after in pairs if before != after),
    ]


def _what(wanted: ValueDigest, found: ValueDigest) -> str:
    kind = wanted.kind.removeprefix("torch.")
    if wanted.kind != found.kind:
        return f"{found.kind.removeprefix('torch.')} instead of {kind}"
    return f"{kind} of other values"


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
