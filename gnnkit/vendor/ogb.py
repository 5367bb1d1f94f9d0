"""The one place that knows the ``ogb`` package: its tables of datasets and its evaluator.

``ogb`` is read as files wherever that is enough, because importing it changes the process (defect OGB-1
of ``docs/development/defects.md``).
"""

from __future__ import annotations

import csv
import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from gnnkit.errors import DatasetError
from gnnkit.vendor.packages import package_folder, undisturbed

OgbName = Literal[
    "ogbl-biokg",
    "ogbl-citation2",
    "ogbl-collab",
    "ogbl-ddi",
    "ogbl-ppa",
    "ogbl-vessel",
    "ogbl-wikikg2",
    "ogbn-arxiv",
    "ogbn-mag",
    "ogbn-papers100M",
    "ogbn-products",
    "ogbn-proteins",
]
Task = Literal["node", "link", "graph"]

_FOLDERS: dict[Task, str] = {"node": "nodeproppred", "link": "linkproppred", "graph": "graphproppred"}
_PIP_LINE = 'pip install "ogb>=1.3.6"'
# The variable that `import ogb` sets; see OGB-1.
_SET_ON_IMPORT = "OUTDATED_IGNORE"
_import_lock = threading.Lock()


def package_dir() -> Path:
    """The folder of the installed ``ogb`` package, found without importing it.

    Raises:
        DatasetError: ``ogb`` is not installed.
    """
    folder = package_folder("ogb")
    if folder is None:
        raise DatasetError("the package 'ogb', whose tables describe OGB's datasets, is not installed", _PIP_LINE)
    return folder


@lru_cache(maxsize=8)
def master_table(task: Task) -> dict[str, dict[str, str]]:
    """OGB's own table of datasets, ``{dataset name: {property: text}}``, read from the package's ``master.csv``.

    Raises:
        DatasetError: ``ogb`` is not installed, or its table is missing or malformed.
    """
    path = package_dir() / _FOLDERS[task] / "master.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
    except (OSError, ValueError) as error:
        raise DatasetError(f"cannot read {path}: {error}", f"{_PIP_LINE} --force-reinstall") from error
    return {name: {row[0]: row[column] for row in rows} for column, name in enumerate(header) if column > 0}


def evaluator(name: str, task: Literal["node", "link"]) -> Any:
    """``ogb.nodeproppred.Evaluator(name)``, or that of ``ogb.linkproppred``.

    The import brings in pandas, scikit-learn, torch and PyG, so the first call takes seconds.

    Raises:
        DatasetError: ``ogb`` is not installed or cannot be imported.
    """
    package_dir()
    with _import_lock, _quiet_import():
        try:
            module = importlib.import_module(f"ogb.{_FOLDERS[task]}")
        except ImportError as error:
            message = f"the package 'ogb' is installed but cannot be imported: {error}"
            raise DatasetError(message, f"{_PIP_LINE} --force-reinstall") from error
    return module.Evaluator(name)


@contextmanager
def _quiet_import() -> Iterator[None]:
    """OGB-1: no thread that calls home, and the environment as it was."""
    missing = object()
    outdated: Any = sys.modules.get("outdated", missing)
    # None in sys.modules makes `from outdated import ...` raise ImportError, for which ogb is prepared.
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        with undisturbed(_SET_ON_IMPORT):
            yield
    finally:
        if outdated is missing:
            sys.modules.pop("outdated", None)
        else:
            sys.modules["outdated"] = outdated
