"""Run as a program: does what its first argument says, a second time if it is interrupted, and tells how far it is.

Lines on standard output: ``<stage> <event>`` for every event, ``interrupted`` when a KeyboardInterrupt came through, ``done
<digest>`` at the end.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gnnkit import GraphLoader, InProcess
from gnnkit.datasets import products_like
from gnnkit.ui import progress
from tests.helpers.batches import digest


def say(text: str) -> None:
    """Writes a line in one piece, whatever else goes on."""
    os.write(1, f"{text}\n".encode())


class Recorder:
    """An event sink that passes on what happens."""

    def __call__(self, event: Any) -> None:
        say(f"{event.stage} {event.kind} {event.done > 0}")

    def close(self) -> None:
        """Nothing to close."""


def epoch_of(loader: GraphLoader) -> str:
    """An epoch's digest; the loader is closed."""
    with loader:
        return digest(list(loader))


def of_ogb(root: str) -> str:
    """Ingests a tree, or downloads it first."""
    return epoch_of(GraphLoader.from_ogb("ogbn-arxiv", root=root, num_neighbors=[3, 2], batch_size=64, num_parts=2))


def build(root: str) -> str:
    """Builds a store from a source whose edges cost nothing."""
    source = products_like(0.03)
    return epoch_of(GraphLoader.from_source(source, store_dir=root, num_neighbors=[3, 2], batch_size=1024, num_parts=4, partition="ldg"))


_kept: list[GraphLoader] = []


def epoch(_: str) -> str:
    """Waits for batches that take long; the second time, with the same loader, for the next epoch."""
    if not _kept:
        generator = torch.Generator().manual_seed(0)
        data = Data(x=torch.zeros(300_000, 64), edge_index=torch.randint(0, 300_000, (2, 9_000_000), generator=generator))
        loader = GraphLoader.from_pyg(
            data,
            input_nodes=torch.arange(4096),
            num_neighbors=[-1, -1, -1],
            batch_size=2048,
            shuffle=True,
            backend=InProcess(1),
            prefetch=0,
        )
        _kept.append(loader)
        say("waits")
    loader = _kept[0]
    seeds = torch.cat([batch.input_id for batch in loader])
    loader.close()
    return f"{loader.epoch} {torch.equal(seeds.sort().values, torch.arange(4096))}"


PHASES: dict[str, Callable[[str], str]] = {"ogb": of_ogb, "build": build, "epoch": epoch}


def main(phase: str, root: str) -> None:
    """Runs a phase, twice if need be."""
    # Interrupts come when a stage begins, which no drawing shows at once.
    progress.make_sink = lambda *args, **options: Recorder()  # type: ignore[assignment,return-value]
    while True:
        try:
            result = PHASES[phase](root)
        except KeyboardInterrupt:
            # Said from here: the next attempt begins at once, and with it an unfinished store.
            say(f"unfinished {[path.name for path in Path(root).glob('*.incomplete')]}")
            say("interrupted")
        else:
            break
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    say(f"threads {left}")
    say(f"done {result}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
