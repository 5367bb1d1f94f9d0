"""Hosts for tests: network namespaces on one switch, each with one address, all gone when the block ends or this process does.

    with network(2) as hosts:
        subprocess.run([*hosts[0].enter, "ping", "-c1", hosts[1].address])

A namespace lives as long as its holder, a `cat` that ends with this process's end of its pipe: there are no names that could be left.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEADLINE_S = 20.0
_SUBNET = "10.99.0"
INTERFACE = "eth0"
SLOW_SWITCH = Path(__file__).with_name("slow_switch.py")
_LISTEN = "0A"  # state of a listening socket in /proc/net/tcp


@dataclass(frozen=True)
class NamespaceHost:
    """One namespace.

    Attributes:
        pid: Its holder.
        address: Its address on the switch.
        enter: Words that run a command in it.
    """

    pid: int
    address: str
    enter: tuple[str, ...]

    def run(self, *command: str) -> str:
        """Runs a command in it; its output."""
        return _run(*self.enter, *command)

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
    started: list[subprocess.Popen[bytes]] = []
    as_root = [] if os.geteuid() == 0 else ["-r"]
    try:
        switch = _holder(started, ["unshare", *as_root, "-n", "cat"])
        user = ["-U", "--preserve-credentials"] if as_root else []
        inside = ["nsenter", "-t", str(switch), *user] if user else []
        pids = [_holder(started, [*inside, "unshare", "-n", "cat"]) for _ in range(count)]
        hosts = [NamespaceHost(pid, f"{_SUBNET}.{index + 1}", ("nsenter", "-t", str(pid), *user, "-n")) for index, pid in enumerate(pids)]
        if delay_s or loss:
            _slow_switch(started, [*inside, sys.executable, str(SLOW_SWITCH), str(delay_s), str(loss), *map(str, pids)])
        else:
            _switch(hosts, ("nsenter", "-t", str(switch), *user, "-n"))
        for host in hosts:
            host.run("ip", "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for device in ("lo", INTERFACE):
                host.run("ip", "link", "set", device, "up")
        yield hosts
    finally:
        for process in reversed(started):
            process.kill()
            process.communicate()


def _switch(hosts: list[NamespaceHost], enter: tuple[str, ...]) -> None:
    """The kernel's own, which is fast."""
    _run(*enter, "ip", "link", "add", "switch", "type", "bridge")
    _run(*enter, "ip", "link", "set", "switch", "up")
    for index, host in enumerate(hosts):
        port = f"port{index}"
        _run(*enter, "ip", "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", str(host.pid))
        _run(*enter, "ip", "link", "set", port, "master", "switch", "up")


def _slow_switch(started: list[subprocess.Popen[bytes]], command: list[str]) -> None:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _DEADLINE_S)
    assert ready and process.stdout.readline() == b"ready\n", "the slow switch did not start"


def _holder(holders: list[subprocess.Popen[bytes]], command: list[str]) -> int:
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    holders.append(holder)
    own, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + _DEADLINE_S
    known = {own, *(_space(other.pid) for other in holders[:-1])}
    while _space(holder.pid) in known or Path(f"/proc/{holder.pid}/comm").read_text().strip() != "cat":
        assert holder.poll() is None and time.monotonic() < deadline, "the namespace was not made"
        time.sleep(0.01)
    return holder.pid


def _space(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
