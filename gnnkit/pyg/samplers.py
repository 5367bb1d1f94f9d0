"""``NeighborSampler`` and ``HGTSampler`` of PyG, over ``GraphLoader``: what PyG's own loaders ask for each batch."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NodeSamplerInput,
    NumNeighbors,
    SamplerOutput,
    SubgraphType,
)
from typing_extensions import override

from gnnkit.backends.inprocess import InProcess
from gnnkit.callers import warn
from gnnkit.errors import AttributeNotSettable, PlanError
from gnnkit.graph_loader import GraphLoader
from gnnkit.pyg.inputs import Inputs, LinkInputs, NodeForm, NodeInputs, as_object, negatives_of, prepare, structure_of
from gnnkit.samplers import HGT
from gnnkit.schema import EdgeType, NodeType
from gnnkit.user_arrays import to_array

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


# Loaders that a sampler keeps: scripts that assign an option for every batch would have it keep one for each.
_MOST_KINDS = 8


def drawn_seed(generator: torch.Generator | None = None) -> int:
    """A random seed from torch's generator, or from the given one.

    Raises:
        PlanError: What is given is none.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise PlanError(f"generator must be a torch.Generator or None, got {generator!r:.80}")
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


@dataclass
class _Kind:
    """The loader of one kind of inputs, sampled in one way.

    Attributes:
        way: What tells it apart from others.
        negatives: Whose weights are told apart by identity, and therefore kept.
        loader: The loader; its own inputs are none.
        calls: Numbers of its batches.
    """

    way: tuple[Any, ...]
    negatives: NegativeSampling | None
    loader: GraphLoader
    calls: Iterator[int] = field(default_factory=itertools.count)


class _Loaders:
    """Loaders on the edges of one graph, in this process: one for each kind of inputs and way of sampling.

    A copy shares them. A forked child makes its own on the same memory, and one that is unpickled on its own graph; each process draws its
    seed from torch's generator, which the workers of a ``DataLoader`` have set to a seed of their own.

    Args:
        graph: Edges, numbers of nodes, and what is compared or weighed.
        build: ``weight`` and ``time_attr`` of ``GraphLoader.from_pyg``.
    """

    def __init__(self, graph: Data | HeteroData, build: dict[str, Any]) -> None:
        self.graph, self._build = graph, build
        self._base: GraphLoader | None = None
        self._begin()

    def __reduce__(self) -> Any:
        return type(self), (self.graph, self._build)

    def _begin(self) -> None:
        """Starts in this process; what another one has opened belongs to that, but for the graph."""
        self._process, self._lock = os.getpid(), threading.Lock()
        self._kinds: list[_Kind] = []
        self._seed: int | None = None
        if self._base is not None:
            self._base = GraphLoader(self._base.plan, self._base.pipeline.graph, self._base.pipeline.events)

    def kind(self, way: tuple[Any, ...], inputs: Inputs, options: dict[str, Any], form: dict[str, Any]) -> _Kind:
        """The loader of one kind of inputs, which is made where there is none yet.

        Args:
            way: What is sampled, comparable.
            inputs: None, of the kind that is asked for.
            options: The same, as options of ``GraphLoader.for_split``.
            form: See ``NodeForm``.

        Raises:
            PlanError: An option is unusable, or the graph has no such type or array.
        """
        if os.getpid() != self._process:  # before the lock, which a thread of the other process may hold
            self._begin()
        negatives = inputs.negatives if isinstance(inputs, LinkInputs) else None
        weights = () if negatives is None else (negatives.mode, negatives.amount, id(negatives.src_weight), id(negatives.dst_weight))
        way = (type(inputs), inputs.node_type if isinstance(inputs, NodeInputs) else inputs.edge_type, weights, way)
        with self._lock:
            found = next((kind for kind in self._kinds if kind.way == way), None)
            if found is None:
                found = _Kind(way, negatives, self._open(inputs, options, form))
                self._kinds = [*self._kinds[1 - _MOST_KINDS :], found]
            return found

    def _open(self, inputs: Inputs, options: dict[str, Any], form: dict[str, Any]) -> GraphLoader:
        if self._seed is None:
            self._seed = drawn_seed()
        base = self._base
        is_known = inputs.edge_type is None or not isinstance(self.graph, HeteroData) or inputs.edge_type in self.graph.edge_types
        prepared = prepare(self.graph, inputs.edge_type)
        options = {**options, "transform": NodeForm(prepared, **form), "seed": self._seed, "shuffle": False}
        if base is None or not is_known:
            here: dict[str, Any] = {"backend": InProcess(num_threads=1), "with_edge": True, "rank": 0, "world_size": 1}
            loader = GraphLoader.from_pyg(prepared.data, **self._build, **here, **options, **inputs.options())
            self._base = loader if is_known else base
            return loader
        return inputs.beside(base, **options)


