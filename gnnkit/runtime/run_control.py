"""What can be done with runs: their logs read, their processes ended, what is left of them removed."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.runtime import registry
from gnnkit.runtime.logs import tail
from gnnkit.runtime.pids import is_alive, is_of_here, send_signal, wait_for_end
from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.runtime.runs import Run, find_runs, known_roots

# How long a process has to end by itself once it was asked to, and once it was killed.
_FAREWELL_S, _LAST_BREATH_S = 2.0, 2.0
# Between two looks at a log that is followed.
_LOOK_S = 0.2


@dataclass(frozen=True)
class Stopped:
    """What became of a run that was to be stopped.

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
    """What was done about a run that nobody has any more.

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
    """What processes write from this call on, whole lines, until all of them have ended: ``(process, text)``, as it comes.

    Args:
        run: The run.
        rank: See ``logs_of``.

    Raises:
        PlanError: See ``logs_of``.
    """
    names = {path: name for name, path, _ in logs_of(run, rank)}
    return _follow(run, names, {path: _size(path) for path in names})


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
    """Ends the processes of a run, and whoever is there for them alone; not the notebook or script that has started them.

    They are asked, then killed. Folders that nobody has any more are removed.

    Args:
        run: The run.
        timeout_s: The most seconds to try.

    Raises:
        PlanError: It is a run of another boot, host or container.
    """
    if run.state == "elsewhere":
        hint = "stop it there; gnnkit cleanup --elsewhere removes what it has left"
        raise PlanError(f"run {run.id} is of another boot, host or container", hint)
    deadline = time.monotonic() + timeout_s
    asked: set[int] = set()
    there = {process.pid for process in run.alive}
    if run.in_foreground and send_signal(run.folders[0][1], signal.SIGTERM):
        there.add(run.owner.pid)
        wait_for_end(run.owner.pid, timeout_s / 2)
    while time.monotonic() < deadline and (outermost := _outermost(run)):
        folder, children = outermost
        for child in children:
            registry.note_stopped(folder, child["pid"])
            send_signal(child, signal.SIGKILL if child["pid"] in asked else signal.SIGTERM)
            asked.add(child["pid"])
        _wait_for_all([child["pid"] for child in children], min(_FAREWELL_S, max(0.0, deadline - time.monotonic())))
    living = {each["pid"] for _, record in run.folders for each in registry.children_in(record) if is_alive(each)}
    _wait_for_all(sorted((there | asked) - living), _LAST_BREATH_S)  # all of their threads
    for root in {folder.parent for folder, _ in run.folders}:
        registry.sweep(root)
    left = [process for each in find_runs([run.path.parent]) if each.id == run.id for process in each.alive]
    if run.in_foreground and is_alive(run.folders[0][1]):
        left.append(run.owner)
    gone = (there | asked) - {process.pid for process in left}
    return Stopped(run, tuple(sorted(gone)), tuple(left))


def clean_up(roots: Sequence[Path] | None = None, *, failed: bool = False, elsewhere: bool = False) -> list[Cleaned]:
    """Removes what runs that nobody has any more have left, and ends their processes. What runs is left alone.

    Args:
        roots: Folders of runs; None: all that are known.
        failed: Whether the logs of runs that failed go too.
        elsewhere: Whether those of other boots, hosts and containers go too: nobody here can know whether they run.
    """
    places = list(known_roots() if roots is None else roots)
    wanted = {"stale": True, "failed": failed, "elsewhere": elsewhere}
    done = []
    for run in find_runs(places):
        if run.state in ("running", "ended"):  # whoever has it still reads its logs
            continue
        ended = sum(registry.end_leftovers(record) for _, record in run.folders) if run.state != "elsewhere" else 0
        if wanted[run.state]:
            for folder, _ in run.folders:
                registry.remove_run(folder)
        if wanted[run.state] or ended:
            there = any(folder.exists() for folder, _ in run.folders)
            done.append(Cleaned(run, ended, removed=not there, kept=wanted[run.state] and there))
    for root in places:
        registry.sweep(root)  # what runs have left half-made, or half-removed
    return done


def _outermost(run: Run) -> tuple[Path, list[dict[str, Any]]] | None:
    """The living processes of a run that no living process of it has started, with the folder they are written down in."""
    for folder, known in run.folders:
        record = next((found for path, found in registry.runs(folder.parent) if path == folder), known)
        living = [child for child in registry.children_in(record) if is_of_here(record) and is_alive(child)]
        if living:
            return folder, living
    return None


def _wait_for_all(pids: Sequence[int], timeout_s: float) -> bool:
    """Waits for the end of processes; whether all have ended."""
    deadline = time.monotonic() + timeout_s
    return all([wait_for_end(pid, max(0.0, deadline - time.monotonic())) for pid in pids])


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _read_on(path: Path, place: int) -> tuple[str, int]:
    """What has been written to a file since, whole lines, and where to read on; from its beginning where it was cut."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(place if place <= size else 0)
            start = file.tell()
            text = file.read()
    except OSError:
        return "", place
    whole = text[: text.rfind(b"\n") + 1]
    return whole.decode(errors="replace"), start + len(whole)
