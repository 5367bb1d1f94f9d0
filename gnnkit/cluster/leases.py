"""Leases: processes renew them at the services that they use, and return them when they leave.

A host that has finished early serves the others until they have finished or are gone. A part service cannot see that from requests:
a trainer may make none for minutes. So each sampling process and each part service sends "here" to the services of other hosts
once a second, and "bye" when it ends; one that has not been heard of for a while is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gnnkit.errors import GnnkitError, StartTimeout
from gnnkit.waiting import Deadline

logger = logging.getLogger(__name__)

# Processes that are clients, or do something for one, call themselves so, then the client's id, "/" and something more.
CLIENT_PREFIX = "client-"

BEAT_S = 1.0
# A busy machine may keep a process from speaking for a while.
SILENCE_S = 10.0
# Saying goodbye must not keep anybody from closing; a part service has more time, and says it for all processes of its trainer.
_STOP_TIMEOUT_S, _UNHURRIED_S = 0.15, 2.0
_RETRY_S = 0.1

# Tells one host's service something: ("here" or "bye", name of the process, its host, seconds that it may take). Raises where it cannot.
Tell = Callable[[str, str, int, float], None]


class LeaseRenewal:
    """This process's presence at the services of other hosts.

    Args:
        host: This host.
        tell: ``{other host: how to tell its service something}``.
        addresses: ``{other host: its address}``, for messages.
        for_all: Whether this process speaks for everything that its trainer has started, and says goodbye for all of it.
        name: What it calls itself; None makes a name up.
    """

    def __init__(
        self, host: int, tell: Mapping[int, Tell], addresses: Mapping[int, str], *, for_all: bool = False, name: str | None = None
    ) -> None:
        self._host, self._tell, self._addresses = host, dict(tell), dict(addresses)
        self._name = name or f"{host}-{os.getppid()}-" + ("" if for_all else secrets.token_hex(6))
        self._farewell_s = _UNHURRIED_S if for_all else _STOP_TIMEOUT_S
        self._left = threading.Event()

    def begin(self, timeout_s: float) -> None:
        """Waits until every service is there, and tells them from then on.

        Raises:
            StartTimeout: One was not there in time; names it.
            GnnkitError: One is there, and refuses this process.
        """
        deadline = Deadline(timeout_s)
        for other, tell in self._tell.items():
            while True:
                try:
                    tell("here", self._name, self._host, max(BEAT_S, 2.0))
                    break
                except GnnkitError:  # it is there, and will not have this process
                    raise
                except Exception as error:
                    if deadline.has_passed:
                        raise StartTimeout(
                            f"host {other} did not answer at {self._addresses[other]} within {timeout_s:g} s: {error}",
                            "start the same script on every host at about the same time; a firewall may keep them apart",
                        ) from error
                if self._left.wait(_RETRY_S):
                    return
        self.begin_at_once()

    def begin_at_once(self) -> None:
        """Tells every service from now on, whether it is there or not."""
        for other, tell in self._tell.items():
            threading.Thread(target=self._keep_telling, args=(tell,), name=f"gnnkit-here-{other}", daemon=True).start()

    def _keep_telling(self, tell: Tell) -> None:
        while not self._left.is_set():
            with contextlib.suppress(Exception):  # it is being started again, or gone: sampling says so where it matters
                tell("here", self._name, self._host, SILENCE_S)
            self._left.wait(BEAT_S)

    def leave(self) -> None:
        """Says goodbye, as far as that is quick."""
        self._left.set()
        threads = [threading.Thread(target=self._say_bye, args=(tell,), daemon=True) for tell in self._tell.values()]
        for thread in threads:
            thread.start()
        deadline = Deadline(self._farewell_s)
        for thread in threads:
            thread.join(deadline.left_s)

    def _say_bye(self, tell: Tell) -> None:
        with contextlib.suppress(Exception):  # nobody is there to miss this process
            tell("bye", self._name, self._host, self._farewell_s)


K = TypeVar("K")
V = TypeVar("V")


class LeaseTable(Generic[K, V]):
    """Those that are there, with what each has said of itself; one that is not heard of for a while is gone. Safe for several threads.

    Args:
        silence_s: Seconds after which one that is not heard of is gone.
    """

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._seen: dict[K, tuple[V, float]] = {}
        self._lock = threading.Lock()

    def here(self, name: K, value: V) -> None:
        """One is there."""
        with self._lock:
            self._seen[name] = value, time.monotonic()

    def bye(self, name: K) -> None:
        """One leaves, or, where the name is a text that ends in "-", all those whose names begin so."""
        with self._lock:
            self._seen.pop(name, None)
            if isinstance(name, str) and name.endswith("-"):
                self._seen = {other: seen for other, seen in self._seen.items() if not str(other).startswith(name)}

    def replace(self, values: Mapping[K, V]) -> None:
        """These are there, and nobody else."""
        with self._lock:
            self._seen = {name: (value, time.monotonic()) for name, value in values.items()}

    def there(self) -> dict[K, V]:
        """Returns what those have said that were heard of lately."""
        limit = time.monotonic() - self._silence_s
        with self._lock:
            return {name: value for name, (value, at) in self._seen.items() if at >= limit}

    def forget_silent(self) -> list[K]:
        """Drops those that have not been heard of lately, and returns them."""
        limit = time.monotonic() - self._silence_s
        with self._lock:
            silent = [name for name, (_, at) in self._seen.items() if at < limit]
            for name in silent:
                del self._seen[name]
        return silent
