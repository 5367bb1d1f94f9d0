"""The tasks that build a store on a Ray cluster, and their driver: edges to the parts that own them, then each part by itself.

Edges are read in ranges, each by a task that divides its edges by owner; Ray's object store keeps the pieces, and spills them. A task for
each part puts its pieces in the order of the ranges, which is the dataset's, and writes the part as every other host does that builds one.
Rows of nodes are read by their owners where a part is a range of them, and are divided as edges are where it is not.

These are plain tasks and not Ray Data's shuffle: the order of edges within a node decides the bytes of a store, and here it needs no
sorting by the edges' numbers, nor these numbers at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.streaming import Spool
from gnnkit.errors import DatasetError, GnnkitError, WorkerDied
from gnnkit.events import EventSink, Stage
from gnnkit.schema import ArraySpec, EdgeType, NodeType
from gnnkit.source import GraphSource
from gnnkit.storage.build import BuildJob, build_parts
from gnnkit.storage.convert import ColumnRange, unmeasured
from gnnkit.storage.edge_values import check_weights
from gnnkit.storage.inputs import EdgeBatch, EdgeTotals, GraphTotals, SourceInput, batch_rows
from gnnkit.storage.kernels import bucket_order
from gnnkit.storage.layout import BuildOptions, contiguous, end_specs, index_dtype, store_schema, weighted_edge_types
from gnnkit.storage.writer import BLOCK_BYTES, EDGE_BYTES, check_ends

# Bytes of a range, as a task reads it; a small graph is cut into as many ranges as give each processor a few.
_RANGE_BYTES, _RANGES_OF_A_PROCESSOR = 64 << 20, 4
_SMALLEST_RANGE_BYTES = 1 << 18
# How often Ray repeats a task whose process or node is gone.
_REPEATS = 8
# Seconds that the first attempt of a repeated task may take to release its part, and between two looks at the cluster.
_LOCK_WAIT_S, _LOOK_S = 120.0, 5.0
# Seconds in which nothing works on what is pending: Ray has lost track of what it has to do, which happens where a node has gone.
_IDLE_S, _IDLE_AFTER_LOSS_S = 60.0, 20.0


class StoodStill(WorkerDied):
    """Nothing works on the tasks that are left; they are cancelled."""


T = TypeVar("T")
# Columns of some rows: ``{name: [k, ...]}``.
Piece: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class BuildTask:
    """A store to build, as all tasks get it.

    Attributes:
        source: The graph, a ``RangedSource``.
        options: The options to build it with.
        path: The store's folder, which all nodes see.
        fingerprint: Fingerprint of the result.
        parts: The parts to build.
        assignment: ``{node type: the part of each node}``; None where parts are contiguous ranges.
    """

    source: Any
    options: BuildOptions
    path: str
    fingerprint: str
    parts: tuple[int, ...]
    assignment: Mapping[NodeType, NDArray[Any]] | None

    def job(self, open_input: Callable[[Path, EventSink], PartInput]) -> BuildJob:
        """The job that writes one part, or what every host has, of an input of its own."""
        return BuildJob(open_input, Path(self.path), self.options, self.fingerprint, "partition", parts=self.assignment)

    def order(self, node_type: NodeType, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A stable order of nodes by part, int64 ``[k]``, and where each part begins in it, ``[num_parts + 1]``."""
        count = self.options.num_parts
        if self.assignment is None:
            bounds = self._bounds(node_type)
        else:
            ids, bounds = self.assignment[node_type][ids].astype(np.int64), np.arange(count + 1)
        order, starts = np.empty(len(ids), np.int64), np.empty(count + 1, np.int64)
        bucket_order(np.require(ids, np.int64, ["C", "W"]), bounds, order, starts)
        return order, starts

    def range_of(self, node_type: NodeType, part: int) -> tuple[int, int]:
        """The first of a part's nodes and the first one behind them, where parts are ranges."""
        low, high = self._bounds(node_type)[part : part + 2].tolist()
        return low, high

    def _bounds(self, node_type: NodeType) -> NDArray[np.int64]:
        return contiguous(self.source.schema.node_types[node_type].num_nodes, self.options.num_parts).bounds

    def edge_specs(self, edge_type: EdgeType) -> dict[str, ArraySpec]:
        """The columns of pieces of edges. Arrays may be called anything, so theirs are numbered."""
        schema = self.source.schema
        specs = dict(zip(("source", "target"), end_specs(schema, edge_type), strict=True))
        edges = schema.edge_types[edge_type]
        if self.options.with_edge:
            specs["edge_id"] = ArraySpec(index_dtype(edges.num_edges).name)
        return specs | {f"array{k}": spec for k, spec in enumerate(edges.arrays.values())}

    @cached_property
    def measured(self) -> Mapping[NodeType | EdgeType, Mapping[str, ArraySpec]]:
        """The source's arrays that are to be quantised, by type."""
        source, stored = self.source.schema, store_schema(self.source.schema, self.options, self.source.metadata)
        owners: list[NodeType | EdgeType] = [*source.node_types, *source.edge_types]
        return {t: {name: source.arrays_of(t)[name] for name in unmeasured(stored.arrays_of(t))} for t in owners}

    def ranges_of(self, owner: NodeType | EdgeType, rows: Mapping[str, NDArray[Any]]) -> dict[str, ColumnRange]:
        """The ranges of the columns of those rows of a type's arrays that are to be quantised."""
        found = {}
        for name, spec in self.measured[owner].items():
            if name in rows:
                found[name] = ColumnRange.of_none(spec.row_shape[0])
                found[name].add_rows(rows[name], spec)
        return found


