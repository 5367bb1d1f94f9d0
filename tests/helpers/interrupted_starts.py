"""An interrupt at the one moment of a thread's start that only chance finds: it runs, and whoever has started it does not know."""

from __future__ import annotations

import threading

import pytest


def interrupt_the_start_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the next start of a thread raise ``KeyboardInterrupt`` once it runs.

    Args:
        name: What its name begins with.
        monkeypatch: Undoes it.
    """
    start, armed = threading.Thread.start, [True]

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith(name) and armed:
            armed.clear()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
