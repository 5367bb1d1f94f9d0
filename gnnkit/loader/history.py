"""The history of a loader: stages, errors, records of batches, and when its workers sampled what."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import LoaderClosed, PlanError, interruptible
from gnnkit.events import Event, EventSink, StageProgress, StageState
from gnnkit.waiting import Deadline

# About a megabyte; an epoch of OGBN-Products has 193 batches of 1024.
_KEPT = 4096


class BatchRecord(NamedTuple):
    """The times and sizes of one batch. Moments are ``time.monotonic()`` of this process; everything in seconds.

    The consumer's times are those between the hand-over of the batch before and that of this one: ``consumer_s`` before ``asked_s``, the
    others after it, one after another. On a device, where the next batch is prepared ahead, its preparation counts for the batch that is
    handed out meanwhile. (A named tuple, because one is made for every batch: it costs a tenth of a frozen dataclass.)

    Attributes:
        epoch: The epoch.
        index: Index in the epoch's list of batches.
        worker: The sampler: "thread 0", "process 1", "process 1, thread 0" where processes have several, "server 0, process 1",
            "receiver, thread 2"; "loop" for the consumer itself, who samples small batches where it asks for the next one at once; "" where
            that is not known.
        began_s: When its worker began to sample it; nan where that is not known.
        sample_s: What the worker spent choosing neighbours.
        gather_s: What it spent copying features and ids.
        asked_s: When the consumer asked for it, the last time if it had asked before in vain.
        paused_s: How long the loader was paused.
        wait_s: Waiting for it.
        collate_s: Building PyG objects.
        transform_s: The user's ``transform``.
        transfer_s: Starting copies to the device.
        consumer_s: What the consumer did before it asked: the training step.
        seeds: Seeds in it.
        nodes: Nodes in it, seeds included.
        edges: Edges in it.
        nbytes: Bytes of its tensors as they were sampled.
        ready: Batches that were sampled and waiting when it was asked for, itself included if it was.
        cached_nbytes: Bytes of features that it came without, because they were on the device.
    """

    epoch: int
    index: int  # type: ignore[assignment]  # a tuple's own method of that name is of no use here
    worker: str
    began_s: float
    sample_s: float
    gather_s: float
    asked_s: float
    paused_s: float
    wait_s: float
    collate_s: float
    transform_s: float
    transfer_s: float
    consumer_s: float
    seeds: int
    nodes: int
    edges: int
    nbytes: int
    ready: int
    cached_nbytes: int = 0

    @property
    def delivered_s(self) -> float:
        """When the consumer got it."""
        return self.asked_s + self.paused_s + self.wait_s + self.collate_s + self.transform_s + self.transfer_s


class Records:
    """The last 4096 batches of all epochs of a loader, oldest first. May be read from any thread."""

    def __init__(self) -> None:
        self._kept: deque[BatchRecord] = deque(maxlen=_KEPT)
        self.add = self._kept.append
        """Books a batch."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[BatchRecord]:
        # Copied in one step of the interpreter: a deque that grows meanwhile cannot be iterated.
        return iter(self._kept.copy())

    @property
    def is_full(self) -> bool:
        """Whether each further batch makes it forget another."""
        return len(self._kept) == self._kept.maxlen

    def window(self, seconds: float) -> list[BatchRecord]:
        """The batches that were handed out within the last ``seconds``."""
        since = time.monotonic() - seconds
        return [record for record in self if record.delivered_s >= since]

    def of_epoch(self, epoch: int) -> list[BatchRecord]:
        """The batches of an epoch that are still known."""
        return [record for record in self if record.epoch == epoch]


logger = logging.getLogger(__name__)

_STAGES, _MESSAGES = 64, 32


@dataclass(frozen=True)
class LastError:
    """An error that a loader raised; as text, because an error itself keeps every frame that it came through.

    Attributes:
        kind: The name of its class.
        message: What it says, its hint included.
        trace: The whole traceback, with its causes.
    """

    kind: str
    message: str
    trace: str

    @property
    def line(self) -> str:
        """The error in a line: "WorkerDied: sampling process 0 (pid 12) was killed by SIGKILL"."""
        return f"{self.kind}: {self.message}".splitlines()[0]


class History:
    """An ``EventSink`` that stands before another one and remembers what went through. May be used from any thread.

    It does not know the loader, so that watching keeps none alive.

    Args:
        sink: Where events go on to.

    Attributes:
        sink: Where events go on to.
        records: What became of the loader's batches.
        last_error: The last error that an iteration, a restart or a request of the loader raised; None before the first. Being closed or
            interrupted is none.
    """

    def __init__(self, sink: EventSink) -> None:
        self.sink, self.records = sink, Records()
        self.last_error: LastError | None = None
        # Reentrant: the garbage collector may end a stage on a thread that holds it.
        self._lock = threading.RLock()
        self._stages: deque[StageProgress] = deque(maxlen=_STAGES)
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
            except Exception:  # a display is not worth a run
                logger.warning("a listener of a loader's history failed and hears no more", exc_info=True)
                self._forget(listener)

    def _follow(self, event: Event) -> None:
        """Books an event of a stage.

        Processes that do the same at the same time, as compiling, report one stage: it runs when the last of them has said so.
        """
        stage = self._stages[-1] if self._stages else None  # as it nearly always is: batches report one by one
        if stage is None or stage.last.label != event.label or stage.last.stage != event.stage:
            key = event.stage, event.label
            stage = next((s for s in reversed(self._stages) if (s.last.stage, s.last.label) == key), None)
        if stage is None or (event.kind == "start" and stage.last.kind in ("end", "fail")):
            self._stages.append(StageProgress(event))
        elif event.time_s >= stage.last.time_s:
            stage.advance(event)

    @property
    def stages(self) -> tuple[StageState, ...]:
        """The last 64 stages in the order of their beginning."""
        return self.stages_at(time.monotonic())

    def stages_at(self, now: float) -> tuple[StageState, ...]:
        """The same as they were at ``now`` (``time.monotonic()``), had nothing been heard of them since."""
        with self._lock:
            return tuple(stage.state(now) for stage in self._stages)

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
            self.last_error = LastError(type(error).__name__, str(error), trace)