class PartInput(SourceInput):
    """The input of one part's builder: its own edges, which came in pieces, and its own rows.

    Args:
        task: The build.
        part: The part; None for what every host has.
        totals: What is known of all parts.
        edges: ``{edge type: pieces}`` in the order of the ranges.
        nodes: ``{(node type, array): pieces}``, likewise, where parts are no ranges of nodes.
        folder: Where edges are kept while they are read.
        source: The source of which splits and keys are written; None is the task's.
    """

    def __init__(
        self,
        task: BuildTask,
        part: int | None,
        totals: GraphTotals,
        edges: Mapping[EdgeType, Iterator[Piece]],
        nodes: Mapping[tuple[NodeType, str], Iterator[Piece]],
        folder: Path,
        source: GraphSource | None = None,
    ) -> None:
        super().__init__(source or task.source)
        self.totals = totals
        self._task, self._part, self._pieces, self._nodes, self._folder = task, part, edges, nodes, folder
        self._spools: dict[EdgeType, Spool] = {}

    def cheap_to_reread(self, edge_type: EdgeType, names: Sequence[str]) -> bool:
        """They are in files."""
        return True

    def owner_window(self, edge_type: EdgeType, options: BuildOptions) -> int | None:
        """Files are read as often as it takes."""
        return None

    def edge_batches(self, edge_type: EdgeType, names: Sequence[str]) -> Iterator[EdgeBatch]:
        """Yields the part's own edges."""
        if self._part is None:
            return
        schema, spool = self.schema.edge_types[edge_type], self._spooled(edge_type)
        columns = {name: f"array{k}" for k, name in enumerate(schema.arrays)}
        size = batch_rows(schema.arrays[name] for name in names)
        for first in range(0, spool.num_rows, size):
            last = min(first + size, spool.num_rows)
            source, target = (spool.read(name, first, last).astype(np.int64) for name in ("source", "target"))
            ids = spool.read("edge_id", first, last).astype(np.int64) if self._task.options.with_edge else None
            yield EdgeBatch(first, source, target, ids, {name: spool.read(columns[name], first, last) for name in names})

    def _spooled(self, edge_type: EdgeType) -> Spool:
        if edge_type not in self._spools:
            spool = Spool(self._task.edge_specs(edge_type), self._folder)
            for piece in self._pieces[edge_type]:
                spool.append(piece)
            self._spools[edge_type] = spool
        return self._spools[edge_type]

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields the part's own rows."""
        if self._part is None:
            return
        if self._task.assignment is not None:
            yield from (piece["rows"] for piece in self._nodes[node_type, name])
            return
        nodes = self.schema.node_types[node_type]
        low, high = self._task.range_of(node_type, self._part)
        step = max(1, BLOCK_BYTES // max(1, nodes.arrays[name].row_nbytes))
        for first in range(low, high, step):
            yield self._task.source.node_array_rows(node_type, name, first, min(first + step, high))


# Tasks: what follows runs in processes of Ray's, on any node ------------------------------------------------------------------


@dataclass(frozen=True)
class RangeFacts:
    """The facts of a range that a task has read.

    Attributes:
        node: The node of the cluster that has read it.
        nbytes: Bytes that were read.
        counts: Its edges of each part; empty where it is a range of nodes.
        largest_weight: See ``EdgeTotals``.
        ranges: Those of the columns of its arrays that are to be quantised.
    """

    node: str
    nbytes: int
    counts: tuple[int, ...] = ()
    largest_weight: float = 0.0
    ranges: Mapping[str, ColumnRange] = field(default_factory=dict)


# This process's last build, by the number of its object: what a source finds out about itself serves all tasks.
_held: dict[str, Any] = {}


def _taken(held: Sequence[Any]) -> Any:
    import ray

    (reference,) = held
    if reference.hex() not in _held:
        _held.clear()
        _held[reference.hex()] = ray.get(reference)
    return _held[reference.hex()]


def _here() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def call(held: Sequence[Any], function: Callable[..., T], words: Sequence[Any]) -> tuple[str, T]:
    """Calls ``function(shared, *words)``; returns the node, and what comes of it.

    Args:
        held: The reference of what all calls share, alone in a list.
        function: A function of a module that every node has.
        words: Its further arguments.
    """
    return _here(), function(_taken(held), *words)


def divide_edges(held: Sequence[Any], edge_type: EdgeType, first: int, last: int) -> tuple[Any, ...]:
    """Reads edges, and divides them by the parts that own them.

    Args:
        held: The reference of the ``BuildTask``, alone in a list.
        edge_type: Their type.
        first: The first of them.
        last: The first one behind them.

    Returns:
        ``RangeFacts``, and a ``Piece`` for each part that is built.

    Raises:
        DatasetError: An end of an edge is no node, or a weight is none.
        PlanError: See ``check_weights``.
    """
    task: BuildTask = _taken(held)
    options, schema, source = task.options, task.source.schema, task.source
    edges = source.edge_rows(edge_type, first, last)
    if edges.shape != (2, last - first):
        raise DatasetError(f"{source.name} has edges of shape {edges.shape} where [2, {last - first}] were asked for")
    batch = EdgeBatch(first, edges[0], edges[1])
    check_ends(schema, edge_type, batch)
    owner = (edge_type[2], edges[1]) if options.edge_dir == "in" else (edge_type[0], edges[0])
    order, starts = task.order(*owner)
    columns: dict[str, NDArray[Any]] = {"source": edges[0], "target": edges[1]}
    if options.with_edge:
        columns["edge_id"] = np.arange(first, last)
    nbytes, largest = edges.nbytes, 0.0
    arrays: dict[str, NDArray[Any]] = {}
    for number, name in enumerate(schema.edge_types[edge_type].arrays):
        rows = columns[f"array{number}"] = arrays[name] = source.edge_array_rows(edge_type, name, first, last)
        nbytes += rows.nbytes
        if name == options.weight and edge_type in weighted_edge_types(schema, options):
            largest = check_weights(rows, edge_type, name, first)
    specs = task.edge_specs(edge_type)
    cast = {name: values.astype(specs[name].numpy_dtype, copy=False) for name, values in columns.items()}
    facts = RangeFacts(_here(), nbytes, tuple(np.diff(starts).tolist()), largest, task.ranges_of(edge_type, arrays))
    return (facts, *_pieces(task, cast, order, starts))


def divide_nodes(held: Sequence[Any], node_type: NodeType, name: str, first: int, last: int) -> Any:
    """Reads rows of a node array, and divides them by the parts of their nodes; see ``divide_edges``.

    Where parts are ranges of nodes it returns ``RangeFacts`` alone, for the ranges of columns: owners read the rows again.
    """
    task: BuildTask = _taken(held)
    rows = task.source.node_array_rows(node_type, name, first, last)
    facts = RangeFacts(_here(), rows.nbytes, ranges=task.ranges_of(node_type, {name: rows}))
    if task.assignment is None:
        return facts
    order, starts = task.order(node_type, np.arange(first, last))
    return (facts, *_pieces(task, {"rows": rows}, order, starts))


def _pieces(task: BuildTask, columns: Piece, order: NDArray[np.int64], starts: NDArray[np.int64]) -> Iterator[Piece]:
    for part in task.parts:
        mine = order[starts[part] : starts[part + 1]]
        yield {name: values[mine] for name, values in columns.items()}


def build_part(
    held: Sequence[Any],
    part: int,
    totals: GraphTotals,
    edges: Mapping[EdgeType, Sequence[Any]],
    nodes: Mapping[tuple[NodeType, str], Sequence[Any]],
) -> RangeFacts:
    """Writes a part, all at once: it is there once it is complete. The last one puts the store together.

    Args:
        held: See ``divide_edges``.
        part: The part.
        totals: What is known of all parts.
        edges: ``{edge type: references of its pieces}`` in the order of the ranges.
        nodes: ``{(node type, array): references of its pieces}``.
    """
    task: BuildTask = _taken(held)

    def open_input(folder: Path, _: EventSink) -> PartInput:
        own_edges = {edge_type: _fetched(pieces) for edge_type, pieces in edges.items()}
        return PartInput(task, part, totals, own_edges, {key: _fetched(pieces) for key, pieces in nodes.items()}, folder)

    build_parts(task.job(open_input), [part], wait_timeout_s=_LOCK_WAIT_S)
    nbytes = 0
    for node_type, schema in task.source.schema.node_types.items() if task.assignment is None else ():
        low, high = task.range_of(node_type, part)
        nbytes += (high - low) * sum(spec.row_nbytes for spec in schema.arrays.values())
    return RangeFacts(_here(), nbytes)


def _fetched(references: Sequence[Any]) -> Iterator[Any]:
    """Yields pieces, one of them in memory at a time."""
    import ray

    return (ray.get(reference) for reference in references)


# The driver ------------------------------------------------------------------------------------------------------------------


class ClusterTasks:
    """Tasks on the nodes of a cluster that this process has joined; what a node that is gone has not done, others do.

    Args:
        shared: An object that all of them get.
        cpus: Processors that Ray reserves for each.

    Raises:
        WorkerDied: No node of the cluster has these processors.
    """

    def __init__(self, shared: Any, cpus: int) -> None:
        import ray

        self._cpus = cpus
        self._held = [ray.put(shared)]
        self.nodes = self._living()
        self.forget_loads()

    @property
    def num_processors(self) -> int:
        """Tasks that can run at a time."""
        return max(1, int(sum(self.nodes.values())) // self._cpus)

    def submit(self, function: Callable[..., Any], num_returns: int, *words: Any, weight: float = 1.0) -> list[Any]:
        """Has the node that has been given least call a function; returns the references of its results.

        Args:
            function: It gets ``held``, see ``call``, and the words.
            num_returns: How many results it has.
            words: Its further arguments.
            weight: What it is to take, compared with others.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = min(self._given, key=self._given.__getitem__)
        self._given[node] += weight
        remote = ray.remote(num_cpus=self._cpus, max_retries=_REPEATS)(function)
        place = NodeAffinitySchedulingStrategy(node, soft=True)
        made = remote.options(num_returns=num_returns, scheduling_strategy=place).remote(self._held, *words)
        return made if isinstance(made, list) else [made]

    def results(self, pending: dict[Any, T]) -> Iterator[tuple[Any, T]]:
        """Yields what tasks return as they end, and what is known of them.

        Args:
            pending: ``{reference: what is known}``; empty at the end.

        Raises:
            GnnkitError: A task's own error.
            WorkerDied: No node is left that could run them.
            StoodStill: Ray does not do what is left: most often it does not repeat what a node had to do that has gone.
        """
        import ray

        since = time.monotonic()
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=_LOOK_S)
            if ready or not _is_idle():
                since = time.monotonic()
            else:
                self._check_idle(pending, time.monotonic() - since)
            for reference in ready:
                try:
                    value = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, GnnkitError):
                        raise error.cause from error
                    raise
                yield value, pending.pop(reference)

    def _check_idle(self, pending: Mapping[Any, Any], idle_s: float) -> None:
        lost = self.nodes.keys() - self._living().keys()
        if idle_s < (_IDLE_AFTER_LOSS_S if lost else _IDLE_S):
            return
        import ray

        for reference in pending:
            ray.cancel(reference, force=True)
        raise StoodStill(
            f"nothing has worked on the {len(pending)} task(s) that are left for {idle_s:.0f} s; "
            f"{len(lost)} of the cluster's {len(self.nodes)} nodes have gone",
            "call it again: parts that are finished are kept",
        )

    def _living(self) -> dict[str, float]:
        """``{node: processors}`` of those that can run tasks, in the order of their names."""
        import ray

        found = {n["NodeID"]: n["Resources"].get("CPU", 0.0) for n in ray.nodes() if n["Alive"]}
        fit = {node: cpus for node, cpus in sorted(found.items()) if cpus >= self._cpus}
        if not fit:
            raise WorkerDied(
                f"no node of the Ray cluster has the {self._cpus} processor(s) that each task of a build asks for",
                "Ray(cpus_per_worker=1), or a larger cluster; call it again: parts that are finished are kept",
            )
        return fit

    def forget_loads(self) -> None:
        """Counts anew what each node is given: what it was given so far is done, or of other units."""
        self._given = dict.fromkeys(self.nodes, 0.0)


def _is_idle() -> bool:
    """Whether no processor of the cluster is in use: one that waits for a repeated one uses none, one whose process starts uses some."""
    import ray

    return bool(ray.available_resources().get("CPU", 0.0) >= ray.cluster_resources().get("CPU", 0.0))


class RayBuild:
    """The driver's side of one build, once it has joined a cluster.

    Ranges and parts have nodes of their own, in turn, so that each node reads its share; what a node that is gone has not done, others do.

    Args:
        task: The build.
        cpus: Processors that Ray reserves for each task.
        events: Receives the stages "ingest" and "partition".

    Raises:
        WorkerDied: No node of the cluster has these processors.
    """

    def __init__(self, task: BuildTask, cpus: int, events: EventSink) -> None:
        self._task, self._events, self._tasks = task, events, ClusterTasks(task, cpus)
        self._read: dict[str, int] = {}
        # Pieces of each range, in the order of the ranges, and within it of the parts.
        self._edges: dict[EdgeType, list[list[Any]]] = {}
        self._rows: dict[tuple[NodeType, str], list[list[Any]]] = {}

    def divide(self) -> GraphTotals:
        """Divides edges, and rows of nodes where parts are no ranges of them; returns what parts have to know of each other."""
        task, schema = self._task, self._task.source.schema
        works: list[tuple[list[list[Any]], Callable[..., Any], tuple[Any, ...], int, int]] = []
        for edge_type, edges in schema.edge_types.items():
            width = EDGE_BYTES + sum(spec.row_nbytes for spec in edges.arrays.values())
            works.append((self._edges.setdefault(edge_type, []), divide_edges, (edge_type,), edges.num_edges, width))
        for node_type, nodes in schema.node_types.items():
            for name, spec in nodes.arrays.items():
                if task.assignment is not None or name in task.measured[node_type]:
                    pieces = self._rows.setdefault((node_type, name), []) if task.assignment is not None else []
                    works.append((pieces, divide_nodes, (node_type, name), nodes.num_nodes, max(1, spec.row_nbytes)))
        total = sum(count * width for *_, count, width in works)
        range_bytes = min(_RANGE_BYTES, max(_SMALLEST_RANGE_BYTES, total // (self._tasks.num_processors * _RANGES_OF_A_PROCESSOR)))
        pending: dict[Any, tuple[NodeType | EdgeType, int]] = {}
        for pieces, function, words, count, width in works:
            step = max(1, range_bytes // width)
            for first in range(0, count, step):
                last = min(first + step, count)
                nbytes = (last - first) * width
                is_divided = function is divide_edges or task.assignment is not None
                num_results = 1 + len(task.parts) if is_divided else 1
                facts, *found = self._tasks.submit(function, num_results, *words, first, last, weight=nbytes)
                pieces.append(found)
                pending[facts] = words[0], nbytes
        counts = {edge_type: np.zeros(task.options.num_parts, np.int64) for edge_type in schema.edge_types}
        largest = dict.fromkeys(schema.edge_types, 0.0)
        ranges = {(owner, name): ColumnRange.of_none(s.row_shape[0]) for owner, specs in task.measured.items() for name, s in specs.items()}
        with Stage(self._events, "ingest", label=task.source.name, total=float(total), unit="B") as stage:
            for facts, (owner, nbytes) in self._results(pending):
                if isinstance(owner, tuple):
                    counts[owner] += facts.counts
                    largest[owner] = max(largest[owner], facts.largest_weight)
                for name, own in facts.ranges.items():
                    ranges[owner, name].add(own)
                stage.advance(nbytes)
        return GraphTotals({t: EdgeTotals(tuple(counts[t].tolist()), largest[t]) for t in schema.edge_types}, ranges)

    def build(self, totals: GraphTotals) -> None:
        """Builds all parts that are to be built."""
        # Parts go round by themselves: what nodes have read before has nothing to do with them.
        task, pending = self._task, dict[Any, int]()
        self._tasks.forget_loads()
        for number, part in enumerate(task.parts):
            edges = {edge_type: [pieces[number] for pieces in found] for edge_type, found in self._edges.items()}
            rows = {key: [pieces[number] for pieces in found] for key, found in self._rows.items()}
            (facts,) = self._tasks.submit(build_part, 1, part, totals, edges, rows)
            pending[facts] = part
        # Pieces are given up with the task that has used them.
        self._edges.clear()
        self._rows.clear()
        with Stage(self._events, "partition", label=task.source.name, total=float(len(pending)), unit="parts") as stage:
            for _ in self._results(pending):
                stage.advance()
            stage.summary = self.shares()

    def shares(self) -> str:
        """Describes how much of the source each node has read: "3 nodes, each read at most 34 % of the source"."""
        largest = 100 * max(self._read.values(), default=0) / max(1, sum(self._read.values()))
        return f"{len(self._read)} nodes, each read at most {largest:.0f} % of the source"

    def _results(self, pending: dict[Any, T]) -> Iterator[tuple[RangeFacts, T]]:
        for facts, known in self._tasks.results(pending):
            self._read[facts.node] = self._read.get(facts.node, 0) + facts.nbytes
            yield facts, known
