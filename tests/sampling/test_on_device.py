"""What devices do beside batches, which the contract suite and the reference sampler compare: operations, memory, extremes."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data

import gnnkit
from gnnkit import GraphLoader, InProcess, OnDevice
from gnnkit.backends.on_device import WhereRoom
from gnnkit.errors import MemoryLimitError, PlanError, StoreError
from gnnkit.plan import NeighborSampling
from gnnkit.sampling.device import draws
from gnnkit.sampling.device.graph import DeviceAdjacency
from gnnkit.sampling.device.numbering import Counted, RootedNumbering, TableNumbering
from gnnkit.sampling.device.walk import DeviceWalker, _HopNodes
from tests import reference_sampler
from tests.helpers.batches import digest
from tests.helpers.machine import ROOT
from tests.helpers.system import pretend_free_memory
from tests.loader.graphs import make, plain, typed

CPU = torch.device("cpu")
# What has the host wait for a device: calls of users' and operations; and operations that make no kernel run.
_WAITS = ("tolist", "item", "cpu", "numpy", "__int__", "__index__", "__bool__", "__float__")
_ANSWERS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")
_VIEWS = ("view", "slice", "select", "unsqueeze", "expand", "t", "alias", "detach", "_unsafe_view", "as_strided", "split", "transpose")
_NO_KERNELS = (*_VIEWS, "unfold", "unbind", "empty", "lift_fresh")
# A hop along one edge type may take so many operations.
_MOST_OPERATIONS = 61


class Calls(TorchFunctionMode):
    """Counts the calls of a thread by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


