"""Calls that are no calls, and values of the wrong kind that people give: errors of gnnkit, each with what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import Colocated, GraphLoader, GraphStore, InProcess
from gnnkit.errors import PlanError

_ALL = [getattr(home, name) for home in (gnnkit, gnnkit.datasets) for name in home.__all__]
_CALLED = [each for each in _ALL if (inspect.isclass(each) or inspect.isfunction(each)) and not getattr(each, "_is_protocol", False)]
PUBLIC = [each for each in _CALLED if inspect.signature(each).parameters]
METHODS = [name for name, member in inspect.getmembers(GraphLoader) if not name.startswith("_") and callable(member)]


def plain() -> Data:
    count = 60
    ends = torch.randint(0, count, (2, 300), generator=torch.Generator().manual_seed(0))
    data = Data(x=torch.randn(count, 4), edge_index=ends, y=torch.arange(count) % 3, time=torch.arange(count))
    data.train_mask = torch.arange(count) < 30
    return data


def typed() -> HeteroData:
    data = HeteroData()
    data["user"].x, data["item"].x = torch.randn(10, 3), torch.randn(12, 3)
    data["user", "buys", "item"].edge_index = torch.randint(0, 10, (2, 40))
    data["item", "rev_buys", "user"].edge_index = torch.randint(0, 10, (2, 40))
    return data


def loader(data: Any = None, **options: Any) -> GraphLoader:
    return GraphLoader.from_pyg(plain() if data is None else data, **{"num_neighbors": [3], "progress": False, **options})


@pytest.fixture(scope="module")
def made() -> Any:
    with loader(batch_size=8) as found:
        yield found


@pytest.mark.parametrize("public", PUBLIC, ids=lambda each: each.__name__)
def test_everything_public_answers_an_argument_that_there_is_not(public: Any) -> None:
    """No bare TypeError, whatever it is: a function, a backend, a sampler, a class."""
    with pytest.raises(PlanError):
        public(not_an_argument=1)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_a_loader_answers_an_argument_that_there_is_not(name: str, made: GraphLoader) -> None:
    method = getattr(made, name)
    needed = [
        None for each in inspect.signature(method).parameters.values() if each.default is each.empty and each.kind < each.VAR_POSITIONAL
    ]
    with pytest.raises(PlanError):
        method(*needed, not_an_argument=1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda made: GraphLoader(plain(), num_neighbors=[3]), ["GraphLoader()", "from_pyg(data, ...)"]),  # type: ignore[call-arg]
        (lambda made: GraphLoader(plain(), [3], 8), ["opens a plan", "from_pyg(data, ...)"]),  # type: ignore[arg-type]
        (lambda made: next(iter(DataLoader(made))), ["without a DataLoader"]),
        (lambda made: made[0], ["no item 0", "for batch in loader", "loader.peek()"]),
        (lambda made: gnnkit.check_leakage(made), ["no batch", "loader.check_leakage()"]),
        (lambda made: Colocated(workers=3), ["'workers'", "did you mean 'num_workers'"]),  # type: ignore[call-arg]
        (lambda made: GraphStore(workers=3), ["'workers_per_server'"]),  # type: ignore[call-arg]
        (lambda made: InProcess(threads=3), ["did you mean 'num_threads'"]),  # type: ignore[call-arg]
        (lambda made: gnnkit.HGT(), ["num_samples"]),  # type: ignore[call-arg]
        (lambda made: gnnkit.set_options(progres=False), ["did you mean 'progress'"]),  # type: ignore[call-arg]
        (lambda made: gnnkit.split_links(made), ["a GraphLoader is given", "loader.store"]),
        (lambda made: gnnkit.split_nodes(100, train=0.8), ["'train'", "what valid= and test= leave"]),  # type: ignore[call-arg]
        (lambda made: gnnkit.split_links(100, train=0.8), ["'train'", "what valid= and test= leave"]),  # type: ignore[call-arg]
        (lambda made: made.peek(3), ["peek() cannot be called", "it is peek()"]),
        (lambda made: loader(batch_timeout_s=None), ["batch_timeout_s must be a number, got None"]),
        (lambda made: loader(start_timeout_s="5"), ["start_timeout_s must be a number, got '5'"]),
        (lambda made: loader(seed_weights=0.5, input_nodes=plain().train_mask), ["seed_weights", "one number for each"]),
        (lambda made: loader(time_window=np.timedelta64(3, "D"), time_attr="time"), ["time_window", "'timedelta64[s]'"]),
        (lambda made: loader(prefetch=np.timedelta64(3, "D")), ["prefetch must be a whole number"]),
        (lambda made: made.sample(["C1"]), ["texts such as 'C1'", "store.keys(node_type).ids"]),
        (lambda made: made.sample(5), ["input_nodes of sample() must be several", "[5] is one of them"]),
        (lambda made: loader(typed(), num_neighbors={"buys": [3]}, input_nodes="user"), ["did you mean ('user', 'buys', 'item')"]),
        (lambda made: loader(typed(), edge_label_index="buys"), ["did you mean ('user', 'buys', 'item')"]),
        (lambda made: loader(typed(), edge_label_index=("user", "item")), ["('user', 'buys', 'item')"]),
        (lambda made: loader(typed(), edge_label_index="user__buys__item"), ["did you mean ('user', 'buys', 'item')"]),
        (lambda made: loader(typed(), input_nodes="user").for_anchors(("user", "item")), ["('user', 'item')"]),  # type: ignore[arg-type]
        (lambda made: gnnkit.add_label_edges(typed(), {"buys": [[1], [2]]}), ["(source type, relation, target type)"]),  # type: ignore[dict-item]
        (lambda made: loader(plain().update({"y": torch.rand(60)})).num_classes, ["float32", "one output", "long()"]),
        (lambda made: loader(undirected=True), ["'undirected'", "ToUndirected"]),
        (lambda made: loader(memory_budget="2 GigaBytes"), ["memory_budget must be a number of bytes or a size such as '4GB'"]),
        (lambda made: loader(batchsize=3), ["did you mean 'batch_size'"]),
    ],
)
def test_what_a_mistake_is_answered_with(call: Callable[[GraphLoader], Any], says: list[str], made: GraphLoader) -> None:
    with pytest.raises(PlanError) as error:
        call(made)
    assert [text for text in says if text not in str(error.value)] == [], str(error.value)


@pytest.mark.parametrize("name", ["prefetch", "batch_size", "seed"])
def test_numbers_of_numpy_are_numbers(name: str) -> None:
    with loader(**{name: np.int64(3)}) as found:
        assert len(list(found)) == len(found)
    assert InProcess(num_threads=np.int32(3)).num_threads == 3
    assert Colocated(num_workers=np.array(3)).num_workers == 3  # type: ignore[arg-type]
    for wrong in (np.float64(2.5), True, np.bool_(True), "3"):
        with pytest.raises(PlanError, match=name):
            loader(**{name: wrong})


@pytest.mark.parametrize(
    ("size", "nbytes"), [("2GB", 2 << 30), ("1.5 mb", 3 << 19), ("64KiB", 1 << 16), ("7B", 7), (0, 0), (np.int64(5), 5)]
)
def test_sizes_are_sizes(size: Any, nbytes: int) -> None:
    with loader(memory_budget=size) as found:
        assert found.plan.runtime.memory_budget == nbytes


def test_a_split_is_shown_in_a_line() -> None:
    assert repr(gnnkit.split_nodes(100_000)) == "Split(train=80,000 ids, valid=10,000 ids, test=10,000 ids)"
