"""From graphlearn-torch's records to a plan of ours."""

from __future__ import annotations

from typing import Any

from gnnkit.backends.base import Backend
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.loader_options import PPRSamplerOptions, SamplerOptions
from gnnkit.distributed.resolve import DistributedRuntimeInfo
from gnnkit.errors import PlanError
from gnnkit.loader.graphs import open_store
from gnnkit.loader.inputs import resolve_input_nodes
from gnnkit.loader.planned import check_store_has
from gnnkit.plan import Batching, Inputs, LoaderPlan, NeighborSampling, Placement, RuntimeOptions, Sampling, SubgraphType
from gnnkit.plan.fan_outs import resolve_fan_outs
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.schema import EdgeType
from gnnkit.storage.store import Store
from gnnkit.vendor import glt


def make_plan(
    dataset: DistDataset,
    sampler_input: Any,
    config: Any,
    backend: Backend,
    batch_timeout_s: float,
    runtime: DistributedRuntimeInfo | None,
    options: SamplerOptions | None = None,
) -> tuple[LoaderPlan, GraphHandle]:
    """The plan of one trainer's batches, and the graph that it is about.

    The seeds are this trainer's own: they are dealt to nobody else. Without a seed in ``config`` the random seed is 0.

    Args:
        dataset: A dataset of a store.
        sampler_input: ``NodeSamplerInput``: the seeds' ids.
        config: ``SamplingConfig``, as ``create_sampling_config`` makes it.
        backend: Where it is sampled.
        batch_timeout_s: Seconds that one wait for a batch may take.
        runtime: Where this process stands; None is alone.
        options: How it is sampled; None is hop by hop, as ``config`` says.

    Raises:
        PlanError: Something does not fit the dataset, or is not there yet.
    """
    store = stored(dataset)
    placement = _placement(dataset, runtime)
    parts = None if placement is None else placement.hosts[dataset.partition_idx]
    if store.local_parts != (tuple(range(store.num_parts)) if parts is None else parts):
        # A part is here because the plan says so, not because its file can be opened.
        store = Store.open(store.path, parts)
    return plan_on(store, sampler_input, config, backend, batch_timeout_s, placement, options)


def plan_on(
    store: Store,
    sampler_input: Any,
    config: Any,
    backend: Backend,
    batch_timeout_s: float,
    placement: Placement | None = None,
    options: SamplerOptions | None = None,
) -> tuple[LoaderPlan, GraphHandle]:
    """The plan of batches of a store, and the process's handle on it; see ``make_plan``.

    Args:
        store: The store.
        sampler_input: See ``make_plan``.
        config: See ``make_plan``.
        backend: See ``make_plan``.
        batch_timeout_s: See ``make_plan``.
        placement: Which host holds which parts; None where everything is on one, or on servers.
        options: See ``make_plan``.

    Raises:
        PlanError: As ``make_plan``.
    """
    kinds, of_links = glt.attribute("sampler.SamplingType"), hasattr(sampler_input, "links")
    fitting = (kinds.LINK,) if of_links else (kinds.NODE, kinds.SUBGRAPH)
    if config.sampling_type not in fitting or (config.with_neg and not of_links):
        raise PlanError(f"sampling_type is {config.sampling_type}, and the seeds are {'links' if of_links else 'nodes'}")
    if config.edge_dir != store.edge_dir:
        raise PlanError(
            f"edge_dir={config.edge_dir!r}, and the store {str(store.path)!r} is compressed for {store.edge_dir!r}",
            f"sample along edge_dir={store.edge_dir!r}, or build a store with gnnkit.partition(..., edge_dir={config.edge_dir!r})",
        )
    if config.with_weight and store.options.weight is None:
        raise PlanError(
            f"with_weight=True, and the store {str(store.path)!r} was built without weights",
            "build it with weight=<name of an edge array>, or leave with_weight out",
        )
    check_store_has(store, None, None, config.with_edge)
    sampling = _sampling(store, config, options)
    graph = open_store(store)
    inputs = sampler_input.links(sampling, graph) if of_links else _nodes(sampler_input, graph)
    seed = 0 if config.seed is None else config.seed
    batching = Batching(
        config.batch_size, bool(config.shuffle), bool(config.drop_last), "drop" if config.shuffle else "pad", seed, rank=0, world_size=1
    )
    limits = RuntimeOptions(batch_timeout_s=batch_timeout_s)
    return LoaderPlan(graph.store, inputs, sampling, batching, backend.to_json(), limits, placement), graph


