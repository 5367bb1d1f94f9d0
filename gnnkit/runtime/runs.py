"""All runs of this user on this host, found and looked at. What is read may be gone at the next look: what has gone is left out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.files import temporary_home
from gnnkit.runtime import registry
from gnnkit.runtime.pids import is_alive, is_of_here
from gnnkit.runtime.process_status import ProcessStatus, look_at

# What the processes of gnnkit have on their command line.
_OURS = (b"gnnkit.runtime.", b"gnnkit.jobs.")
_STDERR = 2
# The state of a process of another boot, host or container.
_UNKNOWN = "not known"
_NOT_THERE = ("gone", "ended", _UNKNOWN)


@dataclass(frozen=True)
class Run:
    """What one process has started, and what the processes that it has started have started in turn.

    Attributes:
        id: The name of its folder.
        path: Its folder.
        what: "servers", "sampling processes", "part service", "courier", "temporary store",
            "embeddings" or "training".
        state: "running"; "ended": whoever had it is there, but none of its processes, of which one has failed; "stale": whoever had it
            is gone, and nobody has tidied up; "failed": likewise, and its logs stay for whoever reads of the failure; "elsewhere": of
            another boot, host or container, so that nobody here can know.
        store: What it works on, where that is written down.
        program: What started it: a notebook or a script.
        owner: The process that started it.
        processes: Those that it has, one that has been started again once; not those that have gone with their predecessors.
        started_s: When it began, in seconds since 1970; 0 where that is not written down.
        nbytes: Bytes that its folders take.
        died: Whether a process of it has died.
        in_foreground: Whether the owner is there for nothing else.
        folders: Its own folder, and those of runs that its processes have made, each after its owner's; with what is written there.
    """

    id: str
    path: Path
    what: str
    state: str
    store: str | None
    program: str
    owner: ProcessStatus
    processes: tuple[ProcessStatus, ...]
    started_s: float
    nbytes: int
    died: bool
    in_foreground: bool
    folders: tuple[tuple[Path, dict[str, Any]], ...] = field(repr=False)

    @property
    def alive(self) -> tuple[ProcessStatus, ...]:
        """Its processes that have not ended."""
        return tuple(process for process in self.processes if process.state not in _NOT_THERE)

    @property
    def has_orphans(self) -> bool:
        """Whether processes have outlived whoever started them."""
        return self.state in ("stale", "failed") and bool(self.alive)


def known_roots() -> list[Path]:
    """Folders of runs of this user: the usual ones, also those that another environment would give, and where living processes write."""
    from gnnkit.storage.catalog import default_root

    homes = [os.environ.get("GNNKIT_HOME")]
    runtimes = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"]
    wanted = [Path(home).expanduser() / "runs" for home in homes if home]
    wanted += [Path(runtime) / "gnnkit" / "runs" for runtime in runtimes if runtime]
    wanted += [*_state_folders(), temporary_home() / "runs", default_root() / "temporary"]
    return own_folders([*wanted, *_roots_of_processes()])


def own_folders(folders: Iterable[Path]) -> list[Path]:
    """Those of the folders that are there and belong to this user, each once."""
    found: dict[Path, None] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            if folder.is_dir() and folder.stat().st_uid == os.getuid():
                found[folder.resolve()] = None
    return list(found)


def find_runs(roots: Sequence[Path] | None = None) -> list[Run]:
    """Every run, the oldest first.

    Args:
        roots: Folders of runs; None: ``known_roots()``.
    """
    records = {folder: record for root in (known_roots() if roots is None else roots) for folder, record in registry.runs(root)}
    makers = {_key(record, child): folder for folder, record in records.items() for child in registry.children_in(record)}
    inner: dict[Path, list[Path]] = {}
    for folder, record in records.items():
        maker = makers.get(_key(record, record))
        if maker is not None and maker != folder:
            inner.setdefault(maker, []).append(folder)
    nested = {folder for folders in inner.values() for folder in folders}
    found = [_run_of([(folder, records[folder]) for folder in _with_inner(top, inner)]) for top in records if top not in nested]
    return sorted(found, key=lambda run: (run.started_s, run.id))


def select(runs: Sequence[Run], wanted: str) -> list[Run]:
    """The runs that a word means.

    Args:
        runs: All of them.
        wanted: A run's id or its beginning, or the pid of a process that it belongs to or has.

    Raises:
        PlanError: It means none.
    """
    found = [run for run in runs if run.id == wanted] or [run for run in runs if wanted and run.id.startswith(wanted)]
    if wanted.isdigit():
        pid = int(wanted)
        of_pid = [run for run in runs if pid in (run.owner.pid, *(process.pid for process in run.processes))]
        found = of_pid or found
    if not found:
        known = ", ".join(run.id for run in runs[-8:])
        raise PlanError(f"there is no run {wanted!r}", f"the last runs are: {known}" if known else "gnnkit ps lists runs; there is none")
    return found


def newest(runs: Sequence[Run]) -> Run:
    """The run that was started last, of those that have living processes, or else of those that have had any.

    Raises:
        PlanError: There is none.
    """
    found = [run for run in runs if run.alive] or [run for run in runs if run.processes]
    if not found:
        raise PlanError("there are no runs with logs", "gnnkit ps lists runs; --log-dir names a folder that was given as log_dir=...")
    return found[-1]


def _state_folders() -> list[Path]:
    import platformdirs

    return [Path(platformdirs.user_state_dir("gnnkit")) / "runs"]


def _roots_of_processes() -> Iterator[Path]:
    """Where this user's living processes of gnnkit write their logs: folders that a user has named are known from them alone."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if place.stat().st_uid == os.getuid() and any(name in (place / "cmdline").read_bytes() for name in _OURS):
                log = Path(os.readlink(place / "fd" / str(_STDERR)))
                if registry.is_run(log.parent):
                    yield log.parent.parent


