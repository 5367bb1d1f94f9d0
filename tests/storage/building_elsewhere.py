"""Run as a program: builds the store at the given path, but waits in the middle until the given file exists."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit import BuildOptions
from tests.helpers.graphs import ArraySource, random_source
from tests.storage.checks import build_store

DEADLINE_S = 60.0


class Gated(ArraySource):
    """A source whose edges come only once a file exists."""

    gate: Path

    def edge_chunks(self, edge_type: Any) -> Iterator[NDArray[np.int64]]:
        deadline = time.monotonic() + DEADLINE_S
        while not self.gate.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(self.gate)
            time.sleep(0.01)
        yield from super().edge_chunks(edge_type)


def main() -> None:
    """Builds what ``random_source`` gives for seed 21, in 2 parts."""
    source = random_source(np.random.default_rng(21), num_edge_types=1)
    source.__class__ = Gated
    source.gate = Path(sys.argv[2])  # type: ignore[attr-defined]
    build_store(source, Path(sys.argv[1]), BuildOptions(2))


if __name__ == "__main__":
    main()
