"""What ranks sample: a plan file for their loaders, and, for as long as they run, a store or servers where there are none for them yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.backends import backend_from_json
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.own_servers import OwnServers
from gnnkit.backends.stored_graph import TemporaryStore, temporary_store
from gnnkit.cluster.serving.credentials import token_for
from gnnkit.cluster.serving.spec import UNIX_PREFIX
from gnnkit.errors import PlanError
from gnnkit.events import EventSink

if TYPE_CHECKING:
    from gnnkit.graph_loader import GraphLoader

_PLAN = "plan.json"


class LaunchInputs:
    """The graph for the ranks of one launch; see ``make``.

    Args:
        loader: The loader whose batches they are to have.
        num_procs: How many ranks there are.

    Raises:
        PlanError: Its graph is spread over several hosts.
    """

    def __init__(self, loader: GraphLoader, num_procs: int) -> None:
        plan, self._graph = loader.plan, loader.pipeline.graph
        if plan.placement is not None and plan.placement.num_hosts > 1:
            raise PlanError(
                f"the loader's graph is spread over {plan.placement.num_hosts} hosts, and launch() starts ranks on this one",
                "loader.export(...) writes the job for several hosts",
            )
        # Loaders of ranks belong to their process group, whatever this one belonged to.
        self._plan = replace(plan, batching=replace(plan.batching, rank=0, world_size=num_procs), placement=None)
        self._store: TemporaryStore | None = None
        self._servers: OwnServers | None = None

    @property
    def title(self) -> str:
        """The graph's name, or its store."""
        return self._graph.name if self._plan.store is None else self._plan.store.path

    def make(self, folder: Path, events: EventSink) -> dict[str, Any]:
        """Makes it; may take as long as writing a graph takes.

        A graph that is only in memory is stored for the run's lifetime. Servers that a loader would start for itself are started once for
        all ranks, apart from those of the notebook's own loaders, which go when these are closed or idle.

        Args:
            folder: Where the plan file goes.
            events: Receives the stages of a build.

        Returns:
            What ranks are told, as JSON values.

        Raises:
            PlanError: The system's limits do not allow it.
            MemoryLimitError: There is no memory for it.
            StoreError: The graph cannot be written.
        """
        plan, backend = self._plan, backend_from_json(self._plan.backend)
        if plan.store is None:
            self._store = temporary_store(self._graph, events)
            plan = replace(plan, store=self._store.reference)
        tokens = {}
        if isinstance(backend, GraphStore) and backend.address is None:
            self._servers = OwnServers(replace(backend, idle_timeout_s=None), plan, self._graph, events)
            backend = replace(backend, address=f"{UNIX_PREFIX}{self._servers.fleet.folder}")
        elif isinstance(backend, GraphStore):
            token = token_for(str(backend.address))
            tokens = {} if token is None else {str(backend.address): token}
        assert plan.store is not None
        replace(plan, backend=backend.to_json()).save(folder / _PLAN)
        return {"path": str(folder / _PLAN), "store": plan.store.path, "tokens": tokens}

    def remove(self) -> None:
        """Ends what was started, and removes what was written, unless somebody else uses it."""
        servers, self._servers, self._store = self._servers, None, None
        if servers is not None:
            servers.stop()


def extra_of(loader: GraphLoader) -> Any:
    """What batches of a graph in memory carry beside what a store holds; None for a graph that is stored."""
    graph = loader.pipeline.graph
    return None if graph.store is not None else (dict(graph.extra), dict(graph.type_extra), graph.name)
