"""The role of a process, from the environment that its launcher gave it: a server, a client of servers, or neither.

====================== ======= ==========================================================================================
variable               for     meaning
====================== ======= ==========================================================================================
``GNNKIT_ROLE``        both    ``server`` or ``client``; unset, a client where another variable is about servers
``GNNKIT_ADDRESSES``   both    where servers listen: ``ip:port`` of the first, of all of them with commas between, a file
                               in the form of DGL's ``ip_config``, or ``unix:<folder>`` for servers of this host
``GNNKIT_NUM_SERVERS`` both    number of servers; with an ``ip_config`` file, of each machine
``GNNKIT_SERVER_ID``   server  which of the servers this is, from 0
``GNNKIT_NUM_CLIENTS`` both    trainers in all: servers end when as many have come and all have left; unset, servers stay
``GNNKIT_NUM_SAMPLERS`` both   sampling processes of each server, and threads of a client's sampler pool
``GNNKIT_PLAN``        both    plan file: whose store servers serve, and what ``GraphLoader.from_plan()`` opens
``GNNKIT_MODE``        any     ``standalone``: neither, whatever the others are; ``distributed``: they have to be there
====================== ======= ==========================================================================================
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gnnkit.cluster.serving.spec import UNIX_PREFIX, address_text, wire_addresses
from gnnkit.distributed.process_group import read_ip_config
from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.inputs import resolve_rank

ROLE, SERVER_ID, ADDRESSES = "GNNKIT_ROLE", "GNNKIT_SERVER_ID", "GNNKIT_ADDRESSES"
NUM_SERVERS, NUM_CLIENTS, NUM_SAMPLERS = "GNNKIT_NUM_SERVERS", "GNNKIT_NUM_CLIENTS", "GNNKIT_NUM_SAMPLERS"
MODE, PLAN = "GNNKIT_MODE", "GNNKIT_PLAN"
# Any of these says that there are servers.
_ABOUT_SERVERS = (ROLE, SERVER_ID, ADDRESSES, NUM_SERVERS, NUM_CLIENTS)
_ADDRESS_HINT = f"export {ADDRESSES}=10.0.0.1:7000, {ADDRESSES}=ip_config.txt or {ADDRESSES}=unix:/folder, the same for servers and clients"

Kind = Literal["standalone", "server", "client"]


@dataclass(frozen=True)
class Role:
    """The role of a process in a run, with the numbers and the address that go with it.

    Attributes:
        kind: "server", "client", or "standalone": samples for itself.
        rank: Which server, or which trainer.
        num_servers: Servers in all; None where a client does not know it.
        num_clients: Trainers in all; None where a server does not know it.
        num_samplers: Sampling processes of each server; None where it was not given.
        address: Where servers are, as ``GraphStore`` and ``gnnkit.serve`` take it: the meeting point, ``"ip:port"``, or that of every
            server in rank order with commas between; or ``"unix:<folder>"``.
    """

    kind: Kind = "standalone"
    rank: int = 0
    num_servers: int | None = None
    num_clients: int | None = None
    num_samplers: int | None = None
    address: str = ""


def find_role(planned: str | None = None, ip_config: str | None = None) -> Role:
    """Determines the role of this process from its environment.

    Args:
        planned: Address of servers that the plan names. It counts where ``GNNKIT_ADDRESSES`` is not set, and makes the process a client
            where no variable of the environment is about servers.
        ip_config: A file with the addresses of servers, which the script names. It counts before ``planned``, and decides no role.

    Raises:
        PlanError: A variable is missing or malformed, or two contradict each other; the error names it and what to set.
    """
    mode = os.environ.get(MODE, "")
    if mode not in ("", "standalone", "distributed"):
        known = ["standalone", "distributed"]
        raise PlanError(f"{MODE}={mode!r} is no mode{near_matches(mode, known)}", f"{MODE} is one of {known}, or unset")
    samplers = _number(NUM_SAMPLERS, 0, "for example 2 sampling processes per server")
    said = [name for name in _ABOUT_SERVERS if os.environ.get(name)]
    if mode == "standalone" or not (said or mode or planned):
        return Role(num_samplers=samplers)
    # As for DGL, whoever is not said to be a server is a client; a process with a server's number was meant to be one.
    kind = os.environ.get(ROLE) or ("" if os.environ.get(SERVER_ID) else "client")
    if kind == "server":
        return _server(ip_config or planned, samplers)
    if kind == "client":
        return _client(ip_config or planned, samplers)
    if kind:
        raise PlanError(f"{ROLE}={kind!r} is no role{near_matches(kind, ['server', 'client'])}", f"export {ROLE}=server or {ROLE}=client")
    because = f"{' and '.join(said)} {'are' if len(said) > 1 else 'is'} set"
    raise PlanError(f"{ROLE} is not set, but {because}", f"export {ROLE}=server or {ROLE}=client; {MODE}=standalone runs without servers")


def _server(planned: str | None, samplers: int | None) -> Role:
    rank = _needed(SERVER_ID, 0, "0 for the first server, 1 for the next, and so on", "server")
    said = _needed(NUM_SERVERS, 1, "the number of servers; with an ip_config file, of each machine", "server")
    address, num_servers = _address(planned, said, "server")
    clients = _number(NUM_CLIENTS, 1, "the number of trainers; unset, servers stay when trainers leave")
    total = num_servers or said
    if rank >= total:
        raise PlanError(f"{SERVER_ID}={rank}, but there are {total} servers", f"servers count from 0; or set {NUM_SERVERS}")
    return Role("server", rank, total, clients, samplers, address)


def _client(planned: str | None, samplers: int | None) -> Role:
    said = _number(NUM_SERVERS, 1, "the number of servers; with an ip_config file, of each machine")
    address, num_servers = _address(planned, said, "client")
    rank, world_size = resolve_rank(None, None)
    clients = _number(NUM_CLIENTS, 1, "the number of trainers") or world_size
    if world_size > clients:
        raise PlanError(f"{NUM_CLIENTS}={clients}, but this is trainer {rank} of {world_size}", f"count every trainer in {NUM_CLIENTS}")
    return Role("client", rank, num_servers, clients, samplers, address)


def _address(planned: str | None, said: int | None, kind: str) -> tuple[str, int | None]:
    """Returns the address of the servers, and their number in all where it is known."""
    text = os.environ.get(ADDRESSES, "").strip() or planned or ""
    if not text:
        raise PlanError(f"{ADDRESSES} is not set, and {ROLE}={kind} needs it", _ADDRESS_HINT)
    if text.startswith(UNIX_PREFIX) or Path(text).is_dir():
        return address_text(UNIX_PREFIX + text.removeprefix(UNIX_PREFIX)), said
    try:
        addresses = read_ip_config(text, said or 1) if Path(text).is_file() or "/" in text else wire_addresses(text)
    except PlanError as error:
        raise PlanError(f"{ADDRESSES}={text!r}: {error.message}", _ADDRESS_HINT) from error
    if len(addresses) == 1 and not Path(text).is_file():
        return text, said
    if not Path(text).is_file() and said not in (None, len(addresses)):
        raise PlanError(f"{ADDRESSES} has {len(addresses)} addresses, but {NUM_SERVERS}={said}", "give the first, or one for each server")
    return ",".join(addresses), len(addresses)


def _needed(name: str, least: int, meaning: str, kind: str) -> int:
    value = _number(name, least, meaning)
    if value is None:
        raise PlanError(f"{name} is not set, and {ROLE}={kind} needs it", f"export {name}: {meaning}")
    return value


def _number(name: str, least: int, meaning: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise PlanError(f"{name}={text!r} is no whole number of at least {least}", f"{name} is {meaning}")
    return int(text)
