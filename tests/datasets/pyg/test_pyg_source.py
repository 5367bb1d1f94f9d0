"""A user's Data or HeteroData as a source: what is carried, as what, and what is refused."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import gnnkit
from gnnkit.datasets import ArraySpec, GraphSchema, PyGSource, cora
from gnnkit.errors import DatasetError, PlanError

EDGE_TYPE = ("node", "to", "node")

EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 0]])
WRITES = ("author", "writes", "paper")


def small(**attributes: Any) -> Data:
    return Data(edge_index=EDGES, num_nodes=5, **attributes)


def typed() -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.arange(6.0).view(3, 2)
    data["paper"].train_mask = torch.tensor([True, False, True])
    data["paper"].language = "en"
    data["author"].num_nodes = 2
    data[WRITES].edge_index = torch.tensor([[0, 1, 1], [2, 2, 0]])
    data[WRITES].edge_attr = torch.arange(3.0)
    data[WRITES].unit = "pages"
    data.year = 2020
    return data


def test_cora() -> None:
    source = PyGSource(cora())
    schema = source.schema
    assert schema.is_homogeneous and (schema.num_nodes, schema.num_edges) == (2708, 10556)
    assert schema.node_types["node"].arrays == {
        "x": ArraySpec("float32", (1433,)),
        "y": ArraySpec("int64"),
        "train_mask": ArraySpec("bool"),
        "val_mask": ArraySpec("bool"),
        "test_mask": ArraySpec("bool"),
    }
    assert {name: len(ids) for name, ids in source.splits["node"].items()} == {"train": 140, "valid": 500, "test": 1000}
    np.testing.assert_array_equal(source.splits["node"]["test"], torch.where(cora().test_mask)[0].numpy())
    assert source.edges_are_cheap and source.notice is None and source.extra == {}
    chunks = list(source.edge_chunks(EDGE_TYPE))
    np.testing.assert_array_equal(np.concatenate(chunks, axis=1), cora().edge_index.numpy())


def test_levels_are_those_of_pyg() -> None:
    data = small(
        x=torch.rand(5, 3),
        pos=np.zeros((5, 2), np.float64),
        y=torch.arange(5),
        edge_attr=torch.rand(4, 2),
        edge_kind=torch.arange(4),
        time=torch.arange(4),
        u=torch.rand(1, 7),
        title="a graph",
        scalar=torch.tensor(3.0),
        names=["a", "b"],
    )
    source = PyGSource(data)
    tensors = [name for name in data.keys() if name not in ("edge_index", "num_nodes")]  # noqa: SIM118
    assert set(source.schema.node_types["node"].arrays) == {name for name in tensors if data.is_node_attr(name)}
    assert set(source.schema.edge_types[EDGE_TYPE].arrays) == {name for name in tensors if data.is_edge_attr(name)}
    assert set(source.extra) == {"u", "title", "scalar", "names"}
    assert source.extra["u"] is data.u


def test_as_many_nodes_as_edges() -> None:
    data = Data(edge_index=EDGES, num_nodes=4, x=torch.rand(4, 1), edge_attr=torch.rand(4, 1), y=torch.arange(4), edge_y=torch.arange(4))
    source = PyGSource(data)
    assert set(source.schema.node_types["node"].arrays) == {"x", "y"}
    assert set(source.schema.edge_types[EDGE_TYPE].arrays) == {"edge_attr", "edge_y"}
    assert [name for name in ("x", "y", "edge_attr", "edge_y") if data.is_node_attr(name)] == ["x", "y"]


def test_rows_lie_along_the_dimension_that_pyg_says() -> None:
    class Turned(Data):
        def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
            return 1 if key == "z" else super().__cat_dim__(key, value, *args, **kwargs)

    label_index, z = torch.zeros(2, 3, dtype=torch.long), torch.arange(10).view(2, 5)
    data = Turned(edge_index=EDGES, num_nodes=5, edge_label_index=label_index, n_index=torch.arange(5), z=z, pair_index=EDGES + 1)
    source = PyGSource(data)
    assert source.extra == {"edge_label_index": label_index} and source.left_out == ["data.edge_label_index"]
    nodes, edges = source.schema.node_types["node"].arrays, source.schema.edge_types[EDGE_TYPE].arrays
    assert {name: (spec.row_shape, spec.dim) for name, spec in nodes.items()} == {"n_index": ((), 0), "z": ((2,), 1)}
    assert {name: (spec.row_shape, spec.dim) for name, spec in edges.items()} == {"pair_index": ((2,), 1)}
    np.testing.assert_array_equal(source.node_array("node", "z"), z.t().numpy())
    assert GraphSchema.from_json(source.schema.to_json()) == source.schema


def test_nodes_without_features_or_edges() -> None:
    source = PyGSource(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=3))
    assert (source.schema.num_nodes, source.schema.num_edges) == (3, 0)
    assert list(source.edge_chunks(EDGE_TYPE)) == []
    assert source.splits == {}


def test_number_of_nodes_from_edges_keeps_the_warning_of_pyg() -> None:
    with pytest.warns(UserWarning, match="num_nodes"):
        source = PyGSource(Data(edge_index=EDGES))
    assert source.schema.num_nodes == 3


def test_typed_graph() -> None:
    source = PyGSource(typed())
    assert not source.schema.is_homogeneous
    assert {name: node.num_nodes for name, node in source.schema.node_types.items()} == {"author": 2, "paper": 3}
    assert source.schema.edge_types[WRITES].arrays == {"edge_attr": ArraySpec("float32")}
    assert source.splits.keys() == {"paper"}
    np.testing.assert_array_equal(source.splits["paper"]["train"], [0, 2])
    assert source.extra == {"year": 2020}
    assert source.type_extra == {"paper": {"language": "en"}, WRITES: {"unit": "pages"}}
    np.testing.assert_array_equal(np.concatenate(list(source.node_array_chunks("paper", "x"))), typed()["paper"].x.numpy())
    np.testing.assert_array_equal(np.concatenate(list(source.edge_array_chunks(WRITES, "edge_attr"))), [0, 1, 2])


def test_type_without_a_number_of_nodes() -> None:
    data = typed()
    del data["author"].num_nodes
    data["author"].language = "en"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PlanError, match="author.*unknown"):
            PyGSource(data)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool, torch.int32])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0], [1, 0]]).to(dtype)
    source = PyGSource(small(x=x))
    spec = source.schema.node_types["node"].arrays["x"]
    assert spec == ArraySpec(str(dtype).removeprefix("torch."), (2,))
    rows = source.node_array("node", "x")
    assert rows.dtype == spec.numpy_dtype
    restored = torch.from_numpy(rows)
    assert torch.equal(restored.view(torch.bfloat16) if dtype == torch.bfloat16 else restored, x)
    assert rows.ctypes.data == x.data_ptr(), "not copied"


def test_tensors_that_must_be_copied() -> None:
    wide = torch.rand(5, 6)
    parameter = torch.nn.Parameter(torch.rand(5, 2))
    frozen = np.arange(5.0)
    frozen.flags.writeable = False
    with pytest.warns(UserWarning, match=r"data\.z requires gradients"):
        source = PyGSource(small(x=wide[:, ::2], z=parameter, t=frozen))
    np.testing.assert_array_equal(source.node_array("node", "x"), wide[:, ::2].numpy())
    np.testing.assert_array_equal(source.node_array("node", "t"), frozen)
    assert source.node_array("node", "x").flags.c_contiguous
    assert source.node_array("node", "z").ctypes.data == parameter.data_ptr()


def test_looking_at_data_does_not_change_it() -> None:
    data = cora()
    before = {name: (value.data_ptr(), value.clone()) for name, value in data.to_dict().items()}
    PyGSource(data).fingerprint()
    assert data.to_dict().keys() == before.keys()
    assert all(data[name].data_ptr() == pointer and torch.equal(data[name], value) for name, (pointer, value) in before.items())


def test_fingerprint_is_of_content() -> None:
    def digest(**changes: Any) -> str:
        return PyGSource(small(**{"x": torch.zeros(5, 2), "edge_attr": torch.zeros(4), **changes})).fingerprint()

    reference = digest()
    assert digest() == reference
    moved = torch.zeros(5, 2)
    moved[4, 1] = 1e-30
    others = [
        digest(x=moved),
        digest(x=torch.zeros(5, 2, dtype=torch.float64)),
        digest(edge_attr=torch.tensor([0.0, 0, 0, 1])),
        digest(z=torch.zeros(5)),
        PyGSource(Data(edge_index=EDGES.flip(0), num_nodes=5, x=torch.zeros(5, 2), edge_attr=torch.zeros(4))).fingerprint(),
        PyGSource(Data(edge_index=EDGES, num_nodes=6, x=torch.zeros(6, 2), edge_attr=torch.zeros(4))).fingerprint(),
    ]
    assert len({reference, *others}) == 7
    assert digest(x=torch.zeros(2, 5).t()) == reference, "the layout in memory is not content"
    assert digest(x=torch.zeros(5, 0)) != reference


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        pytest.param(EDGES.float(), r"torch\.float32", id="float"),
        pytest.param(EDGES.to(torch.uint8), r"torch\.uint8", id="uint8"),
        pytest.param(EDGES.t(), r"\[4, 2\]", id="transposed"),
        pytest.param(EDGES[0], r"\[4\]", id="one row"),
        pytest.param(torch.zeros(3, 4, dtype=torch.long), r"\[3, 4\]", id="three rows"),
        pytest.param([[0, 1], [1, 0]], "list", id="list"),
        pytest.param(EDGES.to_sparse(), "dense", id="sparse"),
    ],
)
def test_bad_edge_index(edge_index: Any, message: str) -> None:
    data = Data(x=torch.rand(5, 2))
    data.edge_index = edge_index
    with pytest.raises(DatasetError, match=message):
        PyGSource(data)


@pytest.mark.parametrize(("row", "column", "value"), [(0, 1, 5), (1, 3, -1), (1, 0, 1 << 40)])
def test_ids_out_of_range(row: int, column: int, value: int) -> None:
    edges = EDGES.clone()
    edges[row, column] = value
    with pytest.raises(DatasetError, match=rf"edge_index\[{row}, {column}\] .* is {value}; 'node' has 5 nodes"):
        list(PyGSource(Data(edge_index=edges, num_nodes=5)).edge_chunks(EDGE_TYPE))


def test_int32_edge_index() -> None:
    (chunk,) = PyGSource(Data(edge_index=EDGES.int(), num_nodes=5)).edge_chunks(EDGE_TYPE)
    assert chunk.dtype == np.int64
    np.testing.assert_array_equal(chunk, EDGES.numpy())


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"x": torch.rand(4, 2)}, "data.x has 4 rows, but there are 5 nodes"),
        ({"x": torch.rand(6, 2)}, "data.x has 6 rows"),
        ({"train_mask": torch.ones(3, dtype=torch.bool)}, "train_mask has 3 rows"),
        ({"edge_attr": torch.rand(5, 2)}, "edge_attr has 5 rows, but there are 4 edges"),
        ({"edge_weight": torch.rand(1)}, "edge_weight has 1 rows"),
    ],
)
def test_wrong_number_of_rows(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        PyGSource(small(**attributes))


def test_edge_attr_before_edge_index_does_not_decide() -> None:
    with pytest.raises(DatasetError, match="edge_attr has 2 rows, but there are 4 edges"):
        PyGSource(Data(edge_attr=torch.rand(2), edge_index=EDGES, num_nodes=5))


def test_wrong_rows_in_a_typed_graph() -> None:
    data = typed()
    data["author"].x = torch.rand(3, 1)
    with pytest.raises(DatasetError, match=r"data\['author'\].x has 3 rows, but there are 2 nodes"):
        PyGSource(data)


@pytest.mark.parametrize("name", ["adj_t", "adj"])
def test_sparse_adjacency_is_refused(name: str) -> None:
    data = small()
    data[name] = torch.eye(5).to_sparse()
    with pytest.raises(PlanError, match=f"{name} holds the edges.*(\n.*)edge_index"):
        PyGSource(data)


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(PlanError, match="dense tensor, got torch.sparse_coo"):
        PyGSource(small(x=torch.eye(5).to_sparse()))
    with pytest.raises(PlanError, match="object"):
        PyGSource(small(names=np.array(list("abcde"), dtype=object)))
    lists: dict[str, Any] = {"x": [1, 2, 3, 4, 5], "name": list("abcde"), "pair": tuple("abcd"), "series": pd.Series(range(5))}
    for name, value in lists.items():
        what = rf"data\.{name} has a value for each node or edge and is a {type(value).__name__}"
        with pytest.raises(PlanError, match=rf"{what}(.*\n)*.*n_id"):
            PyGSource(small(**{name: value}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both are prototypes
        nested = torch.nested.nested_tensor([torch.rand(2)] * 5)
        masked = torch.masked.masked_tensor(torch.rand(5), torch.ones(5, dtype=torch.bool))
    for kind, value in {"nested": nested, "masked": masked}.items():
        with pytest.raises(PlanError, match=f"dense tensor, got .*{kind}"):
            PyGSource(small(z=value))
    with pytest.raises(PlanError, match="masked array"):
        PyGSource(small(z=np.ma.masked_array(np.zeros(5), mask=[0, 1, 0, 0, 0])))
    with pytest.raises(PlanError, match="edge_index is missing"):
        PyGSource(Data(x=torch.rand(3, 1)))
    with pytest.raises(PlanError, match="expected a torch_geometric"):
        PyGSource(EDGES)  # type: ignore[arg-type]


class OfMany(InMemoryDataset):  # type: ignore[misc]
    """A dataset of PyG's: of one graph, as Flickr, or of several, as TUDataset."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.data, self.slices = self.collate([small() for _ in range(count)])


