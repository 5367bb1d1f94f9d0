"""The secret of servers and their clients: in the environment or in a file of one user's, never in a plan, command line or log."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from gnnkit.cluster.serving.spec import check_token
from gnnkit.errors import PlanError
from gnnkit.files import open_regular

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
    return None if path is None else read_token(Path(path).expanduser())


def read_token(path: Path) -> str:
    """The token in a file that only its owner can read.

    Raises:
        PlanError: There is no such file, others can read it, or it holds no token.
    """
    try:
        with open(open_regular(path), "rb") as file:
            status = os.fstat(file.fileno())
            mode = stat.S_IMODE(status.st_mode)
            if mode & 0o077 or status.st_uid != os.geteuid():
                whose = "another user's, or " if status.st_uid != os.geteuid() else ""
                raise PlanError(f"the token file {path} is {whose}of mode {mode:04o}, and others can read it", f"chmod 600 {path}")
            token = file.read(_MOST_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise PlanError(f"the token file {path} cannot be read: {error.strerror or error}") from error
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
    try:
        _write_new(path, known or secrets.token_hex(_TOKEN_BYTES))
    except OSError as error:
        raise PlanError(f"the token file {path} cannot be written: {error.strerror or error}", "give another folder") from error
    found = read_token(path)  # perhaps of servers that somebody else has started here
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