class GraphSampler(BaseSampler):  # type: ignore[misc]
    """Base of the samplers: PyG's ``BaseSampler``, which samples with the kernels of ``GraphLoader`` in the process that calls it.

    The n-th call for nodes of a type, or for links of a type, draws what batch n of the first epoch of a loader with the same seed
    draws. The seed comes from torch's generator when the sampler is made, and in another process when that first samples.

    Args:
        graph: The graph.
        time_attr: Name of the array of times, or None.
        weight_attr: Name of the edge array of weights, or None.

    Attributes:
        build: ``weight`` and ``time_attr`` of ``GraphLoader.from_pyg``.
    """

    build: dict[str, Any]
    _loaders: _Loaders
    _opens_late = False

    def __init__(self, graph: Data | HeteroData, time_attr: str | None = None, weight_attr: str | None = None) -> None:
        build = {"time_attr": time_attr, "weight": weight_attr}
        self._loaders = _Loaders(structure_of(graph, *(name for name in build.values() if isinstance(name, str))), build)
        super().__setattr__("build", build)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("data", "build", "time_attr", "weight_attr", "sample_direction", "directed", "edge_permutation"):
            raise AttributeNotSettable(
                f"{name!r} of a sampler cannot be assigned: its graph was read when it was made",
                f"make another: {type(self).__name__}(...)",
            )
        super().__setattr__(name, value)

    @classmethod
    def unopened(cls, *arguments: Any, **options: Any) -> Self:
        """A loader's own sampler, which reads the graph when it is sampled with: the loader does not."""
        sampler = cls.__new__(cls)
        sampler._opens_late = True
        sampler.__init__(*arguments, **options)  # type: ignore[misc]
        return sampler

    @abstractmethod
    def options(self, graph: Data | HeteroData, edge_type: EdgeType | None = None) -> dict[str, Any]:
        """Options for what is sampled, as ``GraphLoader.from_pyg`` takes them beside ``build``.

        Args:
            graph: The graph.
            edge_type: The type of the links, also if the graph has no edge of it.

        Raises:
            PlanError: A value is unusable.
        """

    def form(self) -> dict[str, Any]:
        """Arguments of ``NodeForm``, for what batches show."""
        return {}

    @property
    def is_temporal(self) -> bool:
        """Whether times play a part."""
        return self.build["time_attr"] is not None

    def open(self) -> None:
        """Reads the graph now, and not when something is sampled; not that of a loader's own sampler.

        Raises:
            PlanError: A value is unusable.
        """
        if self._opens_late:
            return
        graph = self._loaders.graph
        self._kind(_no_nodes(graph.node_types[0] if isinstance(graph, HeteroData) else None, self.is_temporal))

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Samples around nodes.

        Args:
            inputs: The nodes; with times where those of the nodes do not count.
            **kwargs: Change nothing.

        Raises:
            PlanError: A node does not exist, or has no time.
        """
        inputs = NodeSamplerInput.cast(inputs)
        is_timed = self.is_temporal and inputs.time is not None
        kind = self._kind(_no_nodes(inputs.input_type, is_timed))
        batch = self._batch(kind, inputs.node, inputs.time if is_timed else None)
        store = batch if inputs.input_type is None else batch[inputs.input_type]
        out = _output(batch, self._loaders.graph)
        out.metadata = (inputs.input_id, store.seed_time if self.is_temporal else inputs.time)
        return out

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Samples around links, and draws what they are told apart from.

        Args:
            inputs: The links; with times where there are such.
            neg_sampling: The negatives; None draws none.

        Raises:
            PlanError: A node does not exist, or times are missing.
        """
        inputs, negatives = EdgeSamplerInput.cast(inputs), negatives_of(neg_sampling, None)
        if self.is_temporal and inputs.time is None:
            raise PlanError(f"time_attr={self.build['time_attr']!r}, and nothing says the links' times", "give them: edge_label_time=...")
        edge_type = None if inputs.input_type is None else cast(EdgeType, tuple(inputs.input_type))
        none = torch.empty(0, dtype=torch.long)
        time = inputs.time if self.is_temporal else None
        kind = self._kind(LinkInputs(edge_type, none.view(2, 0), False, None, None if time is None else none, negatives))
        batch = self._batch(kind, torch.stack([inputs.row, inputs.col]), time)
        source, link, target = (batch,) * 3 if edge_type is None else (batch[edge_type[0]], batch[edge_type], batch[edge_type[2]])
        out = _output(batch, self._loaders.graph)
        if negatives is not None and negatives.is_triplet():
            out.metadata = (inputs.input_id, source.src_index, target.dst_pos_index, target.dst_neg_index, inputs.time)
            return out
        index, label = link.edge_label_index, inputs.label
        if negatives is not None:
            label = torch.ones(len(inputs.row)) if label is None else label
            label = torch.cat([label, label.new_zeros(index.shape[1] - len(label), *label.shape[1:])])
        out.metadata = (inputs.input_id, index, label, link.edge_label_time if self.is_temporal else inputs.time)
        return out

    def _kind(self, inputs: Inputs) -> _Kind:
        options, form = self.options(self._loaders.graph, inputs.edge_type), self.form()
        return self._loaders.kind((options, form), inputs, options, form)

    def _batch(self, kind: _Kind, ids: Tensor, time: Tensor | None) -> Data | HeteroData:
        return kind.loader.pipeline.sample_inputs(ids, time, index=next(kind.calls))


