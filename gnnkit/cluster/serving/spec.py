"""What servers are started with: the user's words, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnkit.cluster.placing import PlacementWord, check_placement
from gnnkit.errors import PlanError

UNIX_PREFIX = "unix:"
_LEAST_TOKEN = 16


@dataclass(frozen=True)
class ServerSpec:
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
        memory_budget: Most bytes that the graph's copy in huge pages may take; None is a quarter of what is free, 0 makes no copy.
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
    placement: PlacementWord = "auto"
    token: str | None = field(default=None, repr=False)
    tls: tuple[str, str] | None = field(default=None, repr=False)
    max_restarts: int = 0
    stop_with_last_client: int = 0
    join_timeout_s: float = 600.0
    start_timeout_s: float = 120.0
    log_dir: str | None = None
    memory_budget: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("num_servers", 1), ("workers_per_server", 1), ("threads_per_worker", 1), ("max_restarts", 0)):
            _check_whole(name, getattr(self, name), least)
        if isinstance(self.stop_with_last_client, bool):
            object.__setattr__(self, "stop_with_last_client", int(self.stop_with_last_client))
        _check_whole("stop_with_last_client", self.stop_with_last_client, 0)
        if self.rank is not None:
            _check_whole("rank", self.rank, 0)
            if self.rank >= self.num_servers:
                raise PlanError(f"rank={self.rank}, and there are {self.num_servers} servers", "ranks count from 0")
            if not self.addresses and self.folder is None:
                raise PlanError(
                    f"rank={self.rank} without an address: the other servers could not be found",
                    "give all of them address='10.0.0.1:7000', where server 0 listens, or address='unix:/folder' on one host",
                )
        for name in ("join_timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise PlanError(f"{name} must be a number of seconds, got {value!r}")
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
        said = [name for name, value in given.items() if value]
        if said:
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
        network = None
        if self.addresses:
            listed = self.addresses[rank] if len(self.addresses) > 1 else None
            network = {
                "meeting": addresses.get(0, self.addresses[0]),
                "listen": addresses.get(rank, listed),
                "interface": self.interface,
                "placement": _placement_json(self.placement),
                "token": token,
                "tls": None if self.tls is None else {"cert": self.tls[0], "key": self.tls[1]},
                "join_timeout_s": self.join_timeout_s,
            }
        return {
            "rank": rank,
            "num_servers": self.num_servers,
            "store": {"path": self.store, "fingerprint": self.fingerprint},
            "workers": self.workers_per_server,
            "threads": self.threads_per_worker,
            "token": token,
            "folder": str(folder),
            "log": str(log),
            "log_root": self.log_dir,
            "memory_budget": self.memory_budget,
            "max_restarts": self.max_restarts,
            "start_timeout_s": self.start_timeout_s,
            "ends_with_clients": self.stop_with_last_client > 0,
            "network": network,
        }


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlanError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _placement_json(value: PlacementWord) -> Any:
    if isinstance(value, str):
        return value
    parts = dict(value) if not hasattr(value, "hosts") else dict(enumerate(value.hosts))
    return {str(host): list(numbers) for host, numbers in parts.items()}


def check_token(token: Any) -> None:
    """Refuses what is no secret.

    Raises:
        PlanError: It is too short to be one, or holds characters that do not travel.
    """
    if not isinstance(token, str) or len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable():
        hint = "python -c 'import secrets; print(secrets.token_hex())'"
        raise PlanError(f"a token must be a text of at least {_LEAST_TOKEN} printable ASCII characters", hint)


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
    from gnnkit.cluster.serving.addresses import wire_addresses

    return None, wire_addresses(address)
