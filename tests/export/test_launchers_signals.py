"""Signals to every script of a job, in every phase, as terminals and clusters send them: all of it ends, and nothing more is started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from gnnkit import GraphLoader
from gnnkit.export.launchers.common import render
from tests.distributed.ranks import TORCHRUN_VARIABLES
from tests.export.graphs import make_store
from tests.export.jobs import SERVED, job, write_files
from tests.helpers.system import default_signals
from tests.helpers.waiting import wait_until

# Writes down its call, in one line, as calls are counted. One that is to hang has a child in its process group; those of torchrun, srun
# and PBS are in sessions of their own. What does not heed signals has to be killed.
STAND_IN = """\
#!/usr/bin/env bash
call="${0##*/} $*"
call="${call//$'\\n'/ }"
case "$call" in "scontrol show"*) echo "${3//,/$'\\n'}"; exit ;; esac
echo "$call" >>"$CASE/calls"
[[ "$call" == $HANGS ]] || exit "${STATUS:-0}"
if [ -n "${DEAF:-}" ]; then
    trap '' HUP INT TERM
    sleep 600 &
elif [[ "$call" == torchrun* || "$call" == srun* || "$call" == pbs_tmrsh* ]]; then
    setsid sleep 600 &
    trap "kill $!; exit 3" INT TERM
else
    sleep 600 &
fi
echo "$call" >>"$CASE/hangs"
while :; do wait; done
"""
COMMANDS = ("gnnkit", "torchrun", "srun", "scontrol", "getent", "pbs_tmrsh")
PREPARE = "*--prepare"
NODE = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
STORAGE = {"STORAGE_RANK": "0", "STORAGE_ADDRS": "127.0.0.1,127.0.0.2", "GNNKIT_TOKEN": "secret"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "a,b",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "a,b",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "c,d",
}
PBS = {"PBS_JOBID": "7.server", "PBS_NODEFILE": "../hosts"}


@dataclass(frozen=True)
class Phase:
    """A script at one of its steps.

    Attributes:
        launcher: Whose script it is.
        script: Its name.
        variables: What it is told.
        hangs: Pattern of the call that takes long; empty: none does, and the script itself waits.
        count: How many such calls run then.
        served: Whether the job has storage servers.
        sleeps: Whether the script itself waits.
        listens: Whether somebody listens at ``MASTER_PORT``.
    """

    launcher: str
    script: str
    variables: dict[str, str] = field(default_factory=dict)
    hangs: str = PREPARE
    count: int = 1
    served: bool = False
    sleeps: bool = False
    listens: bool = False


PHASES = {
    "stage": Phase("torchrun", "stage.sh", hangs="gnnkit partition*"),
    "launch-prepare": Phase("torchrun", "launch.sh", NODE),
    "launch-waits-for-node-0": Phase("torchrun", "launch.sh", {**NODE, "NODE_RANK": "1"}, "", sleeps=True),
    "launch-trains": Phase("torchrun", "launch.sh", NODE, "torchrun*"),
    "launch-trains-and-watches-node-0": Phase("torchrun", "launch.sh", {**NODE, "NODE_RANK": "1"}, "torchrun*", sleeps=True, listens=True),
    "launch-served-prepare": Phase("torchrun", "launch.sh", {**NODE, **STORAGE}, served=True),
    "serve-prepare": Phase("torchrun", "serve.sh", STORAGE, served=True),
    "serve": Phase("torchrun", "serve.sh", STORAGE, "gnnkit serve*", 2, served=True),
    "kubernetes-launch-prepare": Phase("kubernetes", "launch.sh", NODE),
    "kubernetes-launch-trains": Phase("kubernetes", "launch.sh", NODE, "torchrun*"),
    "kubernetes-serve-asks-for-its-name": Phase("kubernetes", "serve.sh", {**STORAGE, "POD_IP": "10.0.0.9"}, "getent*", served=True),
    "kubernetes-serve-waits-for-its-name": Phase("kubernetes", "serve.sh", {**STORAGE, "POD_IP": "10.0.0.9"}, "", served=True, sleeps=True),
    "slurm-serve-prepare": Phase("slurm", "serve.sh", STORAGE, served=True),
    "slurm-serve": Phase("slurm", "serve.sh", STORAGE, "gnnkit serve*", 2, served=True),
    "slurm-prepare": Phase("slurm", "job.sbatch", SLURM),
    "slurm-served-prepare": Phase("slurm", "job.sbatch", SLURM, served=True),
    "slurm-trains": Phase("slurm", "job.sbatch", SLURM, "srun*--label*"),
    "slurm-serves-and-trains": Phase("slurm", "job.sbatch", SLURM, "srun*--label*", 2, served=True),
    "pbs-resolves": Phase("pbs", "job.pbs", PBS, "getent*"),
    "pbs-trains": Phase("pbs", "job.pbs", PBS, "pbs_tmrsh*", 2),
    "pbs-serves-and-trains": Phase("pbs", "job.pbs", PBS, "pbs_tmrsh*", 4, served=True),
    "slurm-requeues": Phase("slurm", "job.sbatch", {**SLURM, "STATUS": "7"}, "scontrol requeue*"),
}


def running(folder: Path) -> list[psutil.Process]:
    """Every process that was started for a case."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("CASE") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(folder: Path) -> None:
    """Kills what is left of a case."""
    for process in running(folder):
        with contextlib.suppress(psutil.Error):
            process.kill()


