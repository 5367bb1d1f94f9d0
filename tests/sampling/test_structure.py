"""A batch whose structure travels, and whose rows come from their owners, is the batch of one host."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from gnnkit.errors import SamplingError
from gnnkit.sampling.subgraph import EdgeKey, Field, NodeKey
from tests.cluster.parts.several_hosts import (
    batch_of,
    inputs_of,
    received,
    receiver,
    sampled,
    sampler_on,
    spread_samplers,
    walked,
)
from tests.cluster.parts.test_spread import SAMPLING, cases, plain_store, requests
from tests.helpers.batches import reference_batch, same
from tests.helpers.graphs import stored

numbers = itertools.count()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_random_graphs(tmp_path: Path, case: dict[str, Any]) -> None:
    source, sampling = case["source"], case["sampling"]
    store = stored(source, tmp_path / str(next(numbers)), case["options"])
    walker, receiving = sampler_on(store.arrays(), sampling, walks_only=True), receiver(store.arrays(), sampling)
    for request in requests(store, case["seed"]):
        wanted = reference_batch(source, sampling, request, inputs_of(store.arrays()).node_type)
        structure = received(walked(walker, request), 0.5)
        layout, block, sample_s, *_ = receiving.sample_all([structure], lambda nbytes: np.zeros(max(1, nbytes), np.uint8))[0]
        got = batch_of(layout, block, source)
        same(got, wanted, any_order=True)
        assert sample_s >= 0.5
        assert sampled(receiving, structure) == sampled(sampler_on(store.arrays(), sampling), request)


def test_walked_over_several_hosts(tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store")
    arrays, (one, others) = store.arrays(), ((0, 2), (1,))
    walker, owners = spread_samplers(arrays, SAMPLING, {0: one, 1: others}, walks_only=True)[0]
    for request in requests(store, 1):
        want = sampled(sampler_on(arrays, SAMPLING), request)
        assert sampled(receiver(store.arrays(), SAMPLING), received(walked(walker, request), 0.0)) == want
    assert {what for what, _ in owners.asked} == {"expand"}, "who walks gathers nothing"


def test_a_structure_is_small(tmp_path: Path) -> None:
    """Four bytes a node, eight an edge with its position, and one for each node that draws."""
    store = plain_store(tmp_path / "store")
    sampling = replace(SAMPLING, num_neighbors={("node", "to", "node"): (4, 3)})
    request = next(requests(store, 1))
    layout = sampler_on(store.arrays(), sampling, walks_only=True).sample(request)
    drew = sum(layout.num_sampled_nodes["node"][:-1])
    num_nodes, num_edges = sum(layout.num_sampled_nodes["node"]), sum(layout.num_sampled_edges["node", "to", "node"])
    nbytes = 4 * num_nodes + 8 * num_edges + drew + 8 * layout.num_seeds
    assert nbytes - drew < sum(field.nbytes for field in layout.fields) <= nbytes


NODE, ROW, COUNT = NodeKey("node", ".node"), EdgeKey(("node", "to", "node"), ".source"), EdgeKey(("node", "to", "node"), ".count")


def shorter(layout: Any, key: Any) -> Any:
    fields = [f if f.key != key else Field(f.key, f.dtype, (f.shape[0] - 1,), f.offset) for f in layout.fields]
    return replace(layout, fields=tuple(fields))


def without(layout: Any, key: Any) -> Any:
    return replace(layout, fields=tuple(field for field in layout.fields if field.key != key))


def spoiled(structure: Any, key: Any, value: int) -> Any:
    structure.arrays[key][0] = value
    return structure


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: replace(s, layout=shorter(s.layout, NODE)),
        lambda s: replace(s, layout=shorter(s.layout, ROW)),
        lambda s: replace(s, layout=without(s.layout, COUNT)),
        lambda s: replace(s, layout=without(s.layout, NODE)),
        lambda s: replace(s, layout=replace(s.layout, num_seeds=s.layout.num_seeds + 1)),
        lambda s: replace(s, layout=replace(s.layout, num_sampled_nodes={})),
        lambda s: replace(s, layout=replace(s.layout, num_sampled_nodes={"node": [1, 2]})),
        lambda s: replace(s, block=s.block[:40]),
        lambda s: spoiled(s, ROW, 1 << 30),
        lambda s: spoiled(s, ROW, -1),
        lambda s: spoiled(s, COUNT, 100),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_right_is_an_error(tmp_path: Path, spoil: Callable[[Any], Any]) -> None:
    store = plain_store(tmp_path / "store")
    receiving = receiver(store.arrays(), SAMPLING)
    walker = sampler_on(store.arrays(), SAMPLING, walks_only=True)
    request = next(requests(store, 1))
    with pytest.raises(SamplingError, match="does not fit the request"):
        receiving.sample(received(spoil(walked(walker, request)), 0.0))
    want = sampled(sampler_on(store.arrays(), SAMPLING), request)
    assert sampled(receiving, received(walked(walker, request), 0.0)) == want
