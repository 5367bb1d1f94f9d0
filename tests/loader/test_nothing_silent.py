"""Mistakes that would pass without a word are errors, warnings, or what PyG does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import Colocated, GraphLoader, InProcess
from gnnkit.errors import GnnkitError, PlanError, SamplingError, StoreError

NUM_NODES = 12


def ring(num_nodes: int = NUM_NODES) -> Data:
    ids = torch.arange(num_nodes)
    return Data(edge_index=torch.stack([ids, (ids + 1) % num_nodes]), x=torch.rand(num_nodes, 3), num_nodes=num_nodes)


def loader(data: Data | None = None, **options: Any) -> GraphLoader:
    options = {"num_neighbors": [2], "batch_size": 4, "progress": False, "shuffle": False, **options}
    return GraphLoader.from_pyg(ring() if data is None else data, **options)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [InProcess(1), Colocated(1)], ids=["InProcess", "Colocated"])
def test_input_id_under_a_mask_is_the_position_in_the_mask(backend: Any, tmp_path: Path) -> None:
    """As in PyG: for a mask the ids of the nodes, for ids their positions among them; a plan keeps which of both it was."""
    ids = torch.tensor([1, 5, 6, 10])
    mask = torch.zeros(NUM_NODES, dtype=torch.bool)
    mask[ids] = True
    store = gnnkit.partition(ring(), 1, out=tmp_path / "store")
    for given, wanted in ((mask, ids), (mask.numpy(), ids), (ids, torch.arange(4))):
        options = {"num_neighbors": [1], "batch_size": 4, "shuffle": False, "progress": False}
        with GraphLoader.from_store(store.path, input_nodes=given, backend=backend, **options) as made:
            (batch,) = made
            assert torch.equal(batch.input_id, wanted) and torch.equal(batch.n_id[:4], ids)
            made.plan.save(tmp_path / "plan.json")
        with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
            assert torch.equal(next(iter(again)).input_id, wanted)


@pytest.mark.parametrize("name", ["shuffle", "drop_last", "replace", "disjoint", "with_edge"])
@pytest.mark.parametrize("value", ["False", "no", 1])
def test_flags_are_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(PlanError, match=f"{name} must be True.*got {value!r}"):
        loader(**{name: value})


def test_a_transform_that_raises_stop_iteration_does_not_end_the_epoch() -> None:
    def transform(batch: Data) -> Data:
        raise StopIteration

    with loader(transform=transform) as made:
        with pytest.raises(SamplingError, match="transform raised StopIteration"):
            list(made)
        with pytest.raises(SamplingError, match="transform raised StopIteration"):
            made.peek()


def test_features_that_require_gradients_are_told_of() -> None:
    data = ring()
    data.x.requires_grad_()
    with pytest.warns(UserWarning, match="x requires gradients, and batches carry its values alone") as warned, loader(data) as made:
        assert not next(iter(made)).x.requires_grad
    assert [warning.filename for warning in warned] == [__file__], "they point at the user's line"


@pytest.mark.parametrize("backend", ["inprocess", "colocated"])
def test_a_graph_that_is_changed_in_place_is_refused_wherever_it_is_sampled(backend: str) -> None:
    """Processes have copies, this one reads the user's memory: both give the values of when the loader was made, or an error."""
    data = ring()
    before = data.x.clone()
    with loader(data, backend=backend) as made:
        epoch = iter(made)
        first = next(epoch)
        assert first.x.equal(before[first.n_id])
        data.x += 1
        with pytest.raises(PlanError, match="has been changed in place"):
            next(epoch)
        for use in (lambda: next(iter(made)), made.peek, lambda: made.sample([0]), lambda: made.resume()):
            with pytest.raises(PlanError, match=r"data\.x has been changed in place since the loader was made"):
                use()
        with loader(data) as anew:
            second = next(iter(anew))
            assert second.x.equal(before[second.n_id] + 1)
        data.x = None  # another tensor in its place is the user's own affair
    typed = HeteroData()
    typed["a"].x, typed["a", "to", "a"].edge_index = before.clone(), data.edge_index
    with loader(typed, input_nodes="a") as made:
        typed["a"].x.zero_()
        with pytest.raises(PlanError, match=r"data\['a'\]\.x has been changed in place"):
            made.peek()


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.empty(NUM_NODES, 3, device="meta"), "on the device 'meta'"),
        (None, "quantised tensor.*dequantize"),
    ],
    ids=["meta", "quantised"],
)
def test_tensors_without_plain_values(x: torch.Tensor | None, says: str) -> None:
    data = ring()
    if x is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer torch warns of all quantised tensors
            x = torch.quantize_per_tensor(torch.rand(NUM_NODES, 3), 0.1, 0, torch.quint8)
    data.x = x
    with pytest.raises(PlanError, match=f"(?s)x is .*{says}"):
        loader(data)


@pytest.mark.parametrize(
    ("backend", "says"),
    [(InProcess, r"backend=InProcess is a class\n  -> .*InProcess\(\)"), (7, "backend=7 is no backend"), (object(), "is no backend")],
    ids=["class", "number", "object"],
)
def test_what_is_no_backend(backend: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        loader(backend=backend)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("edges.csv", "from_store"),
        (Path("edges.csv"), "from_store"),
        (nx.path_graph(3), "from_tables"),
        (ring(), "from_pyg"),
        ([1, 2], "GraphSource"),
    ],
    ids=["text", "path", "networkx", "pyg", "list"],
)
def test_what_is_no_source(source: Any, says: str) -> None:
    with pytest.raises(PlanError, match=r"from_source\(\) was given a .*, which is no source") as error:
        GraphLoader.from_source(source, progress=False)
    assert says in str(error.value.hint)


def test_the_store_of_another_graph_is_not_replaced(tmp_path: Path) -> None:
    small, large = ring(), ring(40)
    out = tmp_path / "store"
    gnnkit.partition(small, 1, out=out)
    with pytest.raises(StoreError, match=r"(?s)is the store of another graph.*overwrite=True"):
        gnnkit.partition(large, 1, out=out)
    assert gnnkit.Store.open(out).schema.num_nodes == NUM_NODES
    assert gnnkit.partition(small, 2, out=out).num_parts == 2, "the same graph cut anew takes its place"
    assert gnnkit.partition(large, 1, out=out, overwrite=True).schema.num_nodes == 40


def test_a_file_is_not_taken_for_a_dataset(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from gnnkit.cli.app import run

    file = tmp_path / "edges.csv"
    file.write_text("0,1\n")
    assert run(["info", str(file)]) != 0
    assert "neither a store nor the name of a dataset" in capfd.readouterr().err


def test_the_largest_fan_out_takes_all_neighbours() -> None:
    with loader(num_neighbors=[2**31 - 1]) as most, loader(num_neighbors=[-1]) as everything:
        for one, other in zip(most, everything, strict=True):
            assert np.array_equal(one.n_id, other.n_id) and torch.equal(one.edge_index, other.edge_index)


def test_cards_say_what_batches_start_from() -> None:
    with loader() as made, made.for_links(torch.tensor([[0, 1], [1, 2]]), neg_sampling="binary") as links:
        assert "links" in repr(links) and "links" in str(links), repr(links)
        assert "GraphLoader" in repr(made)


def test_errors_are_of_gnnkit() -> None:
    assert issubclass(PlanError, GnnkitError) and issubclass(PlanError, ValueError)
