"""The lines about training jobs: several ranks, and how long it takes until they train and are proven."""

from __future__ import annotations

from gnnkit.bench.line import Bound, Line, Target

_PROCESSORS = Bound("processors", "busy", "own_busy", 0.9)
_TWO_RANKS = {
    "hosts-replicated": "two hosts with a rank, a process and the whole graph each, against one such host",
    "hosts": "two hosts with a rank, a process and a part each, against one with both parts",
}
JOB_LINES = (
    *(
        Line("ranks", what, "seeds/s", contender, "seeds_per_s", "one-rank", targets=(Target("ratio", "at least", 1.3),), bound=_PROCESSORS)
        for contender, what in _TWO_RANKS.items()
    ),
    Line(
        "launch",
        "start of launch() with two ranks to the end of the first training step",
        "s",
        "launch",
        "first_step_s",
        targets=(Target("value", "at most", 10),),
    ),
    Line(
        "verify",
        "an exported job's 2 x 2 ranks and this process, through an epoch of 100 batches each compared",
        "s",
        "verify",
        "verify_s",
        targets=(Target("value", "at most", 60),),
    ),
)
