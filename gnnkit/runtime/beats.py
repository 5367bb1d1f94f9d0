"""Beats and silence: how often processes say that they are there, and after which silence one counts as gone."""

from __future__ import annotations

# Signs of life of a process of this host, in shared memory; one that has not been seen for longer is not running.
SIGN_BEAT_S, SIGN_SILENCE_S = 0.1, 2.0
# Between two signs of life over the network: of a service that works on a request, and of a process that needs a service.
BEAT_S = 1.0
# Between two announcements of a server to the others.
ANNOUNCEMENT_BEAT_S = 2.0
# A connection over which nothing at all has come for so long is broken.
CONNECTION_SILENCE_S = 6.0
# A server, host or client counts as having left after this silence: what it has at others goes, and perhaps what serves it. It is longer
# than the others because a busy machine may keep a process from speaking for a while.
LEASE_SILENCE_S = 10.0
