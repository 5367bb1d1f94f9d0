"""Which host holds which parts of a store: a word, or what somebody wrote, turned into a ``Placement``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gnnkit.cluster.hosts import Hosts
from gnnkit.errors import PlanError, near_matches
from gnnkit.plan import Placement
from gnnkit.storage.manifest import Manifest

PlacementOption: TypeAlias = Literal["auto", "replicate", "partition"] | Mapping[int, Sequence[int]] | Placement
_WORDS = ("auto", "replicate", "partition")
# A store that takes no more than this share of the smallest host's memory is held by every host whole.
REPLICATED_SHARE = 4


def check_placement(value: Any) -> None:
    """Checks what can be checked without hosts and a store.

    Raises:
        PlanError: It is neither a word nor ``{host: parts}``.
    """
    if isinstance(value, Placement):
        return
    if isinstance(value, Mapping):
        for host, parts in value.items():
            numbers = [host, *parts] if isinstance(parts, Sequence) and not isinstance(parts, str) else [None]
            if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
                raise PlanError(f"placement[{host!r}] is {parts!r}", "write host numbers and lists of part numbers: {0: [0, 1], 1: [2]}")
        return
    if value not in _WORDS:
        raise PlanError(
            f"placement must be one of {list(_WORDS)} or {{host: parts}}, got {value!r}{near_matches(str(value), list(_WORDS))}"
        )


def place(value: PlacementOption, manifest: Manifest, path: str | Path, hosts: Hosts) -> Placement | None:
    """The placement of a store's parts.

    Args:
        value: What the user said.
        manifest: The store's manifest.
        path: The store's folder or URL, for a message.
        hosts: The hosts.

    Returns:
        None where one host has everything.

    Raises:
        PlanError: It does not fit the hosts or the parts.
    """
    num_parts = manifest.num_parts
    if isinstance(value, Placement):  # a plan that was made before
        if hosts.count == 1:
            return None
        value = dict(enumerate(value.hosts))
    if isinstance(value, Mapping):
        return _written(value, num_parts, hosts)
    if hosts.count == 1:
        return None
    if value == "auto":
        value = "replicate" if _fits_everywhere(manifest, hosts) else "partition"
    every = tuple(range(num_parts))
    if value == "replicate":
        return Placement((every,) * hosts.count)
    if num_parts < hosts.count:
        raise PlanError(
            f"the store {path} has {num_parts} part{'s' if num_parts > 1 else ''} for {hosts.count} hosts",
            f"gnnkit partition {shlex.quote(str(path))} {hosts.count}   # or placement='replicate': every host holds all of it",
        )
    return shares(num_parts, hosts.count)


def shares(num_parts: int, num_hosts: int) -> Placement:
    """Each host's share of the parts, of which there are at least as many as hosts."""
    ends = [num_parts * host // num_hosts for host in range(num_hosts + 1)]
    return Placement(tuple(tuple(range(first, end)) for first, end in zip(ends[:-1], ends[1:], strict=True)))


def _fits_everywhere(manifest: Manifest, hosts: Hosts) -> bool:
    """Whether every host can hold the whole store; hosts that cannot compare their memory go by its number of parts, as all see it."""
    if hosts.memory is None:
        return manifest.num_parts < hosts.count
    return manifest.nbytes * REPLICATED_SHARE <= hosts.memory


def _written(value: Mapping[int, Sequence[int]], num_parts: int, hosts: Hosts) -> Placement | None:
    unknown_hosts = sorted(set(value) - set(range(hosts.count)))
    if unknown_hosts:
        raise PlanError(f"placement names host {unknown_hosts[0]}, but there are {hosts.count}", "hosts count from 0")
    unknown = sorted({part for parts in value.values() for part in parts} - set(range(num_parts)))
    if unknown:
        raise PlanError(f"placement names part {unknown[0]}, but the store has {num_parts}", "parts count from 0")
    missing = sorted(set(range(num_parts)) - {part for parts in value.values() for part in parts})
    if missing:
        raise PlanError(f"placement says nothing about the parts {missing}", "every part must be on some host")
    if hosts.count == 1:
        return None
    return Placement(tuple(tuple(sorted(set(value.get(host, ())))) for host in range(hosts.count)))


def describe(placement: Placement) -> str:
    """A placement on one line."""
    if placement.is_replicated:
        return f"all of it on each of {placement.num_hosts} hosts"
    return "; ".join(f"host {host}: {_parts(parts)}" for host, parts in enumerate(placement.hosts))


def _parts(parts: Sequence[int]) -> str:
    return f"part{'s' if len(parts) != 1 else ''} {', '.join(map(str, parts))}" if parts else "no part"
