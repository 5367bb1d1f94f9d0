"""The manifest: everything that is known of a store without looking into its arrays.

What the files of a store are called, and their dtypes and shapes, follows from schema, options and counts, so it is derived
(``file_specs``) by whoever writes them and compared by whoever reads them: a manifest cannot make an array something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gnnkit.schema import EdgeType, GraphSchema, NodeType, edge_type_name
from gnnkit.storage.files import FileEntry, FileSpec
from gnnkit.storage.layout import (
    FEATURE_NAME,
    FORMAT,
    FORMAT_VERSION,
    book_file,
    cache_file,
    edge_file,
    index_dtype,
    node_file,
    split_file,
)
from gnnkit.storage.link_splits import LinkSplitSpecs, link_split_files, specs_to_json
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.times import TIME_NAME, timed_edge_types


@dataclass(frozen=True)
class Manifest:
    """A store's manifest.

    Attributes:
        name: Name of the dataset.
        notice: See ``GraphSource.notice``.
        fingerprint: Hex digest of the source's content, the options and the format.
        source_fingerprint: ``GraphSource.fingerprint()`` of what the store was built from.
        schema: The arrays as stored.
        options: How the store was built, in canonical form.
        node_bounds: ``{node type: num_parts + 1 store ids}``.
        edge_counts: ``{edge type: edges of each part}``.
        cuts: ``{edge type: num_parts x num_parts}``: edges by the part that owns them and the part of their other end.
        weight_exponents: ``{edge type: s}`` where weights were prepared; see ``gnnkit.storage.weights``.
        renumbered: Node types whose store ids are not the dataset's.
        cached: ``{node type: nodes that each part replicates}``, types without any left out.
        splits: ``{node type: {split: number of ids}}``.
        link_splits: ``{edge type: {split: {name: dtype and shape}}}``.
        metadata: See ``GraphSource.metadata``.
        files: ``{path relative to the store: entry}``.
    """

    name: str
    notice: str | None
    fingerprint: str
    source_fingerprint: str
    schema: GraphSchema
    options: BuildOptions
    node_bounds: Mapping[NodeType, tuple[int, ...]]
    edge_counts: Mapping[EdgeType, tuple[int, ...]]
    cuts: Mapping[EdgeType, tuple[tuple[int, ...], ...]]
    weight_exponents: Mapping[EdgeType, int]
    renumbered: frozenset[NodeType]
    cached: Mapping[NodeType, tuple[int, ...]] = field(default_factory=dict)
    splits: Mapping[NodeType, Mapping[str, int]] = field(default_factory=dict)
    link_splits: LinkSplitSpecs = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, FileEntry] = field(default_factory=dict)

    @property
    def num_parts(self) -> int:
        """Parts of every type."""
        return self.options.num_parts

    @property
    def nbytes(self) -> int:
        """Bytes of all array files."""
        return sum(entry.size for entry in self.files.values())

    @property
    def graph_fingerprint(self) -> str:
        """Fingerprint of what decides batches, the same however the graph is cut: that of its store of one part."""
        return store_fingerprint(self.source_fingerprint, replace(self.options, num_parts=1))

    def file_specs(self) -> dict[str, FileSpec]:
        """What every file of the store must hold, by path."""
        specs: dict[str, FileSpec] = {}
        for node_type in self.schema.node_types:
            specs.update(self.node_specs(node_type))
        for edge_type in self.schema.edge_types:
            specs.update(self.edge_specs(edge_type))
        for node_type, splits in self.splits.items():
            for split, count in splits.items():
                specs[split_file(node_type, split)] = FileSpec(np.dtype(np.int64), (count,))
        return {**specs, **link_split_files(self.link_splits)}

    def node_specs(self, node_type: NodeType) -> dict[str, FileSpec]:
        """The same for one node type; needs its bounds and counts of cached nodes."""
        nodes, specs = self.schema.node_types[node_type], {}
        id_dtype = index_dtype(nodes.num_nodes)
        bounds, cached = self.node_bounds[node_type], self.cached.get(node_type, (0,) * self.num_parts)
        if node_type in self.renumbered:
            specs[book_file(node_type)] = FileSpec(id_dtype, (nodes.num_nodes,))
        for part in range(self.num_parts):
            count = bounds[part + 1] - bounds[part]
            for name, spec in nodes.arrays.items():
                specs[node_file(part, node_type, name)] = FileSpec(spec.numpy_dtype, (count, *spec.row_shape))
            if node_type in self.renumbered:
                specs[node_file(part, node_type, "global_id")] = FileSpec(id_dtype, (count,))
            if node_type in self.cached:
                features = nodes.arrays[FEATURE_NAME]
                specs[cache_file(part, node_type, "global_id")] = FileSpec(id_dtype, (cached[part],))
                specs[cache_file(part, node_type, FEATURE_NAME)] = FileSpec(features.numpy_dtype, (cached[part], *features.row_shape))
        return specs

    def edge_specs(self, edge_type: EdgeType) -> dict[str, FileSpec]:
        """The same for one edge type; needs its counts, the bounds of its ends and whether weights are prepared."""
        edges, specs = self.schema.edge_types[edge_type], {}
        counts, timed = self.edge_counts[edge_type], timed_edge_types(self.schema, self.options.edge_dir, self.options.time_attr)
        other, owner = (edge_type[0], edge_type[2]) if self.options.edge_dir == "in" else (edge_type[2], edge_type[0])
        for part in range(self.num_parts):
            owners = self.node_bounds[owner][part + 1] - self.node_bounds[owner][part]
            own = {
                "indptr": FileSpec(index_dtype(max(counts)), (owners + 1,)),
                "indices": FileSpec(index_dtype(self.schema.node_types[other].num_nodes), (counts[part],)),
            }
            if self.options.with_edge:
                own["edge_id"] = FileSpec(index_dtype(edges.num_edges), (counts[part],))
            if edge_type in self.weight_exponents:
                own["weight_prefix"] = FileSpec(np.dtype(np.uint64), (counts[part],))
            if edge_type in timed:
                own[TIME_NAME] = FileSpec(np.dtype(np.int64), (counts[part],))
            for name, spec in edges.arrays.items():
                own[name] = FileSpec(spec.numpy_dtype, (counts[part], *spec.row_shape))
            specs.update({edge_file(part, edge_type, name): spec for name, spec in own.items()})
        return specs

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``manifest_io.manifest_from_json`` reverses it."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "notice": self.notice,
            "fingerprint": self.fingerprint,
            "source_fingerprint": self.source_fingerprint,
            "schema": self.schema.to_json(),
            "options": self.options.to_json(),
            "node_bounds": {k: list(v) for k, v in self.node_bounds.items()},
            "edge_counts": {edge_type_name(k): list(v) for k, v in self.edge_counts.items()},
            "cuts": {edge_type_name(k): [list(row) for row in v] for k, v in self.cuts.items()},
            "weight_exponents": {edge_type_name(k): v for k, v in self.weight_exponents.items()},
            "renumbered": sorted(self.renumbered),
            "cached": {k: list(v) for k, v in self.cached.items()},
            "splits": {k: dict(v) for k, v in self.splits.items()},
            "link_splits": specs_to_json(self.link_splits),
            "metadata": dict(self.metadata),
            "files": {
                name: {"dtype": e.dtype, "shape": list(e.shape), "size": e.size, "crc32": e.crc32} for name, e in sorted(self.files.items())
            },
        }


def canonical_options(options: BuildOptions) -> BuildOptions:
    """The options without those that cannot influence the result, so that equal stores have equal fingerprints."""
    default = BuildOptions()
    if options.num_parts == 1:
        options = replace(options, partition=default.partition, cache_ratio=0.0)
    if options.partition != "frequency" and options.cache_ratio == 0.0:
        options = replace(options, num_neighbors=default.num_neighbors)
    if options.partition == "contiguous" and options.cache_ratio == 0.0:
        options = replace(options, seed=default.seed)
    return options


def store_fingerprint(source_fingerprint: str, options: BuildOptions) -> str:
    """Hex digest of a source's content, the options that matter and the format version."""
    import hashlib

    value = [FORMAT, FORMAT_VERSION, source_fingerprint, canonical_options(options).to_json()]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
