"""What ``gnnkit.launch`` was asked for, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.backends.checks import check_count, check_seconds
from gnnkit.errors import PlanError
from gnnkit.host import available_cpus
from gnnkit.jobs.devices import VISIBLE, check_device, check_present


@dataclass(frozen=True)
class LaunchSpec:
    """What ranks are to do.

    Attributes:
        title: The train function's name.
        code: The train function, packed; it is in no record.
        num_procs: How many ranks.
        device: "auto", "cpu", "cuda" or "cuda:<index>".
        directory: The job's folder; None is one that goes with the run.
        max_restarts: How often all ranks may be started again.
        threads: Threads that torch and NumPy use in each rank.
        start_timeout_s: Seconds that ranks have from their start to the call of their function.
        log_dir: Folder for logs; None: the usual one.

    Raises:
        PlanError: A value is unusable.
    """

    title: str
    code: bytes
    num_procs: int
    device: str = "auto"
    directory: str | None = None
    max_restarts: int = 0
    threads: int = 1
    start_timeout_s: float = 120.0
    log_dir: str | None = None

    def __post_init__(self) -> None:
        check_count("max_restarts", self.max_restarts, 0)
        check_count("threads_per_proc", self.threads, 1)
        check_seconds("start_timeout_s", self.start_timeout_s, 0.1)
        check_device(self.device)
        check_present(self.device)

    def setup(self) -> dict[str, Any]:
        """What every rank is told, as JSON values."""
        # WorkerPool are shown no GPU, and ranks are started as they are; libraries that look for an interface are to stay on this host.
        visible = "" if self.device == "cpu" else os.environ.get(VISIBLE)
        variables = {VISIBLE: visible, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        return {"device": self.device, "variables": variables, "timeout_s": self.start_timeout_s}


def fair_threads(num_procs: int) -> int:
    """Threads of each rank: this process's processors, divided by the ranks, at least 1."""
    return max(1, available_cpus() // num_procs)


def made_directory(directory: str | Path | None) -> str | None:
    """The job's folder, made where it is not there, as an absolute path.

    Raises:
        PlanError: It cannot be made.
    """
    if directory is None:
        return None
    folder = Path(directory).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"directory={str(directory)!r} cannot be made: {error.strerror or error}", "give another folder") from error
    return str(folder)
