"""Files that others may have written or may read: opened without waiting, read within bounds, written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from gnnkit.errors import GnnkitError, PlanError, on_error
from gnnkit.units import format_bytes

HOME_VARIABLE = "GNNKIT_HOME"

# The most that a file of JSON or text may hold: a manifest of a thousand parts and a dozen types is 3 MB.
MOST_TEXT_BYTES = 256 << 20
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISLNK, "a link"))
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def open_regular(path: Path, root: Path | None = None) -> int:
    """Opens a regular file to read it. A pipe or a device is not waited for, nor touched.

    Args:
        path: The file.
        root: A folder that it lies in, and that no link on the way may lead out of; None: links are followed.

    Returns:
        A descriptor.

    Raises:
        OSError: It cannot be opened, is no regular file, or does not lie in ``root``.
    """
    if root is None:
        _check_regular(path.stat(), path)  # opening a device may do something already
        descriptor = os.open(path, _OPEN)
    else:
        descriptor = _open_beneath(Path(os.path.realpath(root)), Path(os.path.realpath(path)), path)
    with on_error(lambda: os.close(descriptor)):
        _check_regular(os.fstat(descriptor), path)
    return descriptor


def read_bounded(path: Path, limit: int = MOST_TEXT_BYTES, root: Path | None = None) -> bytes:
    """Reads a regular file of a bounded size.

    Args:
        path: The file.
        limit: The most bytes that it may have.
        root: See ``open_regular``.

    Raises:
        OSError: See ``open_regular``; or it holds more.
    """
    descriptor = open_regular(path, root)
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        content = b"" if size > limit else file.read(min(limit, size) + 1)  # it may grow
        if max(size, len(content)) > limit:
            raise OSError(errno.EFBIG, f"it has {max(size, len(content))} bytes, and {limit} are allowed", str(path))
        return content


def read_text(path: Path, limit: int = MOST_TEXT_BYTES, root: Path | None = None) -> str:
    """``read_bounded`` as UTF-8.

    Raises:
        OSError: See ``read_bounded``.
        ValueError: It is no UTF-8.
    """
    return read_bounded(path, limit, root).decode("utf-8")


def read_json(path: Path, limit: int = MOST_TEXT_BYTES, root: Path | None = None) -> Any:
    """``read_bounded`` as JSON.

    Raises:
        OSError: See ``read_bounded``.
        ValueError: It is no JSON, or nested without end.
    """
    content = read_bounded(path, limit, root)
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _open_beneath(root: Path, real: Path, path: Path) -> int:
    """Opens a file without following any link: its path has none now, and one that is put there meanwhile is not followed."""
    if not real.is_relative_to(root) or real == root:
        raise OSError(errno.ELOOP, f"a link leads out of {root}, to {real}", str(path))
    *folders, name = real.relative_to(root).parts
    here = os.open(root, _FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        _check_regular(os.stat(name, dir_fd=here, follow_symlinks=False), path)
        return os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(status.st_mode)), "a device")
        raise OSError(errno.EINVAL, f"it is {kind} and no regular file", str(path))


def private_folder(folder: Path) -> Path:
    """Makes a folder that only this user can change or replace: as ssh looks at the folders above a key.

    Every folder on the way belongs to this user or to root, and no one else can write to it; to one like /tmp they can, but rename and
    remove only what is theirs.

    Raises:
        OSError: It cannot be made, or a folder on the way is another user's or may be written by others.
    """
    folder = Path(os.path.abspath(folder))
    for place in (*reversed(folder.parents), folder):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
    real = Path(os.path.realpath(folder))
    for place in {folder, *folder.parents, real, *real.parents}:
        status = place.lstat()
        if status.st_uid not in (0, os.getuid()):
            raise PermissionError(errno.EPERM, f"{place} belongs to another user", str(folder))
        if status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode) and not status.st_mode & stat.S_ISVTX:
            raise PermissionError(errno.EPERM, f"other users can write to {place}", str(folder))
    if not is_own_folder(folder):
        raise PermissionError(errno.EPERM, f"{folder} is not this user's alone", str(folder))
    return folder


def is_own_folder(path: Path) -> bool:
    """Whether a path is a folder, and no link to one, that belongs to this user and that no other user can write to.

    Raises:
        OSError: There is nothing, or nothing that can be looked at.
    """
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def temporary_home() -> Path:
    """This user's folder below the temporary one, for where no other can be written; see ``private_folder``."""
    return Path(tempfile.gettempdir()) / f"gnnkit-{os.getuid()}"


