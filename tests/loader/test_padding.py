"""Padded batches: what models say of seeds stays, few shapes come, everywhere the same, and nothing is compiled twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import GAT, GraphSAGE, HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import gnnkit
from gnnkit import Glt, GraphLoader, InProcess, LoaderPlan, unpad
from gnnkit.errors import PlanError
from tests.backends.kinds import built, kind_loader, source_of
from tests.helpers.batches import digest, same, to_pyg
from tests.helpers.graphs import random_source
from tests.loader.graphs import make, plain, typed

OPTIONS: dict[str, Any] = {"batch_size": 4, "with_edge": True}


def stores_of(batch: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The stores of nodes and of edges by type; one of each where there are no types."""
    if len(batch.stores) == 1:
        return {"node": batch}, {("node", "to", "node"): batch}
    return {s._key: s for s in batch.node_stores}, {s._key: s for s in batch.edge_stores if "edge_index" in s}


def shape_of(batch: Any) -> tuple[Any, ...]:
    nodes, edges = stores_of(batch)
    return tuple((t, s.num_nodes) for t, s in nodes.items()), tuple((t, s.edge_index.shape[1]) for t, s in edges.items())


def integer_outputs(batch: Any, hops: int, *, trims: bool) -> dict[Any, Tensor]:
    """Sums of messages with whole numbers as weights, layer after layer: exact in float64, whatever the order."""
    nodes, edges = stores_of(batch)
    x = {t: (s.n_id.double()[:, None] % 5 + torch.arange(1, 4)) for t, s in nodes.items()}
    index = {t: s.edge_index for t, s in edges.items()}
    for layer in range(hops):
        if trims:
            counts = {t: s.num_sampled_nodes for t, s in nodes.items()}, {t: s.num_sampled_edges for t, s in edges.items()}
            x, index, _ = trim_to_layer(layer, *counts, x, index)
        out = {t: 2 * values for t, values in x.items()}
        for weight, (edge_type, ends) in enumerate(sorted(index.items()), 3):
            out[edge_type[2]] = out[edge_type[2]].index_add(0, ends[1], weight * x[edge_type[0]][ends[0]])
        x = out
    return x


def seeds_of(batch: Any, outputs: dict[Any, Tensor]) -> Tensor:
    """The outputs of the input nodes, or of the ends of links."""
    for node_type, store in stores_of(batch)[0].items():
        if "batch_size" in store:
            return outputs[node_type][: store.batch_size]
    ((edge_type, ends),) = batch.edge_label_index_dict.items()
    return torch.cat([outputs[edge_type[0]][ends[0]], outputs[edge_type[2]][ends[1]]])


