"""Features that are kept on the device: which, what they save, and batches that are the same with any of them."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnkit
from gnnkit import GraphLoader, InProcess, LoaderPlan
from gnnkit.errors import MemoryLimitError, PlanError
from gnnkit.loader import feature_cache
from gnnkit.loader.feature_cache import footprint, hottest
from gnnkit.sampling.cached import CachedNodes, as_words
from gnnkit.sampling.tables import address_of
from tests.backends.setups import run_script
from tests.helpers.batches import same
from tests.helpers.system import pretend_free_memory
from tests.loader.graphs import NUM_NODES, make, plain, typed

# Bytes of a row of features of ``plain()``.
ROW = 32


@cache
def expected() -> list[Any]:
    """Two epochs without a cache."""
    with make(shuffle=True, seed=3) as loader:
        return [*loader, *loader]


def compare(loader: GraphLoader, wanted: list[Any]) -> None:
    for batch, other in zip([*loader, *loader], wanted, strict=True):
        same(batch, other)


# Which rows ---------------------------------------------------------------------------------------------------------------


def test_the_hottest_come_first() -> None:
    """Compared with every node sorted by touches, type and id, and taken while one fits after the other."""
    rng = np.random.default_rng(4)
    touches = {name: rng.integers(0, 5, size).astype(np.int32) for name, size in (("a", 40), ("b", 25), ("c", 9))}
    row_nbytes = {"a": 8, "b": 20}
    for budget in (0, 7, 8, 50, 100, 333, 819, 820, 10**6):
        found, left = Counter[str](), budget
        wanted: dict[str, list[int]] = {"a": [], "b": []}
        for level in range(4, -1, -1):
            for name in "a", "b":
                for node in np.flatnonzero(touches[name] == level):
                    if row_nbytes[name] <= left:
                        left -= row_nbytes[name]
                        wanted[name].append(int(node))
            if any(touches[name][node] == level and node not in wanted[name] for name in wanted for node in range(len(touches[name]))):
                break
        found.update(name for name in wanted if wanted[name])
        chosen = hottest(touches, row_nbytes, budget)
        assert {name: ids.tolist() for name, ids in chosen.items()} == {name: sorted(wanted[name]) for name in found}, budget


@pytest.mark.parametrize("num_nodes", [1, 63, 64, 65, 1000])
def test_nodes_are_split_by_where_their_features_are(num_nodes: int) -> None:
    rng = np.random.default_rng(num_nodes)
    cached = np.flatnonzero(rng.random(num_nodes) < 0.4)
    nodes = CachedNodes(as_words(cached, num_nodes))
    ids = rng.integers(0, num_nodes, 300)
    slots, places, missing = nodes.split(address_of(ids), len(ids))
    place = {int(node): number for number, node in enumerate(cached)}
    assert slots.tolist() == [place.get(int(node), 0) for node in ids]
    assert places.tolist() == [number for number, node in enumerate(ids) if int(node) not in place]
    assert missing.tolist() == [int(node) for node in ids if int(node) not in place]


# Batches ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, 1, ROW, 700, NUM_NODES * ROW, "1GB"])
def test_budgets_of_every_size(budget: int | str) -> None:
    with make(shuffle=True, seed=3, device="cpu", feature_cache=budget) as loader:
        compare(loader, expected())
        stats, features = loader.stats(), sum(batch.x.nbytes for batch in expected()[len(expected()) // 2 :])
        assert stats.cached_nbytes == sum(record.cached_nbytes for record in loader.records.of_epoch(1))
        if budget in (0, 1):
            assert stats.cached_nbytes == 0
        elif budget in (ROW, 700):
            assert 0 < stats.cached_nbytes < features
        else:
            assert stats.cached_nbytes == features
        same(loader.sample([5, 2]), make(shuffle=True, seed=3).sample([5, 2]))
        same(loader.peek(), next(iter(loader)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int64, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    data = plain()
    data.x = (data.x * 9).to(dtype)
    with make(data) as reference, make(data, device="cpu", feature_cache=NUM_NODES * 4) as loader:
        for batch, wanted in zip(loader, reference, strict=True):
            same(batch, wanted)
        assert loader.stats().cached_nbytes


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    """Rows of no bytes have nothing to keep: with others they are left alone."""
    data = typed()
    data["tag"].x = torch.rand(20, *shape)
    options = {"input_nodes": "paper", "shuffle": True}
    with make(data, **options) as reference, make(data, device="cpu", feature_cache=400, **options) as loader:
        for batch, wanted in zip(loader, reference, strict=True):
            same(batch, wanted)


@pytest.mark.parametrize(
    "feature_dtype", ["quint8", "bfloat16", "quint4x2", "quint2x4", {"paper": {"dtype": "quint4x2", "whole": [2, 0]}, "tag": "quint2x4"}]
)
def test_stores_of_narrower_features(tmp_path: Path, feature_dtype: Any) -> None:
    """A byte of the budget holds as many more rows; numbers are shown on the device as they are shown here."""
    store = gnnkit.partition(typed(), 3, "random", out=tmp_path / "store", feature_dtype=feature_dtype)
    options: dict[str, Any] = {"input_nodes": "paper", "num_neighbors": [3, 2], "batch_size": 16, "progress": False, "backend": "inprocess"}
    with (
        GraphLoader.from_store(store.path, **options) as reference,
        GraphLoader.from_store(store.path, device="cpu", feature_cache=100, **options) as loader,
    ):
        for batch, wanted in zip(loader, reference, strict=True):
            same(batch, wanted)
        assert loader.stats().cached_nbytes > 0
        # Types share the budget by hotness: what is left of it is less than a row of either, or all rows are there.
        types = [(nodes.num_nodes, nodes.arrays["x"].row_nbytes) for nodes in store.schema.node_types.values() if "x" in nodes.arrays]
        most = min(100, sum(count * nbytes for count, nbytes in types))
        assert loader.pipeline.cache is not None and most - max(types)[1] < loader.pipeline.cache.nbytes <= most


def test_a_transform_sees_whole_batches() -> None:
    def double(batch: Any) -> Any:
        batch.x = 2 * batch.x
        return batch

    with make(transform=double) as reference, make(transform=double, device="cpu", feature_cache=700) as loader:
        for batch, wanted in zip(loader, reference, strict=True):
            same(batch, wanted)


def test_loaders_beside_it_share_it() -> None:
    """Of other inputs and kinds; and whoever wants none has none."""
    options: dict[str, Any] = {"device": "cpu", "feature_cache": 700}
    with make() as plainly, make(**options) as loader:
        for change in {}, {"num_neighbors": [4]}, {"disjoint": True}:
            with plainly.for_split("valid", **change) as reference, loader.for_split("valid", **change) as other:
                assert other.pipeline.cache is loader.pipeline.cache
                for batch, wanted in zip(other, reference, strict=True):
                    same(batch, wanted)
                assert other.stats().cached_nbytes
        with loader.for_split("valid", feature_cache=0) as without, loader.for_split("valid", feature_cache=ROW) as less:
            assert without.pipeline.cache is None and less.pipeline.cache is not None and less.pipeline.cache.nbytes == ROW
        assert loader.inference([lambda batch: batch.x], progress=False).array.tolist() == plain().x.tolist()


# What it saves ------------------------------------------------------------------------------------------------------------


def test_it_saves_what_the_picture_predicts() -> None:
    """The curve of ``plot_footprint``: of the epoch after the one that was measured, at every size of the cache."""
    with make(batch_size=20, shuffle=True, seed=8) as loader:
        found = footprint(loader.pipeline)
        wanted = [*loader, *loader]
    curve, read = found.savings(), sum(batch.x.nbytes for batch in wanted[len(wanted) // 2 :])
    for nbytes, saved in zip(curve.nbytes.tolist(), curve.saved.tolist(), strict=True):
        if nbytes:
            with make(batch_size=20, shuffle=True, seed=8, device="cpu", feature_cache=nbytes) as loader:
                list(loader)
                list(loader)
                assert loader.stats().cached_nbytes == pytest.approx(saved * read)


def test_fewer_bytes_travel() -> None:
    """A batch carries eight bytes more for each node whose features it brings, and four for others."""
    with make() as reference, make(device="cpu", feature_cache="1MB") as loader:
        whole, short = [reference.pipeline.stream.sample_now(0, 0), loader.pipeline.stream.sample_now(0, 0)]
        features = {field.key.name: field.nbytes for field in whole.layout.fields}["x"]
        assert short.layout.sizes()[2] == features and whole.layout.sizes()[2] == 0
        nodes = whole.layout.sizes()[0]
        assert sum(f.nbytes for f in short.layout.fields) == sum(f.nbytes for f in whole.layout.fields) - features + 4 * nodes
        assert [f.nbytes for f in short.layout.fields if f.key.name in ("x", ".missing")] == [0, 0]


# Plans and mistakes -------------------------------------------------------------------------------------------------------


def test_plans_say_how_much_and_not_what(tmp_path: Path) -> None:
    """A plan is opened with a device and without one; one for samplers says what they leave out."""
    store = gnnkit.partition(plain(), 2, "random", out=tmp_path / "store")
    with GraphLoader.from_store(
        store.path, num_neighbors=[3], batch_size=20, progress=False, backend=InProcess(1), device="cpu", feature_cache="1KB"
    ) as loader:
        text = json.dumps(loader.plan.to_json())
        assert loader.plan.runtime.feature_cache == 1024 and "cached" not in json.loads(text)
        loader.plan.save(tmp_path / "plan.json")
        wanted = list(loader)
        sent = LoaderPlan.from_json(json.loads(json.dumps({**loader.plan.to_json(), "cached": {}})))
        assert sent.cached == {}
    for device in None, "cpu":
        with GraphLoader.from_plan(tmp_path / "plan.json", device=device, progress=False) as planned:
            for batch, other in zip(planned, wanted, strict=True):
                same(batch, other)
            assert bool(planned.stats().cached_nbytes) == (device is not None)
            with planned.for_split("valid") as sibling:
                assert (sibling.pipeline.cache is None) == (device is None)
    with pytest.raises(PlanError, match="bits of cached nodes"):
        LoaderPlan.from_json({**json.loads(text), "cached": {"node": {"dtype": "<i8", "shape": [0], "data": "eJwDAAAAAAE="}}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_cache": 100}, "feature_cache=100 without a device"),
        ({"feature_cache": -1, "device": "cpu"}, "feature_cache must be a number of bytes or a size such as '4GB', got -1"),
        ({"feature_cache": "2 stone", "device": "cpu"}, "got '2 stone'"),
        ({"feature_cache": False, "device": "cpu"}, "got False"),
        ({"feature_cache": 0.5, "device": "cpu"}, "got 0.5"),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make(**options)


def test_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    data = plain()
    del data.x
    data.num_nodes = NUM_NODES
    with pytest.raises(PlanError, match="no node type has features 'x'"):
        make(data, device="cpu", feature_cache=100)
    with make(device="cpu", feature_cache=100) as loader:
        with pytest.raises(PlanError, match="batches from Glt"):
            feature_cache.check_cacheable(loader.pipeline.graph, {"kind": "Glt"})
        with pytest.raises(PlanError, match="put together on its device"):
            iter(loader.dist_loader)
        assert len(list(loader)) == len(loader), "it goes on"
    data = plain()
    data.x = torch.ones(NUM_NODES, 10_000)
    pretend_free_memory(monkeypatch, 2_000_000)  # for batches, and no more
    with pytest.raises(MemoryLimitError, match="take 4 MB, 2 MB are free on cpu"):
        make(data, num_neighbors=[1], batch_size=1, device="cpu", feature_cache=4_000_000)


# On a GPU -----------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("budget", [0, 700])
@pytest.mark.parametrize("feature_dtype", [None, "quint8", "bfloat16", "quint4x2", {"node": {"dtype": "quint2x4", "whole": [1]}}])
def test_cuda_batches_are_equal(tmp_path: Path, feature_dtype: Any, budget: int) -> None:
    """With batches held over two epochs and dropped at once; quantised rows are shown there as here, bit for bit."""
    store = gnnkit.partition(plain(), 2, "random", out=tmp_path / "store", feature_dtype=feature_dtype)
    options: dict[str, Any] = {"num_neighbors": [5, 5], "batch_size": 10, "shuffle": True, "progress": False, "backend": "inprocess"}
    with (
        GraphLoader.from_store(store.path, **options) as reference,
        GraphLoader.from_store(store.path, device="cuda", feature_cache=budget, **options) as loader,
    ):
        wanted = [*reference, *reference]
        held = [*loader, *loader]
        for batch, other in zip(held, wanted, strict=True):
            assert batch.x.is_cuda
            same(batch.cpu(), other)
        for number, batch in enumerate(loader):
            del held[:], batch
            assert number < len(loader)


@pytest.mark.gpu
def test_every_device_of_this_machine() -> None:
    """Batches, locked blocks and cached rows on each GPU; this thread's own current device stays the first."""
    with make(shuffle=True) as reference:
        wanted = list(reference)
    for index in range(torch.cuda.device_count()):
        with make(shuffle=True, device=f"cuda:{index}", feature_cache=700) as loader:
            assert loader.pipeline.cache is not None and all(rows.device.index == index for rows in loader.pipeline.cache.rows.values())
            for batch, other in zip(loader, wanted, strict=True):
                assert batch.x.device == torch.device("cuda", index)
                same(batch.cpu(), other)
    assert torch.cuda.current_device() == 0


