"""Hosts for tests: those of ``gnnkit.cluster.namespaces``, which can be cut off and looked into, on a switch that may be a bad one."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.cluster import namespaces
from gnnkit.cluster.namespaces import INTERFACE as INTERFACE
from gnnkit.cluster.namespaces import bridge, call, port_name
from tests.helpers.waiting import is_readable

_DEADLINE_S = 20.0
SLOW_SWITCH = Path(__file__).with_name("slow_switch.py")
_LISTEN = "0A"  # state of a listening socket in /proc/net/tcp


@dataclass(frozen=True)
class NamespaceHost(namespaces.NamespaceHost):
    """One namespace.

    Attributes:
        plug: Words that change its plug in the switch; empty where the switch is a slow one.
    """

    plug: tuple[str, ...] = ()

    def cut(self) -> None:
        """Drops every packet from it and to it; nobody is told."""
        call(*self.plug, "nomaster")

    def heal(self) -> None:
        """Lets packets through again."""
        call(*self.plug, "master", "switch")

    def run(self, *command: str) -> str:
        """Runs a command in it; its output."""
        return call(*self.enter, *command)

    def pids(self) -> set[int]:
        """Every process in it, its holder aside."""
        space, found = os.readlink(f"/proc/{self.pid}/ns/net"), set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.pid:
                with contextlib.suppress(OSError):
                    if os.readlink(entry / "ns/net") == space:
                        found.add(int(entry.name))
        return found

    def listeners(self) -> set[tuple[str, int]]:
        """Address and port of every listening TCP socket in it."""
        found = set()
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.pid}/net/{name}").read_text().splitlines()[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == _LISTEN:
                    address, port = local.split(":")
                    found.add((_readable(address), int(port, 16)))
        return found


def _readable(address: str) -> str:
    raw = bytes.fromhex(address)
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    parsed = ipaddress.ip_address(words)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


@contextlib.contextmanager
def network(count: int, delay_s: float = 0.0, loss: float = 0.0) -> Iterator[list[NamespaceHost]]:
    """Namespaces that reach each other, and nothing else.

    Args:
        count: How many.
        delay_s: Seconds by which every packet is late.
        loss: Share of packets that are lost.
    """
    places: list[Any] = []  # of the switch, if it is one that can be unplugged from

    @contextlib.contextmanager
    def switch(place: Any, pids: Sequence[int]) -> Iterator[None]:
        if not (delay_s or loss):
            places.append(place)
            with bridge(place, pids):
                yield
        else:
            with _slow_switch([*place.enter_user, sys.executable, str(SLOW_SWITCH), str(delay_s), str(loss), *map(str, pids)]):
                yield

    with namespaces.network(count, switch=switch) as hosts:
        plugs = [(*place.enter, "ip", "link", "set") for place in places]
        yield [
            NamespaceHost(host.pid, host.address, host.enter, (*plugs[0], port_name(index)) if plugs else ())
            for index, host in enumerate(hosts)
        ]


@contextlib.contextmanager
def _slow_switch(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        ready = is_readable(process.stdout.fileno(), _DEADLINE_S)
        assert ready and process.stdout.readline() == b"ready\n", "the slow switch did not start"
        yield
    finally:
        process.kill()
        process.communicate()