class Ogbs(OfMany):
    """As ``PygNodePropPredDataset``."""

    name, original_root = "ogbn-arxiv", "dataset"
    get_idx_split = dict


class OgbsArrays:
    """As ``NodePropPredDataset``."""

    name, original_root = "ogbn-arxiv", "dataset"
    get_idx_split = dict

    def __getitem__(self, index: int) -> Any:
        return {"edge_index": EDGES.numpy(), "num_nodes": 5}, np.zeros((5, 1))


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (OfMany(1), r"dataset\[0\]$"),
        (OfMany(3), r"3 graphs: give one, such as dataset\[0\]"),
        (Ogbs(1), r"dataset\[0\]; or GraphLoader.from_ogb\('ogbn-arxiv', root='dataset'\)"),
        (OgbsArrays(), r"^it gives dicts of arrays; GraphLoader.from_ogb\('ogbn-arxiv', root='dataset'\)"),
        (OgbsArrays()[0], r"GraphLoader.from_ogb\(name\)"),
        ([small(), small(), small()], r"Batch.from_data_list\(graphs\) makes one of its 3 graphs"),
    ],
    ids=["one graph", "several", "OGB's", "OGB's arrays", "graph and labels", "list"],
)
def test_what_holds_graphs_says_where_the_graph_is(given: Any, advice: str) -> None:
    calls: list[Any] = [
        lambda: gnnkit.GraphLoader.from_pyg(given, num_neighbors=[2]),
        lambda: gnnkit.GraphLoader.from_pyg(given, num_neighbors=[2], edge_label_index=EDGES),
        lambda: gnnkit.partition(given, 2),
        lambda: gnnkit.GraphLoader.from_source(given, num_neighbors=[2]),
        lambda: gnnkit.pyg.NeighborLoader(given, [2]),
        lambda: gnnkit.pyg.LinkNeighborLoader(given, [2], edge_label_index=EDGES),
        lambda: gnnkit.pyg.NeighborSampler(given, [2]),
        lambda: gnnkit.pyg.ShaDowKHopSampler(given, 1, 2),
    ]
    for call in calls:
        with pytest.raises(PlanError) as caught:
            call()
        assert re.search(advice, caught.value.hint or "")


def test_unknown_names() -> None:
    source = PyGSource(typed())
    with pytest.raises(PlanError, match="did you mean 'x'|unknown array"):
        source.node_array("paper", "xx")
    with pytest.raises(PlanError, match="unknown node type 'papers'; did you mean 'paper'"):
        source.node_array_chunks("papers", "x")
    with pytest.raises(PlanError, match="unknown edge type"):
        next(source.edge_chunks(("author", "wrote", "paper")))
