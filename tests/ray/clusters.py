"""Ray clusters of this host that somebody else has started, with a token: each node is a session of processes of its own.

They are no children of the tests: some of them begin with the first job, and stay until the cluster ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from gnnkit.ray.cleaner import members
from tests.helpers.machine import SEARCH_PATH
from tests.helpers.waiting import wait_until

# A busy machine takes long to start the dozen processes of a cluster.
PATIENCE_S = 800.0
# After so long a build that stands still is ended, and called again.
STILL_S = 200.0
_STORE_BYTES = 80 << 20


class RayCluster:
    """A cluster, without a node at first.

    Args:
        folder: For what its nodes leave.
        environment: The variables of its processes.

    Attributes:
        address: What a driver joins, once there is the first node.
        environment: The variables of its processes.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder, self.environment = folder, environment
        self._sessions: list[int] = []
        self.address = ""

    def start_node(
        self,
        cpus: int = 1,
        enter: Sequence[str] = (),
        ip: str | None = None,
        resources: Mapping[str, float] | None = None,
        **variables: str,
    ) -> int:
        """Starts a node, the first time that of the head; its number for ``kill_node``.

        Args:
            cpus: Its processors.
            enter: Words that run a command where it is to be.
            ip: Its address; None is that of this host.
            resources: Its custom resources.
            variables: Variables of its processes beside those of all.
        """
        words = [f"--address={self.address}"]
        if not self.address:
            words = ["--head", "--port=0", f"--temp-dir={self._folder}", "--include-dashboard=false", "--disable-usage-stats"]
        words += [] if ip is None else [f"--node-ip-address={ip}"]
        command = [*enter, sys.executable, "-m", "ray.scripts.scripts", "start", *words, f"--num-cpus={cpus}"]
        command += [f"--object-store-memory={_STORE_BYTES}", f"--resources={json.dumps(resources or {})}"]
        environment = {**self.environment, **variables}
        for attempt in range(3):  # on a busy machine Ray gives up its own processes after some seconds
            with open(self._folder / "out", "w+b") as out:
                starter = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
                self._sessions.append(starter.pid)
                if starter.wait(PATIENCE_S) == 0:
                    break
                out.seek(0)
                assert attempt < 2, out.read().decode(errors="replace") + self._logs()
            self.kill_node(starter.pid)
        self.address = self.address or (self._folder / "ray_current_cluster").read_text().strip()
        return starter.pid

    def _logs(self) -> str:
        """The ends of what a node's processes have written: why it has not started."""
        logs = sorted(path for path in self._folder.glob("session_latest/logs/*") if path.is_file() and path.stat().st_size)
        return "".join(f"\n--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs)

    def kill_node(self, number: int) -> None:
        """Kills all processes of a node, and waits until they are gone."""
        for process in members(number):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert wait_until(lambda: not members(number))

    def kill(self) -> None:
        """Kills all nodes."""
        for number in reversed(self._sessions):
            self.kill_node(number)


@contextlib.contextmanager
def started_cluster(cpus: int, enter: Sequence[str] = (), ip: str | None = None, **variables: str) -> Iterator[RayCluster]:
    """Yields a cluster of one node, see ``RayCluster.start_node``; drivers of this process find its token."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets are below it, whose paths must be short
    told = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16), "RAY_USAGE_STATS_ENABLED": "0"}
    told["RAY_agent_register_timeout_ms"] = str(int(1000 * PATIENCE_S))  # Ray gives up its own processes after 30 s otherwise
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        cluster = RayCluster(folder, {**os.environ, "PYTHONPATH": SEARCH_PATH, **variables})
        try:
            cluster.start_node(cpus, enter, ip)
            yield cluster
        finally:
            cluster.kill()
            shutil.rmtree(folder, ignore_errors=True)
