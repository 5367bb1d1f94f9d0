"""Batches as graphlearn-torch's messages: flat dicts of tensors, which its channels carry and its loaders collate.

A message of a homogeneous graph has the keys ``ids, rows, cols, eids, nfeats, efeats, nlabels, batch, num_sampled_nodes,
num_sampled_edges``; one of a typed graph has them as ``<type>.ids`` and so on, an edge type's words joined by ``__``. Rows are the
seed side's local numbers and columns the neighbours'. ``#IS_HETERO`` says which it is, ``#META.<name>`` holds attributes of the
batch, and ``#SAMPLING_ERROR`` a traceback in place of a batch. Arrays that graphlearn-torch has no word for lie under
``<type>.<name>`` in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import torch

from gnnkit.errors import SamplingError
from gnnkit.plan.sampling import PPR_RELATION
from gnnkit.sampling.collate import BatchContents
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, NodeKey
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    NodeType,
    edge_type_name,
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
    _edge_types: Mapping[str, EdgeType] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_edge_types", {key: edge_type for edge_type, key in self.edge_keys.items()})

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