# Longest time that a paused iteration goes without looking whether it is still wanted.
_SLICE_S = 0.05


class Gate:
    """Batches pass while it is open. Any thread may open and shut it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._errand: Callable[[], None] | None = None

    @property
    def is_shut(self) -> bool:
        """Whether batches are held back."""
        return not self._open.is_set()

    def shut(self) -> None:
        """Holds batches back."""
        self._open.clear()

    def open(self) -> None:
        """Lets them pass."""
        self._open.set()

    def once(self, errand: Callable[[], None]) -> None:
        """Has the thread that asks for the next batch do something first."""
        self._errand = errand
        self.shut()

    def wait(self, limit_s: float, check: Callable[[], None]) -> bool:
        """Does what ``once`` was given, then waits until it is open; whether it is.

        Args:
            limit_s: Longest wait.
            check: Called again and again; raises once the batch is not wanted any more.
        """
        errand, self._errand = self._errand, None
        if errand is not None:
            self.open()
            errand()
        deadline = Deadline(limit_s)
        while not self._open.wait(deadline.within(_SLICE_S)):
            check()
            if deadline.has_passed:
                return False
        return True


# What the consumer does between two batches, in this order; each is a field of ``BatchRecord``.
CONSUMER_STEPS = ("consumer_s", "paused_s", "wait_s", "collate_s", "transform_s", "transfer_s")


@dataclass(frozen=True)
class Timeline:
    """Spans of an epoch, each float64 ``[k, 2]``: begin and length, in seconds since the epoch's first moment that is known.

    Attributes:
        epoch: Which epoch.
        batches: Batches that are known.
        is_whole: Whether all of its batches are known: the loader keeps records of the last few thousand.
        seconds: From the first moment to the last.
        workers: ``{worker: {"sample": spans, "gather": spans}}``, in the order of their names and numbers; a gather is drawn right after
            its sampling, though its worker may have waited for a free slot in between.
        consumer: ``{field of BatchRecord: spans}``, in the order in which one follows another.
        ready: float64 ``[batches, 2]``: when a batch was asked for, and how many were waiting then.
        unseen: Batches whose worker's times are not known.
    """

    epoch: int
    batches: int
    is_whole: bool
    seconds: float
    workers: Mapping[str, Mapping[str, NDArray[np.float64]]]
    consumer: Mapping[str, NDArray[np.float64]]
    ready: NDArray[np.float64]
    unseen: int


def timeline(records: Records, epoch: int | None = None) -> Timeline:
    """Arranges an epoch's records.

    Args:
        records: A loader's.
        epoch: Which epoch; None takes that of the newest batch.

    Raises:
        PlanError: No batch of it is known.
    """
    known = list(records)
    if not known:
        raise PlanError("no batch has been handed out yet, so there is no time to draw", "iterate over the loader first")
    if epoch is None:
        epoch = known[-1].epoch
    found = [record for record in known if record.epoch == epoch]
    if not found:
        epochs = sorted({record.epoch for record in known})
        raise PlanError(f"nothing is known of epoch {epoch!r}", f"the last batches are of epoch{'s' * (len(epochs) > 1)} {_spans(epochs)}")
    seen = [record for record in found if math.isfinite(record.began_s)]
    starts = [record.asked_s - record.consumer_s for record in found] + [record.began_s for record in seen]
    zero = min(starts)
    ends = [record.delivered_s for record in found] + [record.began_s + record.sample_s + record.gather_s for record in seen]
    return Timeline(
        epoch,
        len(found),
        not (records.is_full and found[0] is known[0]),
        max(ends) - zero,
        _workers(seen, zero),
        _consumer(found, zero),
        np.array([(record.asked_s - zero, record.ready) for record in found], np.float64),
        len(found) - len(seen),
    )


def _workers(seen: Iterable[BatchRecord], zero: float) -> dict[str, dict[str, NDArray[np.float64]]]:
    by_name: dict[str, list[BatchRecord]] = {}
    for record in seen:
        by_name.setdefault(record.worker, []).append(record)
    return {
        name: {
            "sample": _array((r.began_s - zero, r.sample_s) for r in by_name[name]),
            "gather": _array((r.began_s + r.sample_s - zero, r.gather_s) for r in by_name[name]),
        }
        for name in sorted(by_name, key=_by_number)
    }


def _consumer(found: Sequence[BatchRecord], zero: float) -> dict[str, NDArray[np.float64]]:
    spans: dict[str, list[tuple[float, float]]] = {step: [] for step in CONSUMER_STEPS}
    for record in found:
        at = record.asked_s - record.consumer_s - zero
        for step in CONSUMER_STEPS:
            length = getattr(record, step)
            if length > 0:
                spans[step].append((at, length))
            at += length
    return {step: _array(found) for step, found in spans.items()}


def _array(spans: Iterable[tuple[float, float]]) -> NDArray[np.float64]:
    return np.array(list(spans), np.float64).reshape(-1, 2)


def _by_number(name: str) -> list[tuple[str, int]]:
    """A key that puts "thread 2" before "thread 10"."""
    return [(word, int(number or -1)) for word, number in re.findall(r"(\D+)(\d*)", name)]


def _spans(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
