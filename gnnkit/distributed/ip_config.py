"""DGL's ``ip_config`` file: the machines of a run, a line each."""

from __future__ import annotations

from pathlib import Path

from gnnkit.cluster.hosts import join_address, split_address
from gnnkit.errors import PlanError
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
