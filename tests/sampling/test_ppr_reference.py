"""Batches of personalised PageRank, bit for bit as the program written from the specification says, wherever the graph lies."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gnnkit import PPR, BuildOptions, Colocated, GraphLoader
from gnnkit.plan.sampling import EdgeUse
from tests import reference_ppr, reference_sampler
from tests.cluster.parts.several_hosts import request_of, sampled, spread_samplers
from tests.helpers.batches import same, to_pyg, to_reference
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source, stored, typed_source

OPTIONS: dict[str, Any] = {"alpha": 0.25, "eps": 1e-3, "max_ppr_nodes": 6, "num_neighbors_per_hop": 4, "include_sampled_edges": True}


def expected_batch(source: ArraySource, found: dict[str, Any], input_type: str, positions: list[int], edge_dir: str) -> Data | HeteroData:
    """What the reference says, as a PyG object."""
    homogeneous = source.schema.is_homogeneous
    batch: Any = Data() if homogeneous else HeteroData()
    stored = {reference_sampler.shown(t, edge_dir): t for t in source.edges}
    for t, schema in source.schema.node_types.items():
        store, ids = batch if homogeneous else batch[t], found["nodes"][t]
        store.n_id, store.num_sampled_nodes = (
            torch.tensor(ids, dtype=torch.int64),
            [found["num_seeds"][t], len(ids) - found["num_seeds"][t]],
        )
        for name, values in source.node_arrays.get(t, {}).items():
            store[name] = torch.from_numpy(values[np.array(ids, np.int64)])
        if "x" not in schema.arrays:
            store.num_nodes = len(ids)
    for t, (row, col, beside) in found["edges"].items():
        store = batch if homogeneous else batch[t]
        store.edge_index, store.num_sampled_edges = torch.tensor([row, col], dtype=torch.int64).reshape(2, -1), [len(row)]
        if t[1] == "ppr":
            width = 2 + 3 * found["num_channels"]
            store.edge_attr = torch.tensor(beside, dtype=torch.float32).reshape(-1, width)
            continue
        store.e_id = torch.tensor(beside, dtype=torch.int64)
        for name, values in source.edge_arrays.get(stored[t], {}).items():
            store[name] = torch.from_numpy(values[np.array(beside, np.int64)])
    seeds = batch if homogeneous else batch[input_type]
    seeds.input_id, seeds.batch_size = torch.tensor(positions, dtype=torch.int64), len(positions)
    return batch


def expected_epoch(
    source: ArraySource, input_type: str, ids: list[int], *, batch_size: int, edge_dir: str = "in", seed: int = 0, **options: Any
) -> list[Data | HeteroData]:
    batches = reference_sampler.epoch_batches(
        len(ids), batch_size, seed=seed, name=f"node/{input_type}/ids", epoch=0, shuffle=False
    )  # fmt: skip
    expected = []
    for key, positions in batches:
        found = reference_ppr.sample(to_reference(source), key, {input_type: [ids[p] for p in positions]}, edge_dir=edge_dir, **options)
        found["num_channels"] = len(options.get("typed_channel_ratios") or ())
        expected.append(expected_batch(source, found, input_type, positions, edge_dir))
    return expected


def seeds_of(source: ArraySource, input_type: str, ids: list[int]) -> Any:
    return np.array(ids, np.int64) if source.schema.is_homogeneous else (input_type, np.array(ids, np.int64))


def check(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for batch, wanted in zip(got, expected, strict=True):
        same(batch, wanted, any_order=True)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph and random options for it."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    source = random_source(rng) if draw(st.integers(0, 3)) else homogeneous_source(random_edges(rng, 30, 30, 150), 33)
    types, edge_types = source.schema.node_types, sorted(source.edges)
    input_type = draw(st.sampled_from([t for t, schema in types.items() if schema.num_nodes]))
    options: dict[str, Any] = {
        "alpha": draw(st.sampled_from([0.1, 0.25, 0.5, 0.9])),
        "eps": draw(st.sampled_from([1e-1, 1e-2, 1e-3])),
        "max_ppr_nodes": draw(st.sampled_from([0, 1, 3, 10, 50])),
        "enable_residual_topup": draw(st.booleans()),
        "num_neighbors_per_hop": draw(st.sampled_from([-1, 1, 3, 40, 1000])),
        "max_fetch_iterations": draw(st.sampled_from([None, 1, 3])),
    }
    if not source.schema.is_homogeneous:
        options["include_sampled_edges"] = draw(st.booleans())
        groups = draw(st.lists(st.sets(st.sampled_from(edge_types), min_size=1).map(lambda g: tuple(sorted(g))), max_size=3, unique=True))
        weights = draw(st.lists(st.integers(1, 9), min_size=len(groups), max_size=len(groups)))
        if groups:
            shares = [weight / sum(weights) for weight in weights]
            options["typed_channel_ratios"] = {g[0] if len(g) == 1 else g: share for g, share in zip(groups, shares, strict=True)}
        options["edge_types"] = draw(st.none() | st.just(sorted({t for g in groups for t in g} or set(edge_types))))
    return {
        "source": source,
        "input_type": input_type,
        "ids": draw(st.lists(st.integers(0, types[input_type].num_nodes - 1), max_size=12)),
        "batch_size": draw(st.integers(1, 9)),
        "edge_dir": draw(st.sampled_from(["in", "out"])),
        "seed": draw(st.integers(0, (1 << 64) - 1)),
        "options": options,
    }


@pytest.mark.slow
@settings(max_examples=120, deadline=None, derandomize=True)
@given(cases())
def test_random_graphs(case: dict[str, Any]) -> None:
    source, ids = case["source"], case["ids"]
    words = {name: case[name] for name in ("batch_size", "edge_dir", "seed")}
    data, inputs = to_pyg(source), seeds_of(source, case["input_type"], ids)
    with GraphLoader.from_pyg(data, sampler=PPR(**case["options"]), input_nodes=inputs, with_edge=True, progress=False, **words) as loader:
        check(list(loader), expected_epoch(source, case["input_type"], ids, **words, **case["options"]))


def three_types() -> tuple[ArraySource, str]:
    """Three types that walks go round in both ways, hubs of far more than four edges, arrays on nodes and edges; and the seeds' type."""
    rng, sizes = np.random.default_rng(4), {"author": 30, "paper": 40, "venue": 25}
    types = [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "to", "venue"), ("venue", "has", "author")]
    edges = {t: random_edges(rng, sizes[t[0]], sizes[t[2]], 160) for t in types}
    x, edge_attr = rng.standard_normal((40, 3)).astype(np.float32), rng.standard_normal((160, 2)).astype(np.float32)
    node_arrays, edge_arrays = {"paper": {"x": x}}, {t: {"edge_attr": edge_attr} for t in types[1:3]}
    return typed_source(sizes, edges, node_arrays, edge_arrays), "author"


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_parts(tmp_path: Path, edge_dir: str, num_parts: int) -> None:
    source, input_type = three_types()
    ids = list(range(20)) + [3, 3]
    expected = expected_epoch(source, input_type, ids, batch_size=8, edge_dir=edge_dir, **OPTIONS)
    words: dict[str, Any] = {"sampler": PPR(**OPTIONS), "input_nodes": seeds_of(source, input_type, ids), "batch_size": 8}
    with GraphLoader.from_source(
        source, store_dir=tmp_path, num_parts=num_parts, partition="random", edge_dir=edge_dir, with_edge=True, progress=False, **words
    ) as loader:
        check(list(loader), expected)
        if num_parts == 3 and edge_dir == "out":
            with loader.with_backend(Colocated(num_workers=2)) as elsewhere:
                check(list(elsewhere), expected)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_parts_on_several_hosts(tmp_path: Path, edge_dir: Any) -> None:
    """Neighbours, degrees and positions come from whoever has them; with channels, which are pushed side by side."""
    source, input_type = three_types()
    first, *others = sorted(source.edges)
    options = {**OPTIONS, "typed_channel_ratios": {first: 0.3, tuple(others): 0.7}}
    store = stored(source, tmp_path / "store", BuildOptions(num_parts=3, partition="random", edge_dir=edge_dir, with_edge=True))
    sampling = PPR(**options).sampling(store.schema, EdgeUse(edge_dir, with_edge=True))
    request = request_of(77, np.arange(9))
    wanted = reference_ppr.sample(to_reference(source), 77, {input_type: list(range(9))}, edge_dir=edge_dir, **options)
    placement = {0: (0,), 1: (1, 2)}
    for sampler, others_asked in spread_samplers(store.arrays(), sampling, placement).values():
        arrays = {(key[0], key.name): values for key, values in sampled(sampler, request)[1].items()}
        for t, ids in wanted["nodes"].items():
            assert np.frombuffer(arrays[t, "n_id"], np.int64).tolist() == ids
        for edge_type, (row, col, beside) in wanted["edges"].items():
            assert np.frombuffer(arrays[edge_type, "edge_index"], np.int64).tolist() == row + col
            if edge_type[1] == "ppr":
                found = np.frombuffer(arrays[edge_type, "edge_attr"], np.float32).tolist()
                assert found == [number for attribute in beside for number in attribute]
            else:
                assert np.frombuffer(arrays[edge_type, "e_id"], np.int64).tolist() == beside
        assert {kind for kind, _ in others_asked.asked} == {"expand", "answer", "rows"}


