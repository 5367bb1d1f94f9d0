"""From a message to the PyG object that a loader hands out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from gnnkit.distributed.label_edges import is_label_edge_type
from gnnkit.distributed.sample_message import MessageFormat
from gnnkit.distributed.store_views import EDGE_FEATURES, NODE_FEATURES, DatasetSchema, FeatureInfo
from gnnkit.loader.building import LabelReader
from gnnkit.runtime.buffers import BlockPool
from gnnkit.sampling.collate import BatchContents, Dequantizer, collate
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, NodeKey
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType, Quantization, reverse_edge_type

if TYPE_CHECKING:
    from gnnkit.distributed.sample_message import SampleMessage


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
        transform: Called on each batch before it is copied, or None.
        shows_labels: Whether label edges are seen: over the connection of a ``GraphLoader``, whose batches show every type.
        labels: Makes the labels of anchors; None where there are no anchors.
        dequantize: Shows arrays that come in 8 bits as float32; None where there are none.
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
        nodes, edges = schema.node_feature_info, schema.edge_feature_info
        by_node = nodes if isinstance(nodes, Mapping) else {HOMOGENEOUS_NODE_TYPE: nodes} if nodes else {}
        by_edge = edges if isinstance(edges, Mapping) else {HOMOGENEOUS_EDGE_TYPE: edges} if edges else {}
        turned = schema.edge_dir == "out" and schema.edge_types is not None
        shown = {(reverse_edge_type(t) if turned else t): info for t, info in by_edge.items()}
        homogeneous = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
        of_nodes = _by_type(schema.node_quantization, HOMOGENEOUS_NODE_TYPE, schema)
        of_edges = _by_type(schema.edge_quantization, HOMOGENEOUS_EDGE_TYPE, schema)
        quantizations: dict[BatchKey, Quantization] = {NodeKey(t, name): q for t, found in of_nodes.items() for name, q in found.items()}
        for edge_type, found in of_edges.items():
            quantizations |= {EdgeKey(reverse_edge_type(edge_type) if turned else edge_type, name): q for name, q in found.items()}
        return cls(
            messages,
            homogeneous,
            config.batch_size,
            config.collect_features,
            by_node,
            shown,
            device,
            non_blocking,
            dequantize=Dequantizer(quantizations, BlockPool(2 * len(quantizations)).lease) if quantizations else None,
        )

    def __call__(self, message: SampleMessage) -> Any:
        """``Data`` or ``HeteroData``; see ``BaseDistLoader._collate_fn``."""
        contents, meta = self.format.unpack(message, self.batch_size)
        contents, labels = (contents, {}) if self.labels is None else self.labels.take(contents)
        data: Any = collate(
            self._shown(contents), {**self.extra, **labels}, self.type_extra, homogeneous=self.homogeneous, dequantize=self.dequantize
        )
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
        return replace(contents, arrays=arrays, num_sampled_edges=edges)

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


def _by_type(found: Any, only_type: Any, schema: DatasetSchema) -> Mapping[Any, Mapping[str, Quantization]]:
    """A value of a dataset's schema by type, also that of a homogeneous one."""
    if not found:
        return {}
    by_type: Mapping[Any, Mapping[str, Quantization]] = {only_type: found} if schema.edge_types is None else found
    return by_type
