"""What a thread that looks after processes does: it waits until one of them says something, somebody wakes it, or it is time to look."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from gnnkit.runtime.supervisor import Supervisor
from gnnkit.runtime.waker import Waker

logger = logging.getLogger(__name__)

# Longest time between two looks around.
_LOOK_S = 0.5


def look_after(
    crew: Supervisor,
    waker: Waker,
    changed: threading.Condition,
    what: str,
    *,
    has_ended: Callable[[], bool],
    look: Callable[[], None],
    give_up: Callable[[str], None],
) -> None:
    """Looks after a crew until it has ended.

    Args:
        crew: The crew.
        waker: Has this look around at once.
        changed: Held whenever one of the following is called; notified after each look.
        what: What the crew is, for errors: "the ranks".
        has_ended: Whether there is nothing to look after any more.
        look: Takes what has been said, and does what is to be done.
        give_up: Ends everything, because ``look`` has raised; called with what to say of that.
    """
    while True:
        with changed:
            if has_ended():
                return
            poller = crew.poller()
        waker.wait(poller, _LOOK_S)
        with changed:
            try:
                if not has_ended():
                    look()
            except Exception as error:
                logger.exception("%s cannot be looked after", what)
                give_up(f"{what} cannot be looked after: {type(error).__name__}: {error}")
            changed.notify_all()
