"""A batch that is held keeps its own memory, and not the ring that it came in."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnnkit
from gnnkit import Colocated, GraphLoader, GraphStore
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

NUM_NODES, WIDTH, NUM_LOADERS = 20_000, 128, 3
HUGE_PAGE = 2 << 20
BACKENDS = {"Colocated": Colocated(1), "GraphStore": GraphStore(num_servers=1)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose batches take some megabytes."""
    ids = torch.arange(NUM_NODES)
    edge_index = torch.cat([torch.stack([(ids + step) % NUM_NODES, ids]) for step in (1, 77, 3001)], dim=1)
    data = Data(edge_index=edge_index, x=torch.rand(NUM_NODES, WIDTH), num_nodes=NUM_NODES)
    return gnnkit.partition(data, 1, out=Path(tmp_path_factory.mktemp("held")) / "store").path


def rings() -> Iterator[int]:
    """Descriptors of this process that are rings."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:gnnkit-ring"):
                yield int(name)
        except OSError:
            continue


def memory_of(batch: Data) -> int:
    return sum(value.nbytes for value in batch.to_dict().values() if isinstance(value, torch.Tensor))


def given_back(seen: list[int], limit: float) -> bool:
    return sum(os.fstat(fd).st_blocks * 512 for fd in seen) <= limit


@pytest.mark.parametrize("kind", BACKENDS)
def test_batches_of_closed_loaders_keep_their_own_memory(kind: str, path: Path) -> None:
    held: list[tuple[Data, Any]] = []
    seen: list[int] = []
    try:
        for seed in range(NUM_LOADERS):
            before = set(rings())
            options = {"num_neighbors": [2], "batch_size": 3000, "backend": BACKENDS[kind], "input_nodes": None, "seed": seed}
            with GraphLoader.from_store(path, shuffle=True, progress=False, **options) as loader:
                batch = next(iter(loader))  # while the workers are at the next ones
                seen += [os.dup(fd) for fd in set(rings()) - before - set(seen)]
                held.append((batch, {name: value.clone() for name, value in batch.to_dict().items() if isinstance(value, torch.Tensor)}))
        assert len(seen) >= NUM_LOADERS, "each loader has a ring of its own"
        nbytes = [memory_of(batch) for batch, _ in held]
        assert min(nbytes) > 3 << 20
        limit = sum(1.1 * each + HUGE_PAGE for each in nbytes)
        # What a worker is in the middle of comes back when it has finished.
        assert wait_until(lambda: given_back(seen, limit))
        assert set(rings()) == set(seen), "no descriptor is left of a ring that was given up"
        for batch, copy in held:
            assert all(torch.equal(batch[name], value) for name, value in copy.items()), "what was handed out stays as it was"

        del batch, copy
        held.clear()
        gc.collect()
        assert wait_until(lambda: given_back(seen, len(seen) * HUGE_PAGE)), "and goes with the batch, but for the ring's last page"
    finally:
        for fd in seen:
            os.close(fd)
