"""A rank of a real process group, and the function that starts several: ``python ranks.py <arguments as JSON>``.

A rank runs the scenarios it is given one after another and prints one JSON line per scenario.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def launch(
    folder: Path,
    world_size: int,
    scenarios: Sequence[dict[str, Any]],
    *,
    wrap: dict[str, list[int]] | None = None,
    python: str = sys.executable,
    deadline_s: float = 240,
) -> list[list[dict[str, Any]]]:
    """Runs scenarios on ``world_size`` ranks on this host.

    Args:
        folder: Where ranks meet.
        world_size: Number of ranks.
        scenarios: See ``run``.
        wrap: ``{words before the command: ranks that run under it}``; None runs all ranks without any.
        python: Interpreter.
        deadline_s: After which everything is killed.

    Returns:
        ``[rank][scenario]``: what the rank printed.
    """
    groups = wrap or {"": list(range(world_size))}
    env = {key: value for key, value in os.environ.items() if key not in TORCHRUN_VARIABLES}
    started, outputs = [], {}
    try:
        for words, ranks in groups.items():
            arguments = {"folder": str(folder), "world_size": world_size, "ranks": ranks, "scenarios": list(scenarios)}
            command = [*words.split(), python, "-W", "error", __file__, json.dumps(arguments)]
            started.append(
                subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            )
        deadline = time.monotonic() + deadline_s
        for process in started:
            out, err = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            assert process.returncode == 0, f"{out}\n{err[-4000:]}"
            for line in out.splitlines():
                found = json.loads(line)
                outputs.setdefault(found["rank_started"], []).append(found)
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.communicate()
    return [outputs[rank] for rank in range(world_size)]


def run(scenario: dict[str, Any], folder: str, rank: int, world_size: int) -> dict[str, Any]:
    """Runs one scenario.

    ``group``: make a gloo group first, which counts as borrowed. ``environment``: torchrun's variables, a list with one per rank.
    ``arguments``: of ``resolve_runtime``, likewise one per rank; None does not call it. ``address``: use the group afterwards.
    """
    import torch
    import torch.distributed as dist

    from gnnkit.distributed import resolve_runtime
    from gnnkit.errors import GnnkitError

    for name in TORCHRUN_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(scenario.get("environment", [{}] * world_size)[rank])
    if scenario.get("group"):
        store = dist.FileStore(f"{folder}/{scenario['name']}", world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    before = dict(os.environ)
    arguments = scenario.get("arguments", [{}] * world_size)[rank]
    result: dict[str, Any] = {"name": scenario["name"]}
    if arguments is not None:
        if context := arguments.pop("context", None):
            arguments["context"] = type("Context", (), context)
        start = time.monotonic()
        try:
            for _ in range(scenario.get("times", 1)):
                runtime = resolve_runtime(**arguments)
            result["record"] = asdict(runtime)
            result["listeners"] = _listeners()
            if dist.is_initialized():
                total = torch.tensor([rank])
                dist.all_reduce(total)
                result["sum"] = int(total)
            runtime.cleanup()
            runtime.cleanup()
        except GnnkitError as error:
            result |= {"error": type(error).__name__, "message": str(error)}
        result["seconds"] = time.monotonic() - start
    result["initialized_after"] = dist.is_initialized()
    result["environment_changed"] = dict(os.environ) != before
    if scenario.get("group"):
        dist.barrier()  # nobody leaves while others still connect
        dist.destroy_process_group()
    return result


def _listeners() -> list[str]:
    import psutil

    return sorted({c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN})


def main(folder: str, world_size: int, ranks: list[int], scenarios: list[dict[str, Any]]) -> int:
    """Forks a process for each rank, once torch is imported: that is what takes the time."""
    import torch.distributed  # noqa: F401

    import gnnkit.distributed.resolve  # noqa: F401

    children = [pid for rank in ranks if (pid := _fork(folder, world_size, rank, scenarios))]
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


def _fork(folder: str, world_size: int, rank: int, scenarios: list[dict[str, Any]]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for scenario in scenarios:
            line = json.dumps({"rank_started": rank, **run(scenario, folder, rank, world_size)}) + "\n"
            os.write(1, line.encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
