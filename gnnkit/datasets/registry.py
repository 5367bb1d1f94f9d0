"""What OGB says about its datasets, taken from the table inside the ``ogb`` package without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gnnkit.errors import DatasetError, near_matches
from gnnkit.vendor import ogb as vendor_ogb

_KINDS: tuple[Literal["node", "link"], ...] = ("node", "link")


@dataclass(frozen=True, slots=True)
class OgbInfo:
    """One row of OGB's master table.

    Attributes:
        name: "ogbn-products".
        kind: What the dataset is for: "node" or "link" prediction.
        num_tasks: Labels per node; 0 for links.
        num_classes: Classes per label; 0 for links.
        task_type: "multiclass classification", "binary classification", "link prediction" or "KG completion".
        eval_metric: "acc", "rocauc", "hits@50", "mrr", ...
        download_name: Name of the archive and of the folder inside it.
        version: Release of the data that the table describes; the tree holds ``RELEASE_v<version>.txt``.
        url: Where OGB offers the archive.
        add_inverse_edge: Whether each edge of the files stands for itself and its inverse.
        split: Name of the official split.
        node_files: Node arrays beside features and labels ("node_year").
        edge_files: Edge arrays beside features ("edge_reltype").
        is_hetero: Whether nodes and edges are typed.
        is_binary: Whether the raw files are .npz rather than .csv.gz.
    """

    name: str
    kind: Literal["node", "link"]
    num_tasks: int
    num_classes: int
    task_type: str
    eval_metric: str
    download_name: str
    version: int
    url: str
    add_inverse_edge: bool
    split: str
    node_files: tuple[str, ...]
    edge_files: tuple[str, ...]
    is_hetero: bool
    is_binary: bool

    @property
    def folder(self) -> str:
        """The folder that ``ogb`` reads the dataset from: "ogbn_products"."""
        return self.name.replace("-", "_")

    def metadata(self) -> dict[str, Any]:
        """What users may want to know of the dataset, JSON-serialisable."""
        labels = {"num_classes": self.num_classes, "num_tasks": self.num_tasks} if self.kind == "node" else {}
        return {
            **labels,
            "task_type": self.task_type,
            "eval_metric": self.eval_metric,
            "split": self.split,
            "version": self.version,
            "add_inverse_edge": self.add_inverse_edge,
        }


def ogb_names() -> list[str]:
    """Every dataset that ``open_ogb`` reads.

    Raises:
        DatasetError: The package ``ogb`` is missing.
    """
    return sorted(name for kind in _KINDS for name in vendor_ogb.master_table(kind))


def ogb_info(name: str) -> OgbInfo:
    """Looks a dataset up.

    Raises:
        DatasetError: There is no dataset of that name, or it is one for predicting whole graphs.
    """
    for kind in _KINDS:
        table = vendor_ogb.master_table(kind)
        if name in table:
            return _parse(name, kind, table[name])
    names = ogb_names()
    if name in vendor_ogb.master_table("graph"):
        raise DatasetError(f"{name!r} is a graph prediction dataset, which gnnkit does not read", f"it reads: {', '.join(names)}")
    close = near_matches(str(name).lower().replace("_", "-"), names)
    raise DatasetError(f"there is no OGB dataset {name!r}{close}", f"known: {', '.join(names)}")


def _parse(name: str, kind: Literal["node", "link"], row: Mapping[str, str]) -> OgbInfo:
    try:
        return OgbInfo(
            name=name,
            kind=kind,
            num_tasks=int(row["num tasks"]) if kind == "node" else 0,
            num_classes=int(row["num classes"]) if kind == "node" else 0,
            task_type=row["task type"],
            eval_metric=row["eval metric"],
            download_name=row["download_name"],
            version=int(row["version"]),
            url=row["url"],
            add_inverse_edge=row["add_inverse_edge"] == "True",
            split=row["split"],
            node_files=_names(row["additional node files"]),
            edge_files=_names(row["additional edge files"]),
            is_hetero=row["is hetero"] == "True",
            is_binary=row["binary"] == "True",
        )
    except (KeyError, ValueError) as error:
        message = f"the package 'ogb' describes {name!r} in a way that gnnkit does not understand: {error!r}"
        raise DatasetError(message, "pip install -U gnnkit") from error


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("None", "") else tuple(part.strip() for part in text.split(","))
