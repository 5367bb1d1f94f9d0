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
    from tests.helpers.command import run

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


# Attributes whose rows lie along another dimension ---------------------------------------------------------------------------


class Turned(Data):
    """A graph with columns for nodes, and pairs of ids for edges, which PyG's loaders take columns of."""

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 1 if key == "by_node" else super().__cat_dim__(key, value, *args, **kwargs)


def turned() -> Turned:
    edges = torch.randint(0, 40, (2, 90), generator=torch.Generator().manual_seed(0))
    columns = torch.arange(80.0).view(2, 40)
    return Turned(
        edge_index=edges, x=torch.rand(40, 3), by_node=columns, pair_index=torch.arange(180).view(2, 90), face=edges[:, :7].repeat(2, 1)[:3]
    )


def check_columns(batch: Any, data: Data) -> None:
    assert batch.by_node.equal(data.by_node[:, batch.n_id]) and batch.by_node.is_contiguous()
    assert batch.pair_index.equal(data.pair_index[:, batch.e_id])


@pytest.mark.parametrize(
    "words", [{}, {"disjoint": True}, {"subgraph_type": "induced"}, {"sampler": gnnkit.Labor([2]), "num_neighbors": None}]
)
def test_rows_along_another_dimension_are_taken_as_pyg_takes_them(words: dict[str, Any], tmp_path: Path) -> None:
    data = turned()
    with pytest.warns(UserWarning, match=r"not data\.face$"):
        store = gnnkit.partition(data, 2, partition="random", out=tmp_path / "store")
    options: dict[str, Any] = {"num_neighbors": [2], "batch_size": 15, "progress": False, **words}
    with GraphLoader.from_pyg(data, **options) as made, GraphLoader.from_store(store, input_nodes=None, **options) as stored:
        for batch, same in zip(made, stored, strict=True):
            check_columns(batch, data)
            check_columns(same, data)
            assert batch.face.equal(data.face) and "face" not in same
    with pytest.raises(PlanError, match=r"by_node.* along the dimension 1"):
        GraphLoader.from_pyg(data, pad="bucket", **options)


@pytest.mark.slow
def test_rows_along_another_dimension_from_processes() -> None:
    with loader(turned(), backend=Colocated(1)) as made:
        for batch in made:
            check_columns(batch, turned())


def test_rows_along_another_dimension_in_loaders_of_pygs_names() -> None:
    data = turned()
    for batch in gnnkit.pyg.NeighborLoader(data, [2], batch_size=15):
        assert isinstance(batch, Turned)
        check_columns(batch, data)
    data.node, data.edge_number = torch.arange(40), torch.arange(90)
    for batch in gnnkit.pyg.ShaDowKHopSampler(data, 1, 2, batch_size=15):
        assert batch.by_node.equal(data.by_node[:, batch.node]) and batch.pair_index.equal(data.pair_index[:, batch.edge_number])


# Names that batches have -----------------------------------------------------------------------------------------------------

OWN_NAMES = ("n_id", "batch", "input_id", "seed_time", "seed_mask", "num_sampled_nodes", "e_id", "ptr", "batch_size")


def named() -> Data:
    data = Data(edge_index=turned().edge_index, x=torch.arange(40.0).view(-1, 1), ptr=torch.tensor([0, 20, 40]), batch_size=3)
    for place, name in enumerate(OWN_NAMES[:6]):
        data[name] = torch.arange(40) + 100 * place + 1000
    data.e_id = torch.arange(90) + 5000
    return data


