"""What a part service serves, and where it listens."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.cluster.hosts import join_address
from gnnkit.errors import PlanError


@dataclass(frozen=True)
class ServiceSpec:
    """What a part service serves, and where.

    Attributes:
        store: The store's folder.
        fingerprint: The store's fingerprint.
        parts: The parts of this host.
        host: This host's number.
        clients: Hosts that get parts from it.
        ip: The one address that it listens on.
        port: The port; 0 takes any that is free.
        token: What clients have to know.
        start_timeout_s: Seconds that starting may take; also those that a host which never came is waited for.
        linger_timeout_s: Seconds that other hosts are served at the end of the process.
        log_root: Folder of its log's folder.
    """

    store: str
    fingerprint: str
    parts: tuple[int, ...]
    host: int
    clients: tuple[int, ...]
    ip: str
    port: int
    token: str
    start_timeout_s: float
    linger_timeout_s: float
    log_root: Path

    @property
    def key(self) -> tuple[Any, ...]:
        """What loaders must have in common to share a service."""
        return self.store, self.fingerprint, self.parts, self.clients, self.ip, self.port, self.token

    def __repr__(self) -> str:
        return f"ServiceSpec(parts {list(self.parts)} of {self.store} at {self.ip})"  # without the token


def check_free(spec: ServiceSpec) -> None:
    """Refuses an address that somebody listens on; see ``require_free``.

    Raises:
        PlanError: Somebody does, or the address is none of this host's.
    """
    hint = "choose another port, or end whoever has it; loaders of two stores need a port each"
    require_free(spec.ip, spec.port, f"the parts of host {spec.host} cannot be served", hint)


def require_free(ip: str, port: int, what: str, hint: str) -> None:
    """Refuses an address that somebody listens on: a service itself would share it with another of the same user.

    Args:
        ip: The address.
        port: The port; 0 is always free.
        what: What cannot be done, for the message.
        hint: What to do about it.

    Raises:
        PlanError: Somebody does, or the address is none of this host's.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            raise PlanError(f"{what} at {join_address(ip, port)}: {error.strerror or error}", hint) from error
