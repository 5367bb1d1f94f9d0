"""The processes of this machine that use a store, whichever user they belong to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from gnnkit.files import open_regular


class StoreUse:
    """This process's place among those that use a store, for as long as the object is kept.

    It is a shared lock on the store's manifest, for which reading is enough. The system lists the locks of all users in /proc/locks, and
    takes one back from a process that ends, however that comes. Where there is no such list, or no such lock, each process counts alone.

    Args:
        manifest: The store's manifest.
    """

    def __init__(self, manifest: Path) -> None:
        self._file: str | None = None
        with contextlib.suppress(OSError):
            descriptor = open_regular(manifest)
            weakref.finalize(self, os.close, descriptor).atexit = False
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # As the list names the file, whose numbers in a layered file system are none that stat() knows.
            for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
                if line.startswith("lock:"):
                    self._file = _file_and_holder(line.removeprefix("lock:"))[0]

    def count(self) -> int:
        """Returns how many processes use the store, this one included; those of other containers are not seen."""
        if self._file is None:
            return 1
        try:
            listed = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return 1
        return max(1, len({holder for file, holder in map(_file_and_holder, listed) if file == self._file}))


def _file_and_holder(line: str) -> tuple[str | None, str]:
    """The file and the process of a line such as "1: FLOCK  ADVISORY  READ 4711 fe:00:6701702 0 EOF"; None for other kinds of locks."""
    words = line.split()
    is_shared = len(words) > 5 and words[1] == "FLOCK" and words[3] == "READ"
    return (words[5], words[4]) if is_shared else (None, "")