@pytest.mark.parametrize("backend", [InProcess(1), pytest.param(Colocated(1), marks=pytest.mark.slow)], ids=["InProcess", "Colocated"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_what_a_batch_says_of_itself_is_its_own(backend: Any, disjoint: bool, tmp_path: Path) -> None:
    data = named()
    plain = Data(edge_index=data.edge_index, x=data.x)
    options: dict[str, Any] = {
        "disjoint": disjoint,
        "num_neighbors": [2, 2],
        "batch_size": 15,
        "backend": backend,
        "with_edge": True,
        "progress": False,
    }
    with pytest.warns(UserWarning, match=r"data\.ptr"):
        store = gnnkit.partition(data, 2, out=tmp_path / "store")
    with pytest.warns(UserWarning, match=r"'batch'.*'n_id'.*'graph_batch'.*'graph_n_id'"):
        stored = GraphLoader.from_store(store, input_nodes=None, **options)
    with pytest.warns(UserWarning, match=r"'ptr'.*'graph_ptr'"):
        made = GraphLoader.from_pyg(data, **options)
    with made, stored, GraphLoader.from_pyg(plain, **options) as expected:
        for batch, same, want in zip(made, stored, expected, strict=True):
            for found in (batch, same):
                for name, value in want:
                    assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value)), name
                for name in OWN_NAMES[:6]:
                    assert found[f"graph_{name}"].equal(data[name][want.n_id])
                assert found.graph_e_id.equal(data.e_id[want.e_id])
            assert batch.graph_ptr.equal(data.ptr) and batch.graph_batch_size == 3


def test_inference_reads_no_attribute_of_a_user() -> None:
    def mean(batch: Any) -> torch.Tensor:
        out = torch.zeros(batch.num_nodes, 1)
        return out.index_add_(0, batch.edge_index[1], batch.x[batch.edge_index[0]]) + 10 * batch.x

    plain = Data(edge_index=named().edge_index, x=named().x)
    own = Data(edge_index=plain.edge_index, x=plain.x, n_id=torch.arange(39, -1, -1))
    with pytest.warns(UserWarning, match="graph_n_id"):
        of_user = loader(own, input_nodes=None)
    with loader(plain, input_nodes=None) as first, of_user:
        want = np.asarray(first.inference([mean, mean]))
        np.testing.assert_array_equal(np.asarray(of_user.inference([mean, mean])), want)
    of_pyg = gnnkit.pyg.NeighborLoader(own, [2], batch_size=10)
    np.testing.assert_array_equal(np.asarray(of_pyg.graph_loader.inference([mean, mean])), want)


def test_loaders_of_pygs_names_keep_a_users_ids() -> None:
    data, seen = named(), []
    data.place = torch.arange(40)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for batch in gnnkit.pyg.NeighborLoader(data, [2], batch_size=15):
            assert batch.n_id.equal(data.n_id[batch.place]) and batch.batch.equal(data.batch[batch.place])
            assert batch.ptr.equal(data.ptr) and not any(name.startswith("graph_") for name in batch.keys())  # noqa: SIM118
            seen += batch.place[: batch.batch_size].tolist()
            assert batch.input_id.equal(batch.place[: batch.batch_size])
    assert seen == list(range(40)) and not said


# Zeros and ones --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.int32])
def test_a_mask_of_numbers_is_no_list_of_ids(dtype: torch.dtype) -> None:
    mask = (torch.arange(NUM_NODES) > 8).to(dtype)
    makers = (
        lambda value: loader(input_nodes=value),
        lambda value: loader(input_nodes=value.numpy()),
        lambda value: loader(input_nodes=("node", value.tolist())) if dtype == torch.int64 else loader(input_nodes=("node", value)),
        lambda value: loader().for_split(value),
        lambda value: loader(edge_dir="out").for_anchors(("node", "to", "node"), input_nodes=value),
        lambda value: gnnkit.pyg.NeighborLoader(ring(), [2], value),
        lambda value: gnnkit.pyg.ShaDowKHopSampler(ring(), 1, 2, value),
    )
    for make in makers:
        with pytest.raises(PlanError, match=r"zeros and ones(.*\n)*.*bool\(\)"):
            make(mask)
    with loader(input_nodes=[0, 1, 1, 0]) as made:  # a few ids, each of them twice
        assert made.peek().n_id[:4].tolist() == [0, 1, 1, 0]
    with pytest.raises(PlanError, match=r"one-dimensional(.*\n)*.*reshape\(-1\)"):
        loader(input_nodes=mask.bool()[:, None])


