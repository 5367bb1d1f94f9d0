"""A pipeline: an opened plan, with its graph, stream, epochs and history; and how sources, stores and plans are opened as one."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import Array, Dates, checks_arguments, checks_calls
from gnnkit.backends import backend_from_json
from gnnkit.backends.base import Backend, StreamStatus, check_owner, joined, remember
from gnnkit.backends.devices import cache_device, device_for, device_of
from gnnkit.backends.inprocess import InProcessStream
from gnnkit.backends.on_device import backend_for_data
from gnnkit.bounds import MOST_BATCHES, is_whole, shown, whole_number
from gnnkit.callers import unpacks_items, warn
from gnnkit.errors import LoaderClosed, NoSuchAttribute, PlanError, on_error
from gnnkit.events import EventSink, ignore_events
from gnnkit.loader.advice import Gauge
from gnnkit.loader.building import BatchBuilder, check_paddable, with_shapes
from gnnkit.loader.epoch import BatchSteps, EpochIterator, EpochState, EpochStats, check_same_epoch
from gnnkit.loader.feature_cache import open_stream
from gnnkit.loader.history import Gate, History, Records
from gnnkit.loader.inputs import resolve_rank, wants_all_edges
from gnnkit.loader.options import GivenOptions, LoaderOptions
from gnnkit.loader.planned import (
    as_rank,
    check_store_has,
    check_undivided,
    checked_inputs,
    has_edge_arrays,
    open_in_memory,
    open_planned,
    open_store,
    placed_graph,
    plan_file,
)
from gnnkit.loader.served import check_is_here
from gnnkit.loader.subgraphs import SaintNorms
from gnnkit.plan import InputAnchors, InputLinks, InputNodes, Inputs, LoaderPlan, Placement, Sampling
from gnnkit.plan.sampling import EdgeUse
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.sampling.collate import is_importing, load_batch_classes
from gnnkit.sampling.schedule import Schedule
from gnnkit.sampling.subgraph import shown_name
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.arrays import num_classes
from gnnkit.storage.store import Store
from gnnkit.user_arrays import as_of, to_ids, to_links, to_times

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from typing_extensions import Self

    from gnnkit.datasets.pyg import PyGSource
    from gnnkit.loader.feature_cache import FeatureCache
    from gnnkit.source import GraphSource
    from gnnkit.storage.layout import BuildOptions


STATE_VERSION = 1


@checks_calls()
class Controls:
    """Members that users of a loader and the packages below it share: iteration, position, state, holding it, and its graph."""

    @property
    def pipeline(self) -> Pipeline:
        """The opened plan; in a forked child, one of the child's own."""
        raise NotImplementedError

    @property
    def _opened(self) -> Pipeline:
        """The opened plan, in a forked child too, where it can only be asked for what it was."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches of this rank in one epoch: of all of it, until there is a process group, torchrun's environment or a given rank."""
        return len(self._opened.schedule())

    def __iter__(self) -> Iterator[Data | HeteroData]:
        """Starts the next epoch; an iteration that is under way ends.

        Raises:
            PlanError: The loop unpacks batches, as in ``for x, y in loader``.
        """
        # A batch would give its attributes, one by one. What a user's own function makes of it may well be a pair.
        if self.pipeline.transform is None and unpacks_items():
            advice = "for batch in loader: x, y = batch.x, batch.y[: batch.batch_size]"
            raise PlanError("a loader gives one PyG object a batch, and no tuple", f"{advice}; or transform= makes tuples of batches")
        return self.pipeline.begin(self.pipeline._steps)

    def resume(self) -> Iterator[Data | HeteroData]:
        """Goes on with the epoch that broke off, at the first batch that was not handed out; the same batches come as without the break.

        For ``WorkerDied``, an exception of your own, KeyboardInterrupt or ``break``; after ``load_state_dict`` it goes on from that state.
        An epoch that is complete has no batch left; before the first one, it begins. With several ranks all of them call it, after the
        same number of steps.
        """
        here = self.pipeline
        with here._turning:
            state = here._state
            if state is not None and not here._moved:
                before = here.next_epoch, here._first_batch
                here.next_epoch, here._first_batch = state.epoch, state.schedule.next_batch(state.steps_done)
                try:
                    return iter(here)
                except BaseException:  # the next iteration is a whole epoch again
                    here.next_epoch, here._first_batch = before
                    raise
            return iter(here)

    def peek(self) -> Data | HeteroData:
        """The first batch that the next iteration will give; the epoch does not advance.

        Raises:
            PlanError: There is none: no input nodes, or fewer than a batch with ``drop_last``.
        """
        here = self.pipeline
        here._check_graph()
        schedule = here.schedule(here._first_batch)
        if not len(schedule):
            raise PlanError("there is no batch to peek at: an epoch of this loader has none", "see len(loader) and input_nodes")
        step = schedule.step(0)
        with here.history.noting():
            load_batch_classes(here.history)
            subgraph = here.stream.sample_now(here.next_epoch, step.batch_index)
            subgraph.is_padding = step.is_padding
            return here._steps.all(subgraph)

    def sample(self, input_nodes: Array, *, input_time: Dates | None = None, epoch: int = 0, index: int = 0) -> Data | HeteroData:
        """Samples around inputs of your choice, as this loader does.

        Args:
            input_nodes: Ids ``[k]`` or a mask, of the loader's input type; for a loader of links ``[2, k]`` ids of sources and targets.
            input_time: With ``time_attr``: nothing later is sampled around a node; a time for all of them, or ``[k]``; None is each
                node's own.
            epoch: First half of the key that draws differ by; the same key gives the same batch.
            index: Second half.

        Raises:
            PlanError: An id is out of range, or it, ``epoch`` or ``index`` is no whole number, or a time is none or missing.
        """
        here = self.pipeline
        here._check_graph()
        epoch, index = (whole_number(name, value, 0, MOST_BATCHES) for name, value in (("epoch", epoch), ("index", index)))
        inputs, time_attr = here.plan.inputs, here.plan.sampling.time_attr
        if isinstance(input_nodes, tuple) and input_nodes and isinstance(input_nodes[0], (str, tuple)):
            other = f"loader.{'for_links' if isinstance(inputs, InputLinks) else 'for_split'}((type, ids)) makes a loader of another type"
            raise PlanError(f"sample() takes ids alone: the inputs of this loader are of the type {inputs.input_type!r}", other)
        if input_time is not None and (time_attr is None or not isinstance(inputs, InputNodes)):
            hint = "say time_attr='time' where the loader is made" if time_attr is None else "make a loader of such links or anchors"
            raise PlanError("input_time is given, and no times of nodes are compared with it", hint)
        if isinstance(inputs, InputLinks):
            ids = to_links(input_nodes, inputs.edge_type, here.schema).reshape(-1)
        else:
            schema = here.schema.node_types[inputs.node_type]
            if time_attr is not None and time_attr not in schema.arrays and input_time is None:
                raise PlanError(
                    f"{inputs.node_type!r} nodes have no {time_attr!r} of their own, so sample() does not know their times",
                    "loader.sample(ids, input_time=...) says one for all, or one for each",
                )
            if _window_of(inputs) is not None:
                raise PlanError(
                    "time_window is one for each of the loader's inputs, so sample() does not know that of others",
                    "make a loader of them: for_split(input_nodes, time_window=...)",
                )
            ids = to_ids(input_nodes, schema.num_nodes, "input_nodes of sample()")
            if input_time is not None:
                ids = as_of(ids, input_time, here.schema.time_unit(time_attr))
        with here.history.noting():
            load_batch_classes(here.history)
            subgraph = here.stream.sample_now(epoch, index, ids)
            subgraph.is_padding = False if here.schedule().can_pad else None
            return here._steps.all(subgraph)

    @property
    def plan(self) -> LoaderPlan:
        """The plan; ``plan.to_json()`` is JSON."""
        here = self._opened
        if here.finds_rank:
            batching = here._plan.batching
            found = resolve_rank(None, None)
            if found != (batching.rank, batching.world_size):
                here._plan = replace(here._plan, batching=replace(batching, rank=found[0], world_size=found[1]))
        return here._plan

    @property
    def epoch(self) -> int:
        """The epoch that is running or ran last; -1 before the first."""
        return self._opened._epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration run ``epoch``, from its start.

        Raises:
            PlanError: It is negative or no whole number.
        """
        self.pipeline._move_to(whole_number("epoch", epoch, 0, MOST_BATCHES), 0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's position, for ``load_state_dict`` of a loader with the same plan and any number of ranks.

        Call it on every rank after the same number of steps; every rank's answer is the same.
        """
        here = self.pipeline
        epoch, next_batch = here.next_epoch, here._first_batch
        state = here._state
        if state is not None and not state.finished and not here._moved:
            epoch, next_batch = state.epoch, state.schedule.next_batch(state.steps_done)
        batching = here.plan.batching
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "next_batch": next_batch,
            "batch_size": batching.batch_size,
            "num_seeds": here.batches.inputs.num_inputs,
            "seed": batching.seed,
            "shuffle": batching.shuffle,
            "drop_last": batching.drop_last,
            **here._digests,
        }

    @checks_arguments
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration give exactly the batches that were left when ``state`` was taken.

        A state from between two epochs may be of a loader with other options than these: the next epoch is this loader's own.

        Raises:
            PlanError: The state is of a loader that gives other batches, or damaged.
        """
        here = self.pipeline
        expected = here.state_dict()
        hint = "load what state_dict() of a loader with the same plan gave"
        missing = [name for name in expected if name not in state]
        if missing:
            raise PlanError(f"the state lacks {missing}", hint)
        for name in ("version", "batch_size", "num_seeds", "seed"):
            if state[name] != expected[name]:
                raise PlanError(f"the state has {name}={state[name]!r}, this loader has {expected[name]!r}", hint)
        others = [name for name in ("shuffle", "drop_last", *here._digests) if state[name] != expected[name]]
        if others and state["next_batch"]:
            raise PlanError(
                f"the state is of the middle of an epoch of a loader with other {' and '.join(others)}: what is left of it is not here",
                f"make the loader with the options of that one; set_epoch({shown(state['epoch'])}) begins an epoch with these",
            )
        next_batch, num_batches = state["next_batch"], here.schedule().num_batches
        if not is_whole(next_batch, 0, num_batches):
            raise PlanError(f"the state has next_batch={shown(next_batch)}, an epoch has {num_batches} batches", hint)
        here._move_to(whole_number("epoch", state["epoch"], 0, MOST_BATCHES), int(next_batch))

    def stats(self) -> EpochStats:
        """Counters of the epoch that is running or ran last."""
        return EpochStats() if self._opened._state is None else self._opened._state.stats()

    def status(self) -> StreamStatus:
        """Returns the loader's state, its processes and its memory.

        It is "ready", "importing" while the first batch of a process waits for torch and PyG, "sampling", "paused", "idle" or "closed".
        """
        here = self._opened
        status = here.stream.status()
        if os.getpid() != here._process:
            return replace(status, state="closed")
        if status.state == "ready" and is_importing():
            return replace(status, state="importing")
        return replace(status, state="paused") if here.is_paused and status.state != "closed" else status

    @property
    def records(self) -> Records:
        """The records of the last batches: times, sizes and workers of each."""
        return self.pipeline.history.records

    @property
    def history(self) -> History:
        """Stages, messages and the last error since the loader was made."""
        return self._opened._history

    def pause(self) -> None:
        """Holds the next batch back until ``unpause``; workers fill their slots meanwhile, and then idle.

        ``batch_timeout_s`` does not run; ``close()``, a newer iteration and an interrupt end the wait. With several ranks, all wait for
        the one that is paused as soon as they meet it, for as long as their process group allows.

        Raises:
            LoaderClosed: The loader is closed.
        """
        here = self.pipeline
        here.check_open()
        here._gate.shut()

    def before_next(self, errand: Callable[[], None]) -> None:
        """Has the thread that asks for the next batch call a function first."""
        self.pipeline._gate.once(errand)

    def unpause(self) -> None:
        """Lets a paused loader go on."""
        self.pipeline._gate.open()

    @property
    def is_paused(self) -> bool:
        """Whether ``pause`` holds the next batch back."""
        return self.pipeline._gate.is_shut

    def restart_workers(self) -> None:
        """Ends the threads or processes that sample and starts others; returns once they are there. Loaders that share them get them too.

        The running epoch goes on with the same batches.

        Raises:
            LoaderClosed: The loader is closed.
            PlanError: They are not this loader's own: servers that were joined, or graphlearn-torch's.
            StartTimeout: The new ones are not there in time.
        """
        here = self.pipeline
        here.check_open()
        with here.history.noting():
            here.stream.restart(here.plan.runtime.start_timeout_s)

    @property
    def schema(self) -> GraphSchema:
        """Node types, edge types, sizes and arrays of the graph."""
        return self.pipeline.graph.arrays.schema

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Facts about the dataset ("num_classes", "num_tasks", "task_type", "eval_metric", ...)."""
        return self.pipeline.graph.metadata

    @property
    def num_features(self) -> int:
        """Width of ``x`` of the input nodes' type, of the sources' for links; 0 where they have none."""
        here = self.pipeline
        spec = here.schema.node_types[here._input_type].arrays.get("x")
        return 0 if spec is None else int(np.prod(spec.row_shape, dtype=np.int64))

    @functools.cached_property
    def num_classes(self) -> int:
        """Outputs that a model needs for the labels ``y`` of that type: classes, or columns where a node has several; 0 without labels.

        Raises:
            PlanError: The labels are numbers to predict, or how many classes there are is not known, and other hosts have some of them.
        """
        here = self.pipeline
        return num_classes(here.graph.arrays, here._input_type, here.metadata)

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph, of all types."""
        return self.pipeline.schema.num_nodes

    @property
    def num_edges(self) -> int:
        """Edges of the graph, of all types."""
        return self.pipeline.schema.num_edges

    @property
    def store(self) -> Store:
        """The opened store.

        Raises:
            PlanError: The graph is only in memory.
        """
        here = self.pipeline
        stored = here.graph.store
        arrays = here.graph.arrays
        if stored is None:
            raise NoSuchAttribute(
                "this loader's graph is only in memory and has no store",
                "store = gnnkit.partition(data, out='stores/graph'), then GraphLoader.from_store(store, ...)",
            )
        return Store.open(stored.path, arrays.local_parts, stored.url, whole_structure=arrays.whole_structure)

    def close(self) -> None:
        """Stops sampling, from any thread: an iteration that waits raises ``LoaderClosed``. Batches that were handed out stay valid.

        Closing twice is fine, and so is closing in a forked child, where it does nothing.
        """
        here = self._opened
        if os.getpid() != here._process:
            return
        here._closed = True
        if here._state is not None:
            here._state.give_up("closed")
        here.stream.close()
        here.cache, here._steps = None, replace(here._steps, finish=None)  # the device's memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Pipeline(Controls):
    """A plan with its graph, its stream of batches and its epochs: the machinery of ``GraphLoader``, and all that packages below it need.

    All members may be used from any thread. It is pickled as its plan, with a graph that is only in memory, and opened at the other end:
    on the same store, at the epoch that its next iteration would run. A forked child opens it by ``in_this_process``.

    Args:
        plan: What is sampled.
        graph: The opened graph.
        events: Where progress goes.
        backend: The backend that the plan names, where the caller has it; None makes it of the plan.
        transform: Called on each batch before it is copied to ``device``; after that where features are cached there.
        device: The device that batches are copied to; None leaves them in memory.
        cache: Features on that device which another pipeline on the same graph has; used where the plan asks for as many.
        finds_rank: Whether rank and world size are found by ``resolve_rank`` whenever they are asked for; else they are the plan's.

    Attributes:
        graph: See above.
        events: Where progress goes, without this pipeline's history.
        backend: See above.
        transform: See above.
        device: See above.
        cache: The features that are kept on the device; None where none are.
        finds_rank: See above.
        stream: Where batches come from.
        gauge: Readings of what the system counts while epochs run.
        next_epoch: The epoch that the next iteration runs.

    Raises:
        PlanError: The device is not there, or the backend or the graph does not allow what the plan says.
        MemoryLimitError: There is no memory for it.
        StartTimeout: The processes that sample are not ready in time.
    """

    def __init__(
        self,
        plan: LoaderPlan,
        graph: GraphHandle,
        events: EventSink,
        *,
        backend: Backend | None = None,
        transform: Callable[[Any], Any] | None = None,
        device: Any = None,
        cache: FeatureCache | None = None,
        finds_rank: bool = False,
    ) -> None:
        self._plan, self.finds_rank = plan, finds_rank
        self._epoch = -1
        history = events if isinstance(events, History) else History(events)
        self._history, self._gate = history, Gate()
        self.graph, self.events = graph, history.sink  # pipelines beside this one have a history of their own
        self.transform = transform
        self.next_epoch = self._first_batch = 0
        self._moved = False  # by set_epoch() or load_state_dict() since the last iteration began
        self._state: EpochState | None = None
        # Held while an iteration gives way to the next one, and while something changes which one that is.
        self._turning = threading.RLock()
        self.backend = backend_from_json(plan.backend) if backend is None else backend
        self.device = device = device_for(self.backend, device)
        check_is_here(self.backend, graph)
        check_paddable(plan, graph.arrays.schema)
        self.stream, sampled, self.cache = open_stream(plan, self.backend, graph, history, device, cache)
        with on_error(self.stream.close):
            self._plan = with_shapes(plan, self.stream, self.schedule().num_batches, history)
            norms = SaintNorms.counted(plan, self.stream, graph.arrays.schema, history)
        builder = BatchBuilder(graph.arrays.schema, replace(sampled, form=self._plan.form), *graph.shown_extra(), norms)
        self._steps = BatchSteps.of(builder, transform, device, self.cache)
        self._closed, self._process = False, os.getpid()
        self.gauge = Gauge(self, graph)
        remember(self)
        weakref.finalize(self, self.stream.close).atexit = False

    @property
    def pipeline(self) -> Pipeline:
        """Itself."""
        return self

    _opened = pipeline

    @property
    def batches(self) -> BatchList:
        """The plan's list of batches."""
        return self.stream.batches

    def schedule(self, first_batch: int = 0) -> Schedule:
        """The steps of an epoch from its batch ``first_batch`` on, of the rank that this trainer has now."""
        return self.batches.schedule(self.plan.batching, first_batch)

    # Iteration -------------------------------------------------------------------------------------------------------

    def begin(self, steps: BatchSteps) -> EpochIterator:
        """Starts the next epoch, with the given steps on each batch's way.

        Raises:
            LoaderClosed: It is closed.
            PlanError: Features are cached on a device, and the steps are others than its own; or ranks are on different epochs.
        """
        self._check_graph()
        if steps is not self._steps and self.cache is not None:
            raise PlanError("batches of a loader with feature_cache are put together on its device", "make it without feature_cache")
        with self._turning, self.history.noting(f"the beginning of epoch {self.next_epoch}"):
            epoch, schedule = self.next_epoch, self.schedule(self._first_batch)
            if self._state is not None:
                self._state.give_up("newer")
            check_same_epoch(self.plan, epoch)
            if steps is self._steps:
                load_batch_classes(self.history)  # before the clock of any batch runs: it takes seconds
            self.stream.start_epoch(epoch, schedule)
            # Only now: an epoch that could not be started is still the next one.
            self._epoch, self.next_epoch, self._first_batch, self._moved = epoch, epoch + 1, 0, False
            state = self._state = EpochState.begin(epoch, schedule, self.history)
        if self._closed:  # by another thread meanwhile, which could not know of it
            state.give_up("closed")
        timeout_s = self.plan.runtime.batch_timeout_s
        return EpochIterator(self, self.stream, state, steps, self.history, self._gate, timeout_s, self.graph.check_unchanged)

    def sample_at(self, positions: NDArray[np.int64], index: int) -> Any:
        """Samples a batch of some of this loader's inputs in the calling thread; on ``InProcess``.

        Args:
            positions: int64 ``[k]``, places of the inputs.
            index: Its draws are those of this batch of epoch 0.
        """
        self._check_graph()
        return self._sample_here(index, positions, self.batches.inputs.arrays(positions))

    def sample_inputs(self, ids: Any, time: Any, index: int) -> Any:
        """Samples a batch of other inputs of this loader's type in the calling thread; on ``InProcess``.

        Args:
            ids: Ids ``[k]``; for a loader of links ``[2, k]`` ids of sources and targets.
            time: Whole numbers ``[k]``, with ``time_attr``; None is each node's own time.
            index: Its draws are those of this batch of epoch 0.

        Raises:
            PlanError: An id is out of range, or times are no whole numbers.
        """
        self._check_graph()
        inputs = self.plan.inputs
        if isinstance(inputs, InputLinks):
            src, dst = to_links(ids, inputs.edge_type, self.schema)
            arrays = {"src": np.ascontiguousarray(src), "dst": np.ascontiguousarray(dst)}
        else:
            src = to_ids(ids, self.schema.node_types[inputs.node_type].num_nodes, "input_nodes")
            arrays = {"node": src}
        if time is not None:
            what = "edge_label_time" if isinstance(inputs, InputLinks) else "input_time"
            arrays["time"] = to_times(time, what, len(src), "inputs", self.schema.time_unit(self.plan.sampling.time_attr))
        return self._sample_here(index, np.arange(len(src), dtype=np.int64), arrays)

    def _sample_here(self, index: int, input_id: NDArray[np.int64], arrays: Mapping[str, NDArray[Any]]) -> Any:
        assert isinstance(self.stream, InProcessStream), "other streams sample elsewhere"
        with self.history.noting():
            load_batch_classes(self.history)
            return self._steps.all(self.stream.sample_request(0, index, self.batches.request_of(0, index, input_id, arrays)))

    def _move_to(self, epoch: int, first_batch: int) -> None:
        with self._turning:
            self.next_epoch, self._first_batch, self._moved = epoch, first_batch, True

    @functools.cached_property
    def _digests(self) -> dict[str, str]:
        """Digests of what an epoch's batches follow from, beside the values that ``state_dict`` has itself."""
        plan = self._plan
        parts = {"parts": plan.store.fingerprint} if plan.batching.is_by_part and plan.store is not None else {}
        return {"inputs": plan.inputs.digest(), "sampling": plan.sampling.digest(), **parts}

    # Beside and after it ----------------------------------------------------------------------------------------------------

    @property
    def _input_type(self) -> NodeType:
        """The type of the input nodes; of the sources for links."""
        inputs = self.plan.inputs
        return inputs.edge_type[0] if isinstance(inputs, InputLinks) else inputs.node_type

    def with_backend(self, backend: Backend | str, changes: Mapping[str, Any], events: EventSink | None = None) -> Pipeline:
        """The same batches from another backend, with other options where they are given; see ``changed``."""
        batching = self.plan.batching
        kept = {"shuffle": batching.shuffle, "remainder": batching.remainder, "backend": backend}
        return self.changed(lambda sampling: checked_inputs(self.plan.inputs, sampling, self.graph), {**kept, **changes}, events)

    def changed(
        self,
        inputs_on: Callable[[Sampling], tuple[Inputs, Sampling]],
        changes: Mapping[str, Any],
        events: EventSink | None = None,
    ) -> Pipeline:
        """A pipeline on the same graph with other options.

        Args:
            inputs_on: Gives the inputs, and the sampling with what they change of it.
            changes: The options that differ.
            events: Where its progress goes; None is where this one's goes.

        Raises:
            PlanError: An option is unknown or its value unusable.
            LoaderClosed: This one is closed.
        """
        self.check_open()
        if self.finds_rank:
            changes = {"rank": None, "world_size": None, **changes}
        options = LoaderOptions.of_plan(self.plan, self.backend, self.transform, self.device).changed(changes)
        graph, placement = placed_graph(self.graph, options) if "placement" in changes else (self.graph, self.plan.placement)
        plan, backend = options.plan(graph, placement, EdgeUse.of(self.plan.sampling), inputs_on, events or self.events)
        if _window_of(self.plan.inputs) is not None and _window_of(plan.inputs) is None and "time_window" not in changes:
            raise PlanError("this loader's time_window is one for each of its own inputs", "say that of the others: time_window=...")
        return _opened(plan, graph, events or self.events, backend, options, self.cache)

    def in_this_process(self) -> Pipeline:
        """This pipeline; in a forked child, which has none of its threads and processes, one of the child's own in its place."""
        if self._closed or os.getpid() == self._process:
            return self
        how = {"backend": self.backend, "transform": self.transform, "device": self.device, "finds_rank": self.finds_rank}
        opened = Pipeline(self._plan, self.graph.after_fork(), ignore_events, **how)
        opened._move_to(self.next_epoch, self._first_batch)
        return opened

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        graph = self.graph
        memory = None if graph.store is not None else (graph.source, graph.build, graph.name)
        position = self.next_epoch, self._first_batch
        return _reopened, (self._plan, memory, self.transform, self.device, self.finds_rank, position)

    def _check_graph(self) -> None:
        """Looks whether batches can be made: the loader is open, and a graph in memory is as it was, which other processes have copied."""
        self.check_open()
        self.graph.check_unchanged()

    def check_open(self) -> None:
        """Raises ``LoaderClosed`` where it is closed, or another process's."""
        if self._closed:
            raise LoaderClosed("the loader is closed", "create a new one")
        check_owner(self._process)


