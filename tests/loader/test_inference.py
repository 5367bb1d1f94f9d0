"""Inference over the whole graph: equal to the model's own forward pass, on disk as a whole or not at all, in bounded memory."""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv
from torch_geometric.transforms import ToUndirected

from gnnkit import BuildOptions, Colocated, GraphLoader, GraphStore, InProcess
from gnnkit.datasets import PyGSource, cora
from gnnkit.errors import LoaderClosed, PlanError, StoreError
from gnnkit.loader.inference import infer
from tests.helpers.graphs import stored
from tests.loader.graphs import NUM_NODES, make, plain, typed

pytestmark = pytest.mark.usefixtures("one_torch_thread")
EVERYWHERE = pytest.mark.parametrize("backend", [InProcess(2), Colocated(1), GraphStore(1)], ids=["InProcess", "Colocated", "GraphStore"])


class Sage(nn.Module):
    """Two layers of GraphSAGE, and the same as functions of a batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = SAGEConv(width, 16), SAGEConv(16, 5)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.second(self.first(x, edge_index).relu(), edge_index)

    @property
    def layers(self) -> list[Callable[[Any], Any]]:
        return [
            lambda batch: self.first((batch.x, batch.x[: batch.batch_size]), batch.edge_index).relu(),
            lambda batch: self.second(batch.x, batch.edge_index),
        ]


class Hetero(nn.Module):
    """Two layers over the graph ``typed()`` made undirected; the second one has nothing for "tag"."""

    def __init__(self, edge_types: list[Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 6)
        self.first = HeteroConv({edge_type: SAGEConv((-1, -1), 8) for edge_type in edge_types})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that "tag" has nothing
            self.second = HeteroConv({t: GATConv((-1, -1), 3, add_self_loops=False) for t in edge_types if t[2] == "paper"})

    def forward(self, data: Any) -> dict[str, Any]:
        x = {"paper": data["paper"].x, "tag": self.embedding.weight}
        x = {key: value.relu() for key, value in self.first(x, data.edge_index_dict).items()}
        return self.second(x, data.edge_index_dict)

    @property
    def layers(self) -> list[Callable[[Any], Any]]:
        def first(batch: Any) -> Any:
            x = {"paper": batch["paper"].x, "tag": self.embedding(batch["tag"].n_id)}
            return {key: value.relu() for key, value in self.first(x, batch.edge_index_dict).items()}

        return [first, lambda batch: self.second(batch.x_dict, batch.edge_index_dict)]


def hetero() -> tuple[HeteroData, Hetero]:
    data = ToUndirected()(typed())
    return data, Hetero(list(data.edge_types))


def forward(model: nn.Module, *arguments: Any) -> Any:
    with torch.no_grad():
        return model(*arguments)


def close(mine: Any, theirs: torch.Tensor) -> None:
    np.testing.assert_allclose(np.asarray(mine), theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_cora_equals_the_whole_forward_pass(tmp_path: Path) -> None:
    data = cora()
    sage, gat = Sage(data.num_features), GATConv(5, 4, heads=2)
    expected = forward(sage, data.x, data.edge_index)
    with GraphLoader.from_pyg(data, input_nodes=data.train_mask, num_neighbors=[3, 2], batch_size=500, progress=False) as loader:
        found = loader.inference(
            [*sage.layers, lambda batch: gat(batch.x, batch.edge_index)], tmp_path / "out", keep_layers=True, progress=False
        )
    close(np.load(found.path / "layer2" / "node.npy"), expected)
    close(found, forward(gat, expected, data.edge_index))
    assert found.array.shape == (2708, 8) and found.array.dtype == np.float32 and not found.array.flags.writeable


@pytest.mark.slow
@EVERYWHERE
def test_every_backend_and_both_kinds_of_graph(backend: Any) -> None:
    data = plain()
    model = Sage(8)
    with make(data, backend=backend) as loader:
        iterator = iter(loader)
        first = next(iterator)
        found = loader.inference(model.layers, batch_size=33, progress=False)
        close(found, forward(model, data.x, data.edge_index))
        # The loader itself goes on where it was.
        assert len(list(iterator)) == len(loader) - 1 and loader.epoch == 0 and first.batch_size == 7
    typed_data, typed_model = hetero()
    expected = forward(typed_model, typed_data)
    with make(typed_data, backend=backend, input_nodes="paper") as loader:
        found = loader.inference(typed_model.layers, progress=False)
        assert list(found) == list(expected) == ["paper"]
        close(found["paper"], expected["paper"])


def test_a_store_in_parts_gives_rows_in_the_datasets_order(tmp_path: Path) -> None:
    data, model = hetero()
    store = stored(PyGSource(data), tmp_path / "store", BuildOptions(3, "random"))
    with GraphLoader.from_store(store.path, input_nodes="paper", num_neighbors=[1], batch_size=9, progress=False) as loader:
        close(loader.inference(model.layers, progress=False)["paper"], forward(model, data)["paper"])
        both = loader.inference(model.layers[:1], progress=False)
        assert set(both) == {"paper", "tag"} and len(both) == 2 and both["tag"].shape == (20, 8)
        with pytest.raises(PlanError, match="several node types"):
            assert both.array is None


def test_input_nodes_are_the_rows_of_the_last_layer() -> None:
    data, model = plain(), Sage(8)
    expected = forward(model, data.x, data.edge_index)
    with make(data) as loader:
        for input_nodes, ids in (([7, 3, 3, 99], [7, 3, 3, 99]), (data.val_mask, data.val_mask), ("valid", data.val_mask)):
            close(loader.inference(model.layers, input_nodes=input_nodes, batch_size=3, progress=False), expected[ids])
        assert loader.inference(model.layers, input_nodes=[], progress=False).array.shape == (0, 5)
        with pytest.raises(PlanError, match="there is no split 'tran'"):
            loader.inference(model.layers, input_nodes="tran", progress=False)
    with make(data, rank=1, world_size=2) as loader:  # one process's work, whichever it is
        close(loader.inference(model.layers, batch_size=3, progress=False), expected)
    typed_data, typed_model = hetero()
    with make(typed_data, input_nodes="paper") as loader:
        found = loader.inference(typed_model.layers, input_nodes=("paper", [5, 1]), progress=False)
        close(found["paper"], forward(typed_model, typed_data)["paper"][[5, 1]])
        found = loader.inference(typed_model.layers[:1], input_nodes=("tag", None), progress=False)
        assert list(found) == ["tag"]


def test_along_out_edges_and_without_types_that_are_left_out() -> None:
    data, model = plain(), Sage(8)
    with make(data, edge_dir="out") as loader:
        close(loader.inference(model.layers, progress=False), forward(model, data.x, data.edge_index.flip(0)))
    typed_data = typed()
    fan_outs = {edge_type: [2, 2] for edge_type in typed_data.edge_types} | {("paper", "cites", "paper"): [0, 0]}
    with make(typed_data, input_nodes="paper", num_neighbors=fan_outs) as loader:
        seen: list[Any] = []

        def layer(batch: Any) -> Any:
            seen.append({edge_type: batch[edge_type].edge_index.shape[1] for edge_type in batch.edge_types})
            return batch["paper"].x if "tag" not in batch.x_dict and batch["paper"].get("batch_size") else None

        loader.inference([layer], progress=False)
    totals = {edge_type: sum(counts[edge_type] for counts in seen) for edge_type in seen[0]}
    assert totals == {edge_type: 0 if "cites" in edge_type else 150 for edge_type in typed_data.edge_types}


@pytest.mark.parametrize(
    "options",
    [{"weight": "weight"}, {"disjoint": True, "replace": True}, {"subgraph_type": "induced"}, {"edge_label_index": plain().edge_index}],
    ids=lambda options: next(iter(options)),
)
def test_every_neighbor_counts_once_whatever_the_loader_samples(options: dict[str, Any]) -> None:
    data, model = plain(), Sage(8)
    data.weight = (torch.arange(data.num_edges) % 3).float()
    with make(data, **options) as loader:
        close(loader.inference(model.layers, progress=False), forward(model, data.x, data.edge_index))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64, torch.bool])
def test_rows_keep_their_shape_and_dtype(dtype: torch.dtype) -> None:
    with make() as loader:
        found = loader.inference([lambda batch: torch.stack([batch.n_id, batch.n_id + 1], 1)[:, :, None].to(dtype)], progress=False)
        scalars = loader.inference([lambda batch: batch.n_id[: batch.batch_size]] * 3, progress=False)
    expected = torch.stack([torch.arange(NUM_NODES), torch.arange(NUM_NODES) + 1], 1)[:, :, None].to(dtype).numpy()
    np.testing.assert_array_equal(found.array, expected)
    assert found.array.dtype == expected.dtype
    assert scalars.array.tolist() == list(range(NUM_NODES))
    assert np.array(scalars, np.float32).dtype == np.float32


def test_layers_see_the_rows_of_the_layer_before_and_what_else_a_batch_has() -> None:
    data = plain()

    def first(batch: Any) -> Any:
        assert not torch.is_grad_enabled() and batch.tag == "transformed"
        torch.testing.assert_close(batch.x, data.x[batch.n_id])
        return batch.n_id.float().requires_grad_()[:, None] * 10

    def second(batch: Any) -> Any:
        torch.testing.assert_close(batch.x, batch.n_id.float()[:, None] * 10)
        torch.testing.assert_close(batch.edge_attr, data.edge_attr[batch.e_id])
        assert sorted(batch.edge_index[1].unique().tolist()) == [
            i for i in range(batch.batch_size) if (data.edge_index[1] == batch.n_id[i]).any()
        ]
        return batch.x

    with make(data, transform=lambda batch: batch.update({"tag": "transformed"})) as loader:
        loader.inference([first, second], progress=False)


def test_a_type_without_nodes_has_a_width() -> None:
    data = typed()
    data["tag"].num_nodes = 0
    data["tag"].x = torch.empty(0, 3)
    for edge_type in data.edge_types:
        if "tag" in edge_type:
            data[edge_type].edge_index = torch.empty(2, 0, dtype=torch.int64)
    with make(data, input_nodes="paper") as loader:
        found = loader.inference([lambda batch: {key: x.repeat(1, 2) for key, x in batch.x_dict.items()}] * 2, progress=False)
    assert found["tag"].shape == (0, 12) and found["paper"].shape == (60, 16)


def test_files_are_those_of_the_last_layer_unless_all_are_kept(tmp_path: Path) -> None:
    model = Sage(8)
    with make() as loader:
        found = loader.inference(model.layers, str(tmp_path / "new" / "out"), progress=False)
        assert found.path == tmp_path / "new" / "out"
        assert files(tmp_path) == {"new/out/layer2/node.npy"}
        np.testing.assert_array_equal(np.load(found.path / "layer2/node.npy"), found.array)
        with pytest.raises(PlanError, match="out=.* exists"):
            loader.inference(model.layers, tmp_path / "new" / "out", progress=False)
        loader.inference(model.layers, tmp_path / "all", keep_layers=True, progress=False)
        assert files(tmp_path / "all") == {"layer1/node.npy", "layer2/node.npy"}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_temporary_folder_goes_with_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", os.fspath(tmp_path))
    model = Sage(8)
    with make() as loader:
        found = loader.inference(model.layers, progress=False)
    path, array = found.path, found.array
    assert path.is_relative_to(tmp_path) and (path / "layer2/node.npy").is_file() and "node: float32 [100, 5]" in repr(found)
    before = array.copy()
    del found
    gc.collect()
    assert not path.exists()
    np.testing.assert_array_equal(array, before)


class Stop(Exception):
    """The user's own."""


