"""The receiving end of the wire: a child of the trainer that fetches batches from servers of other hosts, into the trainer's ring.

It is a sampling process like others (``gnnkit.cluster.worker``), but has an outline of the store instead of parts, and no graph. Of each
batch it asks one server for the structure, and the owners of its nodes and edges for their rows, all over Arrow Flight. The rest of a
batch is made as anywhere else, so it is the same.

Its setup message carries ``servers``: ``{"servers": {"<rank>": {"address": "10.0.0.1:7000", "parts": [0, 1]}, ...}, "client": ...,
"token": ..., "ca": PEM text or None, "again": ...}``, where ``client`` is what the trainer calls itself, and ``again`` says whether a
server that is gone is waited for. Its ``done`` messages carry ``traffic``, the bytes that it has received and sent so far.

Of several servers that have a part, one is asked for its rows: trainers and parts are spread over them.
"""

from __future__ import annotations

# Sampling threads of a receiving process: one for each batch under way.
_LEAST_THREADS, _MOST_THREADS = 4, 16


def threads_for(num_servers: int) -> int:
    """Batches that a receiving process has under way: enough for every server to have one to walk while another one travels."""
    return min(_MOST_THREADS, max(_LEAST_THREADS, 2 * num_servers))
