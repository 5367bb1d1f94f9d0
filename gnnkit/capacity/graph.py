"""The graph that is to be trained on: its sizes, and what a store of it takes on disk, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gnnkit.errors import PlanError
from gnnkit.plan import LoaderPlan
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.layout import FEATURE_NAME, MANIFEST_NAME, check_buildable, part_of, store_schema, weighted_edge_types
from gnnkit.storage.manifest import Manifest, canonical_options
from gnnkit.storage.manifest_io import read_manifest
from gnnkit.storage.numbering import contiguous
from gnnkit.storage.options import BuildOptions


@dataclass(frozen=True)
class SizedGraph:
    """A graph and its store.

    Attributes:
        name: What it is called.
        source: Where its sizes come from, in words.
        schema: The graph as stored.
        splits: ``{node type: {split: number of ids}}``.
        part_bytes: Bytes of each part's files.
        shared_bytes: Bytes of the files that every host has.
        store: The store's folder; None where there is none yet.
        plan: The plan that named it; None without one.
    """

    name: str
    source: str
    schema: GraphSchema
    splits: Mapping[NodeType, Mapping[str, int]]
    part_bytes: tuple[int, ...]
    shared_bytes: int
    store: Path | None = None
    plan: LoaderPlan | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole store, its manifest left out."""
        return sum(self.part_bytes) + self.shared_bytes


def sized_graph(source: str, options: BuildOptions) -> SizedGraph:
    """The graph that a name, the folder of a store or the file of a plan stands for.

    Args:
        source: An OGB dataset's name, which is looked up and not downloaded; a store's folder; or a plan's file.
        options: How the store is to be built; for a store that is there, only the number of parts is read.

    Raises:
        DatasetError: The dataset is unknown.
        StoreError: The store cannot be opened.
        PlanError: The plan cannot be read, or the options do not fit the graph.
    """
    path = Path(source).expanduser()
    if path.is_file():
        plan = LoaderPlan.load(path)
        if plan.store is None:
            raise PlanError(f"the graph of the plan {source!r} was only in memory", "give a store")
        return _of_store(Path(plan.store.path), options, plan)
    if (path / MANIFEST_NAME).is_file() or "/" in source:
        return _of_store(path, options, None)
    from gnnkit.datasets.ogb_sizes import published_graph

    graph = published_graph(source)
    return planned(source, "sizes that OGB publishes", graph.schema, graph.splits, options)


def _of_store(path: Path, options: BuildOptions, plan: LoaderPlan | None) -> SizedGraph:
    manifest = read_manifest(path)
    if manifest.num_parts != options.num_parts:
        cut = replace(manifest.options, num_parts=options.num_parts, partition=options.partition)
        found = planned(manifest.name, f"the store {path}, cut anew", manifest.schema, manifest.splits, cut)
        return replace(found, store=path, plan=plan)
    by_part, shared = _by_part({name: entry.size for name, entry in manifest.files.items()}, manifest.num_parts)
    return SizedGraph(manifest.name, f"the store {path}", manifest.schema, manifest.splits, by_part, shared, path, plan)


def planned(name: str, source: str, schema: GraphSchema, splits: Mapping[NodeType, Mapping[str, int]], options: BuildOptions) -> SizedGraph:
    """The sizes that a store would have if its parts had the same share of nodes and edges: exact in sum, but for the width of offsets."""
    check_buildable(schema, options)
    options, stored = canonical_options(options), store_schema(schema, options)
    parts = options.num_parts
    manifest = Manifest(
        name, None, "", "", stored, options,
        node_bounds={t: tuple(map(int, contiguous(nodes.num_nodes, parts).bounds)) for t, nodes in stored.node_types.items()},
        edge_counts={t: _even(edges.num_edges, parts) for t, edges in stored.edge_types.items()},
        cuts={},
        weight_exponents=dict.fromkeys(weighted_edge_types(schema, options), 0),
        renumbered=frozenset(stored.node_types if parts > 1 and options.partition != "contiguous" else ()),
        cached={t: (int(options.cache_ratio * stored.node_types[t].num_nodes),) * parts for t in _cached_types(stored, options)},
        splits=splits,
    )  # fmt: skip
    sizes = {name: spec.file_nbytes for name, spec in manifest.file_specs().items()}
    by_part, shared = _by_part(sizes, parts)
    return SizedGraph(name, source, stored, splits, by_part, shared)


def _cached_types(schema: GraphSchema, options: BuildOptions) -> list[NodeType]:
    """The node types of which parts replicate features."""
    return [t for t, nodes in schema.node_types.items() if options.cache_ratio > 0 and FEATURE_NAME in nodes.arrays]


def _even(count: int, parts: int) -> tuple[int, ...]:
    return tuple(count * (part + 1) // parts - count * part // parts for part in range(parts))


def _by_part(sizes: Mapping[str, int], num_parts: int) -> tuple[tuple[int, ...], int]:
    found, shared = [0] * num_parts, 0
    for name, size in sizes.items():
        part = part_of(name)
        if part is None:
            shared += size
        else:
            found[part] += size
    return tuple(found), shared
