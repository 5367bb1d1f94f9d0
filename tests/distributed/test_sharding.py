"""Contiguous fractional shares: fixtures of GiGL's, and what holds for any number of servers, trainers and parts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.cluster.serving.store_api import server_shares
from gnnkit.distributed import FetchABLPInputRequest, FetchNodesRequest, ServerSlice, compute_server_assignments
from gnnkit.errors import PlanError

COUNTS = st.integers(1, 9)


def test_fractional_boundary_assignment() -> None:
    assert compute_server_assignments(3, 2, 0) == {0: ServerSlice(0, 0, 2, 2), 1: ServerSlice(1, 0, 1, 2)}
    assert compute_server_assignments(3, 2, 1) == {1: ServerSlice(1, 1, 2, 2), 2: ServerSlice(2, 0, 2, 2)}


def test_assignments_recombine_server_data() -> None:
    shares = [compute_server_assignments(2, 5, rank) for rank in range(5)]
    for server in range(2):
        pieces = [share[server].slice_tensor(torch.arange(11)) for share in shares if server in share]
        assert torch.cat(pieces).tolist() == list(range(11))


@given(servers=COUNTS, trainers=COUNTS, lengths=st.lists(st.integers(0, 40), min_size=9, max_size=9))
def test_every_element_is_somebodys_and_nobody_asks_more_servers_than_needed(servers: int, trainers: int, lengths: list[int]) -> None:
    taken: dict[int, list[int]] = {server: [] for server in range(servers)}
    for rank in range(trainers):
        share = compute_server_assignments(servers, trainers, rank)
        assert list(share) == sorted(share) and len(share) <= math.ceil(servers / trainers) + 1
        assert sum(part.end_numerator - part.start_numerator for part in share.values()) == servers  # everybody's share is as large
        for server, part in share.items():
            assert part.server_rank == server and part.denominator == trainers
            taken[server] += part.slice_tensor(torch.arange(lengths[server])).tolist()
    assert taken == {server: list(range(lengths[server])) for server in range(servers)}


def test_a_whole_slice_is_the_tensor_itself() -> None:
    values = torch.arange(10)
    assert ServerSlice(0, 0, 3, 3).slice_tensor(values) is values
    assert ServerSlice(0, 0, 1, 2).slice_tensor(values).tolist() == [0, 1, 2, 3, 4]
    thirds = [ServerSlice(0, start, start + 1, 3).slice_tensor(values).tolist() for start in range(3)]
    assert thirds == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


@pytest.mark.parametrize("arguments", [(-1, 1, 0), (0, 1, 0), (1, -1, 0), (1, 0, 0), (1, 2, -1), (1, 2, 2), (1, 2, True), (1.0, 2, 0)])
def test_validates_arguments(arguments: Any) -> None:
    with pytest.raises(PlanError):
        compute_server_assignments(*arguments)


@pytest.mark.parametrize("numbers", [(0, 0, 0, 0), (0, 1, 0, 2), (0, 0, 3, 2), (0, -1, 1, 2)])
def test_a_slice_is_a_fraction(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(PlanError, match="no fraction"):
        ServerSlice(*numbers)


def test_requests() -> None:
    assert FetchNodesRequest() == FetchNodesRequest(split=None, node_type=None, server_slice=None)
    part = ServerSlice(1, 0, 1, 2)
    assert FetchNodesRequest("train", "user", part).server_slice is part
    wanted = FetchABLPInputRequest(split="val", node_type="user", supervision_edge_type=("user", "to", "story"))
    assert wanted.server_slice is None and wanted.max_labels_per_anchor_node is None


@given(parts=COUNTS, servers=COUNTS)
def test_servers_share_parts_that_all_of_them_hold(parts: int, servers: int) -> None:
    holders = [tuple(range(parts))] * servers
    units = [
        (share.piece, unit) for rank in range(servers) for share in server_shares(holders, rank) for unit in range(share.start, share.end)
    ]
    assert units == [(part, unit) for part in range(parts) for unit in range(servers)]
    if parts == servers:
        assert [[share.piece for share in server_shares(holders, rank)] for rank in range(servers)] == [[rank] for rank in range(servers)]


def test_servers_of_several_hosts_answer_for_their_own_parts() -> None:
    holders = [(0, 1), (0, 1), (2,), (1, 2)]
    assert [[share[:3] for share in server_shares(holders, rank)] for rank in range(4)] == [[(0, 0, 2)], [(1, 0, 2)], [(2, 0, 1)], []]
