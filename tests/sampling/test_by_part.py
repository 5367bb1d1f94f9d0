"""``shuffle="parts"``: batches of one part each, as the specification's program has them, and the ranks that get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import GnnkitError, PlanError, StoreError
from tests import reference_sampler
from tests.helpers.batches import digests

NUM_NODES = 60


def graph(parts: list[int]) -> Data:
    """Some edges among nodes whose array ``part`` says where they belong."""
    rng = np.random.default_rng(len(parts))
    edges = torch.tensor(rng.integers(0, len(parts), (2, 4 * len(parts))))
    return Data(edge_index=edges, num_nodes=len(parts), x=torch.arange(len(parts)).float()[:, None], part=torch.tensor(parts))


def cut(parts: list[int], num_parts: int, folder: Path) -> str:
    """The folder of a store whose nodes are in these parts."""
    return str(gnnkit.partition(graph(parts), num_parts, "column:part", folder, overwrite=True).path)


def loader(store: str, **options: Any) -> GraphLoader:
    usual: dict[str, Any] = {"num_neighbors": [2], "shuffle": "parts", "backend": "inprocess", "progress": False, "input_nodes": None}
    return GraphLoader.from_store(store, **{**usual, **options})


def positions(batches: Any) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in batches]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    num_parts = draw(st.integers(1, 6))
    parts = draw(st.lists(st.integers(0, num_parts - 1), min_size=num_parts, max_size=NUM_NODES))
    # As many zeros and ones as there are nodes could be meant as a mask, and are refused.
    ids = st.lists(st.integers(0, len(parts) - 1), max_size=50).filter(lambda ids: len(ids) != num_parts + len(parts) or max(ids) > 1)
    return {
        "num_parts": num_parts,
        "parts": [*range(num_parts), *parts],
        "ids": draw(st.none() | ids),
        "batch_size": draw(st.integers(1, 9)),
        "seed": draw(st.integers(0, 5)),
        "epoch": draw(st.integers(0, 2)),
        "drop_last": draw(st.booleans()),
    }


@given(case=cases())
@settings(max_examples=40, deadline=None)
def test_batches_are_those_of_the_specification(tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any]) -> None:
    store = cut(case["parts"], case["num_parts"], tmp_path_factory.mktemp("parts") / "store")
    ids = list(range(len(case["parts"]))) if case["ids"] is None else case["ids"]
    words = {name: case[name] for name in ("batch_size", "seed", "drop_last")}
    name = "all" if case["ids"] is None else "ids"
    wanted = reference_sampler.epoch_batches(
        len(ids),
        name=f"node/node/{name}",
        epoch=case["epoch"],
        shuffle=True,
        parts=[case["parts"][i] for i in ids],
        num_parts=case["num_parts"],
        **words,
    )
    with loader(store, input_nodes=None if case["ids"] is None else torch.tensor(ids, dtype=torch.long), **words) as own:
        own.set_epoch(case["epoch"])
        assert positions(own) == [found for _, found in wanted]


PARTS = [0] * 31 + [1] * 9 + [2] * 14 + [3] * 22


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_ranks_get_batches_of_their_own_parts(tmp_path: Path, world_size: int, remainder: Any) -> None:
    store = cut(PARTS, 4, tmp_path / "store")
    options = {"batch_size": 4, "seed": 2, "remainder": remainder}
    with loader(store, **options) as whole:
        batches = positions(whole)
    parts = [found.pop() if len(found := {PARTS[i] for i in batch}) == 1 else None for batch in batches]
    first_mixed = next((i for i, part in enumerate(parts) if part is None), len(parts))
    parts[first_mixed:] = [None] * (len(parts) - first_mixed)
    assert first_mixed == sum(PARTS.count(part) // 4 for part in range(4))
    expected = reference_sampler.dealt(parts, 4, world_size, remainder)
    for rank in range(world_size):
        with loader(store, rank=rank, world_size=world_size, **options) as own:
            assert len(own) == len(expected[rank])
            assert positions(own) == [batches[i] for i in expected[rank]]


def test_hosts_get_mostly_what_they_hold(tmp_path: Path) -> None:
    """With a part for each rank, and as many seeds in each, every batch but the mixed ones is of the rank's own part."""
    parts = [i % 4 for i in range(100)]
    store = cut(parts, 4, tmp_path / "store")
    for rank in range(4):
        with loader(store, batch_size=8, rank=rank, world_size=4) as own:
            assert {parts[i] for batch in positions(own)[:3] for i in batch} == {rank}