def check_padding(batch: Any) -> None:
    """Masks say what is real, and edges of padding touch nothing that is."""
    nodes, edges = stores_of(batch)
    for store in nodes.values():
        real = sum(store.num_real_nodes)
        assert store.node_mask.tolist() == [True] * real + [False] * (store.num_nodes - real) and real < store.num_nodes
        assert sum(store.num_sampled_nodes or [store.num_nodes]) == len(store.n_id) == store.num_nodes
    for edge_type, store in edges.items():
        real, ends = sum(store.num_real_edges), store.edge_index
        assert store.edge_mask.tolist() == [True] * real + [False] * (ends.shape[1] - real)
        assert sum(store.num_sampled_edges or [ends.shape[1]]) == ends.shape[1] == len(store.e_id)
        for row, node_type in ((0, edge_type[0]), (1, edge_type[2])):
            first = sum(nodes[node_type].num_real_nodes)
            assert bool((ends[row, :real] < first).all()) and bool((ends[row, real:] >= first).all())
            assert not len(ends[row]) or int(ends[row].max()) < nodes[node_type].num_nodes


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    edge_dir=st.sampled_from(["in", "out"]),
    fan_outs=st.sampled_from([[3], [3, 2], [2, 0, 3], [-1, 2]]),
    of_links=st.booleans(),
    pad=st.sampled_from(["bucket", "sizes"]),
)
def test_outputs_of_seeds_stay(seed: int, edge_dir: Any, fan_outs: list[int], of_links: bool, pad: str) -> None:
    source = random_source(np.random.default_rng(seed))
    first = max(source.schema.node_types, key=lambda t: source.schema.node_types[t].num_nodes)
    start: dict[str, Any] = {"input_nodes": first}
    if of_links:
        edge_type = max(source.edges, key=lambda t: source.edges[t].shape[1])
        if not source.edges[edge_type].shape[1]:
            return
        start = {"edge_label_index": edge_type}
    options = {**OPTIONS, **start, "num_neighbors": fan_outs, "edge_dir": edge_dir}
    with make(to_pyg(source), **options) as loader:
        batches = list(loader)
        # Sizes that some batches fit and others do not.
        sizes = {t: max(1, s.num_nodes) for t, s in stores_of(batches[0])[0].items()}
        sizes |= {t: s.edge_index.shape[1] for t, s in stores_of(batches[0])[1].items()}
        with loader.with_backend(InProcess(1), pad=pad if pad == "bucket" else [sizes]) as other:
            padded = list(other)
            stats, shapes = other.stats(), other.plan.form.shapes
    assert digest(map(unpad, padded)) == digest(batches)
    assert len(shapes) <= 4 and len({shape_of(batch) for batch in padded}) <= len(shapes) + stats.oversized
    planned = {sum(bounds[-1] for bounds in (*shape.nodes.values(), *shape.edges.values())) for shape in shapes}
    assert stats.padding == sum(sum(n for part in shape_of(batch) for _, n in part) for batch in padded) - stats.nodes - stats.edges
    assert stats.oversized == sum(sum(n for part in shape_of(batch) for _, n in part) not in planned for batch in padded)
    for batch, wanted in zip(padded, batches, strict=True):
        check_padding(batch)
        same(unpad(batch), wanted)
        expected = seeds_of(wanted, integer_outputs(wanted, len(fan_outs), trims=False))
        for trims in (False, True):
            assert torch.equal(seeds_of(batch, integer_outputs(batch, len(fan_outs), trims=trims)), expected)


def hops(batch: Any) -> dict[str, Any]:
    return {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges}


class RGCN(torch.nn.Module):
    """Weights for each edge type, trimmed."""

    def __init__(self, edge_types: list[Any]) -> None:
        super().__init__()
        sizes = (((4, 3), 8), ((8, 8), 2))
        of_type = {"tag": 3, "paper": 4}
        self.convs = torch.nn.ModuleList(
            HeteroConv({t: SAGEConv((of_type[t[0]], of_type[t[2]]) if layer == 0 else ins, outs) for t in edge_types}, aggr="sum")
            for layer, (ins, outs) in enumerate(sizes)
        )

    def forward(self, x: Any, index: Any, num_nodes: Any, num_edges: Any) -> Tensor:
        for layer, conv in enumerate(self.convs):
            x, index, _ = trim_to_layer(layer, num_nodes, num_edges, x, index)
            x = conv(x, index)
        found: Tensor = x["paper"]
        return found


def typed_with_features() -> Any:
    data = typed()
    data["tag"].x = torch.rand(20, 3)
    return data


Model = tuple[Callable[[], Any], Callable[[], torch.nn.Module], Callable[[torch.nn.Module, Any], Tensor]]
MODELS: dict[str, Model] = {
    "GraphSAGE": (plain, lambda: GraphSAGE(8, 16, 2, 4), lambda model, batch: model(batch.x, batch.edge_index, **hops(batch))),
    "GAT": (plain, lambda: GAT(8, 16, 2, 4, heads=2, add_self_loops=False), lambda model, b: model(b.x, b.edge_index, **hops(b))),
    "R-GCN": (
        typed_with_features,
        lambda: RGCN(typed().edge_types),
        lambda model, batch: model(batch.x_dict, batch.edge_index_dict, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict),
    ),
}


@pytest.fixture
def counters() -> Iterator[Any]:
    """What torch's compiler has counted since the test began."""
    torch._dynamo.reset()  # brings the compiler, which no other test has a use for
    from torch._dynamo.utils import counters as counted

    counted.clear()
    yield counted
    torch._dynamo.reset()


