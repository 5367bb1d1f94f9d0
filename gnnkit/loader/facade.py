"""``GraphLoader``: the words of the user become a plan, a backend samples it, and PyG batches come out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.backends import backend_from_json
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.events import EventSink
from gnnkit.loader.building import BatchBuilder
from gnnkit.loader.epoch import BatchSteps, EpochIterator, EpochState
from gnnkit.loader.opening import LoaderSources, placed_graph
from gnnkit.loader.options import LoaderOptions
from gnnkit.loader.stats import EpochStats
from gnnkit.loader.transfer import DeviceTransfer, resolve_device
from gnnkit.loader.words import FanOuts, resolve_fan_outs, resolve_input_nodes, to_ids
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.schema import GraphSchema

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from gnnkit.distributed.base_loader import BaseDistLoader
    from gnnkit.ui.cards import Card

STATE_VERSION = 1


class GraphLoader(LoaderSources):
    """Iterates over sampled neighbourhoods of a graph as PyG batches.

    Made by ``from_ogb``, ``from_pyg``, ``from_store``, ``from_source`` or ``from_plan``. A loader may be iterated any number of times, one
    iteration at a time; each is the next epoch, also when the one before was abandoned.

    Args:
        plan: What is sampled.
        graph: The opened graph.
        events: Where progress goes.
        transform: Called on each batch before it is copied to ``device``.
        device: Where batches are copied to; None leaves them in memory.

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
    ) -> None:
        resolved = resolve_device(device)
        pinned = resolved is not None and resolved.type == "cuda"
        self.plan = replace(plan, runtime=replace(plan.runtime, pin_memory=pinned))
        self.epoch = -1
        self._graph, self._events = graph, events
        self._transform, self._device = transform, device
        builder = BatchBuilder(graph.arrays.schema, self.plan, graph.extra, graph.type_extra)
        self._steps = BatchSteps(builder, transform, None if resolved is None else DeviceTransfer(resolved))
        self._next_epoch = self._first_batch = 0
        self._moved = False  # by set_epoch() or load_state_dict() since the last iteration began
        self._state: EpochState | None = None
        self._stream = backend_from_json(plan.backend).open(self.plan, graph, events)
        self._batches = _batch_list(self.plan, graph)
        self._closed = False
        self._lent: weakref.ref[BaseDistLoader] | None = None
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
        if self._state is not None:
            self._state.abandon()
        epoch, first_batch = self._next_epoch, self._first_batch
        _check_same_epoch(self.plan, epoch)
        self._stream.start_epoch(epoch, first_batch)
        # Only now: an epoch that could not be started is still the next one.
        self.epoch, self._next_epoch, self._first_batch, self._moved = epoch, epoch + 1, 0, False
        self._state = EpochState.begin(self.epoch, self._batches.schedule(first_batch), self._events)
        return EpochIterator(self, self._stream, self._state, steps, self.plan.runtime.batch_timeout_s)

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
        return self._steps.all(self._stream.sample_now(self._next_epoch, schedule.turn(0).batch_index))

    def sample(self, input_nodes: Any, *, epoch: int = 0, index: int = 0) -> Data | HeteroData:
        """Samples around nodes of your choice, with this loader's fan-outs.

        Args:
            input_nodes: Ids ``[k]`` or a mask, of the loader's input type.
            epoch: First half of the key that draws differ by; the same key gives the same batch.
            index: Second half.

        Raises:
            PlanError: An id is out of range, or it, ``epoch`` or ``index`` is no whole number.
        """
        self._check_open()
        epoch, index = _whole_number(epoch, "epoch"), _whole_number(index, "index")
        node_type = self.plan.inputs.node_type
        ids = to_ids(input_nodes, self.schema.node_types[node_type].num_nodes, "input_nodes")
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

    def for_split(self, input_nodes: Any, **changes: Any) -> GraphLoader:
        """Another loader on the same graph: other input nodes, other options where they are given.

        Args:
            input_nodes: A split's name, ids, a mask, ``("type", any of these)``, or None for all nodes.
            **changes: Any of ``num_neighbors``, ``batch_size``, ``shuffle`` (False unless given), ``drop_last``, ``replace``, ``seed``,
                ``remainder``, ``transform``, ``device``, ``backend``, ``placement``.

        Raises:
            PlanError: An option is unknown or its value unusable.
        """
        self._check_open()
        options = LoaderOptions.of_plan(self.plan, self._transform, self._device).changed(input_nodes, changes)
        inputs = resolve_input_nodes(input_nodes, self._graph)
        graph, placement = placed_graph(self._graph, options) if "placement" in changes else (self._graph, self.plan.placement)
        num_neighbors: FanOuts = options.num_neighbors
        sampling = replace(self.plan.sampling, num_neighbors=resolve_fan_outs(num_neighbors, self.schema), replace=options.replace)
        backend = options.backend_json(placement)
        batching = options.batching(inputs)
        plan = replace(self.plan, inputs=inputs, sampling=sampling, batching=batching, backend=backend, placement=placement)
        return GraphLoader(plan, graph, self._events, transform=options.transform, device=options.device)

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
        """Width of ``x`` of the input nodes' type; 0 where they have none."""
        spec = self.schema.node_types[self.plan.inputs.node_type].arrays.get("x")
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
            from gnnkit.distributed.lending import lend

            lent = lend(self)
            self._lent = weakref.ref(lent)
        return lent

    def close(self) -> None:
        """Stops sampling; batches that were handed out stay valid. Closing twice is fine."""
        self._closed = True
        if self._state is not None:
            self._state.abandon()
        self._stream.close()

    def __enter__(self) -> GraphLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosed("the loader is closed", "create a new one")

    def __repr__(self) -> str:
        return self._card().to_text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self._card().mimebundle()

    def _card(self) -> Card:
        from gnnkit.loader.card import loader_card

        return loader_card(self.plan, self._graph, self._stream.status(), self.stats(), len(self))


def _whole_number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise PlanError(f"{what} must be a whole number of at least 0, got {value!r}")
    return int(value)


def _batch_list(plan: LoaderPlan, graph: GraphHandle) -> Any:
    from gnnkit.backends.batches import BatchList

    return BatchList(plan, graph)


def _check_same_epoch(plan: LoaderPlan, epoch: int) -> None:
    if plan.batching.world_size > 1:
        from gnnkit.loader.ranks import check_same_epoch

        check_same_epoch(plan, epoch)
