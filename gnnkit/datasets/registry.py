"""What OGB says about its datasets, taken from the table inside the ``ogb`` package without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gnnkit.errors import DatasetError, near_matches
from gnnkit.vendor import ogb as vendor_ogb


@dataclass(frozen=True, slots=True)
class OgbInfo:
    """One row of OGB's master table.

    Attributes:
        name: "ogbn-products".
        kind: What the dataset is for; link datasets will have their own.
        num_tasks: Labels per node.
        num_classes: Classes per label.
        task_type: "multiclass classification" or "binary classification".
        eval_metric: "acc" or "rocauc".
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
    kind: Literal["node"]
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
        return {
            "num_classes": self.num_classes,
            "num_tasks": self.num_tasks,
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
    return sorted(vendor_ogb.master_table("node"))


def ogb_info(name: str) -> OgbInfo:
    """Looks a dataset up.

    Raises:
        DatasetError: There is no dataset of that name, or it is one for another task than predicting nodes.
    """
    table = vendor_ogb.master_table("node")
    if name in table:
        return _parse(name, table[name])
    names = sorted(table)
    tasks: tuple[vendor_ogb.Task, ...] = ("link", "graph")
    for task in tasks:
        if name in vendor_ogb.master_table(task):
            raise DatasetError(f"{name!r} is a {task} prediction dataset, which gnnkit does not read yet", f"it reads: {', '.join(names)}")
    close = near_matches(str(name).lower().replace("_", "-"), names)
    raise DatasetError(f"there is no OGB dataset {name!r}{close}", f"known: {', '.join(names)}")


def _parse(name: str, row: Mapping[str, str]) -> OgbInfo:
    try:
        return OgbInfo(
            name=name,
            kind="node",
            num_tasks=int(row["num tasks"]),
            num_classes=int(row["num classes"]),
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
