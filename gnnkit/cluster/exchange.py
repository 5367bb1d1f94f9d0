"""How ranks tell each other about themselves: through the process group's key-value store, with a deadline."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from gnnkit.cluster.topology import RankFacts
from gnnkit.errors import PlanError, StartTimeout
from gnnkit.host import total_memory

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Processes that share these see the same files, shared memory, processes and interfaces.
_NAMESPACES = ("ipc", "mnt", "net", "pid")
_ROUTE_PROBE = ("192.0.2.1", 9)  # an address for documentation: decides the route, nothing is sent


def host_identity() -> str:
    """Identity of the running system and of the namespaces this process is in; empty where there is no boot id."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
        namespaces = [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]
    except OSError:
        return ""
    return " ".join([boot_id, *namespaces])


def environment_int(name: str) -> int | None:
    """A number of torchrun's environment, or None where it is not set.

    Raises:
        PlanError: The variable is no whole number of at least 0.
    """
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit():
        raise PlanError(f"{name}={text!r} in the environment is no whole number", "unset it, or start the process with torchrun")
    return int(text)


def own_facts(local_rank: int | None, local_world_size: int | None) -> RankFacts:
    """What this rank, in an initialised process group, says about itself.

    Args:
        local_rank: Its local rank where it was given; None takes the environment's, with node rank and local world size.
        local_world_size: The number of processes of its node where it was given.
    """
    node_rank = None
    if local_rank is None:
        local_rank, local_world_size = environment_int("LOCAL_RANK"), environment_int("LOCAL_WORLD_SIZE")
        node_rank = environment_int("GROUP_RANK")
    address = store_host() or os.environ.get("MASTER_ADDR", "")
    return RankFacts(host_identity(), local_rank, local_world_size, node_rank, address, route_address(), total_memory())


def exchange(facts: RankFacts, topic: str, timeout_s: float) -> list[RankFacts]:
    """Publishes this rank's facts and waits for those of all others.

    Args:
        facts: This rank's.
        topic: Ranks that exchange under the same name see each other's facts; a rank's facts stay there for later calls.
        timeout_s: Seconds to wait for all of them.

    Returns:
        One per rank of the process group, in the order of ranks.

    Raises:
        StartTimeout: A rank did not publish in time; names the missing ranks.
    """
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    keys = [f"gnnkit/runtime/{topic}/{other}" for other in range(world_size)]
    store.set(keys[rank], json.dumps(asdict(facts)))
    deadline = time.monotonic() + timeout_s
    for other, key in enumerate(keys):
        try:
            store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        except RuntimeError as error:
            missing = [other, *(late for late in range(other + 1, world_size) if not store.check([keys[late]]))]
            raise StartTimeout(
                f"rank {rank} heard nothing from ranks {missing} within {timeout_s:g} s",
                "every rank of the process group has to get here: all make the loader or call resolve_runtime, in the same way",
            ) from error
    return [RankFacts(**json.loads(store.get(key))) for key in keys]


def route_address() -> str:
    """The address from which packets to other hosts leave; empty without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ROUTE_PROBE)
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def store_host() -> str:
    """The address under which this rank reached the process group's store, where that is a TCP store."""
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", ""))
