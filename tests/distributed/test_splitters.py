"""GiGL's splitters: exact numbers, the same on every rank, and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnkit.distributed import (
    DistNodeAnchorLinkSplitter,
    DistNodeSplitter,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    reverse_edge_type,
    select_ssl_positive_label_edges,
)
from gnnkit.errors import PlanError
from tests.backends.setups import environment

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1]])
BUYS, SEES = ("user", "buys", "item"), ("user", "sees", "page")


def identity(ids: torch.Tensor) -> torch.Tensor:
    return ids


def lists(split: Any) -> list[list[int]]:
    return [part.tolist() for part in split]


@pytest.mark.parametrize("direction", ["in", "out"])
def test_by_hash(direction: str) -> None:
    splitter = DistNodeAnchorLinkSplitter(direction, 0.1, 0.1, identity)
    assert lists(splitter(EDGES)) == [list(range(8)), [8], [9]] and splitter.should_convert_labels_to_edges
    few = DistNodeAnchorLinkSplitter(direction, 0.2, 0.2, identity)
    # By number of nodes, not by ranges of what the function gives.
    assert lists(few(torch.tensor([[200, 1, 20, 2, 5, 5]] * 2))) == [[1, 2, 5], [20], [200]]
    assert lists(splitter(torch.tensor([[7], [7]]))) == [[7], [], []]


def test_by_draw() -> None:
    ids = torch.arange(100).flip(0)
    found = lists(DistNodeSplitter(0.1, 0.2, seed=4)(ids))
    assert [len(part) for part in found] == [70, 10, 20] and sorted(sum(found, [])) == list(range(100))
    assert found == lists(DistNodeSplitter(10, 20, seed=4)(ids)) != lists(DistNodeSplitter(0.1, 0.2, seed=5)(ids))
    by_type = DistNodeSplitter()({"user": ids, "item": torch.tensor([3])})
    assert isinstance(by_type, dict) and [len(part) for part in by_type["user"]] == [80, 10, 10] and lists(by_type["item"]) == [[3], [], []]


@pytest.mark.parametrize("direction", ["in", "out"])
def test_anchors_by_type(direction: str) -> None:
    edges = {BUYS: torch.tensor([[0, 1, 1], [5, 6, 5]]), SEES: torch.tensor([[1, 2], [8, 9]]), ("x", "y", "z"): torch.tensor([[0], [0]])}
    found = DistNodeAnchorLinkSplitter(direction, 0.0, 1, identity, [BUYS, SEES])(edges)
    assert isinstance(found, dict)
    if direction == "out":
        assert {t: lists(split) for t, split in found.items()} == {"user": [[0, 1], [], [2]]}
    else:
        assert {t: lists(split) for t, split in found.items()} == {"item": [[5], [], [6]], "page": [[8], [], [9]]}


@pytest.mark.parametrize("names", ["gnnkit's", "GiGL's"])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_anchors_are_those_of_label_edges(direction: Any, names: str) -> None:
    """Labels lead from users to items and from nodes to nodes; along in-edges they are stored the other way round."""
    positive, negative = torch.tensor([[0, 1, 1], [5, 6, 5]]), torch.tensor([[2], [7]])
    for edge_type, types in ((BUYS, [BUYS]), (("node", "to", "node"), None)):
        stored = {edge_type: torch.tensor([[8, 9], [8, 9]])}
        for label, edges in (
            (message_passing_to_positive_label(edge_type), positive),
            (message_passing_to_negative_label(edge_type), negative),
        ):
            source, relation, target = label
            backwards = reverse_edge_type(label) if names == "gnnkit's" and source != target else (target, relation, source)
            stored[backwards if direction == "in" else label] = edges.flip(0) if direction == "in" else edges
        found = DistNodeAnchorLinkSplitter(direction, 0.0, 1, identity, types)(stored)
        assert isinstance(found, dict) and {t: lists(split) for t, split in found.items()} == {edge_type[0]: [[0, 1], [], [2]]}
        own = DistNodeAnchorLinkSplitter(direction, 0.0, 1, identity, types, should_convert_labels_to_edges=False)(stored)
        assert isinstance(own, dict) and {t: lists(split) for t, split in own.items()} == {
            edge_type[2 if direction == "in" else 0]: [[8], [], [9]]
        }


def test_positives_of_ones_own() -> None:
    found = select_ssl_positive_label_edges(EDGES, 0.5, seed=1)
    pairs = EDGES.T.tolist()
    places = [pairs.index(edge) for edge in found.T.tolist()]
    assert found.shape == (2, 5) and places == sorted(set(places))
    assert found.equal(select_ssl_positive_label_edges(EDGES, 0.5, seed=1)) and not found.equal(select_ssl_positive_label_edges(EDGES, 0.5))
    assert select_ssl_positive_label_edges(EDGES, 1).equal(EDGES) and select_ssl_positive_label_edges(EDGES, 0).shape == (2, 0)


RANKS = """
import json, os, sys
from datetime import timedelta
import torch, torch.distributed as dist
from gnnkit.distributed import DistNodeAnchorLinkSplitter, DistNodeSplitter
child = os.fork()
rank = 0 if child else 1
store = dist.FileStore(sys.argv[1] + "/meet", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
own = torch.arange(0, 70) if rank == 0 else torch.arange(50, 100)
nodes = DistNodeSplitter(0.1, 0.2, seed=4)(own)
anchors = DistNodeAnchorLinkSplitter("out", 0.1, 0.2, seed=4)(torch.stack([own, own]))
dist.barrier()
dist.destroy_process_group()
found = json.dumps([rank, *[[part.tolist() for part in split] for split in (nodes, anchors)]])
os.write(1, f"{found}\\n".encode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
"""


@pytest.mark.slow
def test_ranks_agree(tmp_path: Path) -> None:
    """Each rank has some of the nodes, some of them both have: the numbers are those of all nodes together."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    command = [sys.executable, "-W", "error", str(script), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment(), timeout=240, check=True)
    found = {rank: splits for rank, *splits in map(json.loads, done.stdout.splitlines())}
    alone = lists(DistNodeSplitter(0.1, 0.2, seed=4)(torch.arange(100)))
    for kind in range(2):
        for rank, own in ((0, range(70)), (1, range(50, 100))):
            assert found[rank][kind] == [[node for node in part if node in own] for part in alone]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: DistNodeSplitter(-0.1), "num_val must be a share"),
        (lambda: DistNodeSplitter(0.1, 1.0), "num_test must be a share"),
        (lambda: DistNodeSplitter(0.5, 0.5), "leave nothing for training"),
        (lambda: DistNodeAnchorLinkSplitter("up"), "sampling_direction must be 'in' or 'out', got 'up'"),
        (lambda: DistNodeAnchorLinkSplitter("in", 0.6, 0.6), "leave nothing for training"),
        (lambda: DistNodeAnchorLinkSplitter("in", supervision_edge_types=[]), "supervision_edge_types is empty"),
        (lambda: DistNodeSplitter()(torch.zeros(2, 2, dtype=torch.int64)), "must be one-dimensional"),
        (lambda: DistNodeSplitter()(torch.empty(0, dtype=torch.int64)), "there must be some"),
        (lambda: DistNodeSplitter()({"user": torch.rand(3)}), "of 'user' must be whole numbers"),
        (lambda: DistNodeAnchorLinkSplitter("in")(torch.zeros(3, 2, dtype=torch.int64)), r"of shape \[2, e\], got shape \(3, 2\)"),
        (lambda: DistNodeAnchorLinkSplitter("in")(torch.eye(2).to_sparse()), "got a sparse tensor"),
        (lambda: DistNodeAnchorLinkSplitter("in")(torch.rand(2, 3)), "must be whole numbers"),
        (lambda: DistNodeAnchorLinkSplitter("in")({BUYS: EDGES}), "there are no supervision_edge_types"),
        (lambda: DistNodeAnchorLinkSplitter("in", supervision_edge_types=[BUYS])(EDGES), "the edges are not by type"),
        (lambda: DistNodeAnchorLinkSplitter("in", supervision_edge_types=[BUYS])({SEES: EDGES}), "no edges of the supervision type"),
        (lambda: select_ssl_positive_label_edges(EDGES, 1.5), "must be from 0 to 1, got 1.5"),
        (lambda: select_ssl_positive_label_edges(EDGES[0], 0.5), r"must have the shape \[2, e\]"),
    ],
)
def test_what_is_refused(call: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        call()
