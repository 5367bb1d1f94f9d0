"""Two hosts on one: ``python -m gnnkit.bench.namespaces COMMAND...`` runs a command in two network namespaces that a cable joins.

Each finds torchrun's variables in its environment (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ...) and ends with a line of JSON; the last
line here is the sum of their ``seeds_per_s``. The namespaces have no name: they and the cable go with the last process in them, however
that ends. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from gnnkit.bench.process import BenchError

_NUM_HOSTS = 2
_INTERFACE = "eth0"
_TOOLS = ("ip", "nsenter", "unshare")
_START_TIMEOUT_S = 10.0
_SHARED_PORT = "29500"
# Waits for a line, by which time its namespace has its cable, and becomes the command.
_WAIT = 'read -r _ && exec "$@" </dev/null'


def why_not() -> str | None:
    """Why there can be no second host here, or None."""
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if sys.platform != "linux" or missing:
        return f"two hosts are network namespaces of Linux, made with {', '.join(missing or _TOOLS)}"
    return None if os.geteuid() == 0 else "two hosts are network namespaces, which only root can join by a cable"


def run_on_hosts(command: Sequence[str]) -> list[str]:
    """Runs a command in each of the namespaces at the same time.

    Returns:
        What each wrote to standard output.

    Raises:
        BenchError: There can be no namespaces, or a command failed; the other is ended then.
    """
    reason = why_not()
    if reason is not None:
        raise BenchError(reason)
    hosts = [_start(rank, command) for rank in range(_NUM_HOSTS)]
    try:
        _join([host.pid for host in hosts])
        for host in hosts:
            assert host.stdin is not None
            host.stdin.write("\n")
            host.stdin.close()
            host.stdin = None
        return _outputs(hosts)
    finally:
        for host in hosts:
            host.kill()
            host.wait()
            for pipe in (host.stdin, host.stdout):
                if pipe is not None:
                    pipe.close()


def _start(rank: int, command: Sequence[str]) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(_NUM_HOSTS),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(_NUM_HOSTS),
        "MASTER_ADDR": _address(0),
        "MASTER_PORT": _SHARED_PORT,
        # torch looks up its own host's name otherwise, which nobody knows here.
        "GLOO_SOCKET_IFNAME": _INTERFACE,
        "TP_SOCKET_IFNAME": _INTERFACE,
    }
    words = ["unshare", "--net", "--", "sh", "-c", _WAIT, "sh", *command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _join(pids: Sequence[int]) -> None:
    """Lays a cable between two processes' namespaces, once they have them."""
    own, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + _START_TIMEOUT_S
    while any(os.readlink(f"/proc/{pid}/ns/net") == own for pid in pids):
        if time.monotonic() > deadline:
            raise BenchError(f"no network namespace after {_START_TIMEOUT_S:g} s")
        time.sleep(0.01)
    first, second = map(str, pids)
    _call("ip", "link", "add", _INTERFACE, "netns", first, "type", "veth", "peer", "name", _INTERFACE, "netns", second)
    for rank, pid in enumerate((first, second)):
        inside = ("nsenter", "--target", pid, "--net", "ip")
        _call(*inside, "address", "add", f"{_address(rank)}/24", "dev", _INTERFACE)
        for interface in ("lo", _INTERFACE):
            _call(*inside, "link", "set", interface, "up")


def _address(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


def _call(*words: str) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_START_TIMEOUT_S)
    if done.returncode:
        raise BenchError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


def _outputs(hosts: Sequence[subprocess.Popen[str]]) -> list[str]:
    """What all of them wrote, or the first failure; the command's own deadline is the caller's."""
    waiting = dict(enumerate(hosts))
    written = [""] * len(hosts)
    while waiting:
        for rank, host in list(waiting.items()):
            try:
                written[rank] += host.communicate(timeout=0.2)[0]
            except subprocess.TimeoutExpired:
                continue
            if host.returncode:
                raise BenchError(f"host {rank} ended with code {host.returncode}")
            del waiting[rank]
    return written


def main(command: Sequence[str]) -> None:
    """Runs a command on both hosts and sums up what they reached."""
    outputs = run_on_hosts(command)
    speeds = [float(json.loads(text.splitlines()[-1])["seeds_per_s"]) for text in outputs]
    sys.stdout.write(json.dumps({"seeds_per_s": sum(speeds), "each": speeds}) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BenchError as error:
        sys.exit(str(error))