class Counting(TorchDispatchMode):
    """Counts the operations of a thread by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.calls = Calls()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def kernels(self) -> int:
        """Operations but for views."""
        return sum(count for name, count in self.counts.items() if name not in _NO_KERNELS)

    @property
    def waits(self) -> list[str]:
        """What the host waited for the device for."""
        found = {name: self.counts[name] for name in _ANSWERS} | {name: self.calls.counts[name] for name in _WAITS}
        return [name for name, count in found.items() for _ in range(count)]


def operations(loader: GraphLoader, before: int = 1) -> Counting:
    """The operations of one batch, behind some others."""
    stream: Any = loader.pipeline.stream
    for number in range(before):
        stream.sample_now(0, number)
    with Counting() as counting, counting.calls:
        stream.sample_now(0, before)
    return counting


def test_operations_of_a_hop_are_few_and_the_host_waits_once() -> None:
    counted = []
    for hops in (1, 2, 3):
        with make(plain(), num_neighbors=[15] * hops, backend=OnDevice("cpu")) as loader:
            counted.append(operations(loader))
    assert [counting.waits for counting in counted] == [["tolist"] * hops for hops in (1, 2, 3)], "for one list of sizes a hop"
    assert counted[2].kernels - counted[1].kernels <= _MOST_OPERATIONS
    assert counted[0].kernels <= _MOST_OPERATIONS + 25, "seeds and rows"


def test_picks_cost_no_more_where_they_are_many() -> None:
    counted = []
    for fan_out in (4, 60):
        with make(plain(), num_neighbors=[fan_out], backend=OnDevice("cpu")) as loader:
            counted.append(operations(loader).kernels)
    assert counted[1] <= counted[0] + 12


def test_operations_of_typed_graphs() -> None:
    counted = []
    for hops in (2, 3):
        with make(typed(), num_neighbors=[2] * hops, input_nodes="paper", backend=OnDevice("cpu")) as loader:
            num_types = len(loader.schema.edge_types)
            counted.append(operations(loader))
    assert counted[1].waits == ["tolist"] * 3
    assert counted[1].kernels - counted[0].kernels <= _MOST_OPERATIONS * num_types


@pytest.mark.parametrize("data", [plain, typed])
def test_the_host_waits_once_a_batch_from_the_fourth_one_on(data: Callable[[], Any]) -> None:
    for hops in (1, 2, 3):
        options = {"input_nodes": "paper"} if data is typed else {}
        with make(data(), num_neighbors=[2] * hops, batch_size=16, shuffle=False, backend=OnDevice("cpu"), **options) as loader:
            assert operations(loader, 3).waits == ["tolist"]


@pytest.mark.parametrize("options", [{}, {"with_edge": True}, {"replace": True}, {"subgraph_type": "bidirectional"}])
def test_batches_that_take_more_than_there_is_room_for_are_walked_again(options: dict[str, Any]) -> None:
    """One neighbour each, then hubs: and the batches behind those have room again."""
    rng = np.random.default_rng(5)
    few, many = rng.integers(0, 900, 200), rng.integers(0, 900, 6000)
    targets = np.concatenate([np.arange(200), rng.integers(200, 400, 6000)])
    data = Data(edge_index=torch.from_numpy(np.stack([np.concatenate([few, many]), targets])), num_nodes=900)
    data.x = torch.rand(900, 3)
    inputs = torch.arange(400)
    wanted = {"input_nodes": inputs, "num_neighbors": [6, 5], "batch_size": 20, "shuffle": False, **options}
    with make(data, **wanted) as reference, make(data, backend=OnDevice("cpu"), **wanted) as loader:
        for _ in range(2):
            assert digest(list(loader)) == digest(list(reference))
            for size in (70, 1, 400):  # questions about more nodes than batches have, and about fewer
                asked = np.arange(size)
                assert digest([loader.sample(asked)]) == digest([reference.sample(asked)])


# Extremes -----------------------------------------------------------------------------------------------------------------------


def unsigned(values: torch.Tensor) -> list[int]:
    return [value & (1 << 64) - 1 for value in values.flatten().tolist()]


def test_integers_are_those_of_the_specification() -> None:
    rng = np.random.default_rng(3)
    values = torch.from_numpy(rng.integers(-(1 << 63), (1 << 63) - 1, 400))
    numbers = torch.from_numpy(np.concatenate([rng.integers(0, 1 << 31, 200), rng.integers(0, (1 << 63) - 1, 200)]))
    for key in (0, 1, (1 << 64) - 1, 0x9E3779B97F4A7C15):
        assert unsigned(draws.fold(key, values)) == [reference_sampler.fold(key, value) for value in unsigned(values)]
    steps = draws.Steps.of(400, CPU)
    assert unsigned(draws.draws(values, steps.addends)) == [reference_sampler.draw(value, i) for i, value in enumerate(unsigned(values))]
    for n, is_wide in ((numbers[:200], False), (numbers, True)):
        wanted = [reference_sampler.bounded(draw, count) for draw, count in zip(unsigned(values), n.tolist(), strict=False)]
        assert draws.bounded(values[: len(n)].clone(), n, is_wide=is_wide).tolist() == wanted
    for key in (0, 1, (1 << 64) - 1, 0x9E3779B97F4A7C15):
        own, wanted = torch.full((), draws.signed(key)), [reference_sampler.variate_of(key, node) for node in numbers.tolist()]
        assert draws.variates(own, numbers, is_wide=True).tolist() == wanted
        assert draws.variates(own, numbers[:200], is_wide=False).tolist() == wanted[:200]


def floyd(key: int, degree: int, count: int) -> list[int]:
    """Distinct picks as the specification says; the reference lists all edges first, which are too many here."""
    picks: list[int] = []
    for i in range(count):
        pick = reference_sampler.bounded(reference_sampler.draw(key, i), degree - count + i + 1)
        picks.append(degree - count + i if pick in picks else pick)
    return picks


@pytest.mark.parametrize("count", [1, 2, 5, 15, 64, 65, 100])
def test_distinct_picks_are_floyds(count: int) -> None:
    """From barely more edges than are picked up to more than 2^31 of one node."""
    degrees = [count + 1, count + 2, 2 * count, 1000 + count, (1 << 31) - 1, (1 << 31) + 7, (1 << 40) + 3]
    keys = [reference_sampler.fold(9, i) for i in range(40) for _ in degrees]
    key = torch.tensor([draws.signed(value) for value in keys])
    least = torch.tensor(degrees * 40) - count
    found = least[:, None] + draws.pick_distinct(key, least, draws.Steps.of(count, CPU), is_wide=True)
    assert found.tolist() == [floyd(own, d, count) for own, d in zip(keys, degrees * 40, strict=True)]


@pytest.mark.parametrize("count", [1, 3, 6])
def test_picks_by_weight_whatever_outweighs_the_rest(count: int) -> None:
    """Redrawn up to 32 times, and then drawn among the rest."""
    rng = np.random.default_rng(count)
    rows = [rng.integers(1, 9, 12), np.array([1 << 32, *[1] * 11]), np.array([1, *[1 << 32] * 2, *[1] * 9])]
    weights = [row.tolist() for row in rows * 30]
    keys = [reference_sampler.fold(5, i) for i in range(len(weights))]
    key, prefix = torch.tensor([draws.signed(value) for value in keys]), torch.tensor(weights).cumsum(1).flatten()
    begin = torch.arange(len(weights)) * 12
    edges = draws.WeightedEdges(prefix, begin, begin + 12, torch.zeros_like(begin), 4)
    wanted = [reference_sampler.choose(own, 12, count, False, row) for own, row in zip(keys, weights, strict=True)]
    assert draws.pick_weighted_distinct(key, edges, count).tolist() == wanted
    wanted = [reference_sampler.choose(own, 12, count, True, row) for own, row in zip(keys, weights, strict=True)]
    assert draws.pick_weighted(key, edges, draws.Steps.of(count, CPU)).tolist() == wanted


def test_ids_at_the_end_of_int32_are_numbered_with_their_roots() -> None:
    last = (1 << 31) - 1
    numbering = RootedNumbering(last + 1)
    numbering.begin(torch.tensor([last, 0]), torch.tensor([0, 1]))
    ids, roots = torch.tensor([last, last, 0, last, last + 1]), torch.tensor([1, 0, 0, 1, 0])
    assert numbering.meet(ids, roots).tolist() == [1, 1, 2, 2, 2]
    numbering.settle(ids[[0, 2]], roots[[0, 2]], torch.tensor([2, 3], dtype=torch.int32))
    assert numbering.find(ids, roots).tolist() == [2, 0, 3, 2, -1]


def test_a_broken_batch_leaves_no_numbers() -> None:
    numbering = TableNumbering(5, Counted(CPU))
    numbering.begin(torch.tensor([4, 2, 4]), None)
    assert numbering.find(torch.tensor([4, 2, 0]), None).tolist() == [0, 1, -1]
    numbering.begin(torch.tensor([1]), None)
    assert numbering.find(torch.arange(5), None).tolist() == [-1, 0, -1, -1, -1]


def test_more_than_two_to_the_31_edges() -> None:
    """Their places, without the memory: rows of an index that stands for itself."""
    degree = (1 << 31) + 5
    indptr = torch.tensor([0, degree, 2 * degree])
    edges = DeviceAdjacency(indptr, torch.zeros(1, dtype=torch.int32).expand(2 * degree + 1), rounds=32, is_wide=True)
    walker: Any = object.__new__(DeviceWalker)
    walker._device, walker._sampling, walker._steps, walker.counted = CPU, NeighborSampling({}), {}, Counted(CPU)
    nodes = torch.tensor([1, 0])
    frontier = _HopNodes(torch.arange(2, dtype=torch.int32), nodes, nodes, None)
    taken = walker._uniform(edges, frontier, *edges.ranges(nodes), 5, reference_sampler.fold(77, 0))
    walk = reference_sampler.fold(77, 0)
    keys = {v: reference_sampler.fold(walk, v) for v in (1, 0)}
    wanted = [v * degree + pick for v, key in keys.items() for pick in floyd(key, degree, 5)]
    assert taken.place.tolist() == wanted and max(wanted) > 1 << 31
    assert not edges.indices[taken.place].any()


def test_a_damaged_graph_is_refused() -> None:
    for indptr, indices in (([0, 2], [0, 9]), ([0, 3], [0, 0]), ([0, 2, 1], [0]), ([0, 1], [-1])):
        with pytest.raises(StoreError, match="leads to a node that does not exist"):
            DeviceAdjacency.of(torch.tensor(indptr), torch.tensor([*indices, 3]), 3)


# Loaders ------------------------------------------------------------------------------------------------------------------------


def test_a_device_without_room_is_refused_with_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    with make(plain()) as loader:
        pretend_free_memory(monkeypatch, 1000)
        with pytest.raises(MemoryLimitError, match=r"OnDevice\('cpu'\) needs .* MB of structure, .* MB of rows .* are free") as caught:
            loader.with_backend(OnDevice("cpu"))
    assert "feature_cache" in str(caught.value)


def test_the_device_holds_what_was_predicted() -> None:
    with make(plain(), backend=OnDevice("cpu")) as loader:
        stream: Any = loader.pipeline.stream
        graph = stream._place.graph
        next(iter(loader))
        details = loader.status().details
        tensors = [*stream._place.walker(None).tensors, *(t for own in graph._kept.values() for t in tensors_of(own))]
        assert details["device_bytes"] == sum(t.nbytes for t in tensors) > 0
        assert details["predicted_bytes"] == pytest.approx(details["device_bytes"], rel=0.05)
        with loader.for_split("valid") as other:
            assert other.pipeline.stream._place.graph is graph  # type: ignore[attr-defined]


def tensors_of(value: object) -> list[torch.Tensor]:
    return [own for own in vars(value).values() if isinstance(own, torch.Tensor)]


@pytest.mark.parametrize("feature_cache", [0, 500])
def test_memory_is_given_up_when_the_loader_is_closed(feature_cache: int) -> None:
    loader = make(plain(), backend=OnDevice("cpu"), feature_cache=feature_cache)
    stream: Any = loader.pipeline.stream
    batch = next(iter(loader))
    kept = [weakref.ref(own) for own in stream._place.graph._kept.values()]
    if loader.pipeline.cache is not None:
        kept += [weakref.ref(own) for own in loader.pipeline.cache.rows.values()]
    loader.close()
    assert kept and not any(own() is not None for own in kept), "with the loader's object there still"
    assert loader.status().details["device_bytes"] == 0 and loader.status().state == "closed"
    assert batch.x.isfinite().all()


def test_no_kernels_are_loaded_that_devices_have_no_use_for() -> None:
    """In a program that ends in the middle of an epoch, whose threads torch is at work for."""
    code = "loader = make(backend=OnDevice('cpu')); next(iter(loader)); print([stage.stage for stage in loader.history.stages])"
    program = f"from gnnkit import OnDevice; from tests.loader.graphs import make; {code}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "['device', 'epoch']\n", "and not 'compile'"


@pytest.mark.parametrize("room", ["all", "half", "none"])
def test_auto_takes_as_much_of_the_device_as_there_is(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = plain(2000, 2000)
    with make(data) as reference:
        free = 1 << 30
        pretend_free_memory(monkeypatch, lambda: free)
        needed = free - OnDevice("cpu").room(reference.plan, reference.pipeline.graph)
        free = {"all": needed, "half": needed - 20_000, "none": 20_000}[room]  # features are 64 kB, the structure 24 kB
        with pytest.warns(RuntimeWarning, match="has no room") if room == "none" else nullcontext():
            loader = reference.with_backend(WhereRoom("cpu"), device="cpu")
        free = 1 << 30  # for batches in memory
        with loader:
            assert loader.plan.backend["kind"] == ("InProcess" if room == "none" else "OnDevice")
            assert (0 < loader.plan.runtime.feature_cache < 64_000) == (room == "half")
            assert digest(list(loader)) == digest(list(reference))


def test_auto_has_kinds_that_devices_have_not_sampled_by_threads() -> None:
    with pytest.warns(RuntimeWarning, match="the plan's sampler is hgt"):
        make(plain(), num_neighbors=None, sampler=gnnkit.HGT([3]), backend=WhereRoom("cpu")).close()


def test_the_loaders_device_follows() -> None:
    with make(plain(), backend=OnDevice("cpu")) as loader:
        assert loader.pipeline.device == "cpu"
    with pytest.raises(PlanError, match="makes batches on 'cpu'"):
        make(plain(), backend=OnDevice("cpu"), device="meta")
    with pytest.raises(PlanError, match="unknown device 'gpu'"):
        make(plain(), backend=OnDevice("gpu"))


@pytest.mark.gpu
def test_a_graph_on_a_device_is_sampled_there() -> None:
    with make(plain()) as reference, make(plain().to("cuda"), backend="auto") as loader:
        assert isinstance(reference.pipeline.backend, InProcess) and loader.pipeline.backend == OnDevice("cuda:0")
        assert digest([batch.cpu() for batch in loader]) == digest(list(reference))
    with make(plain().to("cuda"), num_neighbors=None, sampler=gnnkit.HGT([3]), backend="auto") as loader:
        assert isinstance(loader.pipeline.backend, InProcess), "devices have no HGT"


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{"with_edge": True}, {"replace": True}, {"subgraph_type": "induced"}, {"num_neighbors": [-1, 2]}])
def test_cuda_batches_of_kinds_are_equal(options: dict[str, Any]) -> None:
    for data, inputs in ((plain(), {}), (typed(), {"input_nodes": "paper"})):
        own = {"num_neighbors": [4, 3, 2], "batch_size": 8, "shuffle": True, **inputs, **options}
        with make(data, **own) as reference, make(data, backend=OnDevice("cuda"), **own) as loader:
            for _ in range(3):
                assert digest([batch.cpu() for batch in loader]) == digest(list(reference))


@pytest.mark.gpu
@pytest.mark.parametrize("pad", [None, "bucket"])
@pytest.mark.parametrize("feature_cache", [0, 500])
def test_cuda_batches_are_equal(pad: str | None, feature_cache: int) -> None:
    options = {"shuffle": True, "pad": pad, "with_edge": True}
    with make(**options) as reference, make(backend=OnDevice("cuda"), feature_cache=feature_cache, **options) as loader:
        for _ in range(2):
            batches = list(loader)
            assert all(batch.x.is_cuda and batch.edge_index.is_cuda for batch in batches)
            assert digest([batch.cpu() for batch in batches]) == digest(list(reference))
