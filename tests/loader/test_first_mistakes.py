"""What people try first and gnnkit does not do: each is answered by an error of gnnkit that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import gnnkit
import gnnkit.pyg as by_pyg
from gnnkit import GraphLoader, Saint
from gnnkit.errors import AttributeNotSettable, DatasetError, GnnkitError, PlanError, SettingMissing

NEXT = "-> batches = iter\\(loader\\), then next\\(batches\\)"


def graph(**more: Any) -> Data:
    ends = torch.arange(40)
    return Data(x=torch.randn(40, 3), edge_index=torch.stack([ends, (ends + 1) % 40]), **more)


def make(data: Data | None = None, **options: Any) -> GraphLoader:
    return GraphLoader.from_pyg(graph() if data is None else data, **{"num_neighbors": [2], "progress": False, **options})


def as_pyg() -> Any:
    return by_pyg.NeighborLoader(graph(), [2], batch_size=4)


def walks() -> Any:
    return by_pyg.Node2Vec(graph().edge_index, 8, walk_length=4, context_size=2)


EDGES = {"src": [0, 1, 2], "dst": [1, 2, 0]}
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "next of a loader": (lambda: next(make()), NEXT),  # type: ignore[call-overload]
    "next of PyG's": (lambda: next(as_pyg()), NEXT),
    "an item of PyG's": (lambda: as_pyg()[0], "no item 0.*\n.*loader\\(\\[0, 1\\]\\)"),
    "a wrong name to PyG's": (
        lambda: by_pyg.NeighborLoader(graph(), [2], batchsize=4),
        "unknown option 'batchsize'.*did you mean 'batch_size'",
    ),
    "a wrong name to walks": (lambda: walks().loader(batchsize=3), "unknown option 'batchsize'.*did you mean 'batch_size'"),
    "a wrong name to clusters": (
        lambda: by_pyg.ClusterLoader(by_pyg.ClusterData(graph(), 2, log=False), batchsize=3),
        "unknown option 'batchsize'.*did you mean 'batch_size'",
    ),
    "too few arguments of walks": (lambda: by_pyg.Node2Vec(graph()), "'embedding_dim'\n.*-> it is Node2Vec\\(edge_index, embedding_dim"),  # type: ignore[call-arg, arg-type]
    "a graph for its edges": (lambda: by_pyg.Node2Vec(graph(), 8, 4, 2), "-> give data.edge_index"),  # type: ignore[arg-type]
    "no length of walks": (lambda: by_pyg.GraphSAINTRandomWalkSampler(graph(), 4), "'walk_length'\n.*-> it is"),  # type: ignore[call-arg]
    "the base of samplers": (lambda: by_pyg.GraphSAINTSampler(graph(), 4), "-> GraphSAINTNodeSampler"),
    "no clusters to load": (lambda: by_pyg.ClusterLoader(), "'cluster_data'\n.*-> it is ClusterLoader\\(cluster_data"),  # type: ignore[call-arg]
    "a short mask": (
        lambda: make(input_nodes=torch.ones(5, dtype=torch.bool)),
        "mask of 5 elements.*\n.*-> a mask has an element for each node",
    ),
    "an id past the end": (lambda: make(input_nodes=[40]), "node 40.*\n.*-> ids are places of nodes in the graph, counted from 0"),
    "batches of none": (lambda: make(batch_size=0), "-> 1024"),
    "a way of roots": (lambda: Saint("walk"), "got 'walk'\n.*-> for example roots='walks'"),  # type: ignore[arg-type]
    "a number in quotes": (lambda: gnnkit.partition(graph(), "4"), "-> without quotes: num_parts=4"),  # type: ignore[arg-type]
    "a size without a unit": (lambda: make(memory_budget="256"), "has no unit\n.*-> '256GB', or '256B'"),
    "a table to partition": (lambda: gnnkit.partition(pd.DataFrame(EDGES), 2), "-> it is a table: GraphLoader.from_tables"),  # type: ignore[arg-type]
    "edges to partition": (lambda: gnnkit.partition(graph().edge_index, 2), "Data\\(edge_index=edge_index"),  # type: ignore[arg-type]
    "all nodes by a word": (lambda: make(input_nodes="all"), "no split 'all'\n.*-> input_nodes=None is all nodes"),
    "a link past the end": (lambda: make(edge_label_index=[[0], [40]]), "the target 40.*\n.*-> ids are places of nodes"),
    "labels of other links": (lambda: make(edge_label_index=[[0], [4]], edge_label=[1, 2]), "-> give edge_label for the same links"),
    "a rank too many": (lambda: make(rank=2, world_size=2), "-> ranks count from 0"),
    "a rank of how many": (lambda: make(rank=0), "-> for example rank=0, world_size=2"),
    "a way of placing": (lambda: make(placement="split"), "got 'split'\n.*-> 'partition' divides the parts"),  # type: ignore[arg-type]
    "numbers as categories": (
        lambda: gnnkit.tables(pd.DataFrame(EDGES), pd.DataFrame({"age": [0.5, 1.5, 2.5]}), one_hot="age"),
        "-> features= takes numbers",
    ),
    "a graph to serve": (lambda: gnnkit.serve(graph()), "-> store = gnnkit.partition\\(graph"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_first_mistake_is_answered_with_what_to_do(name: str) -> None:
    call, said = MISTAKES[name]
    with pytest.raises(GnnkitError, match=said):
        call()


@pytest.mark.parametrize("name", ["batch_size", "shuffle", "drop_last", "sampler", "batch_sampler", "dataset"])
def test_what_pygs_loaders_do_cannot_be_assigned(name: str) -> None:
    with pytest.raises(AttributeNotSettable, match=f"'{name}'.*\n.*-> make another loader"):
        setattr(as_pyg(), name, 3)


def test_a_name_that_there_is_not_is_answered_with_the_one_that_is_meant() -> None:
    for home, name, said in (
        (gnnkit, "Graphloader", "did you mean 'GraphLoader'"),
        (gnnkit, "NeighborLoader", "PyG's loaders are in gnnkit.pyg"),
        (gnnkit.datasets, "coraa", "did you mean 'cora'"),
    ):
        with pytest.raises(AttributeError, match=said):
            getattr(home, name)


def test_clusters_are_not_cut_for_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match="cannot be made: .*\n.*-> name a folder of yours"):
        by_pyg.ClusterData(graph(), 2, save_dir=str(tmp_path / "file/below"), log=True)
    assert "Computing" not in capsys.readouterr().err


def test_a_mask_or_a_split_of_no_node_is_said() -> None:
    nothing = torch.zeros(40, dtype=torch.bool)
    with pytest.warns(UserWarning, match="the mask of input_nodes has no node.*no batches"), make(input_nodes=nothing) as loader:
        assert len(loader) == 0
    with pytest.warns(UserWarning, match="the split 'train' has no node.*no batches"), make(graph(train_mask=nothing)) as loader:
        assert len(loader) == 0
    with make(input_nodes=[]) as loader:  # ids that a program has found
        assert len(loader) == 0


def test_a_hyper_parameter_that_the_job_does_not_have_is_named() -> None:
    def train(loader: GraphLoader, ctx: Any) -> Any:
        assert ctx.config.get("lr", 3) == 3 and "lr" not in ctx.config
        try:
            ctx.config["lr"]
        except KeyError:  # as a mapping's
            return ctx.config["lr"]

    for config, said in (({}, "the job has no hyper-parameters"), ({"lrs": 1}, "the job has lrs; did you mean 'lrs'?")):
        with make() as loader, pytest.raises(SettingMissing, match="--set lr=") as error:
            gnnkit.launch(train, loader, 1, config=config, progress=False).result()
        assert said in str(error.value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["3", "1,5", "2"], r"decimal=',' reads '1,5' in a file; of a data frame: table\['age'\].str.replace"),
        (["03.01.2026"] * 3, r"table\['age'\] = pandas.to_datetime\(table\['age'\], format='%d.%m.%Y'\)"),
        (["03/01/2026"] * 3, "format='%d/%m/%Y' or '%m/%d/%Y'"),
        (["3", "1.5", "2e3"], r"types=\{'age': 'double'\} reads '3' as a number"),
        (["2026-01-03"] * 3, r"types=\{'age': 'timestamp\[us\]'\} reads '2026-01-03'"),
    ],
)
def test_texts_of_numbers_and_dates_are_answered_with_a_way_that_works(texts: list[str], said: str, tmp_path: Path) -> None:
    table = pd.DataFrame({"age": texts})

    def read(table: pd.DataFrame, **options: Any) -> GraphLoader:
        return GraphLoader.from_tables(
            pd.DataFrame(EDGES), table, features=["age"], num_neighbors=[2], store_dir=tmp_path, progress=False, **options
        )

    for options in ({},) if "double" in said else ({}, {"types": {"age": "float"}}):
        with pytest.raises(DatasetError, match=said):
            read(table, **options)
    # What it says, done.
    if "decimal" in said:
        table["age"] = table["age"].str.replace(",", ".").astype(float)
    elif "types" in said:
        options = {"types": {"age": "double" if "double" in said else "timestamp[us]"}}
    else:
        table["age"] = pd.to_datetime(table["age"], format="%d.%m.%Y" if "." in texts[0] else "%d/%m/%Y")
    with read(table, **(options if "types" in said else {})) as loader:
        assert loader.num_features == 1


def test_edges_whose_ends_are_swapped_are_answered_with_where_each_is_looked_up(tmp_path: Path) -> None:
    buys = pd.DataFrame({"user": ["a", "b"], "item": ["x", "y"]})
    nodes = {"user": pd.DataFrame({"id": ["a", "b"]}), "item": pd.DataFrame({"id": ["x", "y"]})}
    options: dict[str, Any] = {
        "keys": {"user": "id", "item": "id"},
        "num_neighbors": [2],
        "input_nodes": "user",
        "store_dir": tmp_path,
        "progress": False,
    }
    with pytest.raises(DatasetError, match=r"'user' has 'item' and 'item' 'user'.*swap src= and dst="):
        GraphLoader.from_tables({("user", "buys", "item"): buys}, nodes, src="item", dst="user", **options)
    with GraphLoader.from_tables({("user", "buys", "item"): buys}, nodes, src="user", dst="item", **options) as loader:
        assert len(loader) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("from_networkx", "takes a NetworkX graph"),
        ("from_pandas", "takes data frames"),
        ("from_csv", "from_tables('edges.csv'"),
        ("from_dgl", "from_pyg(torch_geometric.utils.from_dgl(graph)"),
    ],
)
def test_constructors_of_other_libraries(name: str, says: str) -> None:
    assert not hasattr(gnnkit.GraphLoader, name) and not hasattr(gnnkit.GraphLoader, "no_such_thing")
    with pytest.raises(AttributeError) as told:
        getattr(gnnkit.GraphLoader, name)
    assert says in str(told.value)


def test_what_loaders_have_and_have_not(tmp_path: Path) -> None:
    data = gnnkit.datasets.cora()
    with gnnkit.GraphLoader.from_pyg(data, num_neighbors=[2], progress=False) as loader:
        assert (loader.num_nodes, loader.num_edges) == (data.num_nodes, data.num_edges)
        assert not hasattr(loader, "store") and not hasattr(loader, "dataset")
        with pytest.raises(PlanError, match="only in memory"):
            loader.store.keys("node")
        with pytest.raises(PlanError, match="loader.plan.inputs"):
            len(loader.dataset)
    store = gnnkit.partition(data, 1, out=tmp_path / "store")
    with gnnkit.GraphLoader.from_store(store, num_neighbors=[2], progress=False) as loader:
        assert loader.store.path == store.path and loader.num_nodes == data.num_nodes


@pytest.mark.parametrize(
    ("word", "meant"), [("processes", "colocated"), ("multiprocessing", "colocated"), ("threads", "inprocess"), ("servers", "graph_store")]
)
def test_backends_by_other_words(word: str, meant: str) -> None:
    with pytest.raises(PlanError, match=f"did you mean '{meant}'"):
        gnnkit.GraphLoader.from_pyg(gnnkit.datasets.cora(), num_neighbors=[2], backend=word, progress=False)