class Script:
    """A script at a terminal of its own.

    Args:
        phase: What it is, and where it is to be.
        folder: For its files.
        before: Words that run a command elsewhere.
        **variables: What else it is told.
    """

    def __init__(self, phase: Phase, folder: Path, before: Sequence[str] = (), **variables: str) -> None:
        self._phase, self.folder = phase, folder
        written = job(phase.launcher, **(SERVED if phase.served else {}))
        write_files(written, folder / "job")
        (folder / "job" / "plan.json").touch()
        (folder / "hosts").write_text("a\nb\nc\nd\n" if phase.served else "a\nb\n")
        stage = folder / "job" / "stage.sh"
        stage.write_text(render("stage.sh", written, cut_command="gnnkit partition store 2"))
        stage.chmod(0o755)
        (folder / "bin").mkdir()
        for name in COMMANDS:
            (folder / "bin" / name).write_text(STAND_IN)
            (folder / "bin" / name).chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES}
        told = {"CASE": str(folder), "HANGS": phase.hangs, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        if phase.hangs == "scontrol requeue*":  # preparation works, and training fails
            (folder / "bin/srun").write_text(STAND_IN.replace('exit "${STATUS:-0}"', '[[ "$call" == *--prepare ]] || exit 7; exit 0'))
        self._terminal, inside = os.openpty()
        with default_signals():
            self.process = subprocess.Popen(
                ["setsid", "--ctty", *before, "bash", str(folder / "job" / phase.script)],
                env={**clean, **phase.variables, **told, **variables},
                cwd=folder / "job",
                stdin=inside,
                stdout=inside,
                stderr=inside,
            )
        os.close(inside)

    def calls(self, of: str = "calls") -> list[str]:
        """The commands that it has called."""
        file = self.folder / of
        return file.read_text().splitlines() if file.exists() else []

    def running(self) -> list[psutil.Process]:
        """Every process of it, itself included."""
        return running(self.folder)

    def is_there(self) -> bool:
        """Whether it is in its phase."""
        if self.process.poll() is not None:
            raise AssertionError(f"it has ended with {self.process.returncode}: {self.said()}")
        if self._phase.hangs:
            hang = len(self.calls("hangs")) >= self._phase.count
            sleeping = not self._phase.sleeps or self._sleeps()
            return hang and sleeping
        return bool(self.calls()) and self._sleeps()

    def _sleeps(self) -> bool:
        with contextlib.suppress(psutil.Error):
            return any(
                child.cmdline()[-2:] in (["sleep", "1"], ["sleep", "5"]) for child in psutil.Process(self.process.pid).children(True)
            )
        return False

    def said(self) -> str:
        """What it has written; a terminal whose other end is closed has no more."""
        os.set_blocking(self._terminal, False)
        with contextlib.suppress(OSError):
            return os.read(self._terminal, 1 << 16).decode(errors="replace")
        return ""

    def press_ctrl_c(self) -> None:
        """At its terminal."""
        os.write(self._terminal, b"\x03")

    def send(self, number: signal.Signals) -> None:
        """To the script alone."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def hang_up(self) -> None:
        """Closes its terminal."""
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def close(self) -> None:
        """Ends what is left."""
        end(self.folder)
        self.process.wait(30)
        self.hang_up()


def hung_up(script: Script) -> None:
    """The terminal is closed; a shell tells its jobs once more."""
    script.hang_up()
    script.send(signal.SIGHUP)


SENT: dict[str, tuple[Callable[[Script], None], signal.Signals]] = {
    "ctrl-c": (Script.press_ctrl_c, signal.SIGINT),
    "term": (lambda script: script.send(signal.SIGTERM), signal.SIGTERM),
    "hangup": (hung_up, signal.SIGHUP),
}


@pytest.fixture
def scripts() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def begin(phase: Phase, folder: Path, stack: ExitStack, before: Sequence[str] = (), **variables: str) -> Script:
    """Starts a script."""
    folder.mkdir()
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    variables["MASTER_PORT"] = str(listening.getsockname()[1])
    if not phase.listens:
        listening.close()
    script = Script(phase, folder, before, **variables)
    stack.callback(script.close)
    return script


def check_gone(script: Script, number: signal.Signals, before: list[str], name: str) -> None:
    """It has ended by its signal, nothing of it is left, and nothing was started after it."""
    assert script.process.returncode == -number, name
    assert wait_until(lambda: not script.running(), 5), f"{name}: {[process.cmdline() for process in script.running()]}"
    assert script.calls() == before, name


@pytest.mark.slow
@pytest.mark.parametrize("name", PHASES)
def test_a_signal_ends_a_script_with_all_that_it_has_started(name: str, tmp_path: Path, scripts: ExitStack) -> None:
    phase, started = PHASES[name], {}
    for sent in SENT:
        for times in ("once", "again and again"):
            started[sent, times] = begin(phase, tmp_path / f"{sent}-{times}", scripts)
    for script in started.values():
        assert wait_until(script.is_there), (name, script.calls(), script.said())
    before = {key: script.calls() for key, script in started.items()}
    for (sent, _), script in started.items():
        SENT[sent][0](script)

    def have_ended() -> bool:
        for (sent, times), script in started.items():
            if times != "once" and script.process.poll() is None:
                SENT[sent][0](script)
        return all(script.process.poll() is not None for script in started.values())

    assert wait_until(have_ended, 15), {key: script.process.poll() for key, script in started.items()}
    for key, script in started.items():
        check_gone(script, SENT[key[0]][1], before[key], f"{name} {key}")


@pytest.mark.slow(seconds=30)
def test_what_does_not_heed_signals_is_killed_in_the_end(tmp_path: Path, scripts: ExitStack) -> None:
    """The time that commands have is the scripts' own, so all of them wait at once; Ctrl-C again and again changes nothing."""
    names = ("launch-prepare", "launch-trains", "serve", "slurm-serves-and-trains")
    started = {name: begin(PHASES[name], tmp_path / name, scripts, DEAF="1") for name in names}
    for script in started.values():
        assert wait_until(script.is_there)
    before = {name: script.calls() for name, script in started.items()}
    pressed_s = 0.0

    def have_ended() -> bool:
        nonlocal pressed_s
        running = [script for script in started.values() if script.process.poll() is None]
        if time.monotonic() - pressed_s > 0.2:  # a shell that is interrupted faster than it can take notice does nothing else
            pressed_s = time.monotonic()
            for script in running:
                script.press_ctrl_c()
        return not running

    assert wait_until(have_ended, 60)
    for name, script in started.items():
        check_gone(script, signal.SIGINT, before[name], name)


def test_ranks_that_no_other_start_can_help_end_a_single_node(tmp_path: Path, scripts: ExitStack) -> None:
    script = begin(Phase("torchrun", "launch.sh", {**NODE, "NNODES": "1"}, "torchrun*"), tmp_path / "case", scripts)
    assert wait_until(script.is_there), (script.calls(), script.said())
    before = script.calls()
    (script.folder / "job" / "run" / ".refused-0").touch()  # as a rank does
    assert script.process.wait(30) == 2
    assert wait_until(lambda: not script.running(), 30) and script.calls() == before


def test_a_port_that_another_job_has_is_named(tmp_path: Path, scripts: ExitStack) -> None:
    script = begin(Phase("torchrun", "launch.sh", NODE, "torchrun*", listens=True), tmp_path / "case", scripts)
    assert script.process.wait(30) == 1
    assert re.search(r"another job.* listens at 127.0.0.1:\d+: MASTER_PORT=\d+ .*launch.sh", script.said())
    assert not any(call.startswith("torchrun") for call in script.calls())


@pytest.mark.netns
@pytest.mark.parametrize("name", ["kubernetes-launch-prepare", "kubernetes-launch-trains", "kubernetes-serve-waits-for-its-name"])
def test_the_first_process_of_a_container_ends_when_it_is_told(name: str, tmp_path: Path, scripts: ExitStack) -> None:
    """The kernel drops signals that such a process does not handle."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    script = begin(PHASES[name], tmp_path / "case", scripts, before=inside)
    assert wait_until(script.is_there), (script.calls(), script.said())
    (first,) = psutil.Process(script.process.pid).children()
    before = script.calls()
    first.terminate()
    assert script.process.wait(15) == 128 + signal.SIGTERM
    assert wait_until(lambda: not script.running(), 5)
    assert script.calls() == before


TRAINER = """\
import os
import signal
import time
from pathlib import Path


def train(loader, ctx):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(__file__).with_name(f"rank-{ctx.rank}").touch()
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.core
def test_ranks_end_with_a_torchrun_that_is_killed(tmp_path: Path, scripts: ExitStack) -> None:
    """Torchrun has given them sessions of their own, where no signal to its process group reaches them."""
    (tmp_path / "train.py").write_text(TRAINER)
    store = make_store(tmp_path / "store")
    with GraphLoader.from_store(store, num_neighbors=[3], batch_size=16, backend="inprocess", progress=False) as loader:
        folder = loader.export(tmp_path / "job", train=tmp_path / "train.py", procs_per_node=2, gpus_per_node=0).directory
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    told = {"PATH": path, "OMP_NUM_THREADS": "1", "MASTER_PORT": "0", "CASE": str(tmp_path)}
    process = subprocess.Popen(
        [folder / "launch.sh"], env={**os.environ, **told}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    scripts.callback(process.wait, 30)
    scripts.callback(end, tmp_path)
    assert wait_until(lambda: len(list(folder.glob("rank-*"))) == 2, 120)
    started = {child.pid for child in psutil.Process(process.pid).children()}
    (torchrun,) = [found for found in running(tmp_path) if found.ppid() in started and "torchrun" in " ".join(found.cmdline())]
    torchrun.kill()
    assert process.wait(30) == 128 + signal.SIGKILL
    assert wait_until(lambda: not running(tmp_path), 10)
