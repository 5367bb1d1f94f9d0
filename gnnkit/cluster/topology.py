"""Which ranks share a node: from what every rank says about itself, never from host names or addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.errors import PlanError

_LOCAL_RANK_HINT = "start every rank with torchrun, or give local_process_rank and local_process_world_size on every rank"
_EQUAL_HINT = "every node needs the same number of processes: start as many on each"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What a rank says about itself.

    Attributes:
        host: Identity of the running system and of its namespaces; processes with the same one share memory and files. Empty
            where the system has none.
        local_rank: Its place on its node, where it was told.
        local_world_size: Processes of its node, where it was told.
        node_rank: Its node, where it was told.
        address: Address of its host that other ranks have used, or empty.
        route: Address from which its packets leave, or empty.
        memory: Bytes of memory that its host has for it.
    """

    host: str
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    address: str = ""
    route: str = ""
    memory: int = 0


def group_ranks(facts: Sequence[RankFacts]) -> list[list[int]]:
    """Groups ranks by node.

    Ranks that were told their local rank are grouped by the node rank they were told. Without one they are grouped by host, and
    where a local rank occurs more than once on a host, each occurrence belongs to a further node on it. Ranks that were told
    nothing are grouped by host.

    Args:
        facts: One per rank, in the order of ranks.

    Returns:
        The ranks of each node, in the order of their local ranks; all nodes have equally many.

    Raises:
        PlanError: Only some ranks were told, the local ranks of a node are not 0, 1, 2, ..., or nodes have different counts.
    """
    told = [fact.local_rank is not None for fact in facts]
    if any(told) and not all(told):
        without = [rank for rank, known in enumerate(told) if not known]
        raise PlanError(f"ranks {without} do not know their local rank, the other ranks do", _LOCAL_RANK_HINT)
    nodes = _told_nodes(facts) if all(told) else _host_nodes(facts)
    counts = {node: len(ranks) for node, ranks in enumerate(nodes)}
    if len(set(counts.values())) > 1:
        raise PlanError(f"nodes have different numbers of ranks: {_listed(counts, nodes)}", _EQUAL_HINT)
    return nodes


def _host_nodes(facts: Sequence[RankFacts]) -> list[list[int]]:
    nodes: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        if not fact.host:
            raise PlanError(f"rank {rank} runs on a system without a boot id, which would tell who shares its host", _LOCAL_RANK_HINT)
        nodes.setdefault(fact.host, []).append(rank)
    return list(nodes.values())


def _told_nodes(facts: Sequence[RankFacts]) -> list[list[int]]:
    by_node = all(fact.node_rank is not None for fact in facts)
    seen: dict[tuple[str, int], int] = defaultdict(int)
    nodes: dict[Any, dict[int, int]] = {}
    for rank, fact in enumerate(facts):
        local_rank = int(fact.local_rank or 0)
        key: Any = fact.node_rank
        if not by_node:
            key = (fact.host, seen[fact.host, local_rank])
            seen[fact.host, local_rank] += 1
        members = nodes.setdefault(key, {})
        if local_rank in members:
            raise PlanError(
                f"ranks {members[local_rank]} and {rank} are both local rank {local_rank} of node {key}",
                "processes that were started by a rank inherit its LOCAL_RANK: give them their own, or unset it",
            )
        members[local_rank] = rank
    ordered = [nodes[key] for key in sorted(nodes)] if by_node else list(nodes.values())
    for node, members in enumerate(ordered):
        _check_node(node, members, facts)
    return [[members[local_rank] for local_rank in range(len(members))] for members in ordered]


def _check_node(node: int, members: dict[int, int], facts: Sequence[RankFacts]) -> None:
    if sorted(members) != list(range(len(members))):
        raise PlanError(f"node {node} has the local ranks {sorted(members)}, expected 0 to {len(members) - 1}", _LOCAL_RANK_HINT)
    for rank in members.values():
        expected = facts[rank].local_world_size
        if expected is not None and expected != len(members):
            raise PlanError(
                f"rank {rank} was told that its node has {expected} processes, "
                f"but {len(members)} are there: ranks {sorted(members.values())}",
                _EQUAL_HINT,
            )


def _listed(counts: dict[int, int], nodes: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"node {node} has {count} (ranks {', '.join(map(str, nodes[node]))})" for node, count in counts.items())
