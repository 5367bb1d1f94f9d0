"""Ports for processes that must be told one before they listen."""

from __future__ import annotations

import os
import random
import re
import socket

# Below what the system gives to whoever asks for any port: nobody is given one of these between our look and its use.
_FIRST, _LAST = 20_000, 32_000
# Each of the processes that run tests side by side takes every so-manieth.
_LANES = 16


def free_port(address: str = "127.0.0.1") -> int:
    """A port of this host that nobody listens on, and that no other test is given.

    Args:
        address: Where somebody is to listen on it.
    """
    (number,) = re.findall(r"\d+$", os.environ.get("PYTEST_XDIST_WORKER", "gw0"))
    lane = range(_FIRST + int(number) % _LANES, _LAST, _LANES)
    for port in random.Random().sample(lane, len(lane)):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"every port between {_FIRST} and {_LAST} is taken")
