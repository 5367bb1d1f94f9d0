"""Options of servers, checked: addresses, parts, tokens and where these come from."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnkit.bounds import MOST_THREADS, check_seconds, keep_whole_number
from gnnkit.cluster.hosts import (
    PlacementOption,
    check_placement,
    checked_address,
    interface_address,
    is_loopback,
    join_address,
    require_free,
    source_address,
    split_address,
)
from gnnkit.errors import PlanError
from gnnkit.files import open_regular, os_errors, user_path
from gnnkit.plan import Placement
from gnnkit.plan.records import Record, read_by

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
    """Determines the address at which a server listens.

    Args:
        rank: Its number; the first one listens where all meet.
        meeting: Where the servers meet.
        listen: Its own address where it was given.
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
    require_free(ip, port, f"server {rank} cannot listen", "choose another port, or end the process that has it")
    return ip, port


def meeting_address(meeting: str) -> str:
    """The meeting point as an address and port, without a name.

    Raises:
        PlanError: The name means nothing here.
    """
    name, port = split_address(meeting)
    return join_address(_resolved(name), port)


def _resolved(name: str) -> str:
    with os_errors(f"{name!r} means no address here", None, "write the address as a number"):
        return str(socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0][4][0])


UNIX_PREFIX = "unix:"
LEAST_TOKEN, _LEAST_S = 16, 1e-3


def _placement_from(value: Any) -> Any:
    """Reads a placement as a user has said it, which JSON gives texts for keys."""
    if isinstance(value, list) or (isinstance(value, Mapping) and "hosts" in value):
        return Placement.from_json(value)
    return {int(host): parts for host, parts in value.items()} if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class ServerSpec(Record):
    """Servers of one store. ``gnnkit.serve`` describes the options.

    Attributes:
        store: The store's folder.
        fingerprint: The store's.
        num_servers: Servers of the run.
        workers_per_server: Sampling processes of each.
        threads_per_worker: Sampling threads of each of those.
        rank: The one server to start here; None: all.
        folder: Where Unix sockets go; None: a folder of the run's own, or none where there are addresses.
        addresses: Where the servers meet, or where each of them listens; empty: Unix sockets only.
        interface: Name or address of the interface to listen on; None: the one that the meeting point is reached by.
        placement: Which host holds which parts.
        token: What clients have to know; None makes one.
        tls: Certificate and key, both PEM texts; None: not encrypted.
        max_restarts: How often, in all, what has died is started again.
        stop_with_last_client: The servers end when so many clients have come and none is left; 0: never.
        join_timeout_s: Seconds that servers wait for each other.
        start_timeout_s: Seconds that starting a process may take.
        log_dir: Folder of the runs' logs; None: as for other runs.
        memory_budget: Most bytes that the graph's copy in huge pages may take; None: see ``copy_budget``, 0 makes no copy.
    """

    store: str
    fingerprint: str
    num_servers: int = 2
    workers_per_server: int = 1
    threads_per_worker: int = 1
    rank: int | None = None
    folder: str | None = None
    addresses: tuple[str, ...] = ()
    interface: str | None = None
    placement: PlacementOption = field(default="auto", metadata=read_by(_placement_from))
    token: str | None = field(default=None, repr=False)
    tls: tuple[str, str] | None = field(default=None, repr=False)
    max_restarts: int = 0
    stop_with_last_client: int = 0
    join_timeout_s: float = 600.0
    start_timeout_s: float = 120.0
    log_dir: str | None = None
    memory_budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_servers", "workers_per_server", "threads_per_worker"):
            keep_whole_number(self, name, 1, MOST_THREADS)
        keep_whole_number(self, "max_restarts")
        if isinstance(self.stop_with_last_client, bool):
            object.__setattr__(self, "stop_with_last_client", int(self.stop_with_last_client))
        keep_whole_number(self, "stop_with_last_client")
        if self.rank is not None:
            keep_whole_number(self, "rank")
            if self.rank >= self.num_servers:
                raise PlanError(f"rank={self.rank}, and there are {self.num_servers} servers", "ranks count from 0")
            if not self.addresses and self.folder is None:
                raise PlanError(
                    f"rank={self.rank} without an address: the other servers could not be found",
                    "give all of them address='10.0.0.1:7000', where server 0 listens, or address='unix:/folder' on one host",
                )
        for name in ("join_timeout_s", "start_timeout_s"):
            check_seconds(name, getattr(self, name), _LEAST_S)
        if len(self.addresses) not in (0, 1, self.num_servers):
            raise PlanError(
                f"there are {len(self.addresses)} addresses for {self.num_servers} servers", "give the first one's, or one for each"
            )
        if self.rank and self.addresses and self.addresses[0].endswith(":0"):
            raise PlanError(
                f"rank={self.rank} and address={self.addresses[0]!r}: server 0's port is not known", "give the one that it says"
            )
        check_placement(self.placement)
        if not self.addresses:
            self._check_one_host()
        if self.token is not None:
            check_token(self.token)

    def _check_one_host(self) -> None:
        """Refuses words that mean something on a network only."""
        given = {"interface": self.interface, "tls_cert": self.tls, "placement": self.placement not in ("auto", "replicate")}
        if said := [name for name, value in given.items() if value]:
            raise PlanError(
                f"{said[0]} is given, and servers without a network address are on one host and listen nowhere",
                "give an address, for example '10.0.0.1:7000', or leave it out",
            )

    @property
    def ranks(self) -> range:
        """The servers to start here."""
        return range(self.num_servers) if self.rank is None else range(self.rank, self.rank + 1)

    def setup(self, rank: int, token: str, folder: Path, log: Path, addresses: dict[int, str]) -> dict[str, Any]:
        """A server's setup message; see ``gnnkit.cluster.serving``.

        Args:
            rank: The server.
            token: What clients have to know.
            folder: Where Unix sockets go.
            log: The server's log.
            addresses: Where servers listen, as far as that is known.
        """
        listed = self.addresses[rank] if len(self.addresses) > 1 else None
        place = {"meeting": addresses.get(0, *self.addresses[:1]), "listen": addresses.get(rank, listed), "folder": str(folder)}
        return {"spec": replace(self, token=token).to_json(), "rank": rank, "log": str(log), **place}


