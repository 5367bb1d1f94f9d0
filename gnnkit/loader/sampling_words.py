"""What users write about sampling, turned into what a plan holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnkit.errors import PlanError
from gnnkit.loader.words import check_fan_outs, resolve_fan_outs
from gnnkit.plan import NeighborSampling, Sampling, SubgraphType
from gnnkit.samplers import Sampler
from gnnkit.schema import EdgeDir, GraphSchema, find_reverse, is_label_edge_type

if TYPE_CHECKING:
    from gnnkit.loader.options import LoaderOptions

# Options that speak of sampling hop by hop, and what they are where nobody says anything.
HOP_WORDS: dict[str, Any] = {
    "num_neighbors": None,
    "replace": False,
    "disjoint": False,
    "subgraph_type": "directional",
    "temporal_strategy": "uniform",
}


def check_sampling_words(options: LoaderOptions) -> None:
    """Checks what can be checked without a graph.

    Raises:
        PlanError: Neither or both of ``num_neighbors`` and ``sampler`` are given, or a value is unusable.
    """
    if options.sampler is None:
        if options.num_neighbors is None:
            raise PlanError("num_neighbors is missing", "give one number per hop, for example num_neighbors=[15, 10, 5]")
        check_fan_outs(options.num_neighbors)
        NeighborSampling({}, disjoint=options.disjoint, subgraph_type=options.subgraph_type)
        if options.temporal_strategy not in ("uniform", "last"):
            raise PlanError(f"temporal_strategy must be 'uniform' or 'last', got {options.temporal_strategy!r}")
        return
    if isinstance(options.sampler, type) or not isinstance(options.sampler, Sampler):
        raise PlanError(
            f"sampler must be a way of sampling such as gnnkit.PPR(), gnnkit.HGT(...) or gnnkit.LayerWise(...), got {options.sampler!r}",
            "num_neighbors=[15, 10, 5] samples hop by hop",
        )
    for name, usual in HOP_WORDS.items():
        if getattr(options, name) != usual:
            kind = type(options.sampler).__name__
            raise PlanError(f"{name}={getattr(options, name)!r} and sampler={kind}(...) do not go together", f"leave {name} out")


def resolve_sampling(
    options: LoaderOptions, schema: GraphSchema, *, edge_dir: EdgeDir, weight: str | None, time_attr: str | None, with_edge: bool
) -> Sampling:
    """How a user means batches to be sampled.

    Args:
        options: The loader's options.
        schema: The graph's schema.
        edge_dir: The direction in which it is sampled.
        weight: Name of the edge array that draws follow.
        time_attr: Name of the array that keeps later neighbours out.
        with_edge: Whether batches carry edge ids.

    Raises:
        PlanError: An option does not go with the graph or with another one.
    """
    if options.sampler is not None:
        sampler: Sampler = options.sampler
        return sampler.sampling(schema, edge_dir=edge_dir, weight=weight, time_attr=time_attr, with_edge=with_edge)
    assert options.num_neighbors is not None, "checked when the options were made"
    check_reverses(options.subgraph_type, schema)
    return NeighborSampling(
        resolve_fan_outs(options.num_neighbors, schema),
        bool(options.replace),
        edge_dir,
        weight,
        with_edge,
        options.disjoint,
        options.subgraph_type,
        time_attr,
        options.temporal_strategy,
    )


def check_reverses(subgraph_type: SubgraphType, schema: GraphSchema) -> None:
    """Checks that bidirectional batches are possible, where they are wanted.

    Raises:
        PlanError: An edge type has no reverse type, or several.
    """
    if subgraph_type != "bidirectional":
        return
    edge_types = [edge_type for edge_type in schema.edge_types if not is_label_edge_type(edge_type)]
    alone = [edge_type for edge_type in edge_types if find_reverse(edge_type, edge_types) is None]
    if alone:
        raise PlanError(
            f"subgraph_type='bidirectional' needs a reverse type of every edge type, and {alone[0]} has none, or several",
            "torch_geometric.transforms.ToUndirected() adds them",
        )
