"""Runs of this host: a folder each, with what processes they have and what those wrote; gone with the run.

A run that failed leaves its folder, because error messages name its logs; those are swept after a week. Processes end with their
parent by themselves: what a sweep finds alive without its parent, by pid and start time, is ended as a last resort.
"""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.files import private_folder, read_bounded, temporary_home
from gnnkit.runtime.pids import is_alive, is_of_here, pid_space, send_signal, start_ticks, wait_for_end

logger = logging.getLogger(__name__)

_KEPT_S = 7 * 24 * 3600.0
_RECORD = "run.json"
# Pids of processes that somebody wanted to end, a line each: nobody need look for the cause.
_STOPPED = "stopped"
_RUN_NAME = re.compile(r"[0-9]+-[0-9a-f]{8}")
# What the folder of a run is called while it is being removed.
_GOING = ".gone"
_GOING_NAME = re.compile(_RUN_NAME.pattern + re.escape(_GOING))
# A folder without a record is being made, or was left half-made; the former takes no time.
_HALF_MADE_S = 60.0
# How long a process that was killed may take to be gone.
_LAST_BREATH_S = 2.0


def runs_root() -> Path:
    """The folder of runs: ``$GNNKIT_HOME/runs``, or in the user's runtime or state folder; else in the temporary one.

    Raises:
        PlanError: None of them can be written.
    """
    import platformdirs

    home, runtime = os.environ.get("GNNKIT_HOME"), os.environ.get("XDG_RUNTIME_DIR")
    wanted = [Path(home) / "runs"] if home else [Path(runtime) / "gnnkit" / "runs"] if runtime else []
    wanted += [Path(platformdirs.user_state_dir("gnnkit")) / "runs", fallback := temporary_home() / "runs"]
    reasons = []
    for folder in wanted:
        try:
            return checked_folder(private_folder(folder) if folder is fallback else folder)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
    raise PlanError(f"no folder for the logs of sampling processes can be written: {'; '.join(reasons)}", "set GNNKIT_HOME or TMPDIR")


def checked_folder(folder: Path) -> Path:
    """Makes a private folder, and tries to write into it.

    Raises:
        OSError: It cannot be made or written, or belongs to somebody else.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(0, "it belongs to another user")
    with tempfile.TemporaryFile(dir=folder):
        return folder


def new_run(log_dir: str | None, facts: dict[str, Any], kind: str = "worker") -> RunFolder:
    """The folder of a new run; what runs that are gone have left is removed.

    Args:
        log_dir: The folder of runs as the user gave it; None: ``runs_root``.
        facts: See ``RunFolder``.
        kind: See ``RunFolder``.

    Raises:
        PlanError: The folder cannot be written.
    """
    if log_dir is None:
        root = runs_root()
    else:
        try:
            root = checked_folder(Path(log_dir).expanduser())
        except OSError as error:
            raise PlanError(f"log_dir={log_dir!r} cannot be written: {error.strerror or error}", "give another folder") from error
    sweep(root)
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
        self._record = {**facts, **pid_space(), "kind": kind, "pid": pid, "ticks": start_ticks(pid), "program": _program()}
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
        """Leaves the folder for whoever reads the error that names it."""
        if not self._record.get("failed"):
            self._record["failed"] = True
            self._write()

    def was_stopped(self, pid: int) -> bool:
        """Whether somebody has had a process of the run ended, see ``note_stopped``."""
        try:
            return str(pid) in read_bounded(self.path / _STOPPED).decode().split()
        except OSError:
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
            logger.warning("the record of the run in %s cannot be written: %s", self.path, error)


def note_stopped(folder: Path, pid: int) -> None:
    """Tells whoever has a run that one of its processes is about to be ended because somebody wants that, not by a fault."""
    with contextlib.suppress(OSError), (folder / _STOPPED).open("a") as file:
        file.write(f"{pid}\n")


def _program() -> str:
    """What this process runs, as a person would call it: a notebook or a script, by its file's name; no arguments."""
    return Path(os.environ.get("JPY_SESSION_NAME") or sys.argv[0] or "python").name


def is_run(folder: Path) -> bool:
    """Whether a folder is one that ``RunFolder`` has made, by its name."""
    return _RUN_NAME.fullmatch(folder.name) is not None


def _run_folders(root: Path) -> list[Path]:
    """What ``RunFolder`` has made in a folder, and nothing of what somebody else may have there, such as a ``run.json`` of his own."""
    return [folder for folder in root.glob("*-*") if is_run(folder)]


def runs(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every run's folder with its record, unreadable ones left out."""
    for folder in sorted(_run_folders(root)):
        try:
            record = json.loads(read_bounded(folder / _RECORD, root=folder))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict):
            yield folder, record


def remove_run(folder: Path) -> None:
    """Removes the folder of a run, all at once as others see it.

    It is renamed first: whoever removes it may be killed at any file, and a folder that has lost only its record looks like one that is
    being made; and a process of the run that lives for another moment makes no new file in it.
    """
    if is_run(folder):
        with contextlib.suppress(OSError):  # somebody else removes it too
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
                gone = not record.get("failed") or age > _KEPT_S  # until nobody will read a failed run's logs
            if gone:
                remove_run(folder)
    return ended


def end_leftovers(record: dict[str, Any]) -> int:
    """Ends children that outlived their parent; how many there were."""
    left = [child for child in children_in(record) if is_alive(child)]
    for child in left:
        logger.warning("ending the sampling process %d, which outlived its parent", child["pid"])
        send_signal(child, signal.SIGKILL)
    return sum(wait_for_end(child["pid"], _LAST_BREATH_S) for child in left)


def children_in(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The processes that a record names, with those that others have taken the place of."""
    children = record.get("children", [])
    return [child for child in children if isinstance(child, dict)] if isinstance(children, list) else []