def check_token(token: Any) -> None:
    """Refuses what is no secret.

    Raises:
        PlanError: It is too short to be one, or holds characters that do not travel.
    """
    if not isinstance(token, str) or len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        hint = "python -c 'import secrets; print(secrets.token_hex())'"
        raise PlanError(f"a token must be a text of at least {LEAST_TOKEN} printable ASCII characters", hint)


def split_place(address: str | Path | Sequence[str] | None) -> tuple[str | None, tuple[str, ...]]:
    """The folder, or the addresses, that a user's ``address`` names.

    Raises:
        PlanError: It is neither.
    """
    if address is None:
        return None, ()
    if isinstance(address, Path):
        return str(address), ()
    if isinstance(address, str) and (address.startswith(UNIX_PREFIX) or "/" in address):
        return address.removeprefix(UNIX_PREFIX), ()

    return None, wire_addresses(address)


TOKEN_NAME = "token"
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "GNNKIT_TOKEN", "GNNKIT_TOKEN_FILE"
_TOKEN_BYTES = 24
_MOST_BYTES = 4096


def environment_token() -> str | None:
    """The token that the environment holds or names; None where it does neither.

    Raises:
        PlanError: It is none, or others can read it.
    """
    token, path = os.environ.get(TOKEN_VARIABLE), os.environ.get(TOKEN_FILE_VARIABLE)
    if token is not None:
        check_token(token)
        return token
    return None if path is None else read_token(user_path(path))