_SECOND_DEVICE = """
import torch
from tests.loader.graphs import make

def is_used(index):
    return torch._C._cuda_hasPrimaryContext(index)

if __name__ == "__main__":
    for backend in "inprocess", "colocated":
        with make(device="cuda:1", feature_cache=700, backend=backend) as loader:
            assert len([batch.x.sum().item() for batch in loader]) == len(loader)
            assert is_used(1) and not is_used(0), backend
    print("only the second")
"""


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices; to enable: a machine with two")
def test_a_rank_leaves_the_other_devices_alone(tmp_path: Path) -> None:
    """Also the threads that lock pages, which have never said which device they use."""
    done = run_script(_SECOND_DEVICE, tmp_path, timeout_s=120)
    assert (done.stdout, done.returncode) == ("only the second\n", 0), done.stderr


@pytest.mark.gpu
def test_a_forgotten_loader_finishes_its_copies() -> None:
    """Nothing waits for the copy of a batch that was looked at ahead; its block is given back only after it."""
    data = plain(num_nodes=20_000, num_edges=100_000)
    with make(data, batch_size=2000) as reference:
        wanted = list(reference)
    for _ in range(5):
        loader = make(data, batch_size=2000, device="cuda", feature_cache=700)
        iterator = iter(loader)
        batch = next(iterator)
        loader.close()
        del loader, iterator
        same(batch.cpu(), wanted[0])


@pytest.mark.gpu
def test_a_cache_larger_than_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (90, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    with pytest.raises(MemoryLimitError, match="free on cuda:0"):
        make(device="cuda", feature_cache=100)
