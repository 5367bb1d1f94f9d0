"""Where servers listen: what users write, and what a server makes of it."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gnnkit.cluster.hosts import checked_address, interface_address, is_loopback, join_address, source_address, split_address
from gnnkit.cluster.part_spec import require_free
from gnnkit.errors import PlanError

_HINT = "for example '10.0.0.1:7000', or '10.0.0.1:7000,10.0.0.2:7000'; the first one is where the servers meet"


def wire_addresses(value: str | Sequence[str]) -> tuple[str, ...]:
    """Addresses of servers: one, several with commas between them, or a sequence; the first is where the servers meet.

    A port may be 0 where there is one address: servers are to be started there, on ports that are free.

    Raises:
        PlanError: It is none of these.
    """
    texts = [text.strip() for text in value.split(",")] if isinstance(value, str) else list(value)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise PlanError(f"address={value!r} names no server", _HINT)
    for text in texts:
        split_address(text, least_port=0 if len(texts) == 1 else 1)
    if len(set(texts)) < len(texts):
        raise PlanError(f"address={value!r} names a server twice", "every server has an address and port of its own")
    return tuple(texts)


def has_any_port(address: str) -> bool:
    """Whether what a user has written leaves the port open: servers are to be started there."""
    return split_address(wire_addresses(address)[0], least_port=0)[1] == 0


def own_address(rank: int, meeting: str, listen: str | None, interface: str | None) -> tuple[str, int]:
    """Where a server listens.

    Args:
        rank: Its number; the first one listens where all meet.
        meeting: Where the servers meet.
        listen: Its own address where somebody has written it.
        interface: Name or address of the interface to listen on; None: that of ``listen``, or the one that the meeting point is reached by.

    Returns:
        Address and port; the port 0 means any that is free.

    Raises:
        PlanError: The address is none of this host's, is taken, or is of no use to others.
    """
    written = listen if listen is not None else meeting if rank == 0 else None
    wanted = None if interface is None else interface_address(interface)
    if written is not None:
        name, port = split_address(written, least_port=0)
        ip = checked_address(_resolved(name), name)
        if wanted is not None and wanted != ip:
            raise PlanError(f"server {rank} is to listen at {written}, and the interface {interface!r} has {wanted}", "give one of the two")
    else:
        name, port = split_address(meeting)[0], 0
        ip = wanted or source_address(name)
        if not ip:
            raise PlanError(f"server {rank} has no way to {meeting}, where the servers meet", "name the interface, or look at the network")
        if is_loopback(ip) and not is_loopback(_resolved(name)):
            raise PlanError(f"server {rank} would listen at {ip}, where other hosts cannot reach it", "name another interface")
    require_free(ip, port, f"server {rank} cannot listen", "choose another port, or end whoever has it")
    return ip, port


def meeting_address(meeting: str) -> str:
    """The meeting point as an address and port, without a name.

    Raises:
        PlanError: The name means nothing here.
    """
    name, port = split_address(meeting)
    return join_address(_resolved(name), port)


def _resolved(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise PlanError(f"{name!r} means no address here: {error.strerror or error}", "write the address as a number") from error
