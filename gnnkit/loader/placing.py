"""Which host holds which parts: the user's word for it, turned into a plan's placement."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gnnkit.errors import PlanError, near_matches
from gnnkit.plan import Placement
from gnnkit.runtime.hosts import Hosts
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.manifest_io import read_manifest
from gnnkit.storage.store import Store

PlacementWord: TypeAlias = Literal["auto", "replicate", "partition"] | Mapping[int, Sequence[int]] | Placement
_WORDS = ("auto", "replicate", "partition")
# A store that takes no more than this share of the smallest host's memory is held by every host whole.
_REPLICATED_SHARE = 4


@dataclass(frozen=True)
class Site:
    """Where a loader runs.

    Attributes:
        word: What the user said about the placement.
        hosts: The hosts of all its ranks.
    """

    word: PlacementWord
    hosts: Hosts

    def placement(self, manifest: Manifest, path: Path) -> Placement | None:
        """The placement of a store's parts; see ``place``."""
        return place(self.word, manifest, path, self.hosts)

    def open(self, path: str | Path) -> Store:
        """Opens the parts of a store that belong to this host.

        Raises:
            StoreError: There is no store, or it is damaged, or lacks a part that belongs here.
            PlanError: The placement does not fit the hosts or the parts.
        """
        path = Path(path).expanduser().absolute()
        placement = self.placement(read_manifest(path), path)
        return Store.open(path, None if placement is None else placement.hosts[self.hosts.index])


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


def place(value: PlacementWord, manifest: Manifest, path: Path, hosts: Hosts) -> Placement | None:
    """The placement of a store's parts.

    Args:
        value: What the user said.
        manifest: The store's manifest.
        path: Where the store is, for a message.
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
    ends = [num_parts * host // hosts.count for host in range(hosts.count + 1)]
    return Placement(tuple(every[first:end] for first, end in zip(ends[:-1], ends[1:], strict=True)))


def _fits_everywhere(manifest: Manifest, hosts: Hosts) -> bool:
    """Whether every host can hold the whole store; hosts that cannot compare their memory go by its number of parts, as all see it."""
    if hosts.memory is None:
        return manifest.num_parts < hosts.count
    return manifest.nbytes * _REPLICATED_SHARE <= hosts.memory


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
