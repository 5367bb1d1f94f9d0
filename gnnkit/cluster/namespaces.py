"""Several hosts on one: network namespaces on one switch, each with one address, all gone when the block ends or this process does.

    with network(2) as hosts:
        subprocess.run([*hosts[0].enter, "ping", "-c1", hosts[1].address])

A namespace lives as long as its holder, a ``cat`` that ends with this process's end of its pipe, or as the processes in it: there are no
names that could be left. Needs root, or a system that lets users have namespaces of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gnnkit.errors import GnnkitError
from gnnkit.waiting import is_ready

INTERFACE = "eth0"
_TOOLS = ("ip", "nsenter", "unshare")
_SUBNET = "10.99.0"
_TIMEOUT_S = 20.0
# Says that it is in its namespace, and stays there.
_HOLD = "echo && exec cat >/dev/null"
# What is made in every network, in a namespace that is gone at once.
_PROBE = "ip link add port0 type veth peer name eth0 && ip link add switch type bridge && ip link set port0 master switch"


class NamespaceError(GnnkitError):
    """There can be no network namespaces here, or making them failed."""


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


@dataclass(frozen=True)
class SwitchPlace:
    """The commands that enter the namespaces of a network's switch.

    Attributes:
        enter: Words that run a command in its network namespace.
        enter_user: Words that run a command with the rights over all namespaces of the network; empty for root.
    """

    enter: tuple[str, ...]
    enter_user: tuple[str, ...]


# Gives the namespace of each pid the interface ``INTERFACE``, through which they reach each other for as long as the block lasts.
Switch: TypeAlias = Callable[[SwitchPlace, Sequence[int]], "contextlib.AbstractContextManager[None]"]


def why_not() -> str | None:
    """Why there can be no network namespaces here, or None."""
    try:
        _own_rights()
    except NamespaceError as error:
        return error.message
    return None


@contextlib.contextmanager
def network(count: int, *, subnet: str = _SUBNET, switch: Switch | None = None) -> Iterator[list[NamespaceHost]]:
    """Namespaces that reach each other, and nothing else.

    Args:
        count: How many, at most 254.
        subnet: The first three bytes of their addresses; the last is 1 for the first host.
        switch: What joins them; None is the kernel's own bridge.

    Raises:
        NamespaceError: There can be none here.
    """
    rights, holders = _own_rights(), contextlib.ExitStack()
    with holders:
        center = _hold(holders, ["unshare", *rights, "-n"])
        user = ("-U", "--preserve-credentials") if rights else ()
        inside = ("nsenter", "-t", str(center), *user) if rights else ()
        pids = [_hold(holders, [*inside, "unshare", "-n"]) for _ in range(count)]
        place = SwitchPlace(("nsenter", "-t", str(center), *user, "-n"), inside)
        hosts = [NamespaceHost(pid, host_address(i, subnet), ("nsenter", "-t", str(pid), *user, "-n")) for i, pid in enumerate(pids)]
        holders.enter_context((switch or bridge)(place, pids))
        for host in hosts:
            call(*host.enter, "ip", "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for device in ("lo", INTERFACE):
                call(*host.enter, "ip", "link", "set", device, "up")
        yield hosts


def host_address(index: int, subnet: str = _SUBNET) -> str:
    """The address of a network's host."""
    return f"{subnet}.{index + 1}"


def port_name(index: int) -> str:
    """Returns the name of the end of a host's cable in the bridge's namespace."""
    return f"port{index}"


@contextlib.contextmanager
def bridge(place: SwitchPlace, pids: Sequence[int]) -> Iterator[None]:
    """The kernel's own switch, which is fast; it goes with its namespace."""
    call(*place.enter, "ip", "link", "add", "switch", "type", "bridge")
    call(*place.enter, "ip", "link", "set", "switch", "up")
    for index, pid in enumerate(pids):
        call(*place.enter, "ip", "link", "add", port_name(index), "type", "veth", "peer", "name", INTERFACE, "netns", str(pid))
        call(*place.enter, "ip", "link", "set", port_name(index), "master", "switch", "up")
    yield


def call(*command: str) -> str:
    """Runs a command that takes no time; its output.

    Raises:
        NamespaceError: It failed.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NamespaceError(f"`{' '.join(command)}` failed: {error}") from error
    if done.returncode:
        raise NamespaceError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def _own_rights() -> list[str]:
    """Returns the further arguments of ``unshare``: none for root, for other users the one that makes them root of a user namespace.

    Raises:
        NamespaceError: Neither works.
    """
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if sys.platform != "linux" or missing:
        raise NamespaceError(f"hosts are network namespaces of Linux, made with {', '.join(missing or _TOOLS)}")
    rights = [] if os.geteuid() == 0 else ["-r"]
    try:
        call("unshare", *rights, "-n", "sh", "-c", _PROBE)
    except NamespaceError as error:
        who, hint = ("this user", "be root") if rights else ("this container's root", "give it CAP_SYS_ADMIN and CAP_NET_ADMIN")
        raise NamespaceError(f"{who} may not make network namespaces: {error.message}", hint) from error
    return rights


def _hold(holders: contextlib.ExitStack, words: Sequence[str]) -> int:
    """Makes a namespace that goes with this process, or with the stack; its holder's pid."""
    holder = subprocess.Popen([*words, "sh", "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    holders.callback(_end, holder)
    assert holder.stdout is not None and holder.stderr is not None
    if not is_ready(holder.stdout.fileno(), _TIMEOUT_S):
        raise NamespaceError(f"no network namespace after {_TIMEOUT_S:g} s")
    if not holder.stdout.readline():
        raise NamespaceError(f"no network namespace: {holder.stderr.read().decode(errors='replace').strip()}")
    return holder.pid


def _end(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.communicate()