def _window_of(inputs: Inputs) -> NDArray[np.int64] | None:
    """The time windows of the inputs, where each has its own."""
    return None if isinstance(inputs, InputAnchors) else inputs.window


def open_plan(
    path: str | Path | None, *, rank: int | None, world_size: int | None, events: EventSink, transform: Any = None, device: Any = None
) -> Pipeline:
    """Opens a written plan; the arguments are those of ``GraphLoader.from_plan``."""
    plan, finds_rank = as_rank(LoaderPlan.load(plan_file(path)), rank, world_size)
    return _on_planned(plan, events, transform=transform, device=device, finds_rank=finds_rank)


def _on_planned(plan: LoaderPlan, events: EventSink, **how: Any) -> Pipeline:
    """A pipeline on the store of a plan; ``how`` are arguments of ``Pipeline``."""
    plan, backend, graph = open_planned(plan, events)
    return Pipeline(plan, graph, events, backend=backend, **how)


def _reopened(
    plan: LoaderPlan,
    memory: tuple[PyGSource, BuildOptions, str] | None,
    transform: Callable[[Any], Any] | None,
    device: Any,
    finds_rank: bool,
    position: tuple[int, int],
) -> Pipeline:
    """A pipeline that has been pickled; ``memory`` is the graph where it is only in memory."""
    how = {"transform": transform, "device": device, "finds_rank": finds_rank}
    opened = _on_planned(plan, ignore_events, **how) if memory is None else Pipeline(plan, open_in_memory(*memory), ignore_events, **how)
    opened._move_to(*position)
    return opened


