"""A short run of every target; ``make fuzz`` makes thousands of cases, in a memory group."""

from __future__ import annotations

import pytest

from tests.fuzz import answers, served, targets
from tests.fuzz.running import Target, run

CASES, SEED = 100, 1
# Cases of seed 0 that once brought out something else.
FOUND = {"planned batches": (1972,), "records": (1464, 8863, 9680), "requests": (7561,)}


@pytest.mark.parametrize("target", (*targets.TARGETS, *answers.TARGETS, *served.TARGETS), ids=lambda target: target.name)
def test_only_errors_of_gnnkit_come_out(target: Target) -> None:
    failures = run(target, range(max(1, int(CASES * target.share))), SEED)
    failures += [failure for case in FOUND.get(target.name, ()) for failure in run(target, range(case, case + 1), 0)]
    assert not failures, "\n\n".join(f"case {failure.case}:\n{failure.what}" for failure in failures[:3])