def _nodes(sampler_input: Any, graph: GraphHandle) -> Inputs:
    ids = sampler_input.node
    nodes = resolve_input_nodes(ids if sampler_input.input_type is None else (sampler_input.input_type, ids), graph)
    # Seeds with labels say themselves what they are in a plan.
    return sampler_input.anchors(nodes) if hasattr(sampler_input, "anchors") else nodes


def _sampling(store: Store, config: Any, options: SamplerOptions | None) -> Sampling:
    weight, with_edge = store.options.weight if config.with_weight else None, bool(config.with_edge)
    if isinstance(options, PPRSamplerOptions):
        return options.sampling(store.schema, edge_dir=store.edge_dir, weight=weight, time_attr=None, with_edge=with_edge)
    fan_outs = resolve_fan_outs(_with_labels(config.num_neighbors, store), store.schema)
    induced = config.sampling_type is glt.attribute("sampler.SamplingType").SUBGRAPH
    subgraph_type: SubgraphType = "induced" if induced else "directional"
    return NeighborSampling(fan_outs, False, store.edge_dir, weight, with_edge, subgraph_type=subgraph_type)


def stored(dataset: Any) -> Store:
    """The store behind a dataset.

    Raises:
        PlanError: There is none, or it is no dataset of ours.
    """
    store: Store | None = getattr(dataset, "store", None)
    if store is None and getattr(dataset, "num_partitions", 1) > 1:
        raise PlanError(
            f"the dataset is part {dataset.partition_idx} of {dataset.num_partitions}, without a store: the other parts are elsewhere",
            "loaders and servers on the network put the parts of init_graph() together; else make a store of the whole graph "
            "with gnnkit.partition(data, num_parts), and open each part with DistDataset.from_store",
        )
    if store is None:
        raise PlanError(
            f"the dataset is a {type(dataset).__name__} without a store and without a graph",
            "use gnnkit.distributed.DistDataset.from_store(...), load() of a store or of graphlearn-torch's partitions, or init_graph()",
        )
    return store


def _with_labels(num_neighbors: Any, store: Store) -> Any:
    """Fan-outs for every type that is stored: what create_sampling_config leaves out is never walked along."""
    if not isinstance(num_neighbors, dict):
        return num_neighbors
    num_hops = max(map(len, num_neighbors.values()), default=0)
    nothing: dict[EdgeType, Any] = {edge_type: [0] * num_hops for edge_type in store.schema.edge_types}
    return {**nothing, **num_neighbors}


def _placement(dataset: DistDataset, runtime: DistributedRuntimeInfo | None) -> Placement | None:
    """Host k holds part k; None where one host holds everything."""
    if runtime is None or runtime.node_world_size == 1 or dataset.num_partitions == 1:
        return None
    if dataset.num_partitions != runtime.node_world_size or dataset.partition_idx != runtime.node_rank:
        raise PlanError(
            f"host {runtime.node_rank} of {runtime.node_world_size} has part {dataset.partition_idx} of {dataset.num_partitions}",
            "give each host the part of its own number: DistDataset.from_store(store, partition_idx=runtime.node_rank), "
            f"of a store with {runtime.node_world_size} parts",
        )
    return Placement(tuple((part,) for part in range(runtime.node_world_size)))
