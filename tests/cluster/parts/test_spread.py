"""Sampling over several hosts gives the batches of one host, bit for bit, whoever has which part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions, Store
from gnnkit.errors import GnnkitError, PlanError, SamplingError, StoreError
from gnnkit.plan import NeighborSampling
from gnnkit.sampling.remote import PartMap
from tests.cluster.parts.several_hosts import (
    OwnersHere,
    batch_of,
    hot_of,
    inputs_of,
    key_of,
    request_of,
    sampled,
    sampler_on,
    spread_samplers,
)
from tests.helpers.batches import reference_batch, same
from tests.helpers.graphs import built, homogeneous_source, random_edges, random_source, stored

MAX_SEEDS = 12


def requests(store: Store, seed: int, count: int = 3) -> Iterator[Any]:
    """A few batches, one without seeds and one with repeated ones."""
    rng = np.random.default_rng(seed)
    num_nodes = store.schema.node_types[inputs_of(store.arrays()).node_type].num_nodes
    for index in range(count):
        ids = rng.integers(0, num_nodes, 0 if index == 1 else MAX_SEEDS)
        yield request_of(key_of(seed, index), ids)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    source = random_source(rng)
    most = min(4, max(s.num_nodes for s in source.schema.node_types.values()))
    num_parts, hops = draw(st.integers(1, most)), draw(st.integers(1, 3))
    weight, edge_dir = draw(st.sampled_from([None, "weight"])), draw(st.sampled_from(["in", "out"]))
    fan_out = st.tuples(*[st.integers(-1, 6) | st.just(45)] * hops)
    options = BuildOptions(
        num_parts,
        draw(st.sampled_from(["contiguous", "random", "ldg"])),
        edge_dir,
        with_edge=True,
        weight=weight,
        cache_ratio=draw(st.sampled_from([0.0, 0.4])),
    )
    sampling = NeighborSampling(
        {edge_type: draw(fan_out) for edge_type in source.edges}, draw(st.booleans()), edge_dir, weight, draw(st.booleans())
    )
    hosts = draw(st.lists(st.integers(0, 2), min_size=num_parts, max_size=num_parts))
    placement = {host: tuple(part for part in range(num_parts) if hosts[part] == host) for host in range(3)}
    return {
        "source": source,
        "options": options,
        "sampling": sampling,
        "placement": placement,
        "seed": draw(st.integers(0, 1 << 30)),
        "whole_structure": draw(st.booleans()),
    }


numbers = itertools.count()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_random_graphs_on_random_hosts(tmp_path: Path, case: dict[str, Any]) -> None:
    source, sampling = case["source"], case["sampling"]
    store = stored(source, tmp_path / str(next(numbers)), case["options"])
    hot = hot_of(store, case["placement"])
    samplers = spread_samplers(store.arrays(), sampling, case["placement"], hot, whole_structure=case["whole_structure"])
    one = sampler_on(store.arrays(), sampling)
    for request in requests(store, case["seed"]):
        wanted = reference_batch(source, sampling, request, inputs_of(store.arrays()).node_type)
        for sampler, _ in samplers.values():
            assert sampled(sampler, request) == sampled(one, request)
        layout, block, *_ = samplers[0][0].sample_all([request], lambda nbytes: np.zeros(max(1, nbytes), np.uint8))[0]
        got = batch_of(layout, block, source)
        same(got, wanted, any_order=True)


def plain_store(folder: Path, **options: Any) -> Store:
    """A homogeneous graph with arrays of many kinds, in three parts."""
    rng = np.random.default_rng(3)
    n, m = 90, 800
    arrays = {
        "x": rng.standard_normal((n, 7)).astype(np.float32),
        "y": rng.integers(0, 9, n),
        "mask": rng.random(n) < 0.5,
        "image": rng.integers(0, 255, (n, 2, 3)).astype(np.uint8),
        "nothing": np.zeros((n, 0), np.float32),
    }
    source = homogeneous_source(
        random_edges(rng, 70, 70, m), n, edge_arrays={"edge_attr": rng.standard_normal((m, 3)).astype(np.float32)}, **arrays
    )
    return built(source, folder, **{"num_parts": 3, "partition": "random", "with_edge": True, **options})


SAMPLING = NeighborSampling({("node", "to", "node"): (4, -1, 2)}, with_edge=True)
PLACEMENT = {0: (0,), 1: (1,), 2: (2,)}


def check(store: Store, samplers: Mapping[int, tuple[Any, Any]]) -> None:
    one = sampler_on(store.arrays(), SAMPLING)
    for request in requests(store, 1):
        for sampler, _ in samplers.values():
            assert sampled(sampler, request) == sampled(one, request)


@pytest.mark.parametrize("feature_dtype", [None, "float16", "bfloat16", "quint8", "quint4x2", "quint2x4"])
def test_arrays_of_every_kind(tmp_path: Path, feature_dtype: str | None) -> None:
    store = plain_store(tmp_path / "store", feature_dtype=feature_dtype)
    for whole_structure in (False, True):
        check(store, spread_samplers(store.arrays(), SAMPLING, PLACEMENT, whole_structure=whole_structure))


@pytest.mark.parametrize("num_nodes", [60, 40_000])  # so many rows are more than 8 MB, which is written past the caches
@pytest.mark.parametrize("width", [8, 64, 129, 200, 256, 257, 400, 512, 513, 700, 2049])
def test_rows_between_those_of_other_hosts(tmp_path: Path, width: int, num_nodes: int) -> None:
    """Rows that are here are gathered around those that come: with all, some and none of these replicated."""
    rng = np.random.default_rng(width)
    x = rng.integers(0, 256, (num_nodes, width), dtype=np.uint8)
    source = homogeneous_source(random_edges(rng, num_nodes, num_nodes, 2 * num_nodes), num_nodes, x=x)
    store = built(source, tmp_path / "store", num_parts=3, partition="random", cache_ratio=0.3)
    seeds = rng.permutation(num_nodes)
    for hot in (hot_of(store, PLACEMENT), None):
        sampler, _ = spread_samplers(store.arrays(), SAMPLING, PLACEMENT, hot, whole_structure=True)[0]
        found = sampled(sampler, request_of(7, seeds))
        assert found == sampled(sampler_on(store.arrays(), SAMPLING), request_of(7, seeds))


def test_a_host_without_parts_and_a_part_on_two_hosts(tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store")
    check(store, spread_samplers(store.arrays(), SAMPLING, {0: (), 1: (0, 2), 2: (1, 2)}))


def test_buffers_that_are_too_small_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnkit.sampling.graph_access._FIRST_CAPACITY", 1)
    monkeypatch.setattr("gnnkit.sampling.owned._MOST_PREALLOCATED", 1)
    store = plain_store(tmp_path / "store")
    check(store, spread_samplers(store.arrays(), SAMPLING, PLACEMENT))


def test_rows_travel_in_several_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnkit.sampling.owners.MESSAGE_NBYTES", 50)
    store = plain_store(tmp_path / "store")
    check(store, spread_samplers(store.arrays(), SAMPLING, PLACEMENT))


def test_each_host_is_asked_once_a_hop_and_once_for_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    source = random_source(rng, max_nodes=60, max_edges=400, num_node_types=3, num_edge_types=5)
    store = built(source, tmp_path / "store", 3, "random")
    sampling = NeighborSampling({edge_type: (3, 3) for edge_type in source.edges})
    samplers = spread_samplers(store.arrays(), sampling, PLACEMENT)
    request = next(requests(store, 4))
    for here, (sampler, others) in samplers.items():
        sampled(sampler, request)
        for host in set(PLACEMENT) - {here}:
            assert 1 <= others.asked.count(("expand", host)) <= 2 and others.asked.count(("rows", host)) == 1


def test_where_the_structure_is_everywhere_a_batch_asks_once_for_rows(tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store")
    for here, (sampler, others) in spread_samplers(store.arrays(), SAMPLING, PLACEMENT, whole_structure=True).items():
        sampled(sampler, next(requests(store, 4)))
        assert sorted(others.asked) == [("rows", host) for host in PLACEMENT if host != here]


def test_replicated_features_are_not_asked_for(tmp_path: Path) -> None:
    asked = {}
    for cache_ratio in (0.0, 1.0):
        store = plain_store(tmp_path / f"store-{cache_ratio}", cache_ratio=cache_ratio)
        hot = hot_of(store, PLACEMENT)
        assert bool(hot[0]) == bool(cache_ratio)
        samplers = spread_samplers(store.arrays(), SAMPLING, PLACEMENT, hot)
        check(store, samplers)
        asked[cache_ratio] = [others.rows_asked for _, others in samplers.values()]
    assert all(with_cache < without for with_cache, without in zip(asked[1.0], asked[0.0], strict=True))


class Liar(OwnersHere):
    """Answers questions about edges with something else."""

    def __init__(self, honest: Any, change: Callable[[Any], Any]) -> None:
        vars(self).update(vars(honest), _change=change)

    def expand(self, requests: Mapping[int, Any]) -> Callable[[], Mapping[int, Mapping[int, Any]]]:
        wait = super().expand(requests)
        return lambda: {host: {r: self._change(picks) for r, picks in answer.items()} for host, answer in wait().items()}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda picks: picks._replace(counts=picks.counts[1:]), SamplingError),
        (lambda picks: picks._replace(neighbors=picks.neighbors[1:]), SamplingError),
        (lambda picks: picks._replace(positions=None), SamplingError),
        (lambda picks: picks._replace(counts=-picks.counts), SamplingError),
        (lambda picks: picks._replace(neighbors=picks.neighbors + (1 << 30)), StoreError),
        (lambda picks: picks._replace(neighbors=picks.neighbors - (1 << 30)), StoreError),
    ],
)
def test_an_answer_that_cannot_be_right_is_an_error(tmp_path: Path, change: Callable[[Any], Any], error: type[GnnkitError]) -> None:
    store = plain_store(tmp_path / "store")
    sampler, others = spread_samplers(store.arrays(), SAMPLING, PLACEMENT)[0]
    request, reach = next(requests(store, 1)), sampler._chooser._reach  # type: ignore[attr-defined]
    reach._owners = Liar(others, change)
    with pytest.raises(error):
        sampler.sample(request)
    reach._owners = others
    check(store, {0: (sampler, others)})


def test_an_error_in_the_middle_of_a_hop_leaves_nothing_to_the_next_batch(tmp_path: Path) -> None:
    """The last neighbour is wrong, when those of earlier nodes of the hop have their numbers already."""

    def last_is_wrong(picks: Any) -> Any:
        neighbors = picks.neighbors.copy()
        neighbors[-1:] = 1 << 30
        return picks._replace(neighbors=neighbors)

    store = plain_store(tmp_path / "store", partition="contiguous")
    sampler, others = spread_samplers(store.arrays(), SAMPLING, PLACEMENT)[0]
    reach = sampler._chooser._reach  # type: ignore[attr-defined]
    reach._owners = Liar(others, last_is_wrong)
    seeds = np.concatenate([np.zeros(70, np.int64), np.arange(30, 60)])  # more than a block of nodes that are here comes first
    with pytest.raises(StoreError):
        sampler.sample(request_of(key_of(5, 0), seeds))
    reach._owners = others
    check(store, {0: (sampler, others)})


def test_a_part_that_no_host_has() -> None:
    with pytest.raises(PlanError, match="no host has part 1 of 3"):
        PartMap.of(3, 0, (0,), {1: (2,)})
