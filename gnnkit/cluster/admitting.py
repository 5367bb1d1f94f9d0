"""Connections whose peers have not shown yet who they are: their limits, and how they are accepted."""

from __future__ import annotations

import errno
import logging
import socket

logger = logging.getLogger(__name__)

# What a peer may send, in bytes, and how long it may take, until it has shown who it is.
MOST_SAID, PENDING_S = 4096, 5.0
# The most of them at a time, of which the one that has been there longest makes room for another; and those that the system keeps.
MOST_PENDING, BACKLOG = 64, 128
# Before the system is asked again whether it has room for another connection.
PAUSE_S = 0.2


def next_connection(listener: socket.socket) -> socket.socket | None:
    """Accepts the next connection that waits, not blocking; None where none waits.

    Raises:
        OSError: The system has no room for another one, which is logged: ask again after ``PAUSE_S``.
    """
    try:
        end, _ = listener.accept()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            logger.warning("nobody can be let in: %s", error)
            raise
        return None
    end.setblocking(False)
    return end
