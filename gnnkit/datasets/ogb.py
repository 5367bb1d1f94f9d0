"""OGB's node and link datasets by name: found on disk or downloaded, opened as a graph to stream from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from gnnkit.datasets.ogb_tree import OgbTree, check_release, damaged_tree, find_tree
from gnnkit.datasets.registry import OgbInfo, ogb_info
from gnnkit.errors import DatasetError
from gnnkit.events import EventSink, ignore_events
from gnnkit.source import GraphSource


def open_ogb(
    name: str,
    *,
    root: str | Path | None = None,
    download: Literal["auto"] | bool = "auto",
    undirected: bool = False,
    events: EventSink = ignore_events,
) -> GraphSource:
    """Opens an OGB node or link dataset, and downloads it first if it is not there and may be.

    Ids, edge order and splits are OGB's own: edge ``e`` of the source is column ``e`` of ``NodePropPredDataset``'s
    ``edge_index``. Arrays carry the names that ``PygNodePropPredDataset`` gives them: "x", "y", "edge_attr", "node_year",
    "node_species", "edge_reltype", "edge_weight", "edge_year". Labels are int64 ``[n]``, -1 where a node has none; ``[n, 112]`` for
    ogbn-proteins.

    Of link datasets, ``link_splits`` is what ``LinkPropPredDataset.get_edge_split()`` gives, by edge type: "edge_label_index" are "edge",
    "source_node" and "target_node", or "head" and "tail"; "edge_label" is "weight" or "relation"; "edge_label_time" is "year";
    "neg_edge_index" is "edge_neg"; "src_neg_index" is "head_neg"; "dst_neg_index" is "tail_neg" or "target_node_neg". Those of ogbl-biokg
    are sorted by edge type, in the order of its files within each.

    Args:
        name: "ogbn-products", "ogbn-arxiv", "ogbn-proteins", "ogbn-mag", "ogbn-papers100M", "ogbl-collab", "ogbl-ppa",
            "ogbl-citation2", "ogbl-ddi", "ogbl-wikikg2", "ogbl-biokg" or "ogbl-vessel".
        root: Folder that holds (or will hold) the dataset's folder: ``<root>/ogbn_products`` as ``ogb`` and PyG leave it. It
            may be read-only where the dataset is there. None is ``$GNNKIT_HOME`` or the user's cache.
        download: Whether a missing dataset may be downloaded: "auto" up to 2 GB, True whatever its size, False never. With
            ``GNNKIT_OFFLINE=1`` in the environment nothing is ever downloaded.
        undirected: Adds the edges that PyG's ``ToUndirected`` would add.
        events: Where progress and notices go.

    Raises:
        DatasetError: The name is unknown, the dataset is missing and may not or cannot be downloaded, or it is damaged.
    """
    if download not in ("auto", True, False):
        raise DatasetError(f"download must be 'auto', True or False, got {download!r}")
    info = ogb_info(name)
    tree = _tree(info, _root(root), download, events)
    check_release(info, tree, events)
    source: GraphSource
    if info.is_binary:
        from gnnkit.datasets.ogb_layouts import open_binary_layout

        source = open_binary_layout(info, tree)
    else:
        from gnnkit.datasets.ogb_layouts import open_csv_layout

        source = open_csv_layout(info, tree)
    if undirected:
        from gnnkit.datasets.undirected import UndirectedSource

        source = UndirectedSource(source, events=events)
    return source


def evaluator(name: str) -> Any:
    """OGB's own ``Evaluator(name)`` of ``ogb.nodeproppred`` or ``ogb.linkproppred``, imported without its side effects.

    For nodes, ``eval`` takes ``{"y_true": [n, num_tasks], "y_pred": [n, num_tasks]}``: labels of one task need ``.view(-1, 1)``. For links
    it takes ``{"y_pred_pos": [n], "y_pred_neg": [m]}``, or ``[n, k]`` of them where the metric is "mrr".

    Raises:
        DatasetError: The name is unknown, or the package ``ogb`` cannot be imported.
    """
    from gnnkit.vendor import ogb as vendor_ogb

    info = ogb_info(name)
    return vendor_ogb.evaluator(info.name, info.kind)


def _root(root: str | Path | None) -> Path:
    if root is not None:
        return Path(root).expanduser()
    from gnnkit.storage.catalog import default_root

    return default_root()


def _tree(info: OgbInfo, root: Path, download: Literal["auto"] | bool, events: EventSink) -> OgbTree:
    tree = find_tree(info, root)
    if tree is not None:
        return tree
    damaged = damaged_tree(info, root)
    if damaged is not None:
        path, missing = damaged
        message = f"{path} should hold {info.name}, but {missing} is not in it"
        raise DatasetError(message, f"restore the file, or move {path} away and try again")
    from gnnkit.datasets.ogb_fetch import fetch

    fetch(info, root, download, events)
    tree = find_tree(info, root)
    if tree is None:
        raise DatasetError(f"the archive of {info.name} was unpacked into {root / info.folder}, but does not hold the dataset's files")
    return tree
