"""Every error that gnnkit raises on purpose.

    GnnkitError
      PlanError            the user asked for something that cannot be run
      DatasetError         a dataset is unknown, missing, unreachable or corrupt
      StoreError           a store is missing, corrupt, too new or being built by somebody else
      MemoryLimitError     the request would not fit the memory this process may use
      StartTimeout         a background process did not become ready in time
      WorkerDied           a background process or thread ended while it was needed
      SamplingError        sampling a batch raised; the original error is ``__cause__``
      BatchTimeout         no batch came within ``batch_timeout_s``
      LoaderClosed         a loader was used after ``close()``

A message says what happened and which value caused it; ``hint`` says what to do about it.
"""

from __future__ import annotations

from typing import Any


class GnnkitError(Exception):
    """Base class: an error with a message and, where one is known, a way out.

    Args:
        message: What happened, with the offending values.
        hint: What the reader can do about it; shown on a line of its own.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  -> {self.hint}"


class PlanError(GnnkitError):
    """A value that the user gave cannot be used; nothing was started."""


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


class SamplingError(GnnkitError):
    """Sampling or collating a batch raised; the original exception is ``__cause__``."""


class BatchTimeout(GnnkitError):
    """The loader waited longer than ``batch_timeout_s`` for its next batch."""


class LoaderClosed(GnnkitError):
    """A loader, store handle or stream was used after it had been closed."""


def near_matches(value: str, choices: list[str]) -> str:
    """Returns ``"; did you mean 'x' or 'y'?"`` for close spellings of ``value``, else ``""``."""
    import difflib

    close: list[Any] = difflib.get_close_matches(value, choices, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
