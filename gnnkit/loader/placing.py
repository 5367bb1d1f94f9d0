"""The hosts of a loader's ranks, and which parts of a store belong to this one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gnnkit.cluster.hosts import Hosts
from gnnkit.cluster.placing import PlacementWord, place
from gnnkit.plan import Placement
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.manifest_io import read_manifest
from gnnkit.storage.store import Store


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
