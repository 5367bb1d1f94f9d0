"""Runs the cases of a target, and says what came out that may not."""

from __future__ import annotations

import faulthandler
import random
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from gnnkit.errors import GnnkitError
from tests.helpers.machine import slowness

# One case: it changes something as the generator decides, and has it read. Errors of gnnkit are what it is for.
Case = Callable[[random.Random], None]
# One case takes milliseconds; what it may take at most keeps nobody waiting.
MOST_S = 20.0


@dataclass(frozen=True)
class Target:
    """Something that is parsed.

    Attributes:
        name: What it is.
        open: Makes valid samples, and gives what changes and reads them.
        share: Of the cases that are asked for, how many are run, where one takes long.
    """

    name: str
    open: Callable[[], AbstractContextManager[Case]]
    share: float = 1.0


@dataclass(frozen=True)
class Failure:
    """An outcome of a case that may not be.

    Attributes:
        case: Its number.
        what: The traceback, or how long it took.
    """

    case: int
    what: str


def run(target: Target, cases: range, seed: int, *, watched: bool = False) -> list[Failure]:
    """Runs cases of a target.

    Args:
        target: The target.
        cases: Their numbers: a case is the same whichever were run before it.
        seed: Decides, with the number, what a case is.
        watched: Whether a case that hangs ends this process, with where it hangs on the standard error.
    """
    failures, limit_s = [], MOST_S * slowness()
    with target.open() as case:
        for number in cases:
            rng, began = random.Random(f"{target.name}/{seed}/{number}"), time.monotonic()
            if watched:
                faulthandler.dump_traceback_later(3 * limit_s, exit=True)
            try:
                case(rng)
            except GnnkitError:
                pass
            except Exception:
                failures.append(Failure(number, traceback.format_exc()))
            finally:
                faulthandler.cancel_dump_traceback_later()
            if time.monotonic() - began > limit_s:
                failures.append(Failure(number, f"it took {time.monotonic() - began:.1f} s"))
    return failures
