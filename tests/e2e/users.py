"""Users of this machine that a test makes, and what they run: as real ones, with homes of their own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.kernels import compiled_kernels
from tests.helpers.machine import ROOT, SEARCH_PATH

# An interpreter below a home that other users may not enter, such as root's: in a mount namespace of its own, folders on the way to it are
# replaced by empty ones with nothing but the way.
_ENTER = """
set -e
mkdir -p "$KEPT" && mount --bind "$PREFIX" "$KEPT"
mount -t tmpfs -o mode=755 none "$CLOSED" && mkdir -p "$PREFIX" && mount --bind "$KEPT" "$PREFIX"
"""


def _closed() -> Path | None:
    """The first folder on the way to the interpreter that other users may not enter; None where they may enter all."""
    prefix = Path(sys.base_prefix).resolve()
    return next((place for place in [*reversed(prefix.parents), prefix] if not place.stat().st_mode & 0o001), None)


@dataclass
class Users:
    """Users that go with the test.

    Args:
        folder: A folder that all may enter; their homes lie in it.
    """

    folder: Path
    names: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        """Makes a user with a home."""
        subprocess.run(["useradd", "-m", "-d", str(self.home(name)), "-s", "/bin/sh", name], check=True, capture_output=True, timeout=60)
        self.names.append(name)

    def home(self, name: str) -> Path:
        """The user's home."""
        return self.folder / "homes" / name

    def popen(self, name: str, command: Sequence[str], environment: Mapping[str, str], **how: Any) -> subprocess.Popen[str]:
        """Starts a command as one of them, in its home.

        Args:
            name: The user.
            command: The command; "python" is the interpreter of the tests.
            environment: Variables, beside those of the user and of the tests.
            how: Arguments of ``subprocess.Popen``.
        """
        words = [sys.executable if word == "python" else word for word in command]
        told = {"HOME": str(self.home(name)), "PATH": os.environ["PATH"], "PYTHONPATH": SEARCH_PATH, "OMP_NUM_THREADS": "1", **environment}
        enter, closed = "", _closed()
        if closed is not None:
            told |= {"KEPT": str(self.folder / "interpreter"), "PREFIX": str(Path(sys.base_prefix).resolve()), "CLOSED": str(closed)}
            enter = _ENTER
        user = f"setpriv --reuid={name} --regid={name} --init-groups --inh-caps=-all {shlex.join(words)}"
        line = ["unshare", "-m", "sh", "-c", f"{enter}cd {shlex.quote(told['HOME'])}; exec {user}"]
        return subprocess.Popen(line, env=told, text=True, start_new_session=True, **how)

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Runs a command as one of them; what it has printed."""
        child = self.popen(name, command, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = child.communicate(timeout=240)
        assert child.returncode == 0, said
        return said

    def give_kernels(self, name: str) -> None:
        """Has a user find the kernels compiled: a copy of those of the tests."""
        place = self.home(name) / ".cache/gnnkit/kernels"
        shutil.copytree(compiled_kernels(), place)
        subprocess.run(["chown", "-R", f"{name}:{name}", str(self.home(name))], check=True, timeout=60)

    def remove(self) -> None:
        """Removes them, with what is left of their processes and with their homes."""
        for name in self.names:
            subprocess.run(["pkill", "-KILL", "-u", name], check=False, timeout=60)
            subprocess.run(["userdel", name], check=True, capture_output=True, timeout=60)
        assert ROOT not in self.folder.parents
        shutil.rmtree(self.folder)
