"""What a dashboard shows at one moment. Plain facts, drawn by ``page``, ``text`` and ``widgets``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gnnkit.ui.progress_model import Bar


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of the loader: one that runs, or the last of its name that has ended.

    Attributes:
        bar: How far it is, or was when it ended.
        state: "running", "done" or "failed".
        text: What it came to, or why it failed; "" while it runs.
    """

    bar: Bar
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of somebody's time.

    Attributes:
        name: "waiting", "sampling" and the like.
        fraction: Within [0, 1].
    """

    name: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity over the last minute, oldest first.

    Attributes:
        values: One value per second.
        now: What to write beside it; nan where it is not known.
    """

    values: Sequence[float] = ()
    now: float = float("nan")


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process of the loader.

    Attributes:
        name: "trainer", "process 0", "server 0" and the like.
        pid: Its pid.
        state: "running", "stopped (SIGSTOP)", "gone" and the like.
        cpu: Processors that it has used lately (1.0 is one of them); nan where it has only just been looked at.
        busy: Share of its time within [0, 1] that it sampled batches; nan where it samples none.
        private: Bytes of memory that are its own.
        shared: Bytes that it shares with others: the mapped store, the ring.
        log: The file that it writes to, or None.
        tail: The last lines of that file.
    """

    name: str
    pid: int
    state: str
    cpu: float
    busy: float
    private: int
    shared: int
    log: str | None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A loader at one moment.

    Attributes:
        title: What it reads: "ogbn-products".
        where: Where it samples: "Colocated, 2 processes".
        state: "sampling", "paused", "idle", "ready", "closed" and the like.
        stages: See ``StageRow``.
        batches: Batches per second.
        seeds: Seeds per second.
        ready: Batches that were sampled and waiting.
        slots: The most that can be; 0 where that is not known.
        consumer: Where this process spent its time.
        workers: Where those who sample spent theirs.
        split_of: What these shares are of: "last 10 s" or "epoch 3".
        processes: See ``ProcessRow``.
        buffers: Bytes of the batches' blocks.
        graph: Bytes of the graph's copy in memory.
        advice: Who is the bottleneck and what to change, in a sentence; "" before it is known.
        error: The last error, in a line; "" where there is none.
        live: Whether it may change.
    """

    title: str
    where: str
    state: str
    stages: tuple[StageRow, ...] = ()
    batches: Series = field(default_factory=Series)
    seeds: Series = field(default_factory=Series)
    ready: Series = field(default_factory=Series)
    slots: int = 0
    consumer: tuple[Share, ...] = ()
    workers: tuple[Share, ...] = ()
    split_of: str = ""
    processes: tuple[ProcessRow, ...] = ()
    buffers: int = 0
    graph: int = 0
    advice: str = ""
    error: str = ""
    live: bool = True

    def lasting(self) -> Snapshot:
        """The snapshot without what differs from look to look although nothing has happened: processor shares and amounts of memory."""
        processes = tuple(replace(p, cpu=0.0, busy=0.0, private=0, shared=0) for p in self.processes)
        still = Series(self.batches.values)  # nan is not itself
        return replace(self, processes=processes, buffers=0, graph=0, batches=still, seeds=Series(), ready=Series())