@pytest.mark.parametrize(("error", "backend"), [(Stop, InProcess(1)), (KeyboardInterrupt, InProcess(1)), (KeyboardInterrupt, Colocated(1))])
def test_what_breaks_off_leaves_nothing_and_can_be_done_again(
    error: type[BaseException], backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNKIT_HOME", os.fspath(tmp_path / "home"))
    model, calls = Sage(8), itertools.count()

    def breaking(batch: Any) -> Any:
        if next(calls) == 1:
            raise error
        return model.layers[1](batch)

    with make(backend=backend) as loader:
        for out in (tmp_path / "out", None)[: 1 + isinstance(backend, InProcess)]:
            calls = itertools.count()
            with pytest.raises(error):
                loader.inference([model.layers[0], breaking], out, progress=False)
            assert not [path for path in files(tmp_path) if path.endswith((".npy", ".incomplete"))] and not (tmp_path / "out").exists()
        close(loader.inference(model.layers, tmp_path / "out", progress=False), forward(model, plain().x, plain().edge_index))
    with pytest.raises(LoaderClosed):
        loader.inference(model.layers, progress=False)


def test_what_a_killed_process_left_is_thrown_away_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    out, model = tmp_path / "out", Sage(8)
    left = tmp_path / "out.incomplete" / "layer1" / "node.npy"
    left.parent.mkdir(parents=True)
    left.touch()
    # Whoever writes holds a lock of the system's, which goes with its process.
    writing = os.open(tmp_path / ".out.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(writing, fcntl.LOCK_EX)
    with make() as loader:
        with pytest.raises(PlanError, match="another process is writing .*/out.incomplete"):
            loader.inference(model.layers, out, progress=False)
        assert left.exists() and not out.exists()
        os.close(writing)
        loader.inference(model.layers, out, progress=False)

        def meanwhile(batch: Any) -> Any:
            with pytest.raises(PlanError, match="another process is writing .*/again.incomplete"):
                loader.inference(model.layers, tmp_path / "again", progress=False)
            return batch.x

        loader.inference([meanwhile], tmp_path / "again", batch_size=NUM_NODES, progress=False)
    assert files(tmp_path) == {"out/layer2/node.npy", "again/layer1/node.npy"}


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda batch: None, "layer 1 returned NoneType where a tensor must be"),
        (lambda batch: batch.x.numpy(), "layer 1 returned ndarray where a tensor must be"),
        (lambda batch: {"node": batch.x}, "returned dict where a tensor must be"),
        (lambda batch: batch.x.to_sparse(), "returned a tensor of the layout torch.sparse_coo"),
        (lambda batch: batch.x[:3], r"returned a tensor \[3, 8\] where a row for each of the 7 seeds, or of all \d+ nodes, must be"),
        (lambda batch: batch.x.sum(), r"returned a tensor \[\] where"),
        (lambda batch: batch.x.bfloat16(), "returned a tensor of bfloat16, which is none of float16.*\n.*.float.. makes it"),
        (
            lambda batch: batch.x[:, : 1 + int(batch.input_id[0] > 0)],
            r"returned rows of float32 \[2\] of 'node' after rows of float32 \[1\]",
        ),
        (
            lambda batch: batch.x.double() if batch.input_id[0] else batch.x,
            r"returned rows of float64 \[8\] of 'node' after rows of float32 \[8\]",
        ),
    ],
)
def test_layers_that_return_something_else(layer: Any, expected: str, tmp_path: Path) -> None:
    with make() as loader, pytest.raises(PlanError, match=expected):
        loader.inference([layer], tmp_path / "out", progress=False)
    assert not files(tmp_path)