@contextlib.contextmanager
def _as_plan_error(num_neighbors: Any) -> Iterator[None]:
    """Turns what PyG says of fan-outs into a ``PlanError``."""
    try:
        yield
    except ValueError as error:
        raise PlanError(
            f"num_neighbors={num_neighbors!r:.200}: {error}", "give one list for all edge types, or one as long for each"
        ) from error


def _subgraph_type(value: SubgraphType | str) -> Any:
    try:
        return SubgraphType(value)
    except ValueError as error:
        known = [kind.value for kind in SubgraphType]
        raise PlanError(f"subgraph_type={value!r} is none of {known}") from error


def _no_nodes(node_type: NodeType | None, is_timed: bool) -> NodeInputs:
    none = torch.empty(0, dtype=torch.long)
    return NodeInputs(node_type, none, 0, none if is_timed else None)


def _output(batch: Data | HeteroData, graph: Data | HeteroData) -> SamplerOutput | HeteroSamplerOutput:
    """A batch as PyG's loaders take it from a sampler: with the types that the graph has."""
    counts = ("num_sampled_nodes", "num_sampled_edges")
    if isinstance(batch, Data):
        row, col = batch.edge_index
        own = batch._store._mapping
        return SamplerOutput(own["n_id"], row, col, own.get("e_id"), own.get("batch"), *(own.get(name) for name in counts))
    nodes = {store._key: store._mapping for store in batch.node_stores}
    edges = {store._key: store._mapping for store in batch.edge_stores if store._key in graph.edge_types}

    def values(stores: dict[Any, Any], name: str) -> dict[Any, Any] | None:
        return {key: own[name] for key, own in stores.items() if name in own} or None

    ends = {key: own["edge_index"] for key, own in edges.items()}
    return HeteroSamplerOutput(
        node=values(nodes, "n_id"),
        row={key: index[0] for key, index in ends.items()},
        col={key: index[1] for key, index in ends.items()},
        edge={key: own.get("e_id") for key, own in edges.items()},
        batch=values(nodes, "batch"),
        num_sampled_nodes=values(nodes, counts[0]),
        num_sampled_edges=values(edges, counts[1]),
    )


