"""``GraphLoader``: the words of the user become a plan, a backend samples it, and PyG batches come out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.backends import backend_from_json
from gnnkit.backends.joined import remember
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.events import EventSink
from gnnkit.loader.advice.readings import Gauge
from gnnkit.loader.building import BatchBuilder
from gnnkit.loader.caching import open_stream
from gnnkit.loader.control import Control
from gnnkit.loader.epoch import BatchSteps, EpochIterator, EpochState
from gnnkit.loader.exporting import LoaderExporting
from gnnkit.loader.history import History
from gnnkit.loader.inference import WholeGraphInference
from gnnkit.loader.link_arrays import to_links
from gnnkit.loader.opening import LoaderSources
from gnnkit.loader.served import check_is_here
from gnnkit.loader.siblings import LoaderSiblings
from gnnkit.loader.stats import EpochStats
from gnnkit.loader.watching import LoaderWatching
from gnnkit.loader.words import to_ids
from gnnkit.plan import InputLinks, LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.sampling.collate import load_batch_classes
from gnnkit.schema import GraphSchema

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from gnnkit.distributed.base_loader import BaseDistLoader
    from gnnkit.loader.feature_cache import FeatureCache

STATE_VERSION = 1


class GraphLoader(LoaderSources, LoaderSiblings, LoaderExporting, LoaderWatching, WholeGraphInference):
    """Iterates over sampled neighbourhoods of a graph as PyG batches.

    Made by ``from_ogb``, ``from_pyg``, ``from_store``, ``from_source`` or ``from_plan``. A loader may be iterated any number of times, one
    iteration at a time; each is the next epoch, also when the one before was abandoned.

    Args:
        plan: What is sampled.
        graph: The opened graph.
        events: Where progress goes.
        transform: Called on each batch before it is copied to ``device``; after that where features are cached there.
        device: Where batches are copied to; None leaves them in memory.
        cache: Features on that device which another loader on the same graph has; used where the plan asks for as many.

    Attributes:
        plan: The plan, ``plan.to_json()`` is JSON.
        epoch: The epoch that is running or ran last; -1 before the first.
    """

    def __init__(
        self,
        plan: LoaderPlan,
        graph: GraphHandle,
        events: EventSink,
        *,
        transform: Callable[[Any], Any] | None = None,
        device: Any = None,
        cache: FeatureCache | None = None,
    ) -> None:
        self.plan = plan
        self.epoch = -1
        history = events if isinstance(events, History) else History(events)
        self._control = Control(history)
        self._graph, self._events = graph, history.sink  # siblings have a history of their own
        self._transform, self._device = transform, device
        self._next_epoch = self._first_batch = 0
        self._moved = False  # by set_epoch() or load_state_dict() since the last iteration began
        self._state: EpochState | None = None
        check_is_here(backend_from_json(plan.backend), graph)
        opened = open_stream(plan, graph, history, device, cache)
        self._stream, self._cache = opened.stream, opened.cache
        builder = BatchBuilder(graph.arrays.schema, opened.plan, graph.extra, graph.type_extra)
        self._steps = BatchSteps.of(builder, transform, device, self._cache)
        self._batches = _batch_list(self.plan, graph)
        self._closed = False
        self._lent: weakref.ref[BaseDistLoader] | None = None
        self._gauge = Gauge(self, graph)
        remember(self)
        weakref.finalize(self, self._stream.close).atexit = False

    # Iteration -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of this rank in one epoch."""
        return len(self._batches.schedule())

    def __iter__(self) -> Iterator[Data | HeteroData]:
        """Starts the next epoch; an iteration that is under way ends."""
        return self._begin(self._steps)

    def _begin(self, steps: BatchSteps) -> EpochIterator:
        """Starts the next epoch, with the given steps on each batch's way."""
        self._check_open()
        if steps is not self._steps and self._cache is not None:
            raise PlanError("batches of a loader with feature_cache are put together on its device", "make it without feature_cache")
        epoch, first_batch = self._next_epoch, self._first_batch
        with self.history.noting(f"the beginning of epoch {epoch}"):
            if self._state is not None:
                self._state.give_up("newer")
            _check_same_epoch(self.plan, epoch)
            if steps is self._steps:
                load_batch_classes()  # before the clock of any batch runs: it takes seconds
            self._stream.start_epoch(epoch, first_batch)
        # Only now: an epoch that could not be started is still the next one.
        self.epoch, self._next_epoch, self._first_batch, self._moved = epoch, epoch + 1, 0, False
        self._state = EpochState.begin(self.epoch, self._batches.schedule(first_batch), self._control)
        if self._closed:  # by another thread meanwhile, which could not know of it
            self._state.give_up("closed")
        return EpochIterator(self, self._stream, self._state, steps, self._control, self.plan.runtime.batch_timeout_s)

    def resume(self) -> Iterator[Data | HeteroData]:
        """Goes on with the epoch that broke off, at the first batch that was not handed out; the same batches come as without the break.

        For ``WorkerDied``, an exception of your own, KeyboardInterrupt or ``break``; after ``load_state_dict`` it goes on from that state.
        An epoch that is complete has no batch left; before the first one, it begins. With several ranks all of them call it, after the
        same number of steps.
        """
        state = self._state
        if state is not None and not self._moved:
            before = self._next_epoch, self._first_batch
            self._next_epoch, self._first_batch = state.epoch, state.schedule.next_batch(state.steps_done)
            try:
                return iter(self)
            except BaseException:  # the next iteration is a whole epoch again
                self._next_epoch, self._first_batch = before
                raise
        return iter(self)

    def peek(self) -> Data | HeteroData:
        """The first batch that the next iteration will give; the epoch does not advance.

        Raises:
            PlanError: There is none: no input nodes, or fewer than a batch with ``drop_last``.
        """
        self._check_open()
        schedule = self._batches.schedule(self._first_batch)
        if not len(schedule):
            raise PlanError("there is no batch to peek at: an epoch of this loader has none", "see len(loader) and input_nodes")
        with self.history.noting():
            load_batch_classes()
            return self._steps.all(self._stream.sample_now(self._next_epoch, schedule.turn(0).batch_index))

    def sample(self, input_nodes: Any, *, epoch: int = 0, index: int = 0) -> Data | HeteroData:
        """Samples around inputs of your choice, as this loader does.

        Args:
            input_nodes: Ids ``[k]`` or a mask, of the loader's input type; for a loader of links ``[2, k]`` ids of sources and targets.
            epoch: First half of the key that draws differ by; the same key gives the same batch.
            index: Second half.

        Raises:
            PlanError: An id is out of range, or it, ``epoch`` or ``index`` is no whole number.
        """
        self._check_open()
        epoch, index = _whole_number(epoch, "epoch"), _whole_number(index, "index")
        inputs = self.plan.inputs
        if isinstance(inputs, InputLinks):
            ids = to_links(input_nodes, inputs.edge_type, self.schema).reshape(-1)
        else:
            schema, time_attr = self.schema.node_types[inputs.node_type], self.plan.sampling.time_attr
            if time_attr is not None and time_attr not in schema.arrays:
                raise PlanError(
                    f"{inputs.node_type!r} nodes have no {time_attr!r} of their own, so sample() does not know their times",
                    "make a loader with input_nodes=... and input_time=... of them",
                )
            ids = to_ids(input_nodes, schema.num_nodes, "input_nodes")
        with self.history.noting():
            load_batch_classes()
            return self._steps.all(self._stream.sample_now(epoch, index, ids))

    # State -----------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration run ``epoch``, from its start.

        Raises:
            PlanError: It is negative or no whole number.
        """
        self._next_epoch, self._first_batch, self._moved = _whole_number(epoch, "epoch"), 0, True

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, for ``load_state_dict`` of a loader with the same plan and any number of ranks.

        Call it on every rank after the same number of steps; every rank's answer is the same.
        """
        epoch, next_batch = self._next_epoch, self._first_batch
        state = self._state
        if state is not None and not state.finished and not self._moved:
            epoch, next_batch = state.epoch, state.schedule.next_batch(state.steps_done)
        batching = self.plan.batching
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "next_batch": next_batch,
            "batch_size": batching.batch_size,
            "num_seeds": self._batches.num_seeds,
            "seed": batching.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration give exactly the batches that were left when ``state`` was taken.

        Raises:
            PlanError: The state is of another kind of loader, or damaged.
        """
        expected = self.state_dict()
        hint = "load what state_dict() of a loader with the same plan gave"
        missing = [name for name in expected if name not in state]
        if missing:
            raise PlanError(f"the state lacks {missing}", hint)
        for name in ("version", "batch_size", "num_seeds", "seed"):
            if state[name] != expected[name]:
                raise PlanError(f"the state has {name}={state[name]!r}, this loader has {expected[name]!r}", hint)
        next_batch, num_batches = state["next_batch"], self._batches.schedule().num_batches
        if isinstance(next_batch, bool) or not isinstance(next_batch, int) or not 0 <= next_batch <= num_batches:
            raise PlanError(f"the state has next_batch={next_batch!r}, an epoch has {num_batches} batches", hint)
        self.set_epoch(state["epoch"])
        self._first_batch = next_batch

    def stats(self) -> EpochStats:
        """Counters of the epoch that is running or ran last."""
        return EpochStats() if self._state is None else self._state.stats()

    # Siblings and lifetime ---------------------------------------------------------------------------------------------

    @property
    def schema(self) -> GraphSchema:
        """Node types, edge types, sizes and arrays of the graph."""
        return self._graph.arrays.schema

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Facts about the dataset ("num_classes", "num_tasks", "task_type", "eval_metric", ...)."""
        return self._graph.metadata

    @property
    def num_features(self) -> int:
        """Width of ``x`` of the input nodes' type, of the sources' for links; 0 where they have none."""
        inputs = self.plan.inputs
        node_type = inputs.edge_type[0] if isinstance(inputs, InputLinks) else inputs.node_type
        spec = self.schema.node_types[node_type].arrays.get("x")
        return 0 if spec is None else int(np.prod(spec.row_shape, dtype=np.int64))

    @property
    def store(self) -> Any:
        """The opened ``Store``, or None for a graph in memory."""
        if self._graph.store is None:
            return None
        from gnnkit.storage.store import Store

        return Store.open(self._graph.store.path, self._graph.arrays.local_parts)

    @property
    def dist_loader(self) -> BaseDistLoader:
        """This loader as a ``graphlearn_torch.distributed.DistLoader``, for code that wants one; batches have its names beside PyG's.

        It is the same loader: iterating one advances the other, and closing either closes both. Needs graphlearn-torch.

        Raises:
            PlanError: graphlearn-torch is not installed.
        """
        self._check_open()
        lent = None if self._lent is None else self._lent()
        if lent is None:
            from gnnkit.distributed.adapter import lend

            lent = lend(self)
            self._lent = weakref.ref(lent)
        return lent

    def close(self) -> None:
        """Stops sampling, from any thread: an iteration that waits raises ``LoaderClosed``. Batches that were handed out stay valid.

        Closing twice is fine.
        """
        self._closed = True
        if self._state is not None:
            self._state.give_up("closed")
        self._stream.close()

    def __enter__(self) -> GraphLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosed("the loader is closed", "create a new one")


def _whole_number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise PlanError(f"{what} must be a whole number of at least 0, got {value!r}")
    return int(value)


def _batch_list(plan: LoaderPlan, graph: GraphHandle) -> Any:
    from gnnkit.runtime.batches import BatchList

    return BatchList(plan, graph)


def _check_same_epoch(plan: LoaderPlan, epoch: int) -> None:
    if plan.batching.world_size > 1:
        from gnnkit.loader.ranks import check_same_epoch

        check_same_epoch(plan, epoch)
