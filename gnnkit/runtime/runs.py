"""Runs of this host: a folder each, found, looked at, stopped and removed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from gnnkit.errors import PlanError
from gnnkit.files import (
    gnnkit_home,
    open_regular,
    os_errors,
    private_folder,
    read_bounded,
    read_json,
    temporary_home,
    user_folder,
    user_path,
    why_unwritable,
)
from gnnkit.runtime.process_status import ProcessStatus, is_alive, is_of_here, look_at, pid_space, send_signal, start_ticks, wait_for_end
from gnnkit.waiting import Deadline

_OTHER_DISK = "free some space there, or set GNNKIT_HOME to a folder on another disk"
# Enough for the stacks of every thread, which a crash leaves.
_TAIL_LINES = 60
_TAIL_BYTES = 16 << 10


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log; empty where there is none.

    Args:
        path: The log.
        lines: How many at most.
    """
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - max(1, lines // _TAIL_LINES) * _TAIL_BYTES))
            text = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(text[-lines:])


def with_tail(message: str, path: Path) -> str:
    """A message, followed by the end of a log and where it lies."""
    end = tail(path)
    if not end:
        return f"{message}; its log {path} is empty"
    indented = "\n".join(f"    {line}" for line in end.splitlines())
    return f"{message}; the end of its log {path}:\n{indented}"


def opened_log(path: Path, mode: str) -> IO[bytes]:
    """Opens a log to append to it.

    Raises:
        PlanError: It cannot be written.
    """
    with os_errors(f"the log {path} cannot be written", path, _OTHER_DISK):
        return cast("IO[bytes]", path.open(mode))


logger = logging.getLogger(__name__)

_KEPT_S = 7 * 24 * 3600.0
_RECORD = "run.json"
# Pids of processes that were stopped on request, a line each: their ends need no other cause.
_STOPPED = "stopped"
_RUN_NAME = re.compile(r"[0-9]+-[0-9a-f]{8}")
# What the folder of a run is called while it is being removed.
_GOING = ".gone"
_GOING_NAME = re.compile(_RUN_NAME.pattern + re.escape(_GOING))
# A folder without a record is being made, or was left half-made; the former takes no time.
_HALF_MADE_S = 60.0
# How long a process that was killed may take to be gone.
_EXIT_WAIT_S = 2.0


def runs_root() -> Path:
    """The folder of runs: ``$GNNKIT_HOME/runs``, or in the user's runtime or state folder; else in the temporary one.

    Raises:
        PlanError: None of them can be written.
    """
    home, runtime = gnnkit_home(), os.environ.get("XDG_RUNTIME_DIR")
    wanted = [home / "runs"] if home else [Path(runtime) / "gnnkit" / "runs"] if runtime else []
    wanted += [*_state_folders(), fallback := temporary_home() / "runs"]
    reasons = []
    for folder in wanted:
        try:
            return checked_folder(private_folder(folder) if folder is fallback else folder)
        except OSError as error:
            reasons.append(f"{folder}: {why_unwritable(error, folder)}")
    raise PlanError(f"no folder for the logs of sampling processes can be written: {'; '.join(reasons)}", "set GNNKIT_HOME or TMPDIR")


def checked_folder(folder: Path) -> Path:
    """Makes a private folder, and tries to write into it.

    Raises:
        OSError: It cannot be made or written, or belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(0, "it belongs to another user")
    with tempfile.TemporaryFile(dir=folder):
        return folder


def new_run(log_dir: str | None, facts: dict[str, Any], kind: str = "worker", root: Path | None = None) -> RunFolder:
    """The folder of a new run; what runs that are gone have left is removed.

    Args:
        log_dir: The folder of runs as the user gave it; None: ``root``.
        facts: See ``RunFolder``.
        kind: See ``RunFolder``.
        root: The folder of runs that no user has named; None: ``runs_root``.

    Raises:
        PlanError: The folder cannot be written.
    """
    wanted = root if log_dir is None else user_path(log_dir)
    if wanted is None:
        root = runs_root()
    else:
        named, hint = (str(wanted), _OTHER_DISK) if log_dir is None else (f"log_dir={log_dir!r}", "give another folder")
        with os_errors(f"{named} cannot be written", wanted, hint):
            root = checked_folder(wanted)
    sweep(root)
    with os_errors(f"the folder of logs cannot be made in {root}", root, _OTHER_DISK):
        return RunFolder(root, facts, kind)


class RunFolder:
    """The folder of one run.

    Args:
        root: The folder of runs.
        facts: What the record says beside the processes: JSON values.
        kind: What its processes' logs are called.
    """

    def __init__(self, root: Path, facts: dict[str, Any], kind: str = "worker") -> None:
        self._kind = kind
        self.path = root / f"{os.getpid()}-{secrets.token_hex(4)}"
        self.path.mkdir(mode=0o700)
        pid = os.getpid()
        self._record = {**facts, **pid_space(), "kind": kind, "pid": pid, "ticks": start_ticks(pid)}
        # What people call this process: a notebook or a script, by its file's name; no arguments.
        self._record["program"] = Path(os.environ.get("JPY_SESSION_NAME") or sys.argv[0] or "python").name
        self._record |= {"started": time.time(), "children": []}
        self._write()

    def note(self, **facts: Any) -> None:
        """Adds to what the record says."""
        self._record |= facts
        self._write()

    def log(self, rank: int) -> Path:
        """The log of a process; it is appended to when the process is started again."""
        return self.path / f"{self._kind}-{rank}.log"

    def add(self, rank: int, pid: int) -> None:
        """Records a process."""
        self._record["children"].append({"rank": rank, "pid": pid, "ticks": start_ticks(pid), "log": str(self.log(rank))})
        self._write()

    def keep(self) -> None:
        """Keeps the folder for the reader of the error that names it."""
        if not self._record.get("failed"):
            self._record["failed"] = True
            self._write()

    def was_stopped(self, pid: int) -> bool:
        """Whether a process of the run was stopped on request, see ``note_stopped``."""
        with contextlib.suppress(OSError):
            return str(pid) in read_bounded(self.path / _STOPPED).decode().split()
        return False

    def close(self) -> None:
        """Removes the folder, unless it is to be kept."""
        if not self._record.get("failed"):
            remove_run(self.path)

    def _write(self) -> None:
        temporary = self.path / f".{_RECORD}"
        try:
            temporary.write_text(json.dumps(self._record))
            temporary.replace(self.path / _RECORD)
        except OSError as error:  # a full disk: the record is for people, sampling does not need it
            logger.warning("the record of the run in %s cannot be written: %s", self.path, why_unwritable(error, self.path))


def note_stopped(folder: Path, pid: int) -> None:
    """Tells a run's owner that one of its processes is about to be ended on request, not by a fault."""
    with contextlib.suppress(OSError), (folder / _STOPPED).open("a") as file:
        file.write(f"{pid}\n")


def is_run(folder: Path) -> bool:
    """Whether a folder is one that ``RunFolder`` has made, by its name."""
    return _RUN_NAME.fullmatch(folder.name) is not None


def _run_folders(root: Path) -> list[Path]:
    """Returns the folders that ``RunFolder`` has made in a folder, and none of other programs, even with a ``run.json`` of their own."""
    return [folder for folder in root.glob("*-*") if is_run(folder)]


def runs(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every run's folder with its record, unreadable ones left out."""
    for folder in sorted(_run_folders(root)):
        if (record := _record_in(folder)) is not None:
            yield folder, record


def _record_in(folder: Path) -> dict[str, Any] | None:
    """The record in a run's folder; None where it cannot be read."""
    try:
        record = read_json(folder / _RECORD, root=folder)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def remove_run(folder: Path) -> None:
    """Removes the folder of a run, all at once as others see it.

    It is renamed first: the process that removes it may be killed at any file, and a folder that has lost only its record looks like
    one that is being made; and a process of the run that lives for another moment makes no new file in it.
    """
    if is_run(folder):
        with contextlib.suppress(OSError):  # another process removes it too
            folder = folder.rename(folder.with_name(folder.name + _GOING))
    shutil.rmtree(folder, ignore_errors=True)


def sweep(root: Path) -> None:
    """Removes the folders of runs that are gone, and ends what is left of them."""
    while _sweep_once(root):  # a process that was ended may have had a run of its own
        pass


def _sweep_once(root: Path) -> int:
    """Does what ``sweep`` does; how many processes were ended, and are gone."""
    now, ended = time.time(), 0
    known = dict(runs(root))
    for folder in root.glob("*" + _GOING):
        if _GOING_NAME.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in _run_folders(root):
        record = known.get(folder)
        with contextlib.suppress(OSError):
            age = now - folder.stat().st_mtime
            if record is None:
                gone = age > _HALF_MADE_S
            elif not is_of_here(record):
                gone = age > _KEPT_S
            elif is_alive(record):
                gone = False
            else:
                ended += end_leftovers(record)
                gone = not record.get("failed") or age > _KEPT_S  # a failed run's logs are kept for a while
            if gone:
                remove_run(folder)
    return ended


def end_leftovers(record: dict[str, Any]) -> int:
    """Ends children that outlived their parent; how many there were."""
    left = [child for child in children_in(record) if is_alive(child)]
    for child in left:
        logger.warning("ending the sampling process %d, which outlived its parent", child["pid"])
        send_signal(child, signal.SIGKILL)
    return sum(wait_for_end(child["pid"], _EXIT_WAIT_S) for child in left)


def children_in(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The processes that a record names, with those that others have taken the place of."""
    children = record.get("children", [])
    return [child for child in children if isinstance(child, dict)] if isinstance(children, list) else []


# What the processes of gnnkit have on their command line.
_OURS = (b"gnnkit.cluster.", b"gnnkit.backends.", b"gnnkit.jobs.")
_STDERR = 2
# The state of a process of another boot, host or container.
_UNKNOWN = "not known"
_NOT_THERE = ("gone", "ended", _UNKNOWN)


@dataclass(frozen=True)
class Run:
    """The processes that one process has started, and those that they have started in turn.

    Attributes:
        id: The name of its folder.
        path: Its folder.
        what: "servers", "sampling processes", "part service", "proxy", "temporary store",
            "embeddings" or "training".
        state: "running"; "ended": its owner is there, but none of its processes, of which one has failed; "stale": its owner
            is gone, and its folders are left; "failed": likewise, and its logs stay for readers of the failure; "elsewhere": of
            another boot, host or container, so that it cannot be seen from here.
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
        """Whether processes have outlived their starter."""
        return self.state in ("stale", "failed") and bool(self.alive)


def known_roots() -> list[Path]:
    """Folders of runs of this user: the usual ones, also those that another environment would give, and where living processes write."""
    from gnnkit.storage.catalog import temporary_data

    runtimes = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"]
    wanted = [home / "runs" for home in (gnnkit_home(),) if home]
    wanted += [Path(runtime) / "gnnkit" / "runs" for runtime in runtimes if runtime]
    wanted += [*_state_folders(), temporary_home() / "runs", temporary_data()]
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
    records = {folder: record for root in (known_roots() if roots is None else roots) for folder, record in runs(root)}
    makers = {_key(record, child): folder for folder, record in records.items() for child in children_in(record)}
    inner: dict[Path, list[Path]] = {}
    for folder, record in records.items():
        if (maker := makers.get(_key(record, record))) is not None and maker != folder:
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
    return [folder / "runs" for folder in (user_folder("state"),) if folder]


def _roots_of_processes() -> Iterator[Path]:
    """Yields the folders of logs of this user's living processes of gnnkit: folders that a user has named are known from them alone."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if place.stat().st_uid == os.getuid() and any(name in (place / "cmdline").read_bytes() for name in _OURS):
                log = Path(os.readlink(place / "fd" / str(_STDERR)))
                if is_run(log.parent):
                    yield log.parent.parent


def _key(record: dict[str, Any], process: dict[str, Any]) -> tuple[Any, ...]:
    """Returns a key that tells a process from every other one: texts, hashable whatever a record holds."""
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


# What runs of processes other than those that sample are called.
_KINDS = {"server": "servers", "proxy": "proxy", "rank": "training", "transfer": "transfer"}


def _what(path: Path, record: dict[str, Any]) -> str:
    kind = record.get("kind")
    if "embeddings" in record:
        return "embeddings"
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind]
    if "serves" in record:
        return "part service"
    return "temporary store" if path.parent.name == "temporary" and not children_in(record) else "sampling processes"


def _processes(record: dict[str, Any], *, here: bool) -> Iterator[ProcessStatus]:
    """The processes that a record names: of those with one number the last, and all that live."""
    children = children_in(record)
    last = {str(child.get("rank")): child for child in children}
    within = f"server {record['server']}, " if isinstance(record.get("server"), int) else ""
    kind = str(record.get("kind"))
    if kind not in _KINDS:
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


# How long a process has to end by itself once it was asked to, and once it was killed.
_STOP_TIMEOUT_S, _RUN_EXIT_WAIT_S = 2.0, 2.0
# Between two looks at a log that is followed.
_LOOK_S = 0.2


@dataclass(frozen=True)
class Stopped:
    """The result of stopping a run.

    Attributes:
        run: The run, as it was before.
        ended: Pids of the processes that were ended.
        left: Processes that are there still, or again.
    """

    run: Run
    ended: tuple[int, ...]
    left: tuple[ProcessStatus, ...]


@dataclass(frozen=True)
class Cleaned:
    """The result of cleaning up a run whose owner is gone.

    Attributes:
        run: The run, as it was before.
        ended: How many processes that had outlived their owner were ended.
        removed: Whether its folders are gone.
        kept: Whether they should have gone, and could not be removed.
    """

    run: Run
    ended: int
    removed: bool
    kept: bool = False


def logs_of(run: Run, rank: int | None = None, lines: int | None = None) -> list[tuple[str, Path, str]]:
    """The ends of a run's logs: ``(process, path, text)``, each file once.

    Args:
        run: The run.
        rank: The one process, by its number; None: all.
        lines: The most lines of each; None: as many as an error shows.

    Raises:
        PlanError: There is no such process.
    """
    files: dict[str, str] = {}
    for process in run.processes:
        if process.log is not None and (rank is None or process.name.endswith(f" {rank}")):
            files.setdefault(process.log, process.name)
    if rank is not None and not files:
        names = ", ".join(process.name for process in run.processes) or "none"
        raise PlanError(f"run {run.id} has no process {rank}", f"its processes are: {names}")
    return [(name, Path(path), tail(Path(path)) if lines is None else tail(Path(path), lines)) for path, name in files.items()]


def follow(run: Run, rank: int | None = None) -> Iterator[tuple[str, str]]:
    """Yields the lines that processes write from this call on, until all of them have ended: ``(process, text)``, as they come.

    Args:
        run: The run.
        rank: See ``logs_of``.

    Raises:
        PlanError: See ``logs_of``.
    """
    names = {path: name for name, path, _ in logs_of(run, rank)}
    return _follow(run, names, {path: _read_on(path, 0)[1] for path in names})


def _follow(run: Run, names: dict[Path, str], places: dict[Path, int]) -> Iterator[tuple[str, str]]:
    while True:
        over = _wait_for_all([process.pid for process in run.alive], _LOOK_S)
        for path, name in names.items():
            text, places[path] = _read_on(path, places[path])
            if text:
                yield name, text
        if over:
            return


def stop_run(run: Run, timeout_s: float = 15.0) -> Stopped:
    """Ends the processes of a run, and the helpers that are there for them alone; not the notebook or script that has started them.

    They are asked, then killed. Folders without an owner are removed.

    Args:
        run: The run.
        timeout_s: The most seconds to try.

    Raises:
        PlanError: It is a run of another boot, host or container.
    """
    if run.state == "elsewhere":
        hint = "stop it there; gnnkit cleanup --elsewhere removes what it has left"
        raise PlanError(f"run {run.id} is of another boot, host or container", hint)
    deadline = Deadline(timeout_s)
    asked: set[int] = set()
    there = {process.pid for process in run.alive}
    if run.in_foreground and send_signal(run.folders[0][1], signal.SIGTERM):
        there.add(run.owner.pid)
        wait_for_end(run.owner.pid, timeout_s / 2)
    while not deadline.has_passed and (outermost := _outermost(run)):
        folder, children = outermost
        for child in children:
            note_stopped(folder, child["pid"])
            send_signal(child, signal.SIGKILL if child["pid"] in asked else signal.SIGTERM)
            asked.add(child["pid"])
        _wait_for_all([child["pid"] for child in children], deadline.within(_STOP_TIMEOUT_S))
    living = {each["pid"] for _, record in run.folders for each in children_in(record) if is_alive(each)}
    _wait_for_all(sorted((there | asked) - living), _RUN_EXIT_WAIT_S)  # all of their threads
    for root in {folder.parent for folder, _ in run.folders}:
        sweep(root)
    left = [process for each in find_runs([run.path.parent]) if each.id == run.id for process in each.alive]
    if run.in_foreground and is_alive(run.folders[0][1]):
        left.append(run.owner)
    gone = (there | asked) - {process.pid for process in left}
    return Stopped(run, tuple(sorted(gone)), tuple(left))


def clean_up(roots: Sequence[Path] | None = None, *, failed: bool = False, elsewhere: bool = False) -> list[Cleaned]:
    """Removes what runs without an owner have left, and ends their processes. What runs is left alone.

    Args:
        roots: Folders of runs; None: all that are known.
        failed: Whether the logs of runs that failed go too.
        elsewhere: Whether those of other boots, hosts and containers go too: this host cannot know whether they run.
    """
    places = list(known_roots() if roots is None else roots)
    wanted = {"stale": True, "failed": failed, "elsewhere": elsewhere}
    done = []
    for run in find_runs(places):
        if run.state in ("running", "ended"):  # its owner still reads its logs
            continue
        ended = sum(end_leftovers(record) for _, record in run.folders) if run.state != "elsewhere" else 0
        if wanted[run.state]:
            for folder, _ in run.folders:
                remove_run(folder)
        if wanted[run.state] or ended:
            there = any(folder.exists() for folder, _ in run.folders)
            done.append(Cleaned(run, ended, removed=not there, kept=wanted[run.state] and there))
    for root in places:
        sweep(root)  # what runs have left half-made, or half-removed
    return done


def _outermost(run: Run) -> tuple[Path, list[dict[str, Any]]] | None:
    """The living processes of a run that no living process of it has started, with the folder they are written down in."""
    for folder, known in run.folders:
        record = _record_in(folder) or known
        if living := [child for child in children_in(record) if is_of_here(record) and is_alive(child)]:
            return folder, living
    return None


def _wait_for_all(pids: Sequence[int], timeout_s: float) -> bool:
    """Waits for the end of processes; whether all have ended."""
    deadline = Deadline(timeout_s)
    return all([wait_for_end(pid, deadline.left_s) for pid in pids])


def _read_on(path: Path, place: int) -> tuple[str, int]:
    """Reads the whole lines that were added to a file; returns them and the next place. Starts from its beginning where it was cut."""
    try:
        with open(open_regular(path), "rb") as file:
            size = file.seek(0, 2)
            file.seek(place if place <= size else 0)
            start = file.tell()
            text = file.read()
    except OSError:
        return "", place
    whole = text[: text.rfind(b"\n") + 1]
    return whole.decode(errors="replace"), start + len(whole)