def _key(record: dict[str, Any], process: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a process from every other one; only of hashable parts, whatever a record says."""
    return tuple(map(str, (record.get("boot"), record.get("namespace"), process.get("pid"), process.get("ticks"))))


def _with_inner(folder: Path, inner: dict[Path, list[Path]]) -> list[Path]:
    return [folder, *(deeper for each in inner.get(folder, []) for deeper in _with_inner(each, inner))]


def _run_of(folders: list[tuple[Path, dict[str, Any]]]) -> Run:
    path, record = folders[0]
    here, pid = is_of_here(record), record.get("pid")
    owner = _look("owner", record, None, here=here)
    died = any(bool(each.get("failed")) for _, each in folders)
    store = record.get("store", record.get("embeddings"))
    started = record.get("started")
    processes = tuple(process for folder, each in folders for process in _processes(each, here=here))
    return Run(
        id=path.name,
        path=path,
        what=_what(path, record),
        state=_state(owner, processes, died=died) if here else "elsewhere",
        store=store if isinstance(store, str) else None,
        program=str(record.get("program", "")),
        owner=owner if isinstance(pid, int) else ProcessStatus("owner", 0, "gone"),
        processes=processes,
        started_s=float(started) if isinstance(started, (int, float)) else 0.0,
        nbytes=sum(_size(folder) for folder, _ in folders),
        died=died,
        in_foreground=bool(record.get("foreground")),
        folders=tuple(folders),
    )


def _state(owner: ProcessStatus, processes: Sequence[ProcessStatus], *, died: bool) -> str:
    """The state of a run of this host."""
    if owner.state == "gone":
        return "failed" if died else "stale"
    return "ended" if died and all(process.state in _NOT_THERE for process in processes) else "running"


def _what(path: Path, record: dict[str, Any]) -> str:
    kind = record.get("kind")
    if "embeddings" in record:
        return "embeddings"
    if kind in ("server", "courier", "rank"):
        return {"server": "servers", "courier": "courier", "rank": "training"}[kind]
    if "serves" in record:
        return "part service"
    return "temporary store" if path.parent.name == "temporary" and not registry.children_in(record) else "sampling processes"


def _processes(record: dict[str, Any], *, here: bool) -> Iterator[ProcessStatus]:
    """The processes that a record names: of those with one number the last, and whoever lives."""
    children = registry.children_in(record)
    last = {str(child.get("rank")): child for child in children}
    within = f"server {record['server']}, " if isinstance(record.get("server"), int) else ""
    kind = str(record.get("kind"))
    if kind not in ("server", "courier", "rank"):
        kind = "part service" if "serves" in record else "process"
    for child in children:
        if child is last[str(child.get("rank"))] or (here and is_alive(child)):
            log = child.get("log")
            yield _look(f"{within}{kind} {child.get('rank')}", child, Path(log) if isinstance(log, str) else None, here=here)


def _look(name: str, process: dict[str, Any], log: Path | None, *, here: bool) -> ProcessStatus:
    pid = process.get("pid")
    if here and isinstance(pid, int) and is_alive(process):
        return look_at(name, pid, log)
    text = None if log is None else str(log)
    return ProcessStatus(name, pid if isinstance(pid, int) else 0, "gone" if here else _UNKNOWN, text)


def _size(folder: Path) -> int:
    """Bytes of the files in a folder, as far as they are there."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
