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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError

logger = logging.getLogger(__name__)

_KEPT_S = 7 * 24 * 3600.0
_RECORD = "run.json"
_RUN_NAME = re.compile(r"[0-9]+-[0-9a-f]{8}")
# A folder without a record is being made, or was left half-made; the former takes no time.
_HALF_MADE_S = 60.0


def runs_root() -> Path:
    """The folder of runs: ``$GNNKIT_HOME/runs``, or in the user's runtime or state folder; else in the temporary one.

    Raises:
        PlanError: None of them can be written.
    """
    import platformdirs

    home, runtime = os.environ.get("GNNKIT_HOME"), os.environ.get("XDG_RUNTIME_DIR")
    wanted = [Path(home) / "runs"] if home else [Path(runtime) / "gnnkit" / "runs"] if runtime else []
    wanted += [Path(platformdirs.user_state_dir("gnnkit")) / "runs", Path(tempfile.gettempdir()) / f"gnnkit-{os.getuid()}" / "runs"]
    reasons = []
    for folder in wanted:
        try:
            return checked_folder(folder)
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


class RunFolder:
    """The folder of one run.

    Args:
        root: The folder of runs.
        facts: What the record says beside the processes: JSON values.
    """

    def __init__(self, root: Path, facts: dict[str, Any]) -> None:
        self.path = root / f"{os.getpid()}-{secrets.token_hex(4)}"
        self.path.mkdir(mode=0o700)
        pid = os.getpid()
        self._record = {**facts, **_place(), "pid": pid, "ticks": start_ticks(pid), "started": time.time(), "children": []}
        self._write()

    def log(self, rank: int) -> Path:
        """The log of a process; it is appended to when the process is started again."""
        return self.path / f"worker-{rank}.log"

    def add(self, rank: int, pid: int) -> None:
        """Records a process."""
        self._record["children"].append({"rank": rank, "pid": pid, "ticks": start_ticks(pid), "log": str(self.log(rank))})
        self._write()

    def keep(self) -> None:
        """Leaves the folder for whoever reads the error that names it."""
        if not self._record.get("failed"):
            self._record["failed"] = True
            self._write()

    def close(self) -> None:
        """Removes the folder, unless it is to be kept."""
        if not self._record.get("failed"):
            shutil.rmtree(self.path, ignore_errors=True)

    def _write(self) -> None:
        temporary = self.path / f".{_RECORD}"
        try:
            temporary.write_text(json.dumps(self._record))
            temporary.replace(self.path / _RECORD)
        except OSError as error:  # a full disk: the record is for people, sampling does not need it
            logger.warning("the record of the run in %s cannot be written: %s", self.path, error)


def _place() -> dict[str, Any]:
    """What a pid's meaning depends on: the boot and the pid namespace."""
    try:
        return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "namespace": os.readlink("/proc/self/ns/pid")}
    except OSError:
        return {"boot": "", "namespace": ""}


def _run_folders(root: Path) -> list[Path]:
    """What ``RunFolder`` has made in a folder, and nothing of what somebody else may have there."""
    return [folder for folder in root.glob("*-*") if _RUN_NAME.fullmatch(folder.name) or (folder / _RECORD).is_file()]


def runs(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every run's folder with its record, unreadable ones left out."""
    for folder in sorted(_run_folders(root)):
        try:
            record = json.loads((folder / _RECORD).read_text())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict):
            yield folder, record


def sweep(root: Path) -> None:
    """Removes the folders of runs that are gone, and ends what is left of them."""
    place, now = _place(), time.time()
    known = dict(runs(root))
    for folder in _run_folders(root):
        record = known.get(folder)
        with contextlib.suppress(OSError):
            age = now - folder.stat().st_mtime
            if record is None:
                gone = age > _HALF_MADE_S
            elif any(record.get(name) != value for name, value in place.items()):
                gone = age > _KEPT_S  # of another boot or container: its pids mean nothing here
            else:
                gone = not is_alive(record) and _end_leftovers(record, age)
            if gone:
                shutil.rmtree(folder, ignore_errors=True)


def start_ticks(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks since the boot, which no change of the clock moves; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(record: dict[str, Any]) -> bool:
    """Whether a recorded process still runs, and is the same."""
    pid, ticks = record.get("pid"), record.get("ticks")
    return isinstance(pid, int) and ticks is not None and start_ticks(pid) == ticks


def _end_leftovers(record: dict[str, Any], age_s: float) -> bool:
    """Ends children that outlived their parent; whether the folder may go: a failed run's stays until nobody will read it."""
    children = record.get("children", [])
    for child in children if isinstance(children, list) else []:
        if isinstance(child, dict) and is_alive(child):
            logger.warning("ending the sampling process %d, which outlived its parent", child["pid"])
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.kill(child["pid"], signal.SIGKILL)
    return not record.get("failed") or age_s > _KEPT_S
