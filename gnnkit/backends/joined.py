"""The backend that this process uses unless a script names one: the decision of ``gnnkit.distributed.initialize``, or none."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnnkit.backends.base import Backend


class Closes(Protocol):
    """Something that can be closed."""

    def close(self) -> None:
        """Closes it."""
        ...


@dataclass(frozen=True)
class JoinedBackend:
    """A decision.

    Attributes:
        backend: What ``"auto"`` and plan files mean.
        plan: The plan file that was named, which ``GraphLoader.from_plan()`` opens; None if none was.
    """

    backend: Backend
    plan: Path | None


_lock = threading.Lock()
_joined: JoinedBackend | None = None
_loaders: weakref.WeakSet[Closes] = weakref.WeakSet()


def joined() -> JoinedBackend | None:
    """The decision that holds; None where nobody has made one."""
    return _joined


def join(decision: JoinedBackend) -> None:
    """Makes a decision hold until ``part``."""
    global _joined
    with _lock:
        _joined = decision


def remember(loader: Closes) -> None:
    """Notes a loader that was made while a decision holds: ``part`` closes it. Does not keep it alive."""
    with _lock:
        if _joined is not None:
            _loaders.add(loader)


def part() -> None:
    """Ends the decision and closes the loaders that were made under it and are still there."""
    global _joined
    with _lock:
        _joined, loaders = None, list(_loaders)
        _loaders.clear()
    for loader in loaders:
        loader.close()
