"""Epochs whose inputs are drawn by weight: as the page says, the same everywhere, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnnkit import Colocated, GraphLoader, GraphStore, InProcess
from gnnkit.errors import PlanError
from tests import reference_sampler
from tests.helpers.chi_square import check_counts

NUM_NODES = 60
OPTIONS: dict[str, Any] = {"num_neighbors": [2], "batch_size": 16, "seed": 8, "progress": False}
WEIGHTS = np.arange(NUM_NODES) % 7 * 0.37
TRAIN = torch.arange(NUM_NODES) % 3 != 0


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NUM_NODES, (2, 400), generator=generator)
    # Three classes of 45, 12 and 3 nodes.
    return Data(edge_index=edges, y=torch.tensor([0] * 45 + [1] * 12 + [2] * 3), num_nodes=NUM_NODES, train_mask=TRAIN)


def expected_ids(weights: Any, epoch: int, name: str = "node/node/all", ids: Any = None) -> list[list[int]]:
    """The inputs of each batch, worked out from the page."""
    count = len(weights)
    batches = reference_sampler.epoch_batches(
        count, OPTIONS["batch_size"], seed=OPTIONS["seed"], name=name, epoch=epoch, shuffle=False, weights=list(map(float, weights))
    )
    return [[int(p if ids is None else ids[p]) for p in positions] for _, positions in batches]


def drawn(loader: GraphLoader) -> list[list[int]]:
    return [batch.n_id[: batch.batch_size].tolist() for batch in loader]


@pytest.mark.parametrize("backend", [InProcess(2), Colocated(2), GraphStore(1)], ids=lambda backend: type(backend).__name__)
def test_an_epoch_is_drawn_as_the_page_says(backend: Any) -> None:
    with GraphLoader.from_pyg(graph(), input_nodes=None, seed_weights=WEIGHTS, backend=backend, **OPTIONS) as loader:
        assert "drawn by weight" in repr(loader)
        for epoch in range(2):
            assert drawn(loader) == expected_ids(WEIGHTS, epoch)


def test_ranks_and_a_resumed_loader_divide_the_same_epoch() -> None:
    whole = expected_ids(WEIGHTS, 0)
    for world_size in (2, 3):
        found = {}
        for rank in range(world_size):
            ranks = {"rank": rank, "world_size": world_size, "remainder": "uneven"}
            with GraphLoader.from_pyg(graph(), input_nodes=None, seed_weights=WEIGHTS, **OPTIONS, **ranks) as loader:
                found.update({number * world_size + rank: ids for number, ids in enumerate(drawn(loader))})
        assert [found[index] for index in sorted(found)] == whole
    with GraphLoader.from_pyg(graph(), input_nodes=None, seed_weights=WEIGHTS, **OPTIONS) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with GraphLoader.from_pyg(graph(), input_nodes=None, seed_weights=WEIGHTS, **OPTIONS) as loader:
        loader.load_state_dict(state)
        assert drawn(loader) == whole[1:]


def test_balanced_classes_are_drawn_alike() -> None:
    with GraphLoader.from_pyg(graph(), input_nodes=None, seed_weights="balanced", **OPTIONS) as loader:
        counts = np.zeros(3, np.int64)
        first = drawn(loader)
        for _ in range(50):
            for batch in loader:
                counts += np.bincount(batch.y[: batch.batch_size].numpy(), minlength=3)
    weights = 1.0 / np.bincount(graph().y.numpy())[graph().y.numpy()]
    assert first == expected_ids(weights, 0)
    check_counts(counts, np.full(3, 1 / 3))


@pytest.mark.parametrize("how", ["ids", "mask", "places of a mask", "split"])
def test_weights_belong_to_inputs_however_they_are_given(how: str) -> None:
    ids = np.flatnonzero(TRAIN.numpy())
    nodes: Any = {"ids": ids, "split": "train"}.get(how, TRAIN)
    weights = WEIGHTS if how == "places of a mask" else WEIGHTS[ids]
    with GraphLoader.from_pyg(graph(), input_nodes=nodes, seed_weights=weights, **OPTIONS) as loader:
        assert drawn(loader) == expected_ids(WEIGHTS[ids], 0, f"node/node/{'train' if how == 'split' else 'ids'}", ids)


def test_links_are_drawn_by_weight(tmp_path: Path) -> None:
    links = torch.stack([torch.arange(20), torch.arange(20, 40)])
    weights = np.r_[np.zeros(10), np.arange(10)]
    with GraphLoader.from_pyg(graph(), edge_label_index=links, seed_weights=weights, **OPTIONS) as loader:
        found = [batch.input_id.tolist() for batch in loader]
        assert found == expected_ids(weights, 0, "link/node__to__node/ids")
        assert all(position > 10 for batch in found for position in batch)
        # Other inputs have no weights until they are given some.
        with loader.for_split(None) as plain, loader.for_split(None, seed_weights=WEIGHTS) as weighted:
            assert sorted(sum(drawn(plain), [])) == list(range(NUM_NODES))
            assert drawn(weighted) == expected_ids(WEIGHTS, 0)


def test_a_plan_keeps_them(tmp_path: Path) -> None:
    from gnnkit import partition

    store = partition(graph(), 2, out=tmp_path / "store")
    with GraphLoader.from_store(store.path, input_nodes=None, seed_weights=WEIGHTS, **OPTIONS) as loader:
        loader.plan.save(tmp_path / "plan.json")
        with loader.with_backend(Colocated(1)) as elsewhere:
            assert drawn(elsewhere) == expected_ids(WEIGHTS, 0)
    with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as loader:
        assert drawn(loader) == expected_ids(WEIGHTS, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed_weights": np.ones(5)}, r"seed_weights has shape \(5,\), and there are 60 inputs to draw"),
        ({"seed_weights": np.zeros(NUM_NODES)}, "not all of them 0"),
        ({"seed_weights": np.full(NUM_NODES, -1.0)}, "finite numbers of at least 0"),
        ({"seed_weights": np.full(NUM_NODES, np.nan)}, "finite numbers of at least 0"),
        ({"seed_weights": "classes"}, "numbers or 'balanced', got 'classes'"),
        ({"seed_weights": WEIGHTS, "shuffle": False}, "shuffle=False asks for their own order"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        GraphLoader.from_pyg(graph(), input_nodes=None, **OPTIONS, **options)


def test_classes_that_are_not_there_are_named() -> None:
    data = graph()
    del data.y
    with pytest.raises(PlanError, match="needs labels y"):
        GraphLoader.from_pyg(data, input_nodes=None, seed_weights="balanced", **OPTIONS)
    with pytest.raises(PlanError, match="batches start from links"):
        GraphLoader.from_pyg(graph(), edge_label_index=torch.zeros(2, 3, dtype=torch.long), seed_weights="balanced", **OPTIONS)