def test_many_seeds_and_long_walks() -> None:
    """Walks that outgrow their first place many times over, more of them than are pushed at once, and seeds that come again."""
    rng = np.random.default_rng(2)
    source = homogeneous_source(rng.integers(0, 900, (2, 6000)), 900)
    ids = rng.integers(0, 900, 90).tolist()
    options = {"alpha": 0.1, "eps": 5e-4, "max_ppr_nodes": 30}
    with GraphLoader.from_pyg(to_pyg(source), sampler=PPR(**options), input_nodes=np.array(ids), batch_size=90, progress=False) as loader:
        (batch,) = loader
    (wanted,) = expected_epoch(source, "node", ids, batch_size=90, **options)
    assert batch.n_id.equal(wanted.n_id) and batch.edge_index.equal(wanted.edge_index) and batch.edge_attr.equal(wanted.edge_attr)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_the_targets_of_links_are_not_walked_along(edge_dir: str) -> None:
    rng = np.random.default_rng(6)
    source, edge_type = homogeneous_source(rng.integers(0, 40, (2, 160)), 40), ("node", "to", "node")
    data = to_pyg(source)
    words: dict[str, Any] = {"edge_label_index": data.edge_index[:, :30], "batch_size": 6, "edge_dir": edge_dir}
    options: dict[str, Any] = {"alpha": 0.25, "eps": 1e-3, "max_ppr_nodes": 9}
    differ = False
    with GraphLoader.from_pyg(data, sampler=PPR(**options), exclude_edges="self", progress=False, **words) as loader:
        for batch in loader:
            seeds, targets = batch.n_id[: batch.num_sampled_nodes[0]].tolist(), batch.n_id[batch.edge_label_index].T.tolist()
            # No node has more edges than it may draw, so that the key says nothing.
            found, without = (
                reference_ppr.sample(to_reference(source), 0, {"node": seeds}, edge_dir=edge_dir, excluded=excluded, **options)
                for excluded in ({edge_type: set(map(tuple, targets))}, None)
            )
            (row, col, attributes), (_, other, _) = found["edges"]["node", "ppr", "node"], without["edges"]["node", "ppr", "node"]
            assert batch.n_id.tolist() == found["nodes"]["node"] and batch.edge_index.tolist() == [row, col]
            assert batch.edge_attr.tolist() == attributes
            differ |= col != other
    assert differ, "the targets would have been walked along"


def test_the_reference_is_plain_python() -> None:
    """It judges because it shares nothing with what it judges."""
    imports = [line for line in inspect.getsource(reference_ppr).splitlines() if line.startswith(("import ", "from "))]
    assert imports == ["import math", "import struct", "from tests.reference_sampler import choose, fold, shown, text"]
