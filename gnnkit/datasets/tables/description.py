"""Tables that a file names: a table of edges itself, or a YAML file with the arguments of ``gnnkit.tables``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.datasets.tables.source import TableSource, tables
from gnnkit.errors import DatasetError, PlanError, near_matches
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import read_bounded
from gnnkit.urls import is_url

if TYPE_CHECKING:
    from gnnkit.datasets.tables.hosts import TableEngine

_YAML = (".yaml", ".yml")


def open_described(
    path: str | Path, events: EventSink = ignore_events, *, engine: TableEngine | None = None, scratch_dir: Path | None = None
) -> TableSource:
    """The graph of a file: a YAML file with the arguments of ``gnnkit.tables``, or a table of edges.

    In YAML, an edge type is "user,buys,item", and paths are relative to the file.

    Args:
        path: The file; of a table of edges its URL, too.
        events: Receives progress.
        engine: See ``gnnkit.tables``.
        scratch_dir: See ``gnnkit.tables``.

    Raises:
        PlanError: The file names an argument that there is not, or see ``gnnkit.tables``.
        DatasetError: See ``gnnkit.tables``.
    """
    table, path = path, Path(path)
    if path.suffix.lower() not in _YAML:
        return tables(table, name=path.name.partition(".")[0], engine=engine, scratch_dir=scratch_dir, events=events)
    import yaml

    try:
        given = yaml.safe_load(read_bounded(path))
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
    if not isinstance(given, dict) or "edges" not in given:
        raise PlanError(f"{path} names no edges", "it holds the arguments of gnnkit.tables, edges at least")
    return tables_from_text(given, path.parent, events, default_name=path.stem, engine=engine, scratch_dir=scratch_dir)


def tables_from_text(
    given: Mapping[str, Any],
    folder: Path,
    events: EventSink,
    *,
    default_name: str = "tables",
    engine: TableEngine | None = None,
    scratch_dir: Path | None = None,
) -> TableSource:
    """``gnnkit.tables`` with arguments as a file or a command line has them.

    Args:
        given: The arguments; an edge type is "user,buys,item".
        folder: Where relative paths begin.
        events: Receives progress.
        default_name: The graph's name where none is given.
        engine: See ``gnnkit.tables``.
        scratch_dir: See ``gnnkit.tables``.

    Raises:
        PlanError: There is no such argument.
    """
    known = [name for name in inspect.signature(tables).parameters if name not in ("events", "scratch_dir", "memory_bytes", "engine")]
    for name in given:
        if name not in known:
            raise PlanError(f"gnnkit.tables has no argument {name!r}{near_matches(str(name), known)}", f"arguments: {', '.join(known)}")
    arguments = {name: forms_from_text(value, folder) if name in ("nodes", "edges") else _typed(value) for name, value in given.items()}
    return tables(**{"name": default_name, **arguments}, engine=engine, scratch_dir=scratch_dir, events=events)


def forms_from_text(value: Any, folder: Path) -> Any:
    """Tables as a file or a command line names them: ``{"user,buys,item": path}``, or a path; relative ones begin in ``folder``."""
    value = _typed(value)
    return {key: _located(form, folder) for key, form in value.items()} if isinstance(value, dict) else _located(value, folder)


def _typed(value: Any) -> Any:
    """A mapping with edge types as tuples."""
    if not isinstance(value, dict):
        return value
    return {tuple(word.strip() for word in key.split(",")) if isinstance(key, str) and "," in key else key: v for key, v in value.items()}


def _located(form: Any, folder: Path) -> Any:
    if isinstance(form, dict):
        return {key: _located(each, folder) for key, each in form.items()}
    if isinstance(form, list):
        return [_located(each, folder) for each in form]
    return str(folder / Path(form).expanduser()) if isinstance(form, str) and not is_url(form) else form