def test_bytes_and_masks_of_another_type_are_no_ids() -> None:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 30, 50
    data["user", "buys", "item"].edge_index = torch.randint(0, 30, (2, 60))
    for mask in (torch.arange(50) % 2, (torch.arange(7) % 2).to(torch.uint8)):
        with pytest.raises(PlanError, match=r"zeros and ones.*there are 30 nodes"):
            GraphLoader.from_pyg(data, input_nodes=("user", mask), num_neighbors=[2])


@pytest.mark.parametrize(
    "form", [lambda m: m.to(torch.uint8), lambda m: m.long(), lambda m: m.float(), lambda m: m[:, None], lambda m: m.numpy()]
)
def test_split_masks_of_any_dtype(form: Any, tmp_path: Path) -> None:
    data, mask = ring(), torch.arange(NUM_NODES) > 8
    data.train_mask = form(mask)
    store = gnnkit.partition(data, 1, out=tmp_path / "store")
    with loader(data, input_nodes="train") as made, GraphLoader.from_store(store, num_neighbors=[2], progress=False) as stored:
        assert [sorted(batch.n_id[: batch.batch_size].tolist()) for each in (made, stored) for batch in each] == [[9, 10, 11]] * 2
    data.train_mask = torch.arange(NUM_NODES)
    with pytest.raises(PlanError, match="no split 'train', and data.train_mask looks like one"):
        loader(data, input_nodes="train")


# As many nodes as edges ------------------------------------------------------------------------------------------------------


def test_what_is_asked_for_as_the_edges_is_theirs(tmp_path: Path) -> None:
    data = ring()
    data.weight = torch.rand(NUM_NODES) + 0.1
    with loader(data, weight="weight") as made:
        for batch in made:
            assert batch.weight.equal(data.weight[batch.e_id])
    assert gnnkit.partition(data, 1, out=tmp_path / "store", weight="weight").schema.edge_types["node", "to", "node"].arrays.keys() == {
        "weight"
    }
    assert (
        sum(len(batch.weight) == batch.num_edges for batch in gnnkit.pyg.NeighborLoader(data, [2], batch_size=4, weight_attr="weight")) == 3
    )
    data.edge_kind, data.node_kind, data.y = torch.arange(NUM_NODES), torch.arange(NUM_NODES), torch.arange(NUM_NODES)
    with loader(data, weight="weight") as made:  # nothing is unclear
        assert set(made.schema.node_types["node"].arrays) == {"x", "y", "node_kind"}


def test_what_is_unclear_is_said() -> None:
    data = ring()
    data.time = torch.arange(NUM_NODES)
    with pytest.warns(UserWarning, match=r"12 nodes and as many edges, and data\.time: taken as the nodes'"):
        loader(data, time_attr="time").close()


# Others ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_mapped_features_are_read_where_they_are(mode: Any, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((NUM_NODES, 4), np.float32)
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "edge_index.npy", ring().edge_index.numpy())
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode=mode) for name in ("x", "edge_index")}
    with loader(Data(num_nodes=NUM_NODES, **mapped)) as made:
        assert np.shares_memory(made.pipeline.graph.arrays.nodes["node"][0].arrays["x"], mapped["x"])
        for batch in made:
            np.testing.assert_array_equal(batch.x.numpy(), rows[batch.n_id])
    with loader(Data(num_nodes=NUM_NODES, x=rows[::-1], edge_index=ring().edge_index.numpy()[::-1].astype(">i8"))) as made:
        for batch in made:  # whatever the strides and the order of bytes
            np.testing.assert_array_equal(batch.x.numpy(), rows[::-1][batch.n_id])


def test_one_type_need_not_be_named() -> None:
    data = HeteroData()
    data["user"].num_nodes = 20
    data["user", "knows", "user"].edge_index = torch.randint(0, 20, (2, 60))
    with GraphLoader.from_pyg(data, num_neighbors=[2], batch_size=7, progress=False) as made:
        assert sorted(int(i) for batch in made for i in batch["user"].n_id[: batch["user"].batch_size]) == list(range(20))
        with made.for_split([3, 4]) as some, made.for_links(data["user", "knows", "user"].edge_index[:, :5]) as links:
            assert some.peek()["user"].n_id[:2].tolist() == [3, 4] and links.plan.inputs.input_type == ("user", "knows", "user")
