"""The objects of a sampling process whose parts are on other hosts: their holders, connections, and samplers that use them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import gnnkit.sampling.owned  # noqa: F401 - workers ask for what their own host holds in the same way: ``warm`` compiles its kernels
from gnnkit.cluster.parts.client import Peer, RemoteOwners, keep_freed_memory
from gnnkit.cluster.service_client import lease_renewal
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.process_status import start_ticks
from gnnkit.runtime.worker import OtherHosts
from gnnkit.sampling.graph_access import NodeScratch
from gnnkit.sampling.kinds import BatchSampler, warm
from gnnkit.sampling.remote import PartMap, hot_rows, spread_sampler
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.store import Store

# Sampling threads of a process, at least: most of the time they wait for other hosts.
LEAST_THREADS = 4
# Of the time that is left for starting, for waiting for other hosts.
_SHARE = 0.8


class Spreading(OtherHosts):
    """Shared by the sampling threads of a process.

    Args:
        hosts: What the setup message says, see ``gnnkit.cluster.parts``.
        store: The store, with this host's parts open.
        threads: Sampling threads that the user asked for.

    Attributes:
        threads: Sampling threads to run.

    Raises:
        PlanError: A part is on no host, or another host has another token.
        StoreError: Another host has another store.
        StartTimeout: Another host's service was not there in time.
    """

    def __init__(self, hosts: Mapping[str, Any], store: Store, threads: int) -> None:
        keep_freed_memory()
        peers = {int(host): Peer(str(peer["address"]), tuple(peer["parts"]), peer.get("server")) for host, peer in hosts["peers"].items()}
        graph, here = store.arrays(), int(hosts["self"])
        super().__init__(max(threads, LEAST_THREADS))
        elsewhere = {host: peer.parts for host, peer in peers.items()}
        self._where = PartMap.of(graph.num_parts, here, store.local_parts, elsewhere, hot_rows(store))
        self._owners = RemoteOwners(
            peers,
            hosts["token"],
            store.fingerprint,
            num_rows(graph),
            timeout_s=float(hosts["timeout_s"]),
            at_once=self.threads * max(1, len(peers)),
            ca=hosts.get("ca"),
        )
        warm()  # the kernels that only this module has imported
        addresses = {host: peer.address for host, peer in peers.items()}
        self._renewal = lease_renewal(here, addresses, hosts["token"], store.fingerprint, ca=hosts.get("ca"))
        # The starter of this process has been waiting since then, and is to hear which host is missing.
        left_s = float(hosts["start_timeout_s"]) - _age_s()
        self._renewal.begin(max(1.0, _SHARE * left_s))

    def report(self) -> dict[str, Any]:
        """The bytes that have come and gone are sent with each batch."""
        return self._owners.report()

    def leave(self) -> None:
        """Tells the other hosts that this process needs them no more."""
        self._renewal.leave()

    def sampler(self, tables: GraphTables, plan: LoaderPlan, scratch: NodeScratch, *, walks_only: bool) -> BatchSampler:
        """A sampler for one thread, on the thread's memory per node."""
        hosts = self._where, self._owners
        return spread_sampler(tables, plan.inputs, plan.sampling, *hosts, scratch, walks_only=walks_only, cached=plan.cached)


def num_rows(graph: GraphArrays) -> list[int]:
    """Nodes of every type and edges of every type, in the order of ``GraphTables.row_bounds``."""
    bounds = [graph.node_bounds[t] for t in graph.schema.node_types] + [graph.edge_bounds[t] for t in graph.schema.edge_types]
    return [int(ends[-1]) for ends in bounds]


def _age_s() -> float:
    """Seconds since this process was started."""
    ticks = start_ticks(os.getpid())
    return 0.0 if ticks is None else time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
