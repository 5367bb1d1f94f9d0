"""Plans that sample otherwise than hop by hop, written to a file and read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gnnkit import HGT, PPR, BuildOptions, Glt, GraphLoader, Labor, LayerWise, Store, Walks
from gnnkit.errors import PlanError
from gnnkit.plan.sampling import EdgeUse
from gnnkit.samplers import Sampler, to_options
from tests.backends.kinds import BUYS, KNOWS, REV_BUYS, source_of
from tests.helpers.batches import same
from tests.helpers.graphs import ArraySource, stored

# The second channel is so small that none of five nodes is its own.
CHANNELS = {(BUYS, REV_BUYS): 0.95, KNOWS: 0.05}
SAMPLERS: dict[str, Any] = {
    "LABOR": Labor([2, 3], layer_dependency=True, batch_dependency=3),
    "HGT": HGT({"user": [3, 2], "item": [2, 0]}),
    "layer-wise": LayerWise({"item": [4, 3]}),
    "PPR": PPR(0.25, 1e-3, 5, False, 7, 4, edge_types=[BUYS, REV_BUYS]),
    "walks": Walks(4, 2, 0.5, 2, 1, metapath=[KNOWS]),
    "metapath": Walks(4, metapath=[REV_BUYS, BUYS]),
    "PPR with channels": PPR(max_ppr_nodes=5, typed_channel_ratios=CHANNELS, include_sampled_edges=True),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A typed graph of two parts."""
    source: ArraySource = source_of("typed", "node", "in")
    return stored(source, tmp_path_factory.mktemp("planned") / "store", BuildOptions(2, "random", "in", with_edge=True))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_plan_in_a_file_gives_the_same_batches(name: str, store: Store, tmp_path: Path) -> None:
    words: dict[str, Any] = {"sampler": SAMPLERS[name], "input_nodes": ("user", range(20)), "batch_size": 8}
    with GraphLoader.from_store(store.path, progress=False, **words) as loader:
        loader.plan.save(tmp_path / "plan.json")
        with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
            assert again.plan == loader.plan
            for left, right in zip(loader, again, strict=True):
                same(left, right)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("LABOR", {"labor": {"layer_dependency": False, "batch_dependency": 0}}, "batch_dependency"),
        ("LABOR", {"disjoint": True}, "LABOR takes each neighbour once"),
        ("HGT", {"num_samples": {"shop": [3, 2]}}, "shop"),
        ("layer-wise", {"num_nodes": {"item": [-1, 2]}}, "-1"),
        ("PPR", {"alpha": 2.0}, "alpha"),
        ("walks", {"per_node": 0}, "per_node"),
        ("walks", {"metapath": [["user", "sells", "item"]]}, "sells|leads to"),
        ("metapath", {"q": 2.0}, "several types"),
        ("PPR with channels", {"channels": [{"edge_types": [list(KNOWS)], "ratio": 0.5, "target": 3}]}, "sum to 1"),
    ],
)
def test_an_edited_plan_is_checked(name: str, changes: dict[str, Any], message: str, store: Store, tmp_path: Path) -> None:
    with GraphLoader.from_store(store.path, progress=False, sampler=SAMPLERS[name], input_nodes=("user", range(20))) as loader:
        written = loader.plan.to_json()
    written["sampling"].update(changes)
    (tmp_path / "plan.json").write_text(json.dumps(written))
    with pytest.raises(PlanError, match=message):
        GraphLoader.from_plan(tmp_path / "plan.json", progress=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Labor([]), "num_neighbors is empty"),
        (lambda: Labor([2, -2]), "-2"),
        (lambda: Labor([2], layer_dependency=1), "layer_dependency"),  # type: ignore[arg-type]
        (lambda: Labor([2], batch_dependency=0), "batch_dependency"),
        (lambda: Labor([2], batch_dependency=1.5), "batch_dependency"),  # type: ignore[arg-type]
        (lambda: Labor({("user", "sells", "item"): [2]}), "sells"),
    ],
)
def test_what_labor_cannot_be(make: Any, message: str, store: Store) -> None:
    with pytest.raises(PlanError, match=message):
        GraphLoader.from_store(store.path, progress=False, sampler=make(), input_nodes=("user", range(20)))


def test_labor_goes_on_with_other_inputs_and_ends_with_other_sampling(store: Store) -> None:
    with GraphLoader.from_store(store.path, progress=False, sampler=Labor([2, 2]), input_nodes=("user", range(20))) as loader:
        with loader.for_split(("user", range(9))) as other:
            assert other.plan.sampling == loader.plan.sampling
        with loader.for_split(("user", range(9)), num_neighbors=[2, 2]) as other:
            assert other.plan.sampling != loader.plan.sampling
        for words in ({"disjoint": True}, {"replace": True}, {"time_window": [1] * 9}):
            with pytest.raises(PlanError, match="do not go together"):
                loader.for_split(("user", range(9)), **words)
        with pytest.raises(PlanError, match="shares draws|graphlearn-torch"):
            loader.with_backend(Glt())


@dataclass(frozen=True)
class OneSampling:
    """The plan's form of a sampler that gnnkit does not know the words of: one neighbour of each node, one hop."""

    edge_dir: Any = "in"
    with_edge: bool = False
    weight: None = None
    time_attr: None = None
    num_hops: int = 1

    def to_json(self) -> dict[str, Any]:
        """With its kind."""
        return {"kind": "one", "edge_dir": self.edge_dir, "with_edge": self.with_edge}


def test_a_form_without_words_stays_as_it_is(store: Store) -> None:
    planned = OneSampling()
    words = to_options(planned)
    assert isinstance(words, Sampler)
    assert words.sampling(store.schema, EdgeUse()) is planned