def test_typed_layers_that_return_something_else() -> None:
    with make(typed(), input_nodes="paper") as loader:
        for layer, expected in (
            (lambda batch: {}, r"the last layer gave no embeddings of any node type of \['paper', 'tag'\]"),
            (lambda batch: [1], "returned list where a tensor or a dict of tensors must be"),
            (
                lambda batch: {"paper": batch["paper"].x} if batch["paper"].get("batch_size", 0) == 7 else {},
                "for some batches and none for others",
            ),
        ):
            with pytest.raises(PlanError, match=expected):
                loader.inference([layer], progress=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (([],), "layers is empty"),
        ((len,), "layers must be a list of functions"),
        ((5,), "layers must be a list of functions of a batch, got 5"),
        (([len], 5), "out must be the path of a folder"),
        (([len, 3],), "layer 2 must be a function of a batch, got 3"),
    ],
)
def test_unusable_layers(arguments: Any, expected: str) -> None:
    with make() as loader, pytest.raises(PlanError, match=expected):
        loader.inference(*arguments, progress=False)


def test_other_unusable_words(tmp_path: Path) -> None:
    layers: Any = [lambda batch: batch.x]
    (tmp_path / "file").touch()
    with make() as loader:
        for options, expected in (
            ({"batch_size": 0}, "batch_size must be at least 1"),
            ({"keep_layers": 1}, "keep_layers must be True or False"),
            ({"input_nodes": [100]}, "holds node 100"),
            ({"device": "gpu"}, "gpu"),
        ):
            with pytest.raises(PlanError, match=expected):
                loader.inference(layers, tmp_path / "out", progress=False, **options)
        with pytest.raises(StoreError, match="embeddings cannot be written to"):
            loader.inference(layers, tmp_path / "file" / "out", progress=False)
        assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_progress_is_a_stage_for_each_layer() -> None:
    events: list[Any] = []
    model = Sage(8)
    with make() as loader:
        infer(loader.pipeline, list(model.layers), None, None, (30, None), False, events.append)
    own = [event for event in events if event.stage == "inference"]
    assert [(event.kind, event.label) for event in own if event.kind != "progress"] == [
        ("start", "layer 1 of 2"), ("end", "layer 1 of 2"), ("start", "layer 2 of 2"), ("end", "layer 2 of 2")
    ]  # fmt: skip
    assert [event.done for event in own if event.kind == "progress"] == [30, 60, 90, 100] * 2
    assert all(event.total == NUM_NODES and event.unit == "nodes" for event in own)


def test_memory_is_that_of_batches_not_of_layers(tmp_path: Path) -> None:
    num_nodes, width = 60_000, 256  # 61 MB a layer
    data = Data(x=torch.ones(num_nodes, 1), edge_index=torch.arange(num_nodes).repeat(2, 1))

    def anonymous_mb() -> float:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 1024

    seen: list[float] = []

    def layer(batch: Any) -> Any:
        seen.append(anonymous_mb())
        return (batch.x[: batch.batch_size].sum(1, keepdim=True) / batch.x.shape[1]).expand(-1, width)

    with make(data, batch_size=2000, num_neighbors=[1]) as loader:
        found = loader.inference([layer, layer], tmp_path / "out", progress=False)
    assert os.path.getsize(found.path / "layer2/node.npy") > num_nodes * width * 4
    assert (found.array[::999] == 1).all()
    assert max(seen[5:]) - seen[4] < 30
