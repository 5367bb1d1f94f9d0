"""Every error that gnnkit raises on purpose.

What is a kind of what::

    GnnkitError
      PlanError            the user asked for something that cannot be run; a ``ValueError``, too
        AttributeNotSettable   an attribute of a loader was assigned to; an ``AttributeError``, too
        SettingMissing         ``ctx.config`` has no hyper-parameter of a name; a ``KeyError``, too
      DatasetError         a dataset is unknown, missing, unreachable or corrupt
      StoreError           a store is missing, corrupt, too new or being built by another process
      MemoryLimitError     the request would not fit the memory this process may use
      StartTimeout         a background process did not become ready in time
      WorkerDied           a background process or thread ended while it was needed
        WorkerStopped      it was ended with ``gnnkit stop``
      SamplingError        sampling a batch raised; the original error is ``__cause__``
        HostUnreachable    another host, whose part of the graph was needed, could not be asked
      TrainingFailed       a train function that ``launch`` runs has raised; the original traceback is ``__cause__``
      BatchTimeout         no batch came within ``batch_timeout_s``
      LoaderClosed         a loader was used after ``close()``

A message says what happened and which value caused it; ``hint`` says what to do about it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import TracebackType

from gnnkit.printable import printable
from gnnkit.rendering import renderer


class GnnkitError(Exception):
    """Base class: an error with a message and, where one is known, a way out.

    Both may name what others wrote, such as a file's path or a store's types: control characters in them are written as escapes.

    Args:
        message: What happened, with the offending values.
        hint: What the reader can do about it; shown on a line of its own.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = printable(message)
        self.hint = None if hint is None else printable(hint)
        super().__init__(self.message, self.hint)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  -> {self.hint}"

    def _render_traceback_(self) -> list[str]:
        """Asked for by IPython alone: plain Python, debuggers and test runners show the traceback."""
        lines: list[str] = renderer("traceback")(self)
        return lines


class PlanError(GnnkitError, ValueError):
    """A value that the user gave cannot be used; nothing was started. A ``ValueError``, as other loaders raise."""


class AttributeNotSettable(PlanError, AttributeError):
    """An attribute that cannot be assigned was assigned to."""


class NoSuchAttribute(PlanError, AttributeError):
    """An attribute was asked for that a loader does not have: by another library's name, or a store of a graph in memory."""


class SettingMissing(PlanError, KeyError):
    """A train function asked ``ctx.config`` for a hyper-parameter that the job does not have."""


class DatasetError(GnnkitError):
    """A dataset is unknown, not on disk, not downloadable, truncated or corrupt."""


class StoreError(GnnkitError):
    """A store is missing, damaged, of a newer format, or locked by another process."""


class MemoryLimitError(GnnkitError):
    """An allocation was refused because it would exceed the memory this process may use."""


class StartTimeout(GnnkitError):
    """A background process was not ready within ``start_timeout_s``."""


class WorkerDied(GnnkitError):
    """A sampling thread or process ended while batches were still expected from it."""


class WorkerStopped(WorkerDied):
    """A sampling process or server was ended on request, with ``gnnkit stop``; it is not started again unasked."""


class SamplingError(GnnkitError):
    """Sampling or collating a batch raised; the original exception is ``__cause__``."""


class TrainingFailed(GnnkitError):
    """A train function raised in a rank; its traceback there is ``__cause__``."""


class HostUnreachable(SamplingError):
    """A batch needed another host's part of the graph, and that host could not be asked."""


class BatchTimeout(GnnkitError):
    """The loader waited longer than ``batch_timeout_s`` for its next batch."""


class LoaderClosed(GnnkitError):
    """A loader, store handle or stream was used after it had been closed."""


class _InterruptLines:
    """``_render_traceback_`` of a KeyboardInterrupt; does not hold the interrupt, which would keep itself and its frames alive."""

    def __init__(self, broken_off: str) -> None:
        self.broken_off = broken_off

    def __call__(self) -> list[str]:
        lines = [f"KeyboardInterrupt: stopped in {self.broken_off}"]
        for error in (sys.exc_info()[1], getattr(sys, "last_value", None)):
            if error is not None and getattr(error, "_render_traceback_", None) is self:
                lines = renderer("traceback")(error, self.broken_off)
        return lines


def note_interrupt(error: BaseException, broken_off: str) -> None:
    """Makes IPython, and Python at the end of a script, show an interrupt of gnnkit's own work as briefly as an error of gnnkit.

    Args:
        error: Anything but a KeyboardInterrupt is left alone, and so is one that was noted further inside.
        broken_off: What it broke off.
    """
    if isinstance(error, KeyboardInterrupt) and not hasattr(error, "_render_traceback_"):
        error._render_traceback_ = _InterruptLines(broken_off)  # type: ignore[attr-defined]
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = _show_uncaught


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends a script that was interrupted in gnnkit's own work with a line; Python exits as it does after any interrupt."""
    noted = getattr(error, "_render_traceback_", None)
    if isinstance(noted, _InterruptLines) and sys.stderr is not None:
        sys.stderr.write(f"KeyboardInterrupt: stopped in {noted.broken_off}\n")
    else:
        sys.__excepthook__(kind, error, trace)


@contextlib.contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Undoes what was begun where the block raises, an interrupt included.

    Args:
        undo: Called then, and only then; the error goes on.
    """
    try:
        yield
    except BaseException:
        undo()
        raise


@contextlib.contextmanager
def interruptible(what: str) -> Iterator[None]:
    """Notes an interrupt that a ``with`` block, or a function that this decorates, ends in; see ``note_interrupt``.

    Args:
        what: What the block does.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        note_interrupt(error, what)
        raise


def near_matches(value: str, choices: list[str], cutoff: float = 0.5) -> str:
    """Returns ``"; did you mean 'x' or 'y'?"`` for spellings that are close to ``value``, or have it as a word, else ``""``."""
    import difflib

    close = difflib.get_close_matches(value, choices, n=3, cutoff=cutoff) or [name for name in choices if value in name.split("_")]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