class NeighborSampler(GraphSampler):
    """PyG's ``NeighborSampler``, which samples hop by hop as ``NeighborLoader`` does.

    ``num_neighbors``, ``replace``, ``subgraph_type``, ``disjoint`` and ``temporal_strategy`` may be assigned: the next batch follows them.

    Args:
        data: A ``Data``, a ``HeteroData``, or ``(FeatureStore, GraphStore)``; its edges are read once.
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours.
        subgraph_type: "directional", "bidirectional" or "induced".
        replace: Draws neighbours with replacement.
        disjoint: Gives every input a neighbourhood of its own.
        temporal_strategy: "uniform" or "last".
        time_attr: Name of the node or edge array of times: nothing later than an input is sampled around it.
        weight_attr: Name of the edge array in proportion to which neighbours are drawn.
        is_sorted: Changes nothing: edges are sorted in linear time.
        share_memory: Changes nothing: forked processes share the graph.
        directed: Deprecated; False is ``subgraph_type="induced"``.
        sample_direction: "forward"; "backward" cannot be followed.

    Raises:
        PlanError: A value is unusable, or cannot be followed.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import NeighborSampler
        >>> data = gnnkit.datasets.cora()
        >>> from torch_geometric.loader import NodeLoader
        >>> loader = NodeLoader(data, NeighborSampler(data, num_neighbors=[5, 5]), input_nodes=data.train_mask, batch_size=32)
        >>> next(iter(loader)).batch_size
        32
    """

    replace: bool
    subgraph_type: SubgraphType | str
    disjoint: bool
    temporal_strategy: str

    def __init__(  # noqa: PLR0913 - PyG's
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        num_neighbors: Any,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: str = "forward",
    ) -> None:
        if sample_direction != "forward":
            raise PlanError(
                f"sample_direction={sample_direction!r} cannot be followed: neighbours are the sources of a node's edges",
                "turn the edges round: data.edge_index = data.edge_index.flip(0)",
            )
        graph = as_object(data)
        super().__init__(graph, time_attr, weight_attr)
        if not directed:
            warn("directed=False is deprecated: use subgraph_type='induced'")
            subgraph_type = SubgraphType.induced
        self.num_neighbors = num_neighbors
        self.replace, self.disjoint, self.temporal_strategy = replace, disjoint or time_attr is not None, temporal_strategy
        self.subgraph_type = _subgraph_type(subgraph_type)
        self.options(graph)  # checks fan-outs
        self.open()

    @property
    def num_neighbors(self) -> NumNeighbors:
        """The fan-outs; ``len`` is the number of hops."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: Any) -> None:
        values = to_array(value, "num_neighbors").tolist() if hasattr(value, "tolist") else value
        if not isinstance(values, (list, tuple, dict, NumNeighbors)):
            raise PlanError(f"num_neighbors must be a list with one number per hop, got {value!r}", "for example [15, 10, 5]")
        with _as_plan_error(value):
            self._num_neighbors = values if isinstance(values, NumNeighbors) else NumNeighbors(values)

    @override
    def options(self, graph: Data | HeteroData, edge_type: EdgeType | None = None) -> dict[str, Any]:
        counts = self.num_neighbors
        fan_outs = counts.values
        with _as_plan_error(fan_outs):
            if isinstance(fan_outs, dict) and isinstance(graph, HeteroData):
                fan_outs = dict(NumNeighbors(fan_outs, counts.default).get_values(list(graph.edge_types)))
                if edge_type is not None:
                    fan_outs.setdefault(edge_type, [0] * counts.num_hops)  # a type without edges
        return {
            # Without a hop there are the inputs alone, as with one hop that draws nothing.
            "num_neighbors": fan_outs if counts.num_hops else [0],
            "replace": self.replace,
            "disjoint": self.disjoint,
            "subgraph_type": _subgraph_type(self.subgraph_type).value,
            "temporal_strategy": self.temporal_strategy,
        }

    @override
    def form(self) -> dict[str, Any]:
        is_bidirectional = _subgraph_type(self.subgraph_type) == SubgraphType.bidirectional
        return {"num_hops": self.num_neighbors.num_hops, "has_edge_ids": not is_bidirectional}


class HGTSampler(GraphSampler):
    """PyG's ``HGTSampler``, which samples as ``HGTLoader`` does. ``num_samples`` may be assigned: the next batch follows it.

    Args:
        data: A ``HeteroData``, or ``(FeatureStore, GraphStore)``, whose edges are read once.
        num_samples: Nodes of each type in each iteration, one list or ``{node type: list}``; a type that is missing gets none.
        is_sorted: Changes nothing: edges are sorted in linear time.
        share_memory: Changes nothing: forked processes share the graph.

    Raises:
        PlanError: A value is unusable, or the graph has one node type.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import HGTSampler
        >>> from torch_geometric.loader import NodeLoader
        >>> data = gnnkit.datasets.cora().to_heterogeneous()
        >>> loader = NodeLoader(data, HGTSampler(data, num_samples=[64, 64]), input_nodes=("0", None), batch_size=32)
        >>> next(iter(loader))["0"].batch_size
        32
    """

    def __init__(
        self,
        data: HeteroData | tuple[FeatureStore, GraphStore],
        num_samples: list[int] | dict[str, list[int]],
        is_sorted: bool = False,
        share_memory: bool = False,
    ) -> None:
        graph = as_object(data)
        if not isinstance(graph, HeteroData):
            raise PlanError("data has one node type, and nodes are to be drawn by their types", "NeighborLoader takes it")
        super().__init__(graph)
        self.num_samples = num_samples
        self.options(graph)  # checks them
        self.open()

    @override
    def options(self, graph: Data | HeteroData, edge_type: EdgeType | None = None) -> dict[str, Any]:
        return {"sampler": HGT(self.num_samples)}
