"""The stages that events tell of, as they are shown: in progress and on the dashboard."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnnkit.events import STAGES, StageState

# Stages shorter than this are not worth a reader's eye, unless they fail.
SHOWN_AFTER_S = 0.5
# Without news for this long, a rate begins to fall.
_STALLED_AFTER_S = 3.0


@dataclass(frozen=True, slots=True)
class Bar:
    """An open stage at one instant.

    Attributes:
        stage: As in the event.
        label: As in the event.
        unit: As in the event.
        done: Units finished.
        total: Units expected, or None.
        fraction: Finished share within [0, 1], or None where no total is known.
        rate: Units per second of late, or None where too little is known.
        eta_s: Seconds to go at that rate, or None.
        elapsed_s: Seconds since the stage began.
        note: What else was last said of it, such as a loss.
    """

    stage: str
    label: str
    unit: str
    done: float
    total: float | None
    fraction: float | None
    rate: float | None
    eta_s: float | None
    elapsed_s: float
    note: str = ""

    @classmethod
    def of(cls, stage: StageState, now: float, *, final: bool = False) -> Bar:
        """The stage at ``now`` (``time.monotonic()``); ``final`` is its last state, whose rate is that of the whole stage."""
        done = max(stage.done, 0.0) if math.isfinite(stage.done) else 0.0
        total = stage.total if stage.total is not None and math.isfinite(stage.total) and stage.total > 0 else None
        until = now if final or now - stage.heard_s > _STALLED_AFTER_S else stage.heard_s
        span, gain = until - stage.since[0], done - stage.since[1]
        rate = gain / span if span >= SHOWN_AFTER_S and gain > 0 else None
        rate = rate or None  # of a gain so small that nothing is left of it
        remaining = None if total is None or final else max(total - done, 0.0)
        return cls(
            stage=stage.stage,
            label=stage.label,
            unit=stage.unit,
            done=done,
            total=total,
            fraction=None if total is None else min(done / total, 1.0),
            rate=rate,
            eta_s=None if rate is None or remaining is None or remaining == 0 else remaining / rate,
            elapsed_s=max(now - stage.started_s, 0.0),
            note=stage.note,
        )


def rank_of_stage(stage: str) -> int:
    """Returns the position of a stage in the order of a run."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)
