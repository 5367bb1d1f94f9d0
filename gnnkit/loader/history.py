"""What a loader has reported so far: its stages, its messages and its last error, for whoever looks later."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from gnnkit.errors import LoaderClosed, interruptible
from gnnkit.events import Event, EventSink

logger = logging.getLogger(__name__)

_STAGES, _MESSAGES = 64, 32
_ENDS: dict[str, Literal["done", "failed"]] = {"end": "done", "fail": "failed"}


@dataclass(frozen=True)
class StageState:
    """How far a stage is.

    Attributes:
        stage: "download", "ingest", "partition", "compile", "start", "epoch" and the like.
        label: What it works on.
        state: "running", "done" or "failed".
        done: Units finished.
        total: Units expected; None where that is unknown.
        unit: "B" for bytes, otherwise a plural noun.
        text: A summary of its end ("abandoned", "stopped"), or its error's first line; often "".
        started_s: ``time.monotonic()`` when it began.
        ended_s: When it ended; None while it runs.
    """

    stage: str
    label: str
    state: Literal["running", "done", "failed"]
    done: float
    total: float | None
    unit: str
    text: str
    started_s: float
    ended_s: float | None

    @property
    def fraction(self) -> float | None:
        """How much of it is done, 0 to 1; None where nobody knows."""
        if self.state == "done" and self.total is None:
            return 1.0
        return None if not self.total else min(1.0, self.done / self.total)


@dataclass(frozen=True)
class LastError:
    """An error that a loader raised; as text, because an error itself keeps every frame that it came through.

    Attributes:
        kind: The name of its class.
        message: What it says, its hint included.
        trace: The whole traceback, with its causes.
        at_s: ``time.monotonic()`` when it was raised.
    """

    kind: str
    message: str
    trace: str
    at_s: float

    @property
    def line(self) -> str:
        """The error in a line: "WorkerDied: sampling process 0 (pid 12) was killed by SIGKILL"."""
        return f"{self.kind}: {self.message}".splitlines()[0]


@dataclass
class _Bracket:
    """A stage: its first and its last event."""

    first: Event
    last: Event

    def state(self) -> StageState:
        first, last = self.first, self.last
        state: Literal["running", "done", "failed"] = _ENDS.get(last.kind, "running")
        ended_s = None if state == "running" else last.time_s
        text = "" if state == "running" else last.text
        return StageState(last.stage, last.label, state, last.done, last.total, last.unit, text, first.time_s, ended_s)


class History:
    """An ``EventSink`` that stands before another one and remembers what went through. May be used from any thread.

    Args:
        sink: Where events go on to.

    Attributes:
        sink: Where events go on to.
        last_error: The last error that an iteration, a restart or a request of the loader raised; None before the first. Being closed or
            interrupted is none.
    """

    def __init__(self, sink: EventSink) -> None:
        self.sink = sink
        self.last_error: LastError | None = None
        # Reentrant: the garbage collector may end a stage on a thread that holds it.
        self._lock = threading.RLock()
        self._brackets: deque[_Bracket] = deque(maxlen=_STAGES)
        self._messages: deque[str] = deque(maxlen=_MESSAGES)
        self._listeners: tuple[Callable[[Event], None], ...] = ()

    def __call__(self, event: Event) -> None:
        """Remembers an event and sends it on."""
        with self._lock:
            if event.kind == "message":
                self._messages.append(event.text)
            else:
                self._follow(event)
        self.sink(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # whoever looks on is not worth a run
                logger.warning("a listener of a loader's history failed and hears no more", exc_info=True)
                self._forget(listener)

    def _follow(self, event: Event) -> None:
        """Books an event of a stage.

        Processes that do the same at the same time, as compiling, report one stage: it runs when the last of them has said so.
        """
        key = event.stage, event.label
        bracket = next((b for b in reversed(self._brackets) if (b.last.stage, b.last.label) == key), None)
        if bracket is None or (event.kind == "start" and bracket.last.kind in _ENDS):
            self._brackets.append(_Bracket(event, event))
        elif event.time_s >= bracket.last.time_s:
            bracket.last = event

    @property
    def stages(self) -> tuple[StageState, ...]:
        """The last 64 stages in the order of their beginning."""
        with self._lock:
            return tuple(bracket.state() for bracket in self._brackets)

    @property
    def messages(self) -> tuple[str, ...]:
        """The last 32 messages to the reader."""
        with self._lock:
            return tuple(self._messages)

    def listen(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Has a function called with each event from now on, in the thread that reports it; it must return at once.

        Args:
            callback: The function. One that raises is not called again.

        Returns:
            What ends it.
        """

        def heard(event: Event) -> None:  # an identity of its own: the same function may listen twice
            callback(event)

        with self._lock:
            self._listeners += (heard,)
        return lambda: self._forget(heard)

    def _forget(self, listener: Callable[[Event], None]) -> None:
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

    @contextlib.contextmanager
    def noting(self, what: str = "a request of the loader") -> Iterator[None]:
        """Remembers the error that a ``with`` block ends in.

        Args:
            what: What the block does, for an interrupt of it.
        """
        try:
            with interruptible(what):
                yield
        except Exception as error:
            self.note(error)
            raise

    def note(self, error: Exception) -> None:
        """Remembers an error."""
        if not isinstance(error, LoaderClosed):
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self.last_error = LastError(type(error).__name__, str(error), trace, time.monotonic())
