"""Batches as graphlearn-torch's messages: flat dicts of tensors, which its channels carry and its loaders collate.

A message of a homogeneous graph has the keys ``ids, rows, cols, eids, nfeats, efeats, nlabels, batch, num_sampled_nodes,
num_sampled_edges``; one of a typed graph has them as ``<type>.ids`` and so on, an edge type's words joined by ``__``. Rows are the
seed side's local numbers and columns the neighbours'. ``#IS_HETERO`` says which it is, ``#META.<name>`` holds attributes of the
batch, and ``#SAMPLING_ERROR`` a traceback in place of a batch. Arrays that graphlearn-torch has no word for lie under
``<type>.<name>`` in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

import torch

from gnnkit.distributed.store_views import EDGE_FEATURES, NODE_FEATURES, DatasetSchema, FeatureInfo
from gnnkit.errors import SamplingError
from gnnkit.loader.building import LabelReader
from gnnkit.plan.sampling import PPR_RELATION
from gnnkit.runtime.ring import BlockPool
from gnnkit.sampling.collate import BatchContents, Dequantizer, collate, with_dims
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, NodeKey
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    NodeType,
    Quantization,
    edge_type_name,
    is_label_edge_type,
    reverse_edge_type,
)

SampleMessage: TypeAlias = dict[str, torch.Tensor]

_IS_HETERO = "#IS_HETERO"
_META = "#META."
_ERROR = "#SAMPLING_ERROR"
_NODE_WORDS = {"n_id": "ids", "x": "nfeats", "y": "nlabels"}
_EDGE_WORDS = {"e_id": "eids", "edge_attr": "efeats"}
_NODES, _EDGES, _ROWS, _COLS, _BATCH, _MASK = "num_sampled_nodes", "num_sampled_edges", "rows", "cols", "batch", "seed_mask"


@dataclass(frozen=True)
class MessageFormat:
    """The messages of one loader.

    Attributes:
        homogeneous: Whether keys are bare.
        node_types: Node types.
        edge_keys: ``{edge type as batches show it: its words in keys}``.
        input_type: The seeds' node type; of links, that of their sources.
        optional: Edge types that batches do without where a message has nothing of them; others then have no edges.
        link_type: The type of the loader's links; None where its inputs are nodes.
        by_ppr: Whether batches hold the edges of personalised PageRank, which are of no hop and not counted.
    """

    homogeneous: bool
    node_types: tuple[NodeType, ...]
    edge_keys: Mapping[EdgeType, str]
    input_type: NodeType
    optional: frozenset[EdgeType] = frozenset()
    link_type: EdgeType | None = None
    by_ppr: bool = False

    @cached_property
    def _edge_types(self) -> Mapping[str, EdgeType]:
        return {key: edge_type for edge_type, key in self.edge_keys.items()}

    @classmethod
    def of(
        cls,
        node_types: Iterable[NodeType] | None,
        edge_types: Iterable[EdgeType] | None,
        edge_dir: EdgeDir,
        input_type: NodeType | EdgeType | None,
        *,
        by_ppr: bool = False,
    ) -> MessageFormat:
        """The messages about a graph.

        Args:
            node_types: Its node types; None for a homogeneous one.
            edge_types: Its edge types; None for a homogeneous one.
            edge_dir: The direction in which it is sampled.
            input_type: The seeds' node type, or the type of links; None for nodes of a homogeneous graph.
            by_ppr: Whether batches hold the edges of personalised PageRank. Its rows are nodes, and its columns the seeds that keep them.
        """
        link_type = input_type if isinstance(input_type, tuple) else None
        if node_types is None or edge_types is None or input_type is None:
            only = {HOMOGENEOUS_EDGE_TYPE: edge_type_name(HOMOGENEOUS_EDGE_TYPE)}
            uncounted = frozenset(only if by_ppr else ())
            return cls(True, (HOMOGENEOUS_NODE_TYPE,), only, HOMOGENEOUS_NODE_TYPE, uncounted, link_type, by_ppr)
        # Keys name the direction from a node to its neighbours, batches show the other one.
        ends = [(reverse_edge_type(t), t) if edge_dir == "out" else (t, reverse_edge_type(t)) for t in edge_types]
        keys, types = {shown: edge_type_name(walked) for shown, walked in ends}, tuple(node_types)
        if isinstance(input_type, tuple):
            optional = frozenset({input_type} - keys.keys())
            keys.setdefault(input_type, edge_type_name(reverse_edge_type(input_type)))
            return cls(False, types, keys, input_type[0], optional, link_type)
        if not by_ppr:
            return cls(False, types, keys, input_type)
        keys |= {t: edge_type_name(t) for t in ((a, PPR_RELATION, b) for a in types for b in types)}
        return cls(False, types, keys, input_type, frozenset(keys), by_ppr=True)

    def pack(self, contents: BatchContents) -> SampleMessage:
        """The message of a batch, on the batch's own memory."""
        message = {_IS_HETERO: torch.tensor(not self.homogeneous)}
        for key, tensor in contents.arrays.items():
            if isinstance(key, NodeKey):
                message[self._node_key(key.type, key.name)] = tensor
            elif key.name == "edge_index":
                message[self._edge_key(key.type, _COLS)], message[self._edge_key(key.type, _ROWS)] = tensor
            else:
                message[self._edge_key(key.type, key.name)] = tensor
        for node_type in (self.input_type,) if self.link_type is None else (self.link_type[0], self.link_type[2]):
            count = contents.num_seeds if self.link_type is None else contents.num_sampled_nodes[node_type][0]
            message[self._node_key(node_type, _BATCH)] = contents.arrays[NodeKey(node_type, "n_id")][:count]
        if contents.seed_mask is not None:
            message[self._node_key(self.input_type, _MASK)] = contents.seed_mask
        for node_type, counts in contents.num_sampled_nodes.items():
            message[self._node_key(node_type, _NODES)] = torch.tensor(counts, dtype=torch.int64)
        for edge_type, counts in contents.num_sampled_edges.items():
            if self.by_ppr and (self.homogeneous or edge_type[1] == PPR_RELATION):
                continue
            message[self._edge_key(edge_type, _EDGES)] = torch.tensor(counts, dtype=torch.int64)
        return message

    def unpack(self, message: Mapping[str, Any], batch_size: int) -> tuple[BatchContents, dict[str, Any]]:
        """Reads a message, and leaves the message itself as it is.

        Args:
            message: A message of ours, or of any producer that keeps to the protocol.
            batch_size: The loader's batch size: the number of seeds of a message without one.

        Returns:
            The batch's contents, and the attributes under ``#META.``.

        Raises:
            SamplingError: The message holds a traceback, lacks something, or names an unknown type.
        """
        if _ERROR in message:
            text = bytes(message[_ERROR].tolist()).decode(errors="replace")
            raise SamplingError(f"a sampling worker failed while producing this batch:\n{text}")
        meta = {key[len(_META) :]: value for key, value in message.items() if key.startswith(_META)}
        arrays: dict[BatchKey, torch.Tensor] = {}
        for name, value in message.items():
            if not name.startswith("#") and (key := self._parse(name)) is not None:
                arrays[key] = value if key.name != "edge_index" else _stacked(value, self._get(message, f"{name[: -len(_COLS)]}{_ROWS}"))
        input_key = NodeKey(self.input_type, "n_id")
        if input_key not in arrays:
            self._lacks(self._node_key(self.input_type, "n_id"))
        for node_type in self.node_types:
            arrays.setdefault(NodeKey(node_type, "n_id"), torch.empty(0, dtype=torch.int64))
        for edge_type in self.edge_keys.keys() - self.optional:
            arrays.setdefault(EdgeKey(edge_type, "edge_index"), torch.empty((2, 0), dtype=torch.int64))
        seeds = message.get(self._node_key(self.input_type, _BATCH))
        num_seeds = min(batch_size, len(arrays[input_key])) if seeds is None else len(seeds)
        (nodes, edges), mask = self._counts(message), message.get(self._node_key(self.input_type, _MASK))
        return BatchContents(arrays, nodes, edges, self.link_type or self.input_type, num_seeds, mask), meta

    def _counts(self, message: Mapping[str, Any]) -> tuple[dict[NodeType, list[int]], dict[EdgeType, list[int]]]:
        """New nodes and edges per hop, of every type, as long for each type; types that the message leaves out have none."""
        nodes = {t: _whole(message.get(self._node_key(t, _NODES))) for t in self.node_types}
        edges = {
            t: _whole(message.get(self._edge_key(t, _EDGES)))
            for t in self.edge_keys
            if t not in self.optional or self._edge_key(t, _EDGES) in message
        }
        if not nodes[self.input_type]:
            if self._node_key(self.input_type, _NODES) not in message:
                self._lacks(self._node_key(self.input_type, _NODES))
            return nodes, edges  # hops mean nothing in such a batch
        num_hops = max([len(counts) - 1 for counts in nodes.values()] + [len(counts) for counts in edges.values()])
        return (
            {t: counts + [0] * (num_hops + 1 - len(counts)) for t, counts in nodes.items()},
            {t: counts + [0] * (num_hops - len(counts)) for t, counts in edges.items()},
        )

    def _node_key(self, node_type: NodeType, name: str) -> str:
        word = _NODE_WORDS.get(name, name)
        bare = self.homogeneous and (name in _NODE_WORDS or name in (_BATCH, _NODES))
        return word if bare else f"{node_type}.{word}"

    def _edge_key(self, edge_type: EdgeType, name: str) -> str:
        word = _EDGE_WORDS.get(name, name)
        bare = self.homogeneous and (name in _EDGE_WORDS or name in (_ROWS, _COLS, _EDGES))
        return word if bare else f"{self.edge_keys[edge_type]}.{word}"

    def _parse(self, name: str) -> BatchKey | None:
        """Returns the key of the array under a message's key; None for counts, seeds and rows, which are read by their names."""
        owner, _, word = name.rpartition(".")
        if word in (_NODES, _EDGES, _BATCH, _MASK, _ROWS):
            return None
        if not owner and self.homogeneous:
            owner = HOMOGENEOUS_NODE_TYPE if word in _NODE_WORDS.values() else edge_type_name(HOMOGENEOUS_EDGE_TYPE)
        if owner in self._edge_types:
            names = {_COLS: "edge_index", **{short: long for long, short in _EDGE_WORDS.items()}}
            return EdgeKey(self._edge_types[owner], names.get(word, word))
        if owner in self.node_types:
            return NodeKey(owner, next((long for long, short in _NODE_WORDS.items() if short == word), word))
        raise SamplingError(f"a message has the key {name!r}, which belongs to no type of the graph")

    def _get(self, message: Mapping[str, Any], key: str) -> torch.Tensor:
        if key not in message:
            self._lacks(key)
        found: torch.Tensor = message[key]
        return found

    def _lacks(self, key: str) -> NoReturn:
        raise SamplingError(f"a message has no {key!r}", "a producer's messages need what graphlearn-torch's samplers put into theirs")


