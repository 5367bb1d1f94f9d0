"""The store behind a folder: a store itself, or one made of a partition directory that graphlearn-torch wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import DatasetError
from gnnkit.schema import EdgeDir
from gnnkit.storage.catalog import default_store_dir, find_or_build
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.store import Store

_GLT_META = "META"
_WEIGHT = "weight"


def open_partitions(root: Path, edge_dir: EdgeDir, labels: Any, store_dir: str | Path | None) -> Store | Path:
    """Finds a store, or makes one of graphlearn-torch's partitions unless that was done before.

    Args:
        root: The folder.
        edge_dir: Direction of a store that is made.
        labels: File of whole labels of a partition directory, or a file by type; None takes those that lie in it.
        store_dir: Where a store is made; None is the folder of stores.

    Returns:
        The folder if it is a store, else the store that was made.

    Raises:
        DatasetError: The folder is neither, or is damaged.
        StoreError: The store is damaged or cannot be written.
    """
    if (root / MANIFEST_NAME).exists():
        return root
    if not (root / _GLT_META).exists():
        raise DatasetError(
            f"{root} is neither a store nor a partition directory of graphlearn-torch",
            f"give a folder with {MANIFEST_NAME} or {_GLT_META} in it",
        )
    from gnnkit.storage.glt_format import GltPartitionSource

    files = {t: Path(path) for t, path in labels.items()} if isinstance(labels, Mapping) else None if labels is None else Path(labels)
    source = GltPartitionSource(root, labels=files)
    edge_types = source.schema.edge_types.values()
    with_edge = any(edges.arrays for edges in edge_types)
    weight = _WEIGHT if edge_types and all(_WEIGHT in edges.arrays for edges in edge_types) else None
    options = BuildOptions(source.num_parts, edge_dir=edge_dir, with_edge=with_edge, weight=weight)
    return find_or_build(source, options, Path(store_dir).expanduser() if store_dir else default_store_dir())