def test_links_go_by_the_parts_of_their_sources(tmp_path: Path) -> None:
    store, data = cut(PARTS, 4, tmp_path / "store"), graph(PARTS)
    links = data.edge_index[:, :90]
    sources = [PARTS[i] for i in links[0].tolist()]
    with loader(store) as nodes, nodes.for_links(links, batch_size=5, shuffle="parts", seed=4) as own:
        found = positions(own)
    wanted = reference_sampler.epoch_batches(90, 5, seed=4, name=own.plan.inputs.stream, epoch=0, shuffle=True, parts=sources, num_parts=4)
    assert found == [positions for _, positions in wanted]


def test_a_graph_in_memory_is_one_part() -> None:
    options: dict[str, Any] = {"num_neighbors": [2], "batch_size": 7, "input_nodes": None, "backend": "inprocess", "progress": False}
    with (
        GraphLoader.from_pyg(graph(PARTS), shuffle="parts", **options) as by_part,
        GraphLoader.from_pyg(graph(PARTS), shuffle=True, **options) as shuffled,
    ):
        assert digests(by_part) == digests(shuffled)


def test_an_epoch_goes_on_among_other_ranks(tmp_path: Path) -> None:
    store = cut(PARTS, 4, tmp_path / "store")
    with loader(store, batch_size=4, remainder="uneven") as whole:
        batches = positions(whole)
        whole.set_epoch(0)
        iterator = iter(whole)
        before = positions(next(iterator) for _ in range(5))
        state = whole.state_dict()
    after = []
    for rank in range(3):
        with loader(store, batch_size=4, remainder="uneven", rank=rank, world_size=3) as own:
            own.load_state_dict(state)
            after += positions(own)
    assert sorted([*before, *after]) == sorted(batches)


def test_other_cuts_are_other_batches(tmp_path: Path) -> None:
    """A plan and a state that follow from the parts are refused on the same graph in other parts; plain ones are not."""
    ways: list[Any] = ["column:part", "random"]
    stores = [str(gnnkit.partition(graph(PARTS), 4, way, tmp_path / f"store{i}").path) for i, way in enumerate(ways)]
    plans: dict[Any, Path] = {shuffle: tmp_path / f"{shuffle}.json" for shuffle in ("parts", True)}
    for shuffle, path in plans.items():
        with loader(stores[0], shuffle=shuffle, batch_size=4) as own:
            own.plan.save(path)
            next(iter(own))
            state = own.state_dict()
        path.write_text(path.read_text().replace("store0", "store1"))
        with loader(stores[1], shuffle=shuffle, batch_size=4) as other:
            if shuffle is True:
                other.load_state_dict(state)
            else:
                with pytest.raises(PlanError, match="other parts"):
                    other.load_state_dict(state)
    with GraphLoader.from_plan(plans[True], progress=False) as again:
        assert len(positions(again)) == 19
    with pytest.raises(StoreError, match="is cut otherwise than the one that it was made for"):
        GraphLoader.from_plan(plans["parts"], progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "part"}, "shuffle must be True, False or 'parts', got 'part'"),
        ({"shuffle": 1}, "shuffle must be True, False, 'parts' or None, got 1"),
        ({"seed_weights": torch.ones(len(PARTS))}, "shuffle='parts' says which seeds are in a batch, and so does seed_weights"),
        ({"num_neighbors": None, "sampler": gnnkit.Clusters(4)}, "and so does clusters sampling"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GnnkitError, match=message):
        loader(cut(PARTS, 4, tmp_path / "store"), **options)
