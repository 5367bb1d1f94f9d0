"""The doctor's trial of several hosts: two processes that each hold one part and answer each other, on addresses of loopback.

``python -m gnnkit.cli.trial_hosts STORE ADDRESS ADDRESS`` is the second of them; which it is says ``GNNKIT_HOST``.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gnnkit.cli.trial import WAIT_S, batches_here, graph, options

_MODULE = "gnnkit.cli.trial_hosts"
_ADDRESSES = ("127.0.0.2", "127.0.0.3")


def try_hosts() -> str:
    """Samples an epoch on two hosts, and compares each one's share of it."""
    from gnnkit.loader.inspection import batches_digest
    from gnnkit.partitioning import partition

    batches = batches_here()
    wanted = [batches_digest(batches[rank :: len(_ADDRESSES)]) for rank in range(len(_ADDRESSES))]
    with tempfile.TemporaryDirectory() as folder:
        store = partition(graph(), len(_ADDRESSES), out=Path(folder) / "store").path
        addresses = [f"{address}:{_free_port(address)}" for address in _ADDRESSES]
        # This process was started for the trials and is one of the hosts: its environment is its own.
        os.environ |= {"GNNKIT_TOKEN": secrets.token_hex(16), "GNNKIT_HOST": "0"}
        command = [sys.executable, "-m", _MODULE, str(store), *addresses]
        environment = {**os.environ, "GNNKIT_HOST": "1"}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment) as other:
            try:
                found = [_share(store, addresses, 0)]
                found += other.communicate(timeout=WAIT_S)[0].split()[-1:]
            finally:
                other.kill()
    if found != wanted:
        raise RuntimeError(f"their batches are not those of InProcess (digests {found} and {wanted})")
    return f"{len(batches)} batches from two hosts on loopback with a part each, the same as InProcess's"


def _share(store: str | Path, addresses: Sequence[str], rank: int) -> str:
    """The digest of one host's share of an epoch."""
    from gnnkit.backends.colocated import Colocated
    from gnnkit.graph_loader import GraphLoader
    from gnnkit.loader.inspection import batches_digest

    backend = Colocated(num_workers=1, hosts=tuple(addresses))
    own = {**options(backend), "rank": rank, "world_size": len(addresses), "placement": "partition", "remainder": "uneven"}
    with GraphLoader.from_store(store, input_nodes=None, **own) as loader:
        return batches_digest(loader)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.stdout.write(_share(sys.argv[1], sys.argv[2:], int(os.environ["GNNKIT_HOST"])) + "\n")