def user_path(path: str | Path) -> Path:
    """Returns a path that a user gives as an absolute one, with ``~`` expanded: every such path comes through here.

    Raises:
        PlanError: It begins with ``~``, and there is no such home folder.
    """
    text = os.fspath(path)
    user, _, below = text.partition("/")
    if user.startswith("~"):
        home = os.environ.get("HOME", "") if user == "~" else os.path.expanduser(user)
        if user == "~" and not os.path.isabs(home):
            with suppress(KeyError):  # a user without an entry, as in containers
                home = pwd.getpwuid(os.getuid()).pw_dir
        if not os.path.isabs(home):
            raise PlanError(f"{text!r} is in a home folder, and there is none", "give the whole path, or set HOME to an absolute path")
        return Path(home, below)
    return Path(text).absolute()


def gnnkit_home() -> Path | None:
    """Returns the folder that ``$GNNKIT_HOME`` names; None where it is not set or empty.

    Raises:
        PlanError: See ``user_path``.
    """
    home = os.environ.get(HOME_VARIABLE)
    return user_path(home) if home else None


def user_folder(kind: Literal["cache", "state"]) -> Path | None:
    """Returns this user's folder of a kind for gnnkit; None where the user has no home folder, as in containers of an arbitrary user."""
    import platformdirs

    try:
        folder = Path(platformdirs.user_cache_dir("gnnkit") if kind == "cache" else platformdirs.user_state_dir("gnnkit"))
    except RuntimeError:  # platformdirs' word for a home folder that it cannot find
        return None
    return folder if folder.is_absolute() else None


def is_writable(folder: Path) -> bool:
    """Whether files can be written below a folder, which need not exist yet."""
    while not os.path.exists(folder) and folder != folder.parent:  # one that may not be looked at counts as missing
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@contextmanager
def os_errors(what: str, place: Path | None, hint: str | None, kind: type[GnnkitError] = PlanError) -> Iterator[None]:
    """Tells the user what the system refuses, and why.

    Args:
        what: What cannot be: "the folder 'a' cannot be made".
        place: The folder or file that is written to, for how full its disk is; None says no more of it than the system.
        hint: What to do about it.
        kind: The class of the error.

    Raises:
        GnnkitError: The system refuses; of the class ``kind``.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {why_unwritable(error, place)}", hint) from error


def why_unwritable(error: OSError, place: Path | None) -> str:
    """Why a folder or a file could not be written, in words; of a disk that is full, how much of it is free.

    Args:
        error: What the system said.
        place: What was to be written; it need not exist.
    """
    if place is None or error.errno != errno.ENOSPC:
        return error.strerror or str(error)
    there = next((folder for folder in (place, *place.parents) if folder.exists()), place)
    try:
        disk = os.statvfs(there)
    except OSError:
        return "the disk is full"
    if disk.f_files and not disk.f_ffree:
        return f"the disk has no room for another file ({disk.f_files} are there)"
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    return f"the disk is full ({format_bytes(free)} of {format_bytes(total)} are free)"


def take_lock(path: Path) -> int | None:
    """Takes the lock that a file stands for, without waiting; the file is made. The system takes the lock from a process that dies.

    Giving it up removes the file, and others may have opened it before. What they lock then is a file without a name, while a third
    one may hold another file at the path: a lock counts only where its file is still the one at the path.

    Args:
        path: The file; its folder exists.

    Returns:
        A descriptor for ``give_up_lock``; None where another thread or process holds the lock.

    Raises:
        OSError: The file cannot be made or locked.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
        held = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if held := is_at(descriptor, path):
                return descriptor
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            if error.errno != errno.ESTALE:  # a network file system says so where another host has removed the file
                raise
        finally:
            if not held:
                os.close(descriptor)


def give_up_lock(path: Path, descriptor: int) -> None:
    """Gives a lock up, and removes its file.

    Args:
        path: The file.
        descriptor: What ``take_lock`` gave for it.
    """
    with suppress(OSError):  # a folder that has become read-only keeps it
        if is_at(descriptor, path):
            path.unlink()  # while it is locked, so that no other process has locked the file at the path
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the descriptor too
    os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an opened file or folder is the one at a path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def write_whole(path: Path, text: str) -> None:
    """Puts text into a file, all at once: half of it is never read, and a full disk or a kill leaves what was there.

    Args:
        path: The file; its folder exists.
        text: What it is to hold, as UTF-8.

    Raises:
        OSError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
