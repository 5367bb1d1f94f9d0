"""Two lists of recorded batches side by side: equal, or which tensor of which batch is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gnnkit.export.recording import RecordedBatch
from gnnkit.loader.digest import ValueDigest


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
    """What came of comparing.

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
    """How one batch differs from what should have come.

    Args:
        wanted: What should have come.
        found: What has; None: nothing.
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
