"""What a launch shows while it runs: a bar for each rank, with its last numbers, in the cell that has called ``launch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gnnkit.errors import GnnkitError
from gnnkit.events import Event, EventKind, EventSink
from gnnkit.jobs.launching.rank_state import RankStatus, RunState
from gnnkit.jobs.launching.spec import LaunchSpec

_STAGE = "train"
_MOST_NUMBERS = 4


class LaunchReporter:
    """Turns what is known of ranks into events. Called by one thread at a time, which is never the one that runs cells.

    Args:
        events: Where they go.
        spec: What was launched.
    """

    def __init__(self, events: EventSink, spec: LaunchSpec) -> None:
        self.events, self._spec = events, spec
        self._shown: dict[int, RankStatus] = {}
        self._starts()

    def show(self, ranks: Sequence[RankStatus]) -> None:
        """Moves the bars of those who have got on."""
        for rank in ranks:
            before = self._shown.get(rank.rank)
            if rank == before or rank.state not in ("training", "done"):
                continue
            if before is None:
                self._rank("start", rank)
            self._rank("progress", rank)
            self._shown[rank.rank] = rank

    def started(self) -> None:
        """All ranks are in their function."""
        self._event("end", "start", self._label, done=self._spec.num_procs, total=self._spec.num_procs)

    def restarting(self, error: str, restarts: int) -> None:
        """A rank has failed, and all start again."""
        self._close("stopped")
        self._event("message", _STAGE, text=f"{error}; all ranks start again ({restarts} of {self._spec.max_restarts} times)")
        self._starts()

    def ended(self, state: RunState, error: GnnkitError | None, ranks: Sequence[RankStatus]) -> None:
        """Nothing runs any more."""
        if state == "done":
            self.show(ranks)
        self._event("end" if state == "done" else "fail", "start", self._label, text="" if state == "done" else "GeneratorExit")
        self._close(state)
        if state == "failed" and error is not None:
            self._event("message", _STAGE, text=str(error).splitlines()[0])
        elif state == "stopped":
            self._event("message", _STAGE, text=f"{self._spec.title} was stopped")
        close = getattr(self.events, "close", None)
        if close is not None:
            close()

    @property
    def _label(self) -> str:
        return f"{self._spec.title}, {self._spec.num_procs} rank{'s' if self._spec.num_procs > 1 else ''}"

    def _starts(self) -> None:
        self._event("start", "start", self._label, total=self._spec.num_procs)

    def _close(self, state: str) -> None:
        for rank in self._shown.values():
            # An abandoned stage is no failure of its own: the run's error is told once.
            done = state == "done"
            text = summary(rank) if done else "GeneratorExit"
            self._event("end" if done else "fail", _STAGE, f"rank {rank.rank}", done=rank.step, total=rank.num_steps or None, text=text)
        self._shown.clear()

    def _rank(self, kind: EventKind, rank: RankStatus) -> None:
        self._event(kind, _STAGE, f"rank {rank.rank}", done=rank.step, total=rank.num_steps or None, unit="batches", text=summary(rank))

    def _event(
        self, kind: EventKind, stage: str, label: str = "", *, done: float = 0, total: float | None = None, unit: str = "", text: str = ""
    ) -> None:
        self.events(Event(kind, stage, label, done, total, unit, text))


def summary(rank: RankStatus) -> str:
    """Where a rank is, in a few words: "epoch 3, loss 0.312"."""
    epoch = [f"epoch {rank.epoch}"] if rank.epoch >= 0 else []
    return ", ".join([*epoch, *numbers_in_words(rank.numbers)])


def numbers_in_words(numbers: Mapping[str, float]) -> list[str]:
    """The first of the numbers, with their names."""
    return [f"{name} {value:.4g}" for name, value in list(numbers.items())[:_MOST_NUMBERS]]