def test_nothing_is_compiled_after_the_first_batch_of_each_shape(counters: Any) -> None:
    """The graphs that are compiled are what counts, not what becomes of them: nothing is generated."""
    for name, (graph, make_model, run) in MODELS.items():
        model = make_model()
        compiled, seen, start = torch.compile(model, backend="eager", dynamic=False), set(), "paper" if name == "R-GCN" else None
        with make(graph(), input_nodes=start, pad="bucket") as loader, loader.with_backend(InProcess(1), pad=None) as other:
            for _ in range(2):
                for batch, wanted in zip(loader, other, strict=True):
                    before = counters["stats"]["unique_graphs"]
                    out, expected = run(compiled, batch), run(model, wanted)
                    assert counters["stats"]["unique_graphs"] == before + (shape_of(batch) not in seen), name
                    seen.add(shape_of(batch))
                    batch_size = (wanted if start is None else wanted[start]).batch_size
                    torch.testing.assert_close(out[:batch_size], expected[:batch_size])
        assert 1 <= len(seen) <= 4 and not counters["graph_break"]


def test_shapes_are_the_plans(tmp_path: Path) -> None:
    """The same at every rank, from a file, after a resume; a loader of other inputs has its own."""
    store = built(tmp_path / "store", source_of("homogeneous", "node", "in"), 1, "in")
    ranks = []
    for rank in range(2):
        with kind_loader("node", "homogeneous", store.path, InProcess(1), pad="bucket", rank=rank, world_size=2) as loader:
            ranks.append(loader.plan.form)
    with kind_loader("node", "homogeneous", store.path, InProcess(1), pad="bucket") as loader:
        assert ranks == [loader.plan.form] * 2 and loader.plan.form.shapes
        loader.plan.save(tmp_path / "plan.json")
        assert LoaderPlan.from_json(loader.plan.to_json()) == loader.plan
        iterator = iter(loader)
        next(iterator)
        state, rest = loader.state_dict(), list(iterator)
        with loader.for_split(None, batch_size=3) as other:
            assert other.plan.form.pad == "bucket" and other.plan.form.shapes != loader.plan.form.shapes
    with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
        assert again.plan.form == loader.plan.form
        again.load_state_dict(state)
        for batch, wanted in zip(again, rest, strict=True):
            same(batch, wanted)


def test_a_batch_that_fits_no_shape_takes_a_larger_one_and_is_counted() -> None:
    with make(pad=[(20, 30), (22, 34)], shuffle=True) as loader:
        assert "padding" not in repr(loader)
        sizes = {shape_of(batch) for batch in loader}
        stats = loader.stats()
        assert 0 < stats.oversized < stats.batches and "larger than every planned shape" in repr(loader)
        assert all(nodes < edges for ((_, nodes),), ((_, edges),) in sizes)  # both grow
        many = loader.sample(list(range(80)))
        check_padding(many)
        assert many.num_nodes > 80 and loader.stats().oversized == stats.oversized


def test_transforms_see_padded_batches_and_labels_their_numbers() -> None:
    def checked(batch: Any) -> Any:
        check_padding(batch)
        return batch

    with make(pad="bucket", transform=checked, disjoint=True, with_edge=True) as loader:
        for batch in loader:
            assert batch.batch[batch.node_mask].max() < batch.batch_size and set(batch.batch[~batch.node_mask].tolist()) == {
                batch.batch_size
            }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": "buckets"}, "pad must be None, 'bucket' or sizes, got 'buckets'"),
        ({"pad": []}, "pad has no shape"),
        ({"pad": [3]}, "a shape that says no sizes: 3"),
        ({"pad": [(3, -1)]}, "sizes of at least 0"),
        ({"pad": [(0, 3)]}, "needs room for a node of padding"),
        ({"pad": [{"node": 100}]}, r"pad has sizes of \['node'\], and batches have"),
        ({"pad": "bucket", "input_nodes": []}, "an epoch has no batch to find sizes from"),
        ({"pad": "bucket", "backend": Glt()}, "differ from run to run"),
    ],
)
def test_what_cannot_be_padded_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make(**options)


def test_masks_have_their_names_to_themselves() -> None:
    data = plain()
    data.node_mask = torch.ones(data.num_nodes, dtype=torch.bool)
    with pytest.raises(PlanError, match="have an array 'node_mask'"):
        make(data, pad="bucket")


def test_messages_are_not_padded() -> None:
    with make(pad="bucket") as loader, pytest.raises(PlanError, match="messages carry batches as they were sampled"):
        loader.dist_loader  # noqa: B018 - made when it is asked for


def test_a_batch_without_padding_is_left_alone() -> None:
    with make() as loader:
        batch = loader.peek()
        assert gnnkit.unpad(batch) is batch
