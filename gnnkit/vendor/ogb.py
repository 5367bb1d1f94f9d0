"""The one place that knows the ``ogb`` package: its tables of datasets, its evaluator, and what is wrong with it.

``ogb`` is read as files wherever that is enough, because importing it changes the process (defect OGB-1).
"""

from __future__ import annotations

import csv
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from gnnkit.errors import DatasetError

Task = Literal["node", "link", "graph"]

_FOLDERS: dict[Task, str] = {"node": "nodeproppred", "link": "linkproppred", "graph": "graphproppred"}
_PIP_LINE = 'pip install "ogb>=1.3.6"'
# The variable that `import ogb` sets; see OGB-1.
_SET_ON_IMPORT = "OUTDATED_IGNORE"
_import_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Defect:
    """Something in a package we depend on that gnnkit works around.

    Attributes:
        id: What comments in the code call it.
        affected: Versions seen to have it.
        what: What goes wrong.
        remedy: What gnnkit does instead.
        remove_when: The condition under which the workaround can go.
    """

    id: str
    affected: str
    what: str
    remedy: str
    remove_when: str


KNOWN_DEFECTS = (
    Defect(
        "OGB-1",
        "<=1.3.6",
        "`import ogb` sets the environment variable OUTDATED_IGNORE and starts a thread that asks PyPI for the newest version",
        "the tables are read as files; for the evaluator, `outdated` is hidden during the import and the variable is put back",
        "importing ogb neither sets variables nor opens connections",
    ),
    Defect(
        "OGB-2",
        "<=1.3.6",
        "downloads and version checks ask on stdin, and leave by exit(-1) when the answer is no; a cut download starts anew",
        "gnnkit downloads by itself and raises errors",
        "ogb.utils.url takes its answer as an argument, raises, and resumes",
    ),
    Defect(
        "OGB-3",
        "<=1.3.6",
        "processed caches and split_dict.pt are unpickled by torch.load without weights_only, which fails from torch 2.6 on",
        "only the raw layout is read, and the splits of links by a reader that makes arrays and runs nothing",
        "never: gnnkit unpickles nothing",
    ),
    Defect(
        "OGB-4",
        "<=1.3.6",
        "read_csv_graph_raw renames species.csv.gz to node_species.csv.gz inside the tree, so read-only trees fail",
        "both names are looked for and nothing is renamed",
        "released archives hold node_species.csv.gz and older trees are gone",
    ),
    Defect(
        "OGB-5",
        "<=1.3.6",
        "read_csv_heterograph_raw takes rows [num_edge, 2 num_edge) of a typed graph's edge features instead of the first num_edge",
        "typed edge features are read from the start of the file",
        "upstream slices by the running count; no node-level dataset has typed edge features today",
    ),
)


def package_dir() -> Path:
    """The folder of the installed ``ogb`` package, found without importing it.

    Raises:
        DatasetError: ``ogb`` is not installed.
    """
    try:
        spec = importlib.util.find_spec("ogb")
    except (ValueError, ImportError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise DatasetError("the package 'ogb', whose tables describe OGB's datasets, is not installed", _PIP_LINE)
    return Path(next(iter(spec.submodule_search_locations)))


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
    return _import(f"ogb.{_FOLDERS[task]}").Evaluator(name)


def _import(module: str) -> ModuleType:
    package_dir()
    with _import_lock, _quiet_import():
        try:
            return importlib.import_module(module)
        except ImportError as error:
            message = f"the package 'ogb' is installed but cannot be imported: {error}"
            raise DatasetError(message, f"{_PIP_LINE} --force-reinstall") from error


@contextmanager
def _quiet_import() -> Iterator[None]:
    """OGB-1: no thread that calls home, and the environment as it was."""
    missing = object()
    before = os.environ.get(_SET_ON_IMPORT)
    outdated: Any = sys.modules.get("outdated", missing)
    # None in sys.modules makes `from outdated import ...` raise ImportError, for which ogb is prepared.
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            # What ogb's own imports deprecate is nothing that a user of gnnkit could change.
            warnings.simplefilter("ignore")
            yield
    finally:
        if outdated is missing:
            sys.modules.pop("outdated", None)
        else:
            sys.modules["outdated"] = outdated
        if before is None:
            os.environ.pop(_SET_ON_IMPORT, None)
        else:
            os.environ[_SET_ON_IMPORT] = before
