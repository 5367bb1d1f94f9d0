"""Where servers and clients meet, as graphlearn-torch's arguments say it."""

from __future__ import annotations

from typing import Any

from gnnkit.cluster.hosts import join_address
from gnnkit.cluster.serving.spec import UNIX_PREFIX
from gnnkit.errors import PlanError


def meeting_address(master_addr: str, master_port: int) -> str:
    """The address of the servers' meeting point.

    Args:
        master_addr: Address of server 0's host, or ``"unix:<folder>"``.
        master_port: Port on which server 0 listens.

    Raises:
        PlanError: They are none.
    """
    if not isinstance(master_addr, str) or not master_addr:
        raise PlanError(f"master_addr must be an address, got {master_addr!r}", "the address of the host of server 0")
    if master_addr.startswith(UNIX_PREFIX):
        return master_addr
    if isinstance(master_port, bool) or not isinstance(master_port, int) or not 1 <= master_port <= 65535:
        raise PlanError(f"master_port must be a port, 1 to 65535, got {master_port!r}", "the port on which server 0 listens")
    return join_address(master_addr, master_port)


def check_counts(**counts: tuple[Any, int]) -> None:
    """Checks whole numbers.

    Args:
        **counts: By name: the value, and the least that it may be.

    Raises:
        PlanError: One is none, or too small.
    """
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise PlanError(f"{name} must be a whole number of at least {least}, got {value!r}")
