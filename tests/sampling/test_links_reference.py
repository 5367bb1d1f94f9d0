"""Every array of every batch of links, as the program written from the specification says; on one host, on several, and as structures."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions, LoaderPlan
from gnnkit.errors import SamplingError
from gnnkit.plan import Batching, InputLinks, NegativeSampling, NeighborSampling
from gnnkit.runtime.batches import LinkArrays
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.sampling.device.graph import DeviceGraph
from gnnkit.sampling.device.sampler import DevicePlace, DeviceSampler
from gnnkit.sampling.subgraph import SampleRequest
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import find_reverse
from tests import reference_links
from tests.cluster.parts.several_hosts import batch_of as users_batch
from tests.cluster.parts.several_hosts import received, receiver, sampled, sampler_on, spread_samplers, walked
from tests.helpers.batches import to_reference
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source, stored
from tests.helpers.link_batches import check, contents


def homogeneous(rng: np.random.Generator) -> ArraySource:
    num_nodes, num_edges = int(rng.integers(2, 40)), int(rng.integers(4, 150))
    edges, weight = random_edges(rng, num_nodes, num_nodes, num_edges), rng.integers(0, 5, num_edges)
    x, time = rng.standard_normal((num_nodes, 2)), rng.integers(0, 1000, num_edges)
    if rng.random() < 0.5:
        return homogeneous_source(edges, num_nodes, edge_arrays={"weight": weight, "time": time}, x=x)
    return homogeneous_source(edges, num_nodes, edge_arrays={"weight": weight}, x=x, time=rng.integers(0, 1000, num_nodes))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph with links, most of them edges, and random options for both."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    source = random_source(rng) if draw(st.integers(0, 3)) else homogeneous(rng)
    usable = [t for t in source.edges if all(source.schema.node_types[t[end]].num_nodes for end in (0, 2))]
    edge_type = draw(st.sampled_from(usable or [None]))
    if edge_type is None:
        return {}
    sizes = [source.schema.node_types[edge_type[end]].num_nodes for end in (0, 2)]
    count = draw(st.integers(1, 9))
    links = np.stack([rng.integers(0, size, count) for size in sizes])
    edges = source.edges[edge_type]
    if edges.shape[1]:
        real = rng.random(count) < 0.7
        links[:, real] = edges[:, rng.integers(0, edges.shape[1], int(real.sum()))]
    schema = source.schema
    has_times = any("time" in found.arrays for found in [*schema.node_types.values(), *schema.edge_types.values()])
    mode = draw(st.sampled_from([None, "binary", "triplet"]))
    hops = draw(st.integers(1, 2))
    labels = None if mode == "triplet" else draw(st.sampled_from([None, rng.integers(0, 4, count), rng.random(count) + 1]))
    reverse = ["reverse"] if find_reverse(edge_type, source.edges) is not None else []
    return {
        "source": source,
        "edge_type": edge_type,
        "links": links,
        "labels": labels,
        "mode": mode,
        "amount": draw(st.sampled_from([1, 3, 0.4, 1.7] if mode == "binary" else [1, 3])),
        "strict": draw(st.booleans()),
        "weights": [draw(st.sampled_from([None, rng.integers(0, 3, size) + (np.arange(size) == 0)])) for size in sizes],
        "exclude": draw(st.sampled_from([None, "self", *reverse])),
        "num_neighbors": {t: tuple(draw(st.lists(st.integers(-1, 4), min_size=hops, max_size=hops))) for t in source.edges},
        "replace": draw(st.booleans()),
        "edge_dir": draw(st.sampled_from(["in", "out"])),
        "weight": draw(st.sampled_from([None, "weight"])),
        "disjoint": draw(st.booleans()),
        "times": draw(st.sampled_from([None, rng.integers(0, 1100, count)])) if has_times else None,
        "num_parts": draw(st.integers(1, min(3, max(s.num_nodes for s in source.schema.node_types.values())))),
        "partition": draw(st.sampled_from(["contiguous", "random"])),
        "key": draw(st.integers(0, (1 << 64) - 1)),
    }


def wanted(case: dict[str, Any]) -> dict[str, Any] | None:
    """What the specification says; None where there is no negative to draw."""
    weights = [None if w is None else w.tolist() for w in weights_of(case)]
    try:
        return reference_links.sample(
            to_reference(case["source"]), case["key"], case["edge_type"], list(map(tuple, case["links"].T.tolist())),
            list(range(case["links"].shape[1])), case["num_neighbors"],
            labels=None if case["labels"] is None else reference_links.labels_of(case["labels"].tolist(), case["mode"]),
            mode=case["mode"], amount=case["amount"], strict=case["strict"], src_weight=weights[0], dst_weight=weights[1],
            exclude=case["exclude"], edge_dir=case["edge_dir"], replace=case["replace"], weight=case["weight"], disjoint=case["disjoint"],
            times=None if case["times"] is None else case["times"].tolist(), time_attr=None if case["times"] is None else "time",
        )  # fmt: skip
    except (IndexError, ZeroDivisionError):
        return None


def weights_of(case: dict[str, Any]) -> list[Any]:
    """Weights of sources and targets, of those ends that are drawn."""
    drawn = case["mode"] == "binary", case["mode"] is not None
    return [
        weight.astype(float) if weight is not None and is_drawn else None for weight, is_drawn in zip(case["weights"], drawn, strict=True)
    ]


def batch_of(sampler: Any, request: SampleRequest, source: ArraySource) -> dict[str, Any]:
    (own,) = sampler.sample_all([request], lambda nbytes: np.zeros(max(1, nbytes), np.uint8))
    return contents(users_batch(own.layout, own.block, source, own.tensors))


def on_device(graph: Any, sampling: NeighborSampling, inputs: InputLinks) -> DeviceSampler:
    """A sampler that has the graph on the device "cpu"."""
    copy = DeviceGraph(graph, torch.device("cpu"))
    copy.prepare(sampling, skips_features=False, beside=0)
    place = DevicePlace(copy, LoaderPlan(None, inputs, sampling, Batching(1)), 0)
    return DeviceSampler(GraphTables(graph, weighted=sampling.weight is not None), place)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_random_links_of_random_graphs(tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any]) -> None:
    if not case:
        return
    source, edge_type = case["source"], case["edge_type"]
    time_attr = None if case["times"] is None else "time"
    build = BuildOptions(case["num_parts"], case["partition"], case["edge_dir"], True, weight=case["weight"], time_attr=time_attr)
    store = stored(source, tmp_path_factory.mktemp("graph") / "store", build)
    graph = store.arrays()
    weights = weights_of(case)
    negatives = None if case["mode"] is None else NegativeSampling(case["mode"], case["amount"], case["strict"], *weights)
    inputs = InputLinks(edge_type, "test", None, case["links"], case["labels"], case["times"], negatives, case["exclude"])
    arrays = LinkArrays(InputLinks.from_json(inputs.to_json()), GraphHandle(graph, {})).arrays(np.arange(case["links"].shape[1]))
    request = SampleRequest(case["key"], np.arange(case["links"].shape[1]), arrays)
    sampling = NeighborSampling(
        case["num_neighbors"], case["replace"], case["edge_dir"], case["weight"], True, case["disjoint"], time_attr=time_attr
    )
    placement = {0: (0,), 1: tuple(range(1, case["num_parts"]))}
    spread = spread_samplers(graph, sampling, placement, inputs=inputs)
    here, expected = sampler_on(graph, sampling, inputs=inputs), wanted(case)
    there = on_device(graph, sampling, inputs)
    if expected is None:
        for sampler in (here, spread[0][0], spread[1][0]):
            with pytest.raises(SamplingError, match="no negative can be drawn for node|there is no node that a negative"):
                sampled(sampler, request)
        with pytest.raises(SamplingError, match="no negative can be drawn for node|there is no node that a negative"):
            batch_of(there, request, source)
        return
    for sampler in (here, there):
        check(batch_of(sampler, request, source), expected, source, edge_type)
    for sampler, _ in spread.values():
        assert sampled(sampler, request) == sampled(here, request)
    structure = walked(sampler_on(graph, sampling, inputs=inputs, walks_only=True), request)
    assert sampled(receiver(store.arrays(), sampling), received(structure, 0.0)) == sampled(here, request)


def test_the_reference_is_plain_python() -> None:
    text = inspect.getsource(reference_links)
    assert "gnnkit" not in text.split('"""')[2] and "numpy" not in text and Path(reference_links.__file__).name == "reference_links.py"
