"""Records each rank's batches of an epoch, as digests in a file: ``gnnkit run`` with ``$GNNKIT_RECORD`` does so instead of training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gnnkit.errors import StoreError
from gnnkit.files import read_bounded, read_text
from gnnkit.loader.inspection import ValueDigest, value_digests
from gnnkit.loader.pipeline import Pipeline

VARIABLE = "GNNKIT_RECORD"
# A file of the folder that says how many steps each rank records, at most.
_LIMIT = "steps"
# What a rank's file is called while the rank writes it; how long it is says how far the rank is.
_UNFINISHED = ".unfinished"
# A line of digests is a few kilobytes, and an epoch has thousands of them.
_MOST_BYTES = 4 << 30


@dataclass(frozen=True)
class RecordedBatch:
    """One batch of one rank.

    Attributes:
        rank: Whose it was.
        step: Which of the rank's, from 0.
        batch_index: Its place in the epoch's list of batches, over all ranks.
        values: A digest of each attribute.
    """

    rank: int
    step: int
    batch_index: int
    values: dict[str, ValueDigest]


def record(loader: Pipeline, rank: int, folder: Path) -> None:
    """Iterates the loader's next epoch, and writes what came into a file of the folder, which is whole or not there.

    Args:
        loader: The rank's loader.
        rank: The rank.
        folder: A folder that every rank of this node can write to.
    """
    limit = folder / _LIMIT
    steps = int(read_text(limit)) if limit.exists() else None
    final = folder / f"rank-{rank}.jsonl"
    unfinished = final.with_name(final.name + _UNFINISHED)
    with unfinished.open("w") as file:
        for batch in recorded(loader, rank, steps):
            file.write(json.dumps([batch.rank, batch.step, batch.batch_index, batch.values]) + "\n")
            file.flush()
    unfinished.replace(final)


def recorder(folder: Path) -> Callable[[Any, Any], Any]:
    """A ``train(loader, ctx)`` that writes down what the batches of every rank are.

    Args:
        folder: See ``record``.
    """

    def train(loader: Any, ctx: Any) -> None:
        (folder / f"config-{ctx.rank}.json").write_text(json.dumps(dict(ctx.config)))
        record(loader.pipeline, ctx.rank, folder)

    return train


def read_configs(folder: Path) -> dict[int, Any]:
    """Reads the hyper-parameters that ranks were given: ``{rank: ctx.config}``."""
    return {int(file.stem.partition("-")[2]): json.loads(read_text(file)) for file in folder.glob("config-*.json")}


def recorded(loader: Pipeline, rank: int, steps: int | None = None) -> Iterator[RecordedBatch]:
    """Iterates the loader's next epoch, and digests each batch.

    Args:
        loader: A rank's loader.
        rank: The rank.
        steps: How many of its batches, at most; None: all.
    """
    schedule = loader.pipeline.schedule()
    for step, batch in enumerate(islice(loader, steps)):
        yield RecordedBatch(rank, step, schedule.step(step).batch_index, value_digests(batch))


def limit_steps(folder: Path, steps: int) -> None:
    """Has every rank that records into a folder stop after so many steps."""
    (folder / _LIMIT).write_text(str(steps))


def read_record(folder: Path, rank: int) -> list[RecordedBatch] | None:
    """Reads a rank's record; None where the rank did not finish it.

    Raises:
        StoreError: The file is no record.
    """
    file = folder / f"rank-{rank}.jsonl"
    if not file.exists():
        return None
    batches = []
    try:
        for line in read_text(file, _MOST_BYTES).splitlines():
            number, step, batch_index, values = json.loads(line)
            batches.append(RecordedBatch(number, step, batch_index, {name: ValueDigest(*value) for name, value in values.items()}))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{str(file)!r} is no record of a rank's batches: {error}") from error
    return batches


def count_recorded(folder: Path) -> int:
    """Batches that all ranks have written down so far."""
    return sum(read_bounded(file, _MOST_BYTES).count(b"\n") for file in folder.glob("rank-*.jsonl*"))
