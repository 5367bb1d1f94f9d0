"""A cluster of Debian's Slurm here: a controller and nodes, each in a network namespace with a name and a hosts file of its own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.namespaces import NamespaceHost, network
from tests.helpers.waiting import wait_until

DEADLINE_S = 120
_CONF = """\
ClusterName=tests
SlurmctldHost=control({control})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
JobRequeue=1
KillWait=5
SlurmdParameters=config_overrides
MinJobAge=600
NodeName=node[1-{count}] CPUs=64 RealMemory=64000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster that runs.

    Attributes:
        folder: Its files: configuration, logs, state.
        nodes: The hosts of its nodes.
        control: The controller's host, where users log in.
        enter: Words that run a command there.
    """

    folder: Path
    nodes: list[NamespaceHost]
    control: NamespaceHost
    enter: tuple[str, ...]

    def run(self, *words: str, cwd: Path | None = None, **variables: str) -> str:
        """Runs one of Slurm's commands; its output."""
        environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), **variables}
        done = subprocess.run([*self.enter, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, cwd: Path, *words: str, **variables: str) -> str:
        """Submits a job; its number."""
        return self.run("sbatch", "--parsable", *words, cwd=cwd, **variables)

    def facts(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job: ``JobState``, ``ExitCode``, ``Restarts`` and so on."""
        return dict(word.split("=", 1) for word in self.run("scontrol", "show", "job", "-o", number).split() if "=" in word)

    def wait(self, number: str, *states: str, limit_s: float = 300) -> dict[str, str]:
        """Waits until a job is in one of some states, by default at its end; what Slurm knows of it then."""
        wanted = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

        requeued: list[str] = []

        def is_there() -> bool:
            facts = self.facts(number)
            if facts["JobState"] == "PENDING" and facts["Reason"] == "BeginTime":
                # Slurm lets a requeued job wait for two minutes, and takes one that starts in the second of its requeue for the one before.
                if not requeued:
                    try:
                        self.run("scontrol", "update", f"JobId={number}", "StartTime=now+2")
                    except AssertionError:  # it has begun since it was looked at
                        assert self.facts(number)["JobState"] != "PENDING"
                requeued.append(facts["Restarts"])
            else:
                requeued.clear()
            return facts["JobState"] in wanted

        assert wait_until(is_there, limit_s), self.facts(number)
        return self.facts(number)


@contextmanager
def slurm_cluster(folder: Path, count: int = 3) -> Iterator[SlurmCluster]:
    """A cluster of so many nodes, for a ``with`` block."""
    (folder / "state").mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    with network(count + 1) as hosts, ExitStack() as daemons:
        *nodes, control = hosts
        names = [*(f"node{index}" for index in range(1, count + 1)), "control"]
        (folder / "slurm.conf").write_text(_CONF.format(control=control.address, folder=folder, count=count))
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        entered = []
        for host, name in zip(hosts, names, strict=True):
            others = "".join(f"{other.address} {called}\n" for other, called in zip(hosts, names, strict=True) if called != name)
            own = folder / f"hosts-{name}"
            own.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{others}")  # as Debian's installer writes it
            script = f'mount --bind {shlex.quote(str(own))} /etc/hosts && hostname {name} && exec "$@"'
            entered.append((*host.enter, "unshare", "--mount", "--uts", "sh", "-c", script, "sh"))

        def start(name: str, *words: str, own: Mapping[str, str] = environment) -> None:
            with (folder / f"{name}.out").open("wb") as output:
                process = subprocess.Popen(words, env=own, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            daemons.callback(_end, process)

        start(
            "munged",
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/seed",
            f"--log-file={folder}/munged.log",
        )
        assert wait_until(lambda: (folder / "munge.socket").exists(), DEADLINE_S)
        start("slurmctld", *entered[-1], "slurmctld", "-D")
        for name, enter in zip(names[:-1], entered, strict=False):
            start(f"slurmd-{name}", *enter, "slurmd", "-D", "-N", name)
        cluster = SlurmCluster(folder, nodes, control, entered[-1])

        def is_up() -> bool:
            try:
                return cluster.run("sinfo", "--noheader", "--format=%T %D") == f"idle {count}"
            except AssertionError:
                return False

        assert wait_until(is_up, DEADLINE_S), cluster.run("sinfo", "-R")
        yield cluster
        cluster.run("scancel", "--full", "--state=RUNNING")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