def read_token(path: Path) -> str:
    """The token in a file that only its owner can read.

    Raises:
        PlanError: There is no such file, others can read it, or it holds no token.
    """
    hint = "it has to be a file of yours, of mode 0600, with the token"
    with os_errors(f"the token file {path} cannot be read", None, hint), open(open_regular(path), "rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077 or status.st_uid != os.geteuid():
            whose = "another user's, or " if status.st_uid != os.geteuid() else ""
            raise PlanError(f"the token file {path} is {whose}of mode {mode:04o}, and others can read it", f"chmod 600 {path}")
        token = file.read(_MOST_BYTES).decode("ascii", "replace").strip()
    check_token(token)
    return token


def settle_token(given: str | None, folder: Path, *, on_network: bool) -> tuple[str, Path | None]:
    """The token that servers are started with, and the file that clients find it in.

    Servers of this host have theirs in their folder. Those on the network have what was given or what the environment holds, which the
    other hosts' servers and the clients have from there, too; where there is neither, one is made and written.

    Args:
        given: What the user has said.
        folder: Where it is written.
        on_network: Whether the servers are.

    Returns:
        The token, and the file; None where it was not written.

    Raises:
        PlanError: It is none, or others can read it, or the folder's servers have another.
    """
    if given is not None:
        check_token(given)
    known = environment_token() if given is None and on_network else given
    if known is not None and on_network:
        return known, None
    path = folder / TOKEN_NAME
    with os_errors(f"the token file {path} cannot be written", path, "give another folder"):
        _write_new(path, known or secrets.token_hex(_TOKEN_BYTES))
    found = read_token(path)  # perhaps of servers that another process has started here
    if known is not None and found != known:
        raise PlanError(f"the servers at {folder} have another token", "leave token out, or give another folder")
    return found, path


def _write_new(path: Path, token: str) -> None:
    """Writes a file that is complete from its first moment; leaves one that is there."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(token + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# What users have given with an address in this process: plans, which are JSON, hold the address only.
_given: dict[str, str] = {}
_lock = threading.Lock()


def address_text(address: str | Path | Sequence[str]) -> str:
    """An address of servers in the one form that plans hold: ``"unix:/folder"``, or ``"10.0.0.1:7000"`` with commas between several.

    Raises:
        PlanError: It is no address.
    """
    folder, addresses = split_place(address)
    return ",".join(addresses) if folder is None else f"{UNIX_PREFIX}{user_path(folder)}"


def remember_token(address: str | Path | Sequence[str], token: str) -> None:
    """Keeps the token that a user has given for an address, for as long as this process lives.

    Raises:
        PlanError: It is none, or the address is none.
    """
    check_token(token)
    with _lock:
        _given[address_text(address)] = token


def token_for(address: str | Path | Sequence[str]) -> str | None:
    """The token for an address: the one that was given here; that in the servers' own folder; ``$GNNKIT_TOKEN``; ``$GNNKIT_TOKEN_FILE``.

    A folder's own goes before the environment's, which may be that of other servers.

    Args:
        address: The address.

    Returns:
        None where there is none; in a folder, its servers may not have written it yet.

    Raises:
        PlanError: There is one, and it is none, or others can read it.
    """
    text = address_text(address)
    with _lock:
        given = _given.get(text)
    if given is not None:
        return given
    if text.startswith(UNIX_PREFIX) and os.path.exists(path := Path(text.removeprefix(UNIX_PREFIX)) / TOKEN_NAME):
        return read_token(path)
    return environment_token()


def required(address: str | Path | Sequence[str]) -> str:
    """The token for an address; see ``token_for``.

    Raises:
        PlanError: There is none, or it is none, or others can read it.
    """
    token = token_for(address)
    if token is None:
        raise PlanError(
            f"there is no token for the servers at {address_text(address)}",
            f"export {TOKEN_VARIABLE}, or {TOKEN_FILE_VARIABLE} with the name of a file of mode 0600 that holds it, or give token=...",
        )
    return token


# Sampling threads of a receiving process: one for each batch under way.
_LEAST_THREADS, _MOST_THREADS = 4, 16


def threads_for(num_servers: int) -> int:
    """Batches that a receiving process has under way: enough for every server to have one to walk while another one travels."""
    return min(_MOST_THREADS, max(_LEAST_THREADS, 2 * num_servers))
