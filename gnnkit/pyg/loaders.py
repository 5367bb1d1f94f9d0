"""``NeighborLoader``, ``LinkNeighborLoader``, ``HGTLoader`` and ``ShaDowKHopSampler`` of PyG, over ``GraphLoader``."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import DataLoader
from torch_geometric import loader as theirs
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import BaseSampler, NumNeighbors, SubgraphType

from gnnkit.backends.base import Backend
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.inprocess import InProcess
from gnnkit.callers import warn
from gnnkit.errors import PlanError
from gnnkit.graph_loader import GraphLoader
from gnnkit.pyg.inputs import (
    Inputs,
    NodeForm,
    NodeInputs,
    PreparedGraph,
    ShadowForm,
    as_object,
    attributes_of,
    link_inputs,
    node_inputs,
    prepare,
)
from gnnkit.samplers import HGT

if TYPE_CHECKING:
    from torch import Tensor


# Numbers of calls take the place of epochs; with so many bits, workers hardly meet, and there is room to count on.
_CALL_BITS = 40


class LiveLoader:
    """A ``GraphLoader`` that follows the object it was made of.

    Scripts for PyG add attributes to ``loader.data`` and delete some after the loader was made. Where an attribute was added, deleted or
    replaced, or ``transform`` was, the next epoch runs on a new ``GraphLoader``.

    Args:
        data: What the user gave.
        graph: The graph in it.
        inputs: What batches start from.
        options: Options of ``GraphLoader.from_pyg``, beside these.
        form: Makes the form of batches for a graph.
        transform: The user's function of a batch.

    Attributes:
        data: See above.
        inputs: See above.
        transform: See above.

    Raises:
        PlanError: An option's value is unusable.
    """

    def __init__(
        self,
        data: Any,
        graph: Data | HeteroData,
        inputs: Inputs,
        options: Mapping[str, Any],
        form: Callable[[PreparedGraph], NodeForm],
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self.data, self.inputs, self.transform = data, inputs, transform
        self._graph = graph
        self._options, self._make_form = dict(options), form
        self._loader: GraphLoader
        self._form: NodeForm
        self._seen: list[tuple[Any, str, Any]] | None = None
        self._next_epoch = 0
        self._calls = self._orders = 0
        self._lock = threading.Lock()
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        """Everything that it is opened from, wherever it is used next."""
        with self._lock:
            next_epoch = self._loader.pipeline.next_epoch if self._seen is not None else self._next_epoch
            left = {name: value for name, value in self.__dict__.items() if name not in ("_loader", "_form", "_lock")}
            return {**left, "_seen": None, "_next_epoch": next_epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def loader(self) -> GraphLoader:
        """The loader of the object as it is now."""
        with self._lock:
            return self._open()

    def epoch(self, batches: Iterable[Iterable[int]] | None = None) -> Iterator[Any]:
        """Begins the next epoch.

        Args:
            batches: Places of the inputs of each batch; None: all inputs, as the options say.
        """
        return iter(self.loader) if batches is None else itertools.chain.from_iterable(map(self._run, _runs(batches)))

    def _run(self, batches: list[list[int]]) -> Iterator[Any]:
        """The batches of a run, see ``_runs``."""
        with self._lock:
            self._orders += 1
            number = self._orders - 1
        places = torch.tensor(list(itertools.chain.from_iterable(batches)), dtype=torch.long)
        beside = self._beside(self.inputs.taken(places), batch_size=max(1, len(batches[0])), drop_last=False)
        beside.set_epoch(number)
        return iter(beside)  # which holds the loader, and ends it with itself

    def at(self, places: Any) -> Any:
        """The batch of the inputs at these places; each call draws anew.

        Raises:
            PlanError: There is no such place.
        """
        index = torch.as_tensor(places)
        index = index.nonzero() if index.dtype == torch.bool else index
        index = index.reshape(-1).to(torch.long)
        count = self.inputs.count
        if index.numel() and not -count <= int(index.min()) <= int(index.max()) < count:
            raise PlanError(f"there is no input {places!r:.80}", f"the loader has {count} inputs, with places from 0")
        return self.around(self.inputs.taken(index % max(count, 1)))

    def around(self, inputs: Inputs) -> Any:
        """The batch of some inputs; each call draws anew."""
        with self._lock:
            self._calls += 1
            number = _first_call() + self._calls - 1
        with self._beside(inputs, batch_size=max(inputs.count, 1), drop_last=False) as beside:
            beside.set_epoch(number)
            return beside.peek()

    def _beside(self, inputs: Inputs, **changes: Any) -> GraphLoader:
        loader = self.loader
        return inputs.beside(loader, transform=replace(self._form, input_id=inputs.input_id), shuffle=False, **changes)

    def _open(self) -> GraphLoader:
        seen = [*attributes_of(self._graph), (None, "transform", self.transform)]
        if self._seen is None or not _are_same(seen, self._seen):
            graph = prepare(self._graph, self.inputs.edge_type)
            form = replace(self._make_form(graph), transform=self.transform, input_id=self.inputs.input_id)
            options = {**self._options, **self.inputs.options(), "device": graph.device}
            loader = GraphLoader.from_pyg(graph.data, transform=form, with_edge=True, rank=0, world_size=1, **options)
            if self._seen is not None:
                self._next_epoch = self._loader.pipeline.next_epoch
            loader.set_epoch(self._next_epoch)
            self._loader, self._form, self._seen = loader, form, seen
        return self._loader


def _first_call() -> int:
    """The number that calls count from in this process: a worker of a ``DataLoader`` draws otherwise than the others, and in each epoch."""
    worker = torch.utils.data.get_worker_info()
    return 0 if worker is None else random.Random(worker.seed).getrandbits(_CALL_BITS)


def _runs(batches: Iterable[Iterable[int]]) -> Iterator[list[list[int]]]:
    """Yields the batches in runs that a loader can have: all of one size, but for the last one, which may be smaller."""
    run: list[list[int]] = []
    for batch in ([int(place) for place in batch] for batch in batches):
        if run and (len(run[-1]) < len(run[0]) or len(batch) > len(run[0])):
            yield run
            run = []
        run.append(batch)
    if run:
        yield run


def _are_same(left: list[tuple[Any, str, Any]], right: list[tuple[Any, str, Any]]) -> bool:
    """Whether the same objects stand under the same names."""
    return len(left) == len(right) and all(a[:2] == b[:2] and a[2] is b[2] for a, b in zip(left, right, strict=True))


# Arguments of PyG's loaders and of DataLoader that ask for something that is done otherwise here.
_REFUSED = {
    "transform_sampler_output": "there is no sampler output between sampling and the batch; transform= gets the whole batch",
    "neighbor_sampler": "sampling is gnnkit's own: num_neighbors, replace, disjoint, ... say how, or sampler= of gnnkit.GraphLoader",
    "custom_cls": "give a transform= that makes an object of the class; a Data or HeteroData of a class of its own keeps it",
    "worker_init_fn": "no code of a script runs in the processes that sample, and draws need no seeds of workers; leave it out",
}


def _refuse(**given: Any) -> None:
    """Refuses arguments that cannot be followed.

    Raises:
        PlanError: One is given.
    """
    for name, value in given.items():
        if value is not None:
            raise PlanError(f"{name}={value!r:.80} cannot be followed", _REFUSED[name])


@dataclass(frozen=True)
class SamplerView(BaseSampler):  # type: ignore[misc]
    """Answers to what PyG's code asks a loader's sampler for; ``GraphLoader`` samples.

    Attributes:
        num_neighbors: Fan-outs; ``len`` is the number of hops.
        replace: Whether neighbours are drawn with replacement.
        subgraph_type: What edges batches hold.
        disjoint: Whether each input has a neighbourhood of its own.
        temporal_strategy: How neighbours are drawn that are early enough.
        is_temporal: Whether times play a part.
        num_samples: Nodes of each type in each iteration, for ``HGTLoader``.
    """

    num_neighbors: Any = None
    replace: bool = False
    subgraph_type: Any = SubgraphType.directional
    disjoint: bool = False
    temporal_strategy: str = "uniform"
    is_temporal: bool = False
    num_samples: Any = None

    @property
    def edge_permutation(self) -> None:
        """None: edges have the ids of the user's object."""
        return

    def sample_from_nodes(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses.

        Raises:
            PlanError: Always.
        """
        raise PlanError("a loader of gnnkit.pyg samples by itself, and not through its sampler", "loader(index) gives a batch")

    sample_from_edges = sample_from_nodes


class _OverGraphLoader:
    """Base of the loaders: a ``DataLoader`` whose iterations are those of a ``GraphLoader``."""

    _live: LiveLoader
    _given_order: bool

    def _keep(self, arguments: Mapping[str, Any]) -> None:
        """Has ``vars`` show what the constructor was given: Lightning makes loaders anew from that, with a sampler for each process."""
        vars(self).update({name: value for name, value in arguments.items() if name not in ("self", "kwargs")})

    def _start(  # noqa: PLR0913 - what PyG's loaders take
        self,
        data: Any,
        graph: Data | HeteroData,
        inputs: Inputs,
        options: Mapping[str, Any],
        form: type[NodeForm],
        transform: Callable[[Any], Any] | None,
        kwargs: dict[str, Any],
        *,
        num_hops: int | None = None,
        dataset: Any = None,
    ) -> None:
        """Makes the loader.

        Args:
            data: What the user gave.
            graph: The graph in it.
            inputs: What batches start from.
            options: What is sampled, as options of ``GraphLoader.from_pyg``.
            form: The form of batches.
            transform: The user's function of a batch.
            kwargs: Arguments of ``DataLoader``.
            num_hops: See ``NodeForm``.
            dataset: What the inputs are to ``DataLoader``; None: their places.

        Raises:
            PlanError: A value is unusable.
        """
        for name in ("dataset", "collate_fn"):  # Lightning gives them back
            kwargs.pop(name, None)
        _refuse(**{name: kwargs.pop(name, None) for name in ("transform_sampler_output", "custom_cls", "worker_init_fn")})
        shuffle = kwargs.get("shuffle")
        if shuffle is not None and not isinstance(shuffle, bool):
            raise PlanError(f"shuffle must be True, False or None, got {shuffle!r}")
        if kwargs.get("batch_size", 1) is None:
            raise PlanError("batch_size=None, and batches have a size", "batch_size=1 gives single inputs")
        self._given_order = kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None
        # Its attributes, and its checks of its arguments; nothing of it runs.
        loader: Any = self
        inputs_of: Any = range(inputs.count) if dataset is None else dataset
        DataLoader.__init__(loader, inputs_of, **kwargs)
        pin_memory = bool(loader.pin_memory) and torch.cuda.is_available()
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator))
        self._live = LiveLoader(
            data,
            graph,
            inputs,
            {
                **options,
                "batch_size": loader.batch_size or 1,  # of batches of a batch_sampler, their own
                "shuffle": bool(shuffle),
                "drop_last": loader.drop_last,
                "seed": seed,
                "backend": _backend(loader.num_workers),
                **_limits(loader),
            },
            functools.partial(form, num_hops=num_hops, pin_memory=pin_memory, has_edge_ids=options.get("subgraph_type") != "bidirectional"),
            transform,
        )
        loader.collate_fn = self._live.at

    @property
    def graph_loader(self) -> GraphLoader:
        """The ``GraphLoader`` underneath: ``dashboard()``, ``profile()``, ``stats()``, ``state_dict()``, ``plan`` and ``close()``."""
        return self._live.loader

    @property
    def data(self) -> Any:
        """The graph. The next epoch sees attributes that are added, replaced or deleted."""
        return self._live.data

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """The function that is called on each batch, in the process that iterates."""
        return self._live.transform

    @transform.setter
    def transform(self, value: Callable[[Any], Any] | None) -> None:
        self._live.transform = vars(self)["transform"] = value

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch; an iteration that is under way ends."""
        loader: Any = self
        return self._live.epoch(loader.batch_sampler if self._given_order else None)

    def __call__(self, index: Tensor | list[int]) -> Data | HeteroData:
        """The batch of the inputs at places ``index``; each call draws anew."""
        batch: Data | HeteroData = self._live.at(index)
        return batch

    def filter_fn(self, out: Any) -> Any:
        """The batch, as it is: ``collate_fn`` gives whole ones."""
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def enable_cpu_affinity(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses.

        Raises:
            PlanError: Always.
        """
        raise PlanError(
            "the processes that sample are not DataLoader's workers, and cannot be bound to cores by a loader",
            "start the script with taskset or numactl: they may use the cores that it may use",
        )

    def enable_multithreading(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses.

        Raises:
            PlanError: Always.
        """
        raise PlanError(
            "the processes that sample are not DataLoader's workers", "gnnkit.Colocated(threads_per_worker=...) with gnnkit.GraphLoader"
        )

    def enable_memory_log(self) -> NoReturn:
        """Refuses.

        Raises:
            PlanError: Always.
        """
        raise PlanError(
            "the processes that sample are not DataLoader's workers", "loader.graph_loader.status() says how much memory they use"
        )


def _backend(num_workers: int) -> Backend:
    """The backend that ``num_workers`` means: threads of this process, or so many processes."""
    return Colocated(num_workers=num_workers) if num_workers else InProcess()


def _limits(loader: Any) -> dict[str, Any]:
    """Waits and batches ahead, as the loader says where it says it."""
    found: dict[str, Any] = {}
    if loader.timeout:
        found["batch_timeout_s"] = float(loader.timeout)
    if loader.num_workers and loader.prefetch_factor is not None:
        found["prefetch"] = (loader.prefetch_factor - 1) * loader.num_workers  # beside those that are being sampled
    return found


def _fan_outs(data: Data | HeteroData, num_neighbors: Any) -> tuple[NumNeighbors, Any]:
    """Fan-outs as PyG's own record, which checks them, and as ``GraphLoader`` takes them.

    Raises:
        PlanError: Types are missing or unknown, or have different numbers of hops.
    """
    values = num_neighbors.tolist() if hasattr(num_neighbors, "tolist") else num_neighbors
    if not isinstance(values, (list, tuple, dict, NumNeighbors)):
        raise PlanError(f"num_neighbors must be a list with one number per hop, got {num_neighbors!r}", "for example [15, 10, 5]")
    try:
        counts = values if isinstance(values, NumNeighbors) else NumNeighbors(values)
        found = counts.values
        if isinstance(found, dict) and isinstance(data, HeteroData):
            found = counts.get_values(list(data.edge_types))
    except ValueError as error:
        raise PlanError(
            f"num_neighbors={num_neighbors!r:.200}: {error}", "give one list for all edge types, or one as long for each"
        ) from error
    # Without a hop there are the inputs alone, as with one hop that draws nothing.
    return counts, found if counts.num_hops else [0]


def _filters(data: Any, filter_per_worker: bool | None) -> bool:
    """The attribute ``filter_per_worker``: as given, or as PyG sets it, False for a graph on a GPU and else True."""
    return not (isinstance(data, (Data, HeteroData)) and data.is_cuda) if filter_per_worker is None else filter_per_worker


def _hops(  # noqa: PLR0913 - what PyG's loaders take
    graph: Data | HeteroData,
    num_neighbors: list[int] | dict[tuple[str, str, str], list[int]],
    replace: bool,
    subgraph_type: SubgraphType | str,
    directed: bool,
    disjoint: bool,
    temporal_strategy: str,
    time_attr: str | None,
    weight_attr: str | None,
) -> tuple[NumNeighbors, SamplerView, dict[str, Any]]:
    """Returns PyG's fan-outs, the sampler that PyG's loader would show, and ``GraphLoader``'s options for sampling hop by hop."""
    counts, fan_outs = _fan_outs(graph, num_neighbors)
    kind, is_timed = _subgraph_type(subgraph_type, directed), time_attr is not None
    options = {
        "num_neighbors": fan_outs,
        "replace": replace,
        "disjoint": disjoint,
        "subgraph_type": kind.value,
        "temporal_strategy": temporal_strategy,
        "time_attr": time_attr,
        "weight": weight_attr,
    }
    return counts, SamplerView(counts, replace, kind, disjoint or is_timed, temporal_strategy, is_timed), options


def _subgraph_type(value: SubgraphType | str, directed: bool) -> Any:
    if not directed:
        warn("directed=False is deprecated: use subgraph_type='induced'")
        return SubgraphType.induced
    try:
        return SubgraphType(value)
    except ValueError as error:
        known = [kind.value for kind in SubgraphType]
        raise PlanError(f"subgraph_type={value!r} is none of {known}") from error


class NeighborLoader(_OverGraphLoader, theirs.NeighborLoader):  # type: ignore[misc]
    """PyG's ``NeighborLoader``, over ``gnnkit.GraphLoader``.

    Args:
        data: A ``Data``, a ``HeteroData``, or ``(FeatureStore, GraphStore)``, which is read once.
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours.
        input_nodes: Ids or a mask, or None for all nodes; of a ``HeteroData`` a type, or ``(type, any of these)``.
        input_time: A time for each input node, with ``time_attr``; None: their own.
        replace: Draws neighbours with replacement.
        subgraph_type: "directional", "bidirectional" or "induced".
        disjoint: Gives every input node a neighbourhood of its own.
        temporal_strategy: "uniform" or "last".
        time_attr: Name of the node or edge array of times: nothing later than an input node is sampled around it.
        weight_attr: Name of the edge array in proportion to which neighbours are drawn.
        transform: Called on each batch, in the process that iterates.
        transform_sampler_output: Cannot be followed.
        is_sorted: Changes nothing: edges are sorted in linear time.
        filter_per_worker: Changes nothing: rows are gathered where batches are sampled.
        neighbor_sampler: Cannot be followed.
        directed: Deprecated; False is ``subgraph_type="induced"``.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.
    """

    def __init__(  # noqa: PLR0913 - PyG's
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        num_neighbors: list[int] | dict[tuple[str, str, str], list[int]],
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        **kwargs: Any,
    ) -> None:
        self._keep(locals())
        _refuse(transform_sampler_output=transform_sampler_output, neighbor_sampler=neighbor_sampler)
        if input_time is not None and time_attr is None:
            raise PlanError("input_time is given, and time_attr is not", "name the array that times are compared with: time_attr='time'")
        graph = as_object(data)
        counts, view, options = _hops(
            graph, num_neighbors, replace, subgraph_type, directed, disjoint, temporal_strategy, time_attr, weight_attr
        )
        inputs = node_inputs(graph, input_nodes, input_time, kwargs.pop("input_id", None))
        self.node_sampler = view
        self.input_id = inputs.input_id
        self.filter_per_worker, self.custom_cls = _filters(data, filter_per_worker), None
        self._start(
            data,
            graph,
            inputs,
            options,
            NodeForm,
            transform,
            kwargs,
            num_hops=counts.num_hops,
        )


class LinkNeighborLoader(_OverGraphLoader, theirs.LinkNeighborLoader):  # type: ignore[misc]
    """PyG's ``LinkNeighborLoader``, over ``gnnkit.GraphLoader``.

    Args:
        data: A ``Data``, a ``HeteroData``, or ``(FeatureStore, GraphStore)``, which is read once.
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours.
        edge_label_index: ``[2, n]`` sources and targets, or None for all edges; of a ``HeteroData`` an edge type, or
            ``(edge type, any of these)``.
        edge_label: Labels ``[n, ...]``; where negatives are drawn with label 0, those that start from 0 become one higher.
        edge_label_time: Times ``[n]``, with ``time_attr``: nothing later is sampled around a link's ends.
        replace: Draws neighbours with replacement.
        subgraph_type: "directional", "bidirectional" or "induced".
        disjoint: Gives every end of a link a neighbourhood of its own.
        temporal_strategy: "uniform" or "last".
        neg_sampling: PyG's ``NegativeSampling``, "binary", "triplet", or a dict of its arguments.
        neg_sampling_ratio: Deprecated in PyG; negatives for each link, as "binary".
        time_attr: Name of the node or edge array of times.
        weight_attr: Name of the edge array in proportion to which neighbours are drawn.
        transform: Called on each batch, in the process that iterates.
        transform_sampler_output: Cannot be followed.
        is_sorted: Changes nothing: edges are sorted in linear time.
        filter_per_worker: Changes nothing: rows are gathered where batches are sampled.
        neighbor_sampler: Cannot be followed.
        directed: Deprecated; False is ``subgraph_type="induced"``.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.
    """

    def __init__(  # noqa: PLR0913 - PyG's
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        num_neighbors: list[int] | dict[tuple[str, str, str], list[int]],
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | str | dict[str, Any] | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        **kwargs: Any,
    ) -> None:
        self._keep(locals())
        _refuse(transform_sampler_output=transform_sampler_output, neighbor_sampler=neighbor_sampler)
        if (edge_label_time is None) != (time_attr is None):
            missing, given = ("edge_label_time", "time_attr") if edge_label_time is None else ("time_attr", "edge_label_time")
            raise PlanError(
                f"'{missing}' is not set, and '{given}' is", "times need both: the links' own, and the name of the array of the graph's"
            )
        graph = as_object(data)
        counts, view, options = _hops(
            graph, num_neighbors, replace, subgraph_type, directed, disjoint, temporal_strategy, time_attr, weight_attr
        )
        inputs = link_inputs(
            graph, edge_label_index, edge_label, edge_label_time, neg_sampling, neg_sampling_ratio, kwargs.pop("input_id", None)
        )
        if isinstance(options["num_neighbors"], dict) and inputs.edge_type is not None:
            options["num_neighbors"].setdefault(inputs.edge_type, [0] * counts.num_hops)  # a type without edges
        self.link_sampler = view
        self.neg_sampling = inputs.negatives
        self.filter_per_worker, self.custom_cls = _filters(data, filter_per_worker), None
        self._start(
            data,
            graph,
            inputs,
            options,
            NodeForm,
            transform,
            kwargs,
            num_hops=counts.num_hops,
        )


class HGTLoader(_OverGraphLoader, theirs.HGTLoader):  # type: ignore[misc]
    """PyG's ``HGTLoader``, over ``gnnkit.GraphLoader``.

    Args:
        data: A ``HeteroData``, or ``(FeatureStore, GraphStore)``, which is read once.
        num_samples: Nodes of each type in each iteration, one list or ``{node type: list}``; a type that is missing gets none.
        input_nodes: A node type, or ``(type, ids or a mask or None)``.
        is_sorted: Changes nothing: edges are sorted in linear time.
        transform: Called on each batch, in the process that iterates.
        transform_sampler_output: Cannot be followed.
        filter_per_worker: Changes nothing: rows are gathered where batches are sampled.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.
    """

    def __init__(
        self,
        data: HeteroData | tuple[FeatureStore, GraphStore],
        num_samples: list[int] | dict[str, list[int]],
        input_nodes: Any,
        is_sorted: bool = False,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        filter_per_worker: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self._keep(locals())
        _refuse(transform_sampler_output=transform_sampler_output)
        graph = as_object(data)
        if not isinstance(graph, HeteroData):
            raise PlanError("data has one node type, and HGTLoader draws nodes by their types", "NeighborLoader takes it")
        inputs = node_inputs(graph, input_nodes, None, kwargs.pop("input_id", None))
        self.node_sampler = SamplerView(num_samples=num_samples)
        self.input_time, self.input_id = None, inputs.input_id
        self.filter_per_worker, self.custom_cls = _filters(data, filter_per_worker), None
        self._start(data, graph, inputs, {"sampler": HGT(num_samples)}, NodeForm, transform, kwargs)


class ShaDowKHopSampler(_OverGraphLoader, theirs.ShaDowKHopSampler):  # type: ignore[misc]
    """PyG's ``ShaDowKHopSampler``, over ``gnnkit.GraphLoader``.

    Args:
        data: The graph.
        depth: Hops.
        num_neighbors: Neighbours that are drawn for each node in each hop; -1 takes all.
        node_idx: The roots, ids or a mask; None for all nodes.
        replace: Draws neighbours with replacement.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.
    """

    def __init__(
        self, data: Data, depth: int, num_neighbors: int, node_idx: Tensor | None = None, replace: bool = False, **kwargs: Any
    ) -> None:
        self._keep(locals())
        if not isinstance(data, Data):
            raise PlanError(
                f"data must be a Data, got {type(data).__name__}",
                "NeighborLoader(data, disjoint=True, subgraph_type='induced') gives such subgraphs of a HeteroData",
            )
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise PlanError(f"depth must be a whole number of at least 1, got {depth!r}")
        data = copy.copy(data)
        inputs = node_inputs(data, node_idx)
        ids = torch.arange(inputs.count) if inputs.ids is None else inputs.ids
        self.node_idx = ids
        self.is_sparse_tensor = "edge_index" not in data and "adj_t" in data
        options = {"num_neighbors": [num_neighbors] * depth, "replace": replace, "disjoint": True, "subgraph_type": "induced"}
        self._start(data, data, inputs, options, ShadowForm, None, kwargs, dataset=ids.tolist())
        loader: Any = self
        loader.collate_fn = functools.partial(_around, self._live)

    def __collate__(self, n_id: list[int]) -> Any:
        return _around(self._live, n_id)


def _around(live: LiveLoader, ids: list[int]) -> Any:
    return live.around(NodeInputs(None, torch.as_tensor(ids, dtype=torch.long), len(ids)))
