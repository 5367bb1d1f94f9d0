"""The records of URLs in the cache folder: what was found there the last time, for when there is no network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gnnkit.cluster.urls.transfer import Unreachable
from gnnkit.errors import GnnkitError
from gnnkit.events import Event, EventSink
from gnnkit.storage.catalog import default_root
from gnnkit.urls import OFFLINE_VARIABLE, is_offline

R = TypeVar("R")


def record_folder(url: str) -> Path:
    """The folder of what is known of a URL."""
    return default_root() / "urls" / hashlib.sha256(url.encode()).hexdigest()[:32]


def latest(url: str, ask: Callable[[], R], known: R | None, error: type[GnnkitError], events: EventSink) -> tuple[R, Unreachable | None]:
    """Returns what there is at a URL: as its server says, or as it was the last time where the server cannot be asked.

    Args:
        url: The URL.
        ask: Asks the server.
        known: What it said the last time; None where it was never asked.
        error: The class of errors.
        events: Receives a message where the last time's is taken because the server cannot be reached.

    Returns:
        What there is, and why the server could not be asked, or None.

    Raises:
        GnnkitError: The server refuses, or cannot be asked and never was.
    """
    if is_offline():
        cut = Unreachable(error(f"{url} is not in the cache of this machine, and nothing may be fetched ({OFFLINE_VARIABLE} is set)"))
    else:
        try:
            return ask(), None
        except Unreachable as unreachable:
            cut = unreachable
    if known is None:
        raise cut.error
    if not is_offline():
        events(Event("message", "download", url, text=f"{cut.error.message}; what was fetched before is used"))
    return known, cut
