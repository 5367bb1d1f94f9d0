"""How often nodes are touched, and what caches of every size save, counted again in plain Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.loader.feature_cache import footprint
from tests.loader.graphs import make, plain, typed


def touched(batch: Any) -> Counter[tuple[str, int]]:
    """(node type, dataset id) of every row of features in a batch."""
    stores = {"node": batch} if not hasattr(batch, "node_types") else {t: batch[t] for t in batch.node_types}
    return Counter((node_type, int(i)) for node_type, store in stores.items() for i in store.n_id)


def epochs(loader: GraphLoader) -> list[Counter[tuple[str, int]]]:
    """The touches of two whole epochs."""
    return [sum((touched(batch) for batch in loader), Counter()) for _ in range(2)]


def check(found: Any, first: Counter[tuple[str, int]], second: Counter[tuple[str, int]]) -> None:
    """Its counts and its curve are those of the batches."""
    for counts, wanted in (found.touches, first), (found.touches_after, second):
        assert {(t, i): int(n) for t, own in counts.items() for i, n in enumerate(own) if n} == dict(wanted)
    row = found.feature_bytes
    everything = {(t, i) for t, own in found.touches.items() for i in range(len(own))}
    read = sum(row[t] * n for (t, _), n in second.items())
    for ranking, curve in (first, found.savings()), (second, found.best_savings()):
        assert curve.nbytes[0] == curve.saved[0] == 0 and curve.nbytes[-1] == found.all_feature_bytes and curve.saved[-1] == 1
        assert len(curve.nbytes) == max(ranking.values()) + 2
        for least in range(max(ranking.values()) + 1):
            cached = {node for node in everything if ranking[node] >= least}
            saved = sum(row[node[0]] * n for node, n in second.items() if node in cached)
            assert curve.saved_by(sum(row[t] for t, _ in cached)) == pytest.approx(saved / read)
    sizes = np.linspace(0, found.all_feature_bytes, 50)
    saved, best = ([curve.saved_by(size) for size in sizes] for curve in (found.savings(), found.best_savings()))
    assert all(np.diff(saved) >= -1e-12) and all(np.array(best) >= np.array(saved) - 1e-12)


@pytest.mark.parametrize("options", [{"shuffle": True, "seed": 3}, {"disjoint": True}], ids=str)
def test_whole_epochs(options: dict[str, Any]) -> None:
    with make(batch_size=20, **options) as loader:
        found = footprint(loader.pipeline)
        assert (found.num_batches, found.batches_of_epoch) == (5, 5) and found.feature_bytes == {"node": 32}
        assert loader.epoch == -1 and loader.stats().batches == 0
        check(found, *epochs(loader))
    with pytest.raises(LoaderClosed):
        footprint(loader.pipeline)


def test_typed_graphs_of_several_parts(tmp_path: Path) -> None:
    """Ids are the dataset's, and each type counts with the bytes of its rows."""
    data = typed()
    data["tag"].x = torch.rand(20, 9).half()
    store = gnnkit.partition(data, 3, "random", out=tmp_path / "store")
    with GraphLoader.from_store(
        store.path, input_nodes="paper", num_neighbors=[3, 2], batch_size=16, shuffle=True, progress=False, backend="inprocess"
    ) as loader:
        found = footprint(loader.pipeline, 4)
        assert found.feature_bytes == {"paper": 16, "tag": 18} and found.all_feature_bytes == 60 * 16 + 20 * 18
        check(found, *epochs(loader))


def test_some_batches_of_an_epoch() -> None:
    """Spread over it, and those of the second epoch between those of the first; progress is told."""
    data = plain(num_nodes=90)
    with make(data, batch_size=10, shuffle=False, num_neighbors=[0]) as loader:
        found = footprint(loader.pipeline, 3)
        assert np.flatnonzero(found.touches["node"]).tolist() == [*range(10), *range(30, 40), *range(60, 70)]
        assert np.flatnonzero(found.touches_after["node"]).tolist() == [*range(10, 20), *range(40, 50), *range(70, 80)]
        assert found.savings().saved_by(30 * 32) == 0 and found.best_savings().saved_by(30 * 32) == 1
        told = loader.history.stages[-1]
        assert (told.stage, told.state, told.done, told.total, told.unit) == ("footprint", "done", 6, 6, "batches")
        assert footprint(loader.pipeline).num_batches == 9
        for count in 0, 10, True, 2.0, "all":
            with pytest.raises(PlanError, match="num_batches must be a whole number from 1 to 9"):
                footprint(loader.pipeline, count)  # type: ignore[arg-type]
    with make(batch_size=200, drop_last=True) as loader, pytest.raises(PlanError, match="no batches to look at"):
        footprint(loader.pipeline)


def test_a_graph_without_features() -> None:
    data = plain()
    del data.x
    data.num_nodes = 100
    with make(data) as loader:
        found = footprint(loader.pipeline, 1)
    assert found.all_feature_bytes == 0 and found.touches["node"].sum() > 7
    assert found.savings().saved.tolist() == [0.0] * len(found.savings().saved)
