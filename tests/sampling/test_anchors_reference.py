"""Batches of anchors, attribute by attribute, as the program written from the specification says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from gnnkit import GraphLoader, InProcess, OnDevice
from gnnkit.datasets import EdgeTypeSchema, GraphSchema
from tests import reference_anchors, reference_sampler
from tests.helpers.batches import digest, expected_batch, same, to_pyg, to_reference
from tests.helpers.graphs import ArraySource, EdgeType, random_edges, random_source, spec_of


def with_labels(source: ArraySource, labels: dict[EdgeType, Any], edge_dir: str, rng: np.random.Generator) -> ArraySource:
    """A graph with labels ``{type from anchors to labels: edge_index}``, stored the way that the direction needs; with weights, some 0."""
    edges, arrays, types = dict(source.edges), dict(source.edge_arrays), dict(source.schema.edge_types)
    for edge_type, edge_index in labels.items():
        stored = reference_anchors.turned(edge_type) if edge_dir == "in" else edge_type
        weight = rng.integers(0, 3, edge_index.shape[1]).astype(np.float32)
        edges[stored], arrays[stored] = (edge_index[::-1].copy() if edge_dir == "in" else edge_index), {"weight": weight}
        types[stored] = EdgeTypeSchema(edge_index.shape[1], {"weight": spec_of(weight)})
    return ArraySource(GraphSchema(source.schema.node_types, types), edges, source.node_arrays, arrays, splits=source.splits)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph with labels, and random options for it."""
    rng, edge_dir = np.random.default_rng(draw(st.integers(0, 1 << 32))), draw(st.sampled_from(["in", "out"]))
    source = random_source(rng, max_edges=60)
    nodes = {t: s.num_nodes for t, s in source.schema.node_types.items()}
    anchor_type = draw(st.sampled_from([t for t, count in nodes.items() if count]))
    labels: list[tuple[EdgeType, EdgeType | None]] = []
    edges: dict[EdgeType, Any] = {}
    for number in range(draw(st.integers(1, 2))):
        label_type, has_negatives = draw(st.sampled_from(sorted(nodes))), draw(st.booleans())
        suffixes = draw(st.sampled_from([("_gigl_positive", "_gigl_negative"), ("_good", "_bad")]))
        positive, negative = ((anchor_type, f"r{number}{suffix}", label_type) for suffix in suffixes)
        for edge_type in [positive, negative][: 1 + has_negatives]:
            edges[edge_type] = random_edges(rng, nodes[anchor_type], nodes[label_type], draw(st.integers(0, 40)))
        labels.append((positive, negative if has_negatives else None))
    hops = draw(st.integers(1, 2))
    fan_out = st.lists(st.integers(-1, 4), min_size=hops, max_size=hops)
    whole = with_labels(source, edges, edge_dir, rng)
    return {
        "source": whole,
        "anchor_type": anchor_type,
        "ids": draw(st.lists(st.integers(0, nodes[anchor_type] - 1), min_size=1, max_size=12)),
        "labels": labels,
        "num_neighbors": draw(fan_out) if draw(st.booleans()) else {edge_type: draw(fan_out) for edge_type in whole.edges},
        "batch_size": draw(st.integers(1, 7)),
        "cap": draw(st.sampled_from([None, 1, 2])),
        "edge_dir": edge_dir,
        "replace": draw(st.booleans()),
        "weight": draw(st.sampled_from([None, "weight"])),
        "disjoint": draw(st.booleans()),
        "output": draw(st.sampled_from(["dict", "edge_index"])),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, (1 << 64) - 1)),
    }


