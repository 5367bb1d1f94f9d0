"""Hosts on one: ``python -m tools.bench.namespaces --hosts 2 COMMAND...`` runs a command on hosts of ``gnnkit.cluster.namespaces``.

Each finds torchrun's variables in its environment (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ...) and a token that all have, and ends
with a line of JSON; the last line here is that of the first, with the sums of what adds up over hosts, such as ``seeds_per_s``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence

from gnnkit.cluster.namespaces import INTERFACE, NamespaceError, NamespaceHost, host_address, network
from tools.bench.process import BenchError

_NUM_HOSTS = 2
_SHARED_PORT = "29500"
# Values of which each host has its share.
_SUMMED = ("seeds_per_s", "own_busy")


def run_on_hosts(command: Sequence[str], num_hosts: int = _NUM_HOSTS) -> list[str]:
    """Runs a command in each of the namespaces at the same time.

    Returns:
        What each wrote to standard output.

    Raises:
        BenchError: There can be no namespaces, or a command failed; the others are ended then.
    """
    token = secrets.token_hex()
    started: list[subprocess.Popen[str]] = []
    try:
        with network(num_hosts) as hosts:
            try:
                started += [_start(rank, host, num_hosts, command, token) for rank, host in enumerate(hosts)]
                return _outputs(started)
            finally:
                for process in started:
                    process.kill()
                    process.communicate()
    except NamespaceError as error:
        raise BenchError(error.message, error.hint) from error


def _start(rank: int, host: NamespaceHost, num_hosts: int, command: Sequence[str], token: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(num_hosts),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(num_hosts),
        "MASTER_ADDR": host_address(0),
        "MASTER_PORT": _SHARED_PORT,
        "GNNKIT_TOKEN": token,
        # torch looks up its own host's name otherwise, which nobody knows here.
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
    }
    return subprocess.Popen([*host.enter, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment)


def _outputs(hosts: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Returns the output of all hosts; raises the first failure. The command's own deadline is the caller's."""
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


def main(command: Sequence[str], num_hosts: int = _NUM_HOSTS) -> None:
    """Runs a command on all hosts and sums up what they reached."""
    outputs = run_on_hosts(command, num_hosts)
    values = [json.loads(text.splitlines()[-1]) for text in outputs]
    sums = {name: sum(float(value[name]) for value in values) for name in _SUMMED if name in values[0]}
    sys.stdout.write(json.dumps({**values[0], **sums, "each": [float(value["seeds_per_s"]) for value in values]}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=_NUM_HOSTS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    try:
        main(given.command, given.hosts)
    except BenchError as error:
        sys.exit(str(error))
