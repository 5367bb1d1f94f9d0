"""Importing PyTorch and PyG takes seconds, the first time: it is nobody's batch, and an interrupt does it no harm."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future

import pytest

from gnnkit.sampling import collate
from tests.helpers.waiting import wait_until
from tests.loader.graphs import make


def test_imports_are_over_before_an_epoch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first picture of a session would show little but them."""
    states = []
    with make() as loader:
        monkeypatch.setattr("gnnkit.loader.pipeline.load_batch_classes", lambda: states.append(loader.status().state))
        next(iter(loader))
    assert states == ["ready"]


def test_an_interrupt_ends_the_wait_and_not_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch that was imported by half cannot be imported any more."""
    begun: list[threading.Thread] = []
    go_on = threading.Event()

    def slow(classes: Future[None]) -> None:
        begun.append(threading.current_thread())
        assert wait_until(lambda: collate._classes is classes)
        os.kill(os.getpid(), signal.SIGINT)
        assert go_on.wait(60)
        classes.set_result(None)

    monkeypatch.setattr(collate, "_classes", None)
    monkeypatch.setattr(collate, "_import_classes", slow)
    with pytest.raises(KeyboardInterrupt):
        collate.load_batch_classes()
    (thread,) = begun
    assert thread.is_alive() and not thread.daemon
    go_on.set()
    collate.load_batch_classes()
    thread.join(60)
    assert begun == [thread] and not thread.is_alive()


def test_an_import_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: Future[None] = Future()
    failed.set_exception(ImportError("not there"))
    monkeypatch.setattr(collate, "_classes", failed)
    collate.load_batch_classes()
    assert collate._classes is not failed