def check(
    source: ArraySource, anchor_type: str, ids: list[int], labels: list[tuple[EdgeType, EdgeType | None]], *, num_neighbors: Any,
    batch_size: int, edge_dir: str = "in", weight: str | None = None, output: str = "dict", shuffle: bool = False, seed: int = 0,
    cap: int | None = None, **sampling: Any,
) -> None:  # fmt: skip
    """Compares an epoch of a loader with the reference."""
    options = {"num_neighbors": num_neighbors, "batch_size": batch_size, "seed": seed, **sampling}
    own = {"edge_dir": edge_dir, "weight": weight, "with_edge": True, "backend": InProcess(1), "progress": False}
    positive, negative = [good for good, _ in labels], [bad for _, bad in labels]
    graph = to_reference(source)
    fan_outs = num_neighbors if isinstance(num_neighbors, dict) else dict.fromkeys(source.edges, num_neighbors)
    name = f"anchor/{anchor_type}/ids"
    expected = reference_sampler.epoch_batches(len(ids), batch_size, seed=seed, name=name, epoch=0, shuffle=shuffle)
    with (
        GraphLoader.from_pyg(to_pyg(source), input_nodes=(anchor_type, []), **options, **own) as nodes,
        nodes.for_anchors(positive, negative, input_nodes=np.array(ids), cap=cap, output=output, shuffle=shuffle) as loader,  # type: ignore[arg-type]
    ):
        batches: Any = list(loader)
        with loader.with_backend(OnDevice("cpu")) as there:
            assert digest(there) == digest(batches), "with a device's operations"
    assert len(batches) == len(expected)
    for batch, (key, positions) in zip(batches, expected, strict=True):
        sampled = reference_anchors.sample(
            graph, key, anchor_type, [ids[p] for p in positions], positions, fan_outs, labels=labels, cap=cap, edge_dir=edge_dir,
            weight=weight, **sampling,
        )  # fmt: skip
        check_labels(batch, sampled, positive, output)
        if sampling.get("disjoint"):
            for node_type, found in sampled["nodes"].items():
                assert batch[node_type].batch.tolist() == found["batch"]
                del batch[node_type]["batch"]
        same(batch, expected_batch(source, sampled, anchor_type, edge_dir, True))


def check_labels(batch: HeteroData, sampled: dict[str, Any], positive: list[EdgeType], output: str) -> None:
    """Compares a batch's labels with the reference's, and takes them off."""
    for name in ("y_positive", "y_negative"):
        wanted = {t: numbers for t, numbers in zip(positive, sampled[name], strict=True) if numbers is not None}
        assert (name in batch) == bool(wanted)
        if not wanted:
            continue
        found = batch[name] if len(positive) > 1 else {positive[0]: batch[name]}
        assert list(found) == list(wanted)
        for edge_type, numbers in wanted.items():
            if output == "dict":
                assert {anchor: values.tolist() for anchor, values in found[edge_type].items()} == numbers
                assert list(found[edge_type]) == list(range(sampled["batch_size"]))
            else:
                pairs = [[anchor, label] for anchor, own in numbers.items() for label in own]
                assert found[edge_type].shape == (2, len(pairs)) and found[edge_type].T.tolist() == pairs
        del batch[name]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(cases())
@pytest.mark.core
def test_everything_at_once(case: dict[str, Any]) -> None:
    case = dict(case)
    if all(reference_anchors.is_label(t) for t in case["source"].edges):
        return
    counts = {node_type.num_nodes for node_type in case["source"].schema.node_types.values()}
    if set(case["ids"]) <= {0, 1} and len(case["ids"]) in counts:  # refused: they look like a mask
        return
    check(**{**case, "ids": case["ids"]})


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_seeds_in_the_order_in_which_they_are_met(edge_dir: str) -> None:
    """By hand: anchors that repeat and that are labels themselves, labels of another type, an anchor without any."""
    rng = np.random.default_rng(0)
    base = random_source(rng, num_node_types=1, num_edge_types=1, max_nodes=40)
    (t,) = base.schema.node_types
    positive, negative = (t, "r_gigl_positive", t), (t, "r_gigl_negative", t)
    count = base.schema.node_types[t].num_nodes
    assert count > 9
    good, bad = np.array([[1, 1, 1, 4, 2], [7, 3, 7, 1, 8]]), np.array([[4, 1, 4], [9, 3, 8]])
    source = with_labels(base, {positive: good, negative: bad}, edge_dir, rng)
    options: Any = {"num_neighbors": [1], "batch_size": 5, "edge_dir": edge_dir, "backend": InProcess(1), "progress": False}
    with (
        GraphLoader.from_pyg(to_pyg(source), input_nodes=(t, []), **options) as nodes,
        nodes.for_anchors(positive, negative, input_nodes=[4, 1, 1, 0, 2]) as loader,
    ):
        batch = next(iter(loader))
    assert batch[t].n_id[:9].tolist() == [4, 1, 1, 0, 2, 7, 3, 8, 9]
    assert batch[t].num_sampled_nodes[0] == 9 and batch[t].batch_size == 5 and batch[t].input_id.tolist() == [0, 1, 2, 3, 4]
    lists = {name: {anchor: labels.tolist() for anchor, labels in batch[name].items()} for name in ("y_positive", "y_negative")}
    assert lists["y_positive"] == {0: [1], 1: [5, 6, 5], 2: [5, 6, 5], 3: [], 4: [7]}
    assert lists["y_negative"] == {0: [8, 7], 1: [6], 2: [6], 3: [], 4: []}
