"""The role of this process among servers and clients: graphlearn-torch's ``DistContext``, without its RPC."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from enum import Enum

from gnnkit.errors import PlanError


class DistRole(Enum):
    """The role of a process in a run; the numbers are graphlearn-torch's."""

    WORKER = 1
    SERVER = 2
    CLIENT = 3


def check_rank(name: str, rank: int, size: int) -> None:
    """Makes sure that a rank is one of ``size``.

    Raises:
        PlanError: It is not.
    """
    if not 0 <= rank < size:
        raise PlanError(f"{name} must be between 0 and {size - 1}, got {rank}")


@dataclass(frozen=True)
class DistContext:
    """A process's place among the processes of its role, and among all.

    Servers come first in the global order, then clients.

    Attributes:
        role: What the process is.
        group_name: Name of the processes of its role.
        world_size: Number of processes of its role.
        rank: This one among them.
        global_world_size: Number of processes of all roles.
        global_rank: This one among them.
    """

    role: DistRole
    group_name: str
    world_size: int
    rank: int
    global_world_size: int
    global_rank: int

    def __post_init__(self) -> None:
        check_rank("rank", self.rank, self.world_size)
        check_rank("global_rank", self.global_rank, self.global_world_size)

    def is_worker(self) -> bool:
        """Whether it is one of a group of trainers that sample for themselves."""
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        """Whether it is a storage server."""
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        """Whether it is a trainer that servers sample for."""
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        """Number of servers; 0 for a worker."""
        return {DistRole.SERVER: self.world_size, DistRole.CLIENT: self.global_world_size - self.world_size}.get(self.role, 0)

    def num_clients(self) -> int:
        """Number of clients; 0 for a worker, and for a server that does not count on a number of them."""
        return {DistRole.CLIENT: self.world_size, DistRole.SERVER: self.global_world_size - self.world_size}.get(self.role, 0)

    @property
    def worker_name(self) -> str:
        """``"<group name>_<rank>"``."""
        return f"{self.group_name}_{self.rank}"


def server_context(num_servers: int, rank: int, num_clients: int, group_name: str | None) -> DistContext:
    """The context of a server; ``num_clients`` is 0 where any number may come."""
    return DistContext(DistRole.SERVER, group_name or "_default_server", num_servers, rank, num_servers + num_clients, rank)


def client_context(num_servers: int, num_clients: int, rank: int, group_name: str | None) -> DistContext:
    """The context of a client."""
    total = num_servers + num_clients
    return DistContext(DistRole.CLIENT, group_name or "_default_client", num_clients, rank, total, num_servers + rank)


_lock = threading.Lock()
_current: DistContext | None = None


def get_context() -> DistContext | None:
    """Returns this process's role since ``init_server``, ``init_client``, ``initialize`` or ``init_worker_group``; None before."""
    return _current or _worker_group()


def check_free(what: str) -> None:
    """Refuses to make a server or a client of a process that is one.

    Raises:
        PlanError: It is; names what it is and how it stops being it.
    """
    if (current := _current) is not None:
        leave_by = "wait_and_shutdown_server()" if current.is_server() else "shutdown_client() or exit_client()"
        raise PlanError(f"{what}: this process is {current.role.name.lower()} {current.rank} already", f"call {leave_by} first")


def enter(context: DistContext, what: str) -> None:
    """Makes ``context`` that of the process.

    Raises:
        PlanError: It is a server or a client already.
    """
    global _current
    with _lock:
        check_free(what)
        _current = context


def leave() -> None:
    """The process is neither a server nor a client from here on."""
    global _current
    with _lock:
        _current = None


def _worker_group() -> DistContext | None:
    """The group that graphlearn-torch's ``init_worker_group`` made, where graphlearn-torch has been used."""
    package = sys.modules.get("graphlearn_torch")
    theirs = None if package is None or not hasattr(package, "distributed") else package.distributed.get_context()
    if theirs is None:
        return None
    role = DistRole(theirs.role.value)
    return DistContext(role, theirs.group_name, theirs.world_size, theirs.rank, theirs.global_world_size, theirs.global_rank)