def _whole(counts: Any) -> list[int]:
    return [] if counts is None else [int(count) for count in counts]


def _stacked(cols: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``[2, e]`` of two tensors of length e; without a copy where they lie one behind the other, as those of our batches do."""
    size, step = len(cols), cols.element_size()
    if cols.is_contiguous() and rows.is_contiguous() and rows.data_ptr() == cols.data_ptr() + size * step:
        whole = cols.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        if whole and cols.dtype == rows.dtype and len(rows) == size:
            return cols.as_strided((2, size), (size, 1))
    return torch.stack([cols, rows])


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches of messages, on the loader's device.

    Types that should have features and came without any get empty ones.

    Attributes:
        format: The messages.
        homogeneous: Whether batches are ``Data``: of a homogeneous graph, or of one that is stored typed because of its labels.
        batch_size: The loader's batch size.
        collect_features: Whether batches have ``x`` and ``edge_attr``.
        node_features: What features types of nodes have.
        edge_features: What features types of edges have, as batches show them.
        device: Where batches go; None leaves them where they are.
        non_blocking: Whether copies may go on after a call.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole type that every batch carries, by type.
        dims: The dimensions of arrays whose rows do not lie along the first one, over the connection of a ``GraphLoader``.
        transform: Called on each batch before it is copied, or None.
        shows_labels: Whether label edges are seen: over the connection of a ``GraphLoader``, whose batches show every type.
        labels: Makes the labels of anchors; None where there are no anchors.
        dequantize: Shows quantised arrays as float32; None where there are none.
    """

    format: MessageFormat
    homogeneous: bool
    batch_size: int
    collect_features: bool
    node_features: Mapping[NodeType, FeatureInfo]
    edge_features: Mapping[EdgeType, FeatureInfo]
    device: torch.device | None
    non_blocking: bool
    extra: Mapping[str, Any] = field(default_factory=dict)
    type_extra: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    dims: Mapping[BatchKey, int] = field(default_factory=dict)
    transform: Callable[[Any], Any] | None = None
    shows_labels: bool = False
    labels: LabelReader | None = None
    dequantize: Dequantizer | None = None

    @classmethod
    def of(
        cls, messages: MessageFormat, schema: DatasetSchema, config: Any, device: torch.device | None, *, non_blocking: bool
    ) -> BatchMaker:
        """The maker of a loader's batches.

        Args:
            messages: The format of its messages.
            schema: Its dataset's types and features.
            config: ``SamplingConfig``.
            device: See the attributes.
            non_blocking: See the attributes.
        """
        plain, turned = schema.edge_types is None, schema.edge_dir == "out" and schema.edge_types is not None

        def of_nodes(found: Any) -> Mapping[NodeType, Any]:
            return {HOMOGENEOUS_NODE_TYPE: found} if plain and found else found or {}

        def of_edges(found: Any) -> Mapping[EdgeType, Any]:
            by_type = {HOMOGENEOUS_EDGE_TYPE: found} if plain and found else found or {}
            return {(reverse_edge_type(t) if turned else t): values for t, values in by_type.items()}

        quantizations: dict[BatchKey, Quantization] = {
            NodeKey(t, name): q for t, found in of_nodes(schema.node_quantization).items() for name, q in found.items()
        }
        quantizations |= {EdgeKey(t, name): q for t, found in of_edges(schema.edge_quantization).items() for name, q in found.items()}
        return cls(
            messages,
            plain or schema.is_homogeneous_with_labeled_edge_type,
            config.batch_size,
            config.collect_features,
            of_nodes(schema.node_feature_info),
            of_edges(schema.edge_feature_info),
            device,
            non_blocking,
            dequantize=Dequantizer(quantizations, BlockPool(2 * len(quantizations)).lease) if quantizations else None,
        )

    def __call__(self, message: SampleMessage) -> Any:
        """``Data`` or ``HeteroData``; see ``BaseDistLoader._collate_fn``."""
        contents, meta = self.format.unpack(message, self.batch_size)
        contents, labels = (contents, {}) if self.labels is None else self.labels.take(contents)
        contents, extra = with_dims(self._shown(contents), self.dims), {**self.extra, **labels}
        data: Any = collate(contents, extra, self.type_extra, homogeneous=self.homogeneous, dequantize=self.dequantize)
        if self.transform is not None:
            data = self.transform(data)
        if self.device is not None:
            data = data.to(self.device, non_blocking=self.non_blocking)
            meta = {name: value.to(self.device, non_blocking=self.non_blocking) for name, value in meta.items()}
        if hasattr(data, "stores"):  # a transform may have made anything of it
            self._name(data)
            for name, value in meta.items():
                data[name] = value
        return data

    def _shown(self, contents: BatchContents) -> BatchContents:
        """Returns the part of a batch's contents that users see."""
        arrays: dict[BatchKey, torch.Tensor] = {}
        for key, tensor in contents.arrays.items():
            if isinstance(key, EdgeKey) and not self._shows(key.type):
                continue
            if self.collect_features or key.name != (NODE_FEATURES if isinstance(key, NodeKey) else EDGE_FEATURES):
                arrays[key] = tensor
        if self.collect_features:
            for node_type, info in self.node_features.items():
                arrays.setdefault(NodeKey(node_type, NODE_FEATURES), torch.empty((0, info.dim), dtype=info.dtype))
            for edge_type, info in self.edge_features.items():
                if self._shows(edge_type) and (edge_type in contents.num_sampled_edges or edge_type not in self.format.optional):
                    arrays.setdefault(EdgeKey(edge_type, EDGE_FEATURES), torch.empty((0, info.dim), dtype=info.dtype))
        edges = {t: counts for t, counts in contents.num_sampled_edges.items() if self._shows(t)}
        return contents._replace(arrays=arrays, num_sampled_edges=edges)

    def _shows(self, edge_type: EdgeType) -> bool:
        return self.shows_labels or not is_label_edge_type(edge_type)

    def _name(self, data: Any) -> None:
        """Adds graphlearn-torch's names for what is there already."""
        for store in data.stores:
            if "n_id" in store:
                store.node = store.n_id
            if "e_id" in store:
                store.edge = store.e_id
        link_type = self.format.link_type
        for node_type in (self.format.input_type,) if link_type is None else dict.fromkeys((link_type[0], link_type[2])):
            seeds = data if self.homogeneous else data[node_type]
            if link_type is not None and "num_sampled_nodes" in seeds:  # seeds are the ends of links and of their negatives
                seeds.batch_size = seeds.num_sampled_nodes[0]
            if "n_id" in seeds:
                seeds.batch = seeds.n_id[: seeds.batch_size]
        if not self.homogeneous and any("num_sampled_nodes" in store for store in data.node_stores):
            data.num_sampled_nodes = data.collect("num_sampled_nodes")
            counted = {store._key: store.num_sampled_edges for store in data.edge_stores if "num_sampled_edges" in store}
            data.num_sampled_edges = counted  # none of PPR's edges are
