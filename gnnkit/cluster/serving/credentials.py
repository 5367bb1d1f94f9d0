"""The token that clients show to servers: where it comes from. It is in no plan, command line, log or record."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from gnnkit.cluster.serving.spec import UNIX_PREFIX, check_token, split_place
from gnnkit.cluster.serving.tokens import TOKEN_FILE_VARIABLE, TOKEN_NAME, TOKEN_VARIABLE, environment_token, read_token
from gnnkit.errors import PlanError

# What users have given with an address in this process: plans, which are JSON, hold the address only.
_given: dict[str, str] = {}
_lock = threading.Lock()


def address_text(address: str | Path | Sequence[str]) -> str:
    """An address of servers in the one form that plans hold: ``"unix:/folder"``, or ``"10.0.0.1:7000"`` with commas between several.

    Raises:
        PlanError: It is no address.
    """
    folder, addresses = split_place(address)
    return ",".join(addresses) if folder is None else f"{UNIX_PREFIX}{Path(folder).expanduser().absolute()}"


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
    if text.startswith(UNIX_PREFIX) and (path := Path(text.removeprefix(UNIX_PREFIX)) / TOKEN_NAME).exists():
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