def on_built(source: GraphSource, given: GivenOptions, folders: Sequence[Path], events: EventSink) -> Pipeline:
    """A pipeline on the store of a source, which is built in the first of some folders where none of them has it."""
    from gnnkit.storage.catalog import find_or_build  # partitioners

    with_edge = given.with_edge
    if with_edge is None:  # ids say the order of links, too
        with_edge = has_edge_arrays(source.schema) or wants_all_edges(given.inputs.edge_label_index)
    build = replace(given.build, with_edge=bool(with_edge))
    store = find_or_build(source, build, folders[0], events, shared=folders[1:], opener=given.loader.site.open)
    return on_store(store, given, events)


def near_data(given: GivenOptions, data: Any) -> GivenOptions:
    """The options with "auto" settled for data on a device of torch's: it is sampled there. A backend that was joined comes first.

    Raises:
        PlanError: The data is to be spread over hosts.
    """
    check_undivided(given.loader)
    own, device = given.loader, device_of(data)
    if own.backend != "auto" or joined() is not None or cache_device(own.device) not in (None, device):
        return given
    return replace(given, loader=replace(own, backend=backend_for_data(own.backend, device, own.sampler), device=own.device or device))


def on_store(store: Store, given: GivenOptions, events: EventSink) -> Pipeline:
    """A pipeline on a store."""
    check_store_has(store, given.build.weight, given.build.time_attr, given.with_edge)
    with_edge = store.options.with_edge if given.with_edge is None else given.with_edge
    return on_graph(open_store(store), given, given.loader.site.placement(store.manifest, store.path), with_edge, events)


def on_graph(graph: GraphHandle, given: GivenOptions, placement: Placement | None, with_edge: bool, events: EventSink) -> Pipeline:
    """A pipeline on an opened graph."""
    if taken := sorted(name for name in graph.names() if shown_name(name) != name):
        warn(f"batches have {taken} of their own; the graph's attributes of these names are on them as {[*map(shown_name, taken)]}")
    options, edges = given.loader, EdgeUse(graph.arrays.edge_dir, given.build.weight, given.build.time_attr, bool(with_edge))
    plan, backend = options.plan(graph, placement, edges, lambda sampling: (given.inputs.resolve(sampling, graph), sampling), events)
    return _opened(plan, graph, events, backend, options)


def _opened(
    plan: LoaderPlan, graph: GraphHandle, events: EventSink, backend: Backend, options: LoaderOptions, cache: FeatureCache | None = None
) -> Pipeline:
    how: dict[str, Any] = {"transform": options.transform, "device": options.device, "cache": cache}
    return Pipeline(plan, graph, events, backend=backend, **how, finds_rank=options.rank is None)
