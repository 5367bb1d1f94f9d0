"""Stands in for Slurm where there is none: ``python -m gnnkit.export.proof.slurm srun|scontrol ...``, as ``job.sbatch`` calls them.

``srun`` starts tasks on the nodes of a trial, at most as many as it has, with the variables that Slurm sets for them; ``scontrol show
hostnames`` writes a list of nodes a line each. Where the nodes are says a file of the folder in ``$GNNKIT_TRIAL``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.export.proof.keeper import HOSTS
from gnnkit.files import read_json
from gnnkit.waiting import Deadline

TRIAL, TRIAL_VARIABLE = "slurm.json", "GNNKIT_TRIAL"
_EXIT_WAIT_S = 10.0


def srun_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of ``srun``."""
    parser = argparse.ArgumentParser(prog="srun", allow_abbrev=False)
    parser.add_argument("--het-group", type=int, default=0)
    for name in ("--nodes", "--ntasks", "--ntasks-per-node"):
        parser.add_argument(name, type=int, default=None)
    for name in ("--cpus-per-task", "--kill-on-bad-exit", "--gpus-per-task"):
        parser.add_argument(name, default=None)
    parser.add_argument("--label", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def srun(arguments: Sequence[str]) -> int:
    """Runs a step; its exit status is the highest of its tasks'."""
    said = srun_options(arguments)
    folder = Path(os.environ[TRIAL_VARIABLE])
    group, enter = read_json(folder / TRIAL)[said.het_group], read_json(folder / HOSTS)
    nodes = group["nodes"][: said.nodes]
    per_node = min(said.ntasks_per_node or group["tasks_per_node"], group["tasks_per_node"])
    tasks = [(rank, rank // per_node, rank % per_node) for rank in range(min(said.ntasks or 1 << 30, len(nodes) * per_node))]
    started: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        for rank, node, local in tasks:
            variables = slurm_variables(rank, node, local, len(tasks), per_node, nodes)
            words = [*(enter[nodes[node]["host"]] if enter else ()), *said.command]
            environment = {**os.environ, **variables, **nodes[node]["variables"]}
            started.append(subprocess.Popen(words, cwd=nodes[node]["folder"], env=environment, start_new_session=True))
        return _wait(started, ends_all=said.kill_on_bad_exit == "1")
    finally:
        _end(started)


def slurm_variables(rank: int, node: int, local: int, count: int, per_node: int, nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the variables that Slurm sets for a task."""
    names, each = ",".join(one["address"] for one in nodes), f"{per_node}(x{len(nodes)})" if len(nodes) > 1 else str(per_node)
    told = {
        "SLURM_PROCID": rank,
        "SLURM_STEP_ID": 0,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
        "SLURM_NTASKS": count,
        "SLURM_NPROCS": count,
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_NNODES": len(nodes),
        "SLURM_STEP_NUM_NODES": len(nodes),
        "SLURM_TASKS_PER_NODE": each,
        "SLURM_STEP_TASKS_PER_NODE": each,
        "SLURM_STEP_NODELIST": names,
        "SLURM_JOB_NODELIST": names,
        "SLURMD_NODENAME": nodes[node]["address"],
    }
    return {name: str(value) for name, value in told.items()}


def _wait(started: Sequence[subprocess.Popen[bytes]], *, ends_all: bool) -> int:
    left, highest = {process.pid: process for process in started}, 0
    while left:
        pid, status = os.wait()
        if pid in left:
            code = os.waitstatus_to_exitcode(status)
            left.pop(pid).returncode = code
            highest = max(highest, code if code >= 0 else 128 - code)
            if highest and ends_all:
                break
    return highest


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends tasks that still run, and whichever does not do it in time."""
    deadline = Deadline(_EXIT_WAIT_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [process for process in started if process.poll() is None]
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline.left_s))


def scontrol(arguments: Sequence[str]) -> int:
    """``show hostnames LIST``; nothing else can be asked of a check."""
    if list(arguments[:2]) != ["show", "hostnames"] or len(arguments) != 3:
        sys.stderr.write(f"scontrol {' '.join(arguments)}: a check does not start jobs again\n")
        return 1
    sys.stdout.write(arguments[2].replace(",", "\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
