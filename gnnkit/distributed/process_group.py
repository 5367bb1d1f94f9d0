"""The meeting place of servers and clients: DGL's ``ip_config`` file, addresses, and a gloo process group for runs that have none."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from gnnkit.bounds import is_whole
from gnnkit.cluster.hosts import interface_to, join_address, meeting_store, split_address
from gnnkit.cluster.serving.spec import UNIX_PREFIX
from gnnkit.errors import PlanError, StartTimeout
from gnnkit.files import read_text

# The port of a machine's first server where its line names none: DGL's.
DEFAULT_PORT = 30050
_LINE_HINT = "a line is an address and, if you like, the port of the machine's first server: 10.0.0.1 30050"


def read_ip_config(path: str | Path, num_servers: int = 1) -> tuple[str, ...]:
    """The servers' addresses in rank order: those of the first machine, then those of the second, and so on.

    As in DGL every machine has ``num_servers`` servers, on ports that follow each other. Empty lines and what follows a ``#`` are left out.

    Args:
        path: The file; lines are ``ip`` or ``ip port``.
        num_servers: Servers of each machine.

    Returns:
        ``"ip:port"`` of each server.

    Raises:
        PlanError: The file cannot be read, names no machine, or a line of it is not understood; names the line.
    """
    try:
        text = read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the ip_config file {str(path)!r}: {error}", _LINE_HINT) from error
    addresses: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        for address in _of_line(words, num_servers, f"line {number} of {path}"):
            if address in addresses:
                raise PlanError(f"lines {addresses[address]} and {number} of {path} both have a server at {address}", _LINE_HINT)
            addresses[address] = number
    if not addresses:
        raise PlanError(f"{path} names no machine", _LINE_HINT)
    return tuple(addresses)


def _of_line(words: list[str], num_servers: int, where: str) -> list[str]:
    name, port = words[0].strip("[]"), words[1] if len(words) > 1 else str(DEFAULT_PORT)
    if len(words) > 2:
        raise PlanError(f"{where} has {len(words)} words: {' '.join(words)!r}", _LINE_HINT)
    try:
        address, first = split_address(f"[{name}]:{port}" if ":" in name else f"{name}:{port}")
    except PlanError as error:
        raise PlanError(f"{where} is {' '.join(words)!r}: {error.message}", _LINE_HINT) from error
    if first + num_servers - 1 > 65535:
        raise PlanError(f"{where}: {num_servers} servers from port {first} on need ports above 65535", _LINE_HINT)
    return [join_address(address, first + server) for server in range(num_servers)]


_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_lock = threading.Lock()
# The group that `create` made, and what its making replaced sys.excepthook by and what was there before; or None.
_created: tuple[Any, Any, Any] | None = None


def is_initialized() -> bool:
    """Whether this process is in a process group."""
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


def create(address: str, port: int, rank: int, world_size: int, timeout_s: float) -> None:
    """Makes a gloo group the default process group; every rank calls it.

    Rank 0 listens on ``address`` only, and gloo on the interface that leads there, whatever the host's name resolves to.

    Args:
        address: Address or name of rank 0's host.
        port: Port on which rank 0 listens.
        rank: This process.
        world_size: Number of processes.
        timeout_s: Seconds for all ranks to come; later a limit for each of the group's operations.

    Raises:
        PlanError: Rank 0 cannot listen there.
        StartTimeout: Not all ranks came in time.
    """
    global _created
    import torch.distributed as dist

    timeout, excepthook = timedelta(seconds=timeout_s), sys.excepthook
    store: Any = None
    with _lock:
        try:
            store = meeting_store(address, port, rank, world_size, timeout)
            with gloo_interface(interface_to(address)):
                dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        except PlanError:  # a ValueError too, and one that says enough
            raise
        except (RuntimeError, ValueError) as error:  # torch has no error of its own for a deadline
            if dist.is_initialized():
                dist.destroy_process_group()
            sys.excepthook = excepthook
            # The error's frames hold the store, and with it the port, for as long as the error is kept.
            store = None
            traceback.clear_frames(error.__traceback__)
            raise StartTimeout(
                f"rank {rank} of {world_size} found no process group at {address}:{port} within {timeout_s:g} s: "
                + (str(error).splitlines() or [type(error).__name__])[0],
                "start every rank with the same main_worker_ip_address; a firewall may keep them apart",
            ) from error
        _created = dist.group.WORLD, sys.excepthook, excepthook


def destroy_created() -> None:
    """Destroys the default process group if ``create`` made it and it was not replaced; else does nothing."""
    global _created
    import torch.distributed as dist

    with _lock:
        created, _created = _created, None
        if created is None:
            return
        group, ours, before = created
        if dist.is_initialized() and dist.group.WORLD is group:
            dist.destroy_process_group()
        # Torch prefixes tracebacks with the rank from the first group on, for good; a group that is gone has no ranks.
        if sys.excepthook is ours:
            sys.excepthook = before


@contextmanager
def gloo_interface(name: str | None) -> Iterator[None]:
    """Tells gloo its interface, unless the user has; the variable is read while a group is made."""
    if name is None or _GLOO_INTERFACE in os.environ:
        yield
        return
    os.environ[_GLOO_INTERFACE] = name
    try:
        yield
    finally:
        os.environ.pop(_GLOO_INTERFACE, None)


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
    if not is_whole(master_port, 1, 65535):
        raise PlanError(f"master_port must be a port, 1 to 65535, got {master_port!r}", "the port on which server 0 listens")
    return join_address(master_addr, master_port)
