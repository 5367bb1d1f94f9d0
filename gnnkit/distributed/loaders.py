"""Loaders by graphlearn-torch's and GiGL's names: of nodes, links, subgraphs and anchors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, Union

import torch

from gnnkit.bounds import whole_number
from gnnkit.callers import warn
from gnnkit.distributed.base_loader import BaseDistLoader, ConnectionChannel, DistSamplingProducer
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.dataset_values import trainers
from gnnkit.distributed.dist_server import ABLPInputNodes, DistServer, RemoteDistDataset
from gnnkit.distributed.glt_classes import (
    CollocatedDistSamplingWorkerOptions,
    NegativeSampling,
    RemoteDistSamplingWorkerOptions,
    SamplingType,
)
from gnnkit.distributed.glt_records import (
    AnchorSamplerInput,
    local_anchors,
    local_links,
    local_nodes,
    remote_options,
    server_anchors,
    server_links,
    server_nodes,
)
from gnnkit.distributed.loader_options import (
    SamplerOptions,
    check_worker_options,
    create_colocated_worker_options,
    sampler_options_of,
    stored,
)
from gnnkit.distributed.resolve import DistributedContext, DistributedRuntimeInfo, runtime_of
from gnnkit.distributed.sample_message import BatchMaker
from gnnkit.errors import PlanError
from gnnkit.loader.building import LabelReader
from gnnkit.loader.inputs import LinkOptions
from gnnkit.plan import ExcludeEdges, LabelOutput
from gnnkit.sampling.collate import BatchContents
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, NodeKey
from gnnkit.schema import EdgeDir, EdgeType, NodeType

# Ids, or ids by server.
Seeds: TypeAlias = Union["torch.Tensor", Mapping[int, "torch.Tensor"]]
AnyDataset: TypeAlias = DistDataset | RemoteDistDataset

_WORKER_CONCURRENCY = _PREFETCH_SIZE = 4
_DATASETS = (
    "a DistDataset samples here, a RemoteDistDataset on servers; "
    "without either, RemoteDistSamplingWorkerOptions mean the servers that were joined"
)


def one_of(name: str, value: Any, other_name: str, other: Any, hint: str = "", **default: Any) -> Any:
    """The one that is given of two words for the same thing.

    Raises:
        PlanError: Both are given, or none and there is no ``default``.
    """
    if value is not None and other is not None:
        raise PlanError(f"both {name} and {other_name} are given", "they are two words for the same thing: give one")
    found = other if value is None else value
    if found is None and not default:
        raise PlanError(f"{name} is missing", f"give {name} or, which is the same, {other_name}{hint and '; '}{hint}")
    return default["default"] if found is None else found


def dataset_of(dataset: Any, data: Any, worker_options: Any) -> DistDataset | RemoteDistDataset:
    """The dataset that a loader samples: with a store on this host, or on servers.

    Args:
        dataset: A dataset under GiGL's name, or None.
        data: The same under graphlearn-torch's. Where both are None, remote options mean the graph of the servers that were joined.
        worker_options: A loader's options, or None: they may say where processes meet that hold parts as values.

    Raises:
        PlanError: It is missing, given twice, or a dataset of no store, of which none can be made.
        GnnkitError: See ``store_of_parts``.
    """
    if dataset is None and data is None and isinstance(worker_options, RemoteDistSamplingWorkerOptions):
        return RemoteDistDataset.joined()
    found: AnyDataset = one_of("dataset", dataset, "data", data, _DATASETS)
    if isinstance(found, DistDataset):
        found.meet(trainers(found, worker_options))
    if not isinstance(found, RemoteDistDataset):
        stored(found)
    return found


def servers_of(dataset: RemoteDistDataset, worker_options: Any) -> list[int]:
    """The servers that sample for a loader, in the order of its options: all of them where these do not say.

    Raises:
        PlanError: The options name a server that does not exist, or one twice.
    """
    count = dataset.cluster_info.num_storage_nodes
    named = worker_options.server_rank if isinstance(worker_options, RemoteDistSamplingWorkerOptions) else range(count)
    servers = [named] if isinstance(named, int) else list(named)
    if not servers or len(set(servers)) < len(servers) or not set(servers) <= set(range(count)):
        raise PlanError(f"server_rank is {named!r}, and there are {count} servers", "name each server once, from 0")
    return servers


def worker_options_of(dataset: DistDataset | RemoteDistDataset, given: Any, own: Mapping[str, Any], master_ip_address: str) -> Any:
    """A loader's options as they are given, or made of its arguments.

    Args:
        dataset: What it samples.
        given: Options, or None.
        own: Arguments about workers, None where they are not given.
        master_ip_address: Address of the host of rank 0.

    Raises:
        PlanError: Both are given, or one is unusable or belongs to the other kind of dataset.
    """
    on_servers = isinstance(dataset, RemoteDistDataset)
    if not on_servers and own["prefetch_size"] is not None:
        raise PlanError("prefetch_size belongs to the graph-store mode", "leave it out: see worker_concurrency")
    named = {name: value for name, value in own.items() if value is not None}
    if given is not None:
        if named:
            raise PlanError(f"both worker_options and {list(named)} are given", "worker_options say it all: leave the others out")
        check_worker_options(given, on_servers=on_servers)
        return given
    count, concurrency = named.get("num_workers", 1), named.get("worker_concurrency", _WORKER_CONCURRENCY)
    if isinstance(dataset, RemoteDistDataset):
        count, concurrency = whole_number("num_workers", count, 1), whole_number("worker_concurrency", concurrency, 1)
        prefetch, size = named.get("prefetch_size", min(_PREFETCH_SIZE, count * concurrency)), named.get("channel_size")
        return remote_options(
            dataset.cluster_info, 0, num_workers=count, worker_concurrency=concurrency, buffer_size=size, prefetch_size=prefetch
        )
    if count == 0 and not isinstance(count, bool):
        if len(named) > 1:
            raise PlanError(f"num_workers=0 samples in this process, and {list(named)[1:]} are about others", "leave them out")
        return CollocatedDistSamplingWorkerOptions(master_ip_address, 0)
    return create_colocated_worker_options(
        dataset_num_partitions=dataset.num_partitions,
        num_workers=count,
        worker_concurrency=concurrency,
        master_ip_address=master_ip_address,
        master_port=0,
        channel_size=named.get("channel_size"),
        pin_memory=False,
    )


def device_of(device: Any, runtime: DistributedRuntimeInfo) -> Any:
    """The device that is given, else a CUDA device by local rank where there are some, else None."""
    if device is not None or not torch.cuda.is_available():
        return device
    return torch.device("cuda", runtime.local_rank % torch.cuda.device_count())


class DistNeighborLoader(BaseDistLoader):
    """Samples the neighbourhoods of nodes; takes GiGL's arguments, and graphlearn-torch's.

    Where the two libraries have different words for one thing, give one of them: ``dataset`` or ``data``, ``pin_memory_device``
    or ``to_device``, ``seed`` or ``random_seed``, ``num_workers``, ``worker_concurrency`` and ``channel_size`` or
    ``worker_options``. All but the first three are given by name, because the libraries order them differently.

    Seeds that are given are this process's own: no other process gets some of them. Left out, the nodes of the dataset's part are
    dealt to the processes of this host, and some may have one batch more than others; ``gnnkit.GraphLoader`` gives every process the
    same number.

    A ``RemoteDistDataset`` is the graph-store mode: the servers that this process has joined sample. Seeds are given by server, no batch
    has seeds of two servers, and batches come from one server after the other, in turn.

    Args:
        dataset: A dataset of a store, or a ``RemoteDistDataset``.
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours, 0 none. Label edges have none.
        input_nodes: Ids ``[n]``, or ``(node type, ids)`` for a typed graph. None: the nodes of the dataset's part. A homogeneous
            graph with labels takes ids and gives ``Data``; with ``(node type, ids)`` it gives ``HeteroData``. In the graph-store mode
            ``{server: ids}`` takes the place of the ids; servers that are left out have none.
        data: See ``dataset``.
        num_workers: Sampling processes, 1 unless given; 0 samples in this process. Those of servers were started with them.
        batch_size: Seeds per batch.
        context: GiGL's legacy description of a run; see ``resolve_runtime``.
        local_process_rank: See ``resolve_runtime``.
        local_process_world_size: See ``resolve_runtime``.
        pin_memory_device: See ``to_device``.
        to_device: The device that batches are copied to; None: a CUDA device by local rank where there are some, else the CPU.
        worker_concurrency: Batches that a process is given at a time, 4 unless given.
        channel_size: The most memory for batches under way, in bytes or as "4GB"; None: as much as they take.
        prefetch_size: Of the graph-store mode only, and kept in its options: batches are sampled ahead as ``worker_concurrency`` says.
        process_start_gap_seconds: See ``BaseDistLoader``.
        max_concurrent_producer_inits: See ``BaseDistLoader``.
        num_cpu_threads: Taken and not used: sampling uses no threads of torch's.
        shuffle: Whether an epoch visits the seeds in a fresh order.
        drop_last: Whether a last batch of fewer seeds is left out.
        with_edge: Whether batches have ``edge`` ids; None: where edges have features.
        with_weight: Whether neighbours are drawn in proportion to the weights that the store was built with.
        edge_dir: The direction that the store is compressed for; None is that.
        collect_features: Whether batches have ``x`` and ``edge_attr``.
        sampler_options: ``KHopNeighborSamplerOptions`` with the same fan-outs; ``PPRSamplerOptions``, with which ``num_neighbors`` is not
            used and may be left out; or None.
        non_blocking_transfers: See ``BaseDistLoader``.
        seed: Random seed, 0 unless given: the same seed gives the same epochs.
        random_seed: See ``seed``.
        worker_options: Mp or collocated options, or remote ones in the graph-store mode, in place of ``num_workers`` and its fellows.
            ``rpc_timeout`` is the deadline of one wait for a batch; addresses, ports and devices are not used.

    Raises:
        PlanError: An argument is unusable or does not fit another; nothing was started.
        GnnkitError: As ``Backend.open``.
    """

    def __init__(  # noqa: PLR0913
        self,
        dataset: DistDataset | RemoteDistDataset | None = None,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]] | None = None,
        input_nodes: Seeds | tuple[NodeType, Seeds] | None = None,
        *more: Any,
        data: DistDataset | RemoteDistDataset | None = None,
        num_workers: int | None = None,
        batch_size: int = 1,
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
        pin_memory_device: torch.device | str | None = None,
        to_device: torch.device | str | None = None,
        worker_concurrency: int | None = None,
        channel_size: int | str | None = None,
        prefetch_size: int | None = None,
        process_start_gap_seconds: float = 0.0,
        max_concurrent_producer_inits: int | None = None,
        num_cpu_threads: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool | None = None,
        with_weight: bool = False,
        edge_dir: EdgeDir | None = None,
        collect_features: bool = True,
        sampler_options: SamplerOptions | None = None,
        non_blocking_transfers: bool = True,
        seed: int | None = None,
        random_seed: int | None = None,
        worker_options: Any = None,
    ) -> None:
        if more:
            raise PlanError(
                f"{len(more)} arguments after input_nodes are given without their names, {more[0]!r} first",
                "give them by name: graphlearn-torch's fourth is batch_size, GiGL's num_workers",
            )
        fan_outs, options = sampler_options_of(num_neighbors, sampler_options)
        runtime = runtime_of(context, local_process_rank, local_process_world_size, input_nodes)
        try:
            found, is_joined = dataset_of(dataset, data, worker_options), dataset is None and data is None
            servers = servers_of(found, worker_options) if isinstance(found, RemoteDistDataset) else []
            own = {"num_workers": num_workers, "worker_concurrency": worker_concurrency, "channel_size": channel_size}
            workers = worker_options_of(found, worker_options, {**own, "prefetch_size": prefetch_size}, runtime.master_ip_address)
            seeds, plain = self._seeds(found, input_nodes, servers, runtime)
            schema = replace(found.schema, is_homogeneous_with_labeled_edge_type=plain)
            number = one_of("seed", seed, "random_seed", random_seed, default=0)
            config = self.create_sampling_config(fan_outs, schema, batch_size, shuffle, drop_last, with_weight=with_weight, seed=number)
            config.with_edge = config.with_edge if with_edge is None else with_edge
            config.edge_dir, config.collect_features = edge_dir or config.edge_dir, collect_features
            self._complete(config)
            producer: Any = None
            if not isinstance(found, RemoteDistDataset):
                producer = DistSamplingProducer(found, seeds, config, workers, ConnectionChannel(workers), options)
            elif is_joined and workers.worker_key is not None and config.sampling_type == SamplingType.NODE:
                producer = DistServer.create_sampling_producer  # trainers whose options have the same key divide the batches
            super().__init__(
                found,
                seeds,
                schema,
                workers,
                config,
                device_of(one_of("pin_memory_device", pin_memory_device, "to_device", to_device, default=None), runtime),
                runtime,
                producer,
                options,
                process_start_gap_seconds,
                max_concurrent_producer_inits,
                non_blocking_transfers,
            )
        finally:
            runtime.cleanup()

    def _complete(self, config: Any) -> None:
        """Says in the configuration what only a subclass knows."""

    def _seeds(self, dataset: AnyDataset, input_nodes: Any, servers: list[int], runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
        """The seeds as a producer takes them, and whether batches are plain although the graph is stored typed."""
        if isinstance(dataset, RemoteDistDataset):
            return server_nodes(dataset, input_nodes, servers)
        return local_nodes(dataset, input_nodes, runtime)


def _show_options(loader: type[DistNeighborLoader], *without: str) -> None:
    """Has readers and tools see the arguments that a loader takes as ``**options``, too: all of ``DistNeighborLoader`` but ``without``."""
    own = inspect.signature(loader.__init__).parameters
    others = [p for name, p in inspect.signature(DistNeighborLoader.__init__).parameters.items() if name not in (*own, *without)]
    parameters = [p for p in [*own.values()][1:] if p.kind is not p.VAR_KEYWORD] + others
    loader.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]


class DistLinkNeighborLoader(DistNeighborLoader):
    """Samples the neighbourhoods of links' ends; takes graphlearn-torch's arguments.

    Batches are those of ``gnnkit.GraphLoader`` for the same links: ``edge_label_index`` and ``edge_label``, or ``src_index``,
    ``dst_pos_index`` and ``dst_neg_index``, as PyG has them. ``edge_label_index`` is sources and targets under the links' own type,
    whatever the direction of sampling; graphlearn-torch swaps it, in plain batches always and in typed ones for ``edge_dir="out"``.
    ``batch`` and ``batch_size`` are of the distinct ends, which come first among the nodes.

    Args:
        data: A dataset of a store, or a ``RemoteDistDataset``.
        num_neighbors: See ``DistNeighborLoader``.
        batch_size: Links per batch.
        edge_label_index: Links ``[2, n]`` of this process's own, ``(edge type, links)`` for a typed graph; or an edge type, or None where
            there is only one, for the edges of the dataset's part, dealt to the processes of this host. In the graph-store mode
            ``{server: links}`` takes the place of the links.
        edge_label: Numbers ``[n, ...]``; by server in the graph-store mode. With "binary" negatives, those that start from 0 become one
            higher; processes do not know of one another's, so give labels from 1 on where some have no 0.
        neg_sampling: graphlearn-torch's or PyG's ``NegativeSampling``, "binary", "triplet", or None. Negatives are drawn over the whole
            graph.
        neg_strict: Whether negatives are never edges of the links' type, wherever those are.
        exclude_edges: "self" leaves a batch's links out of what is sampled, "reverse" also the edges that lead back.
        **options: The other arguments of ``DistNeighborLoader``, by name.

    Raises:
        PlanError: An argument is unusable or does not fit another; nothing was started.
        GnnkitError: As ``Backend.open``.
    """

    def __init__(
        self,
        data: DistDataset | RemoteDistDataset | None = None,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]] | None = None,
        batch_size: int = 1,
        edge_label_index: Any = None,
        edge_label: Any = None,
        neg_sampling: Any = None,
        *,
        neg_strict: bool = False,
        exclude_edges: ExcludeEdges | None = None,
        **options: Any,
    ) -> None:
        self.neg_sampling = neg_sampling
        self._said = {"edge_label": edge_label, "neg_sampling": neg_sampling, "neg_strict": neg_strict, "exclude_edges": exclude_edges}
        super().__init__(data, num_neighbors, edge_label_index, batch_size=batch_size, **options)
        if not hasattr(neg_sampling, "is_binary"):  # a word: the attribute is an object, as graphlearn-torch's
            given = neg_sampling if isinstance(neg_sampling, Mapping) else {"mode": neg_sampling}
            self.neg_sampling = None if neg_sampling is None else NegativeSampling(**given)

    def _complete(self, config: Any) -> None:
        config.sampling_type, config.with_neg = SamplingType.LINK, self.neg_sampling is not None

    def _seeds(self, dataset: AnyDataset, edge_label_index: Any, servers: list[int], runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
        if isinstance(dataset, RemoteDistDataset):
            return server_links(dataset, edge_label_index, self._said, servers)
        return local_links(dataset, edge_label_index, LinkOptions(**self._said), runtime)


_show_options(DistLinkNeighborLoader, "dataset", "data", "input_nodes", "more")


_MAPPING = "mapping"
# Arrays of a node type that have a row for each seed, and not for each node.
_OF_SEEDS = ("input_id",)


@dataclass(frozen=True)
class SubgraphMaker(BatchMaker):
    """Makes batches whose nodes are distinct and in the order of their ids."""

    def _shown(self, contents: BatchContents) -> BatchContents:
        return sort_nodes(super()._shown(contents))

    def _name(self, data: Any) -> None:
        super()._name(data)
        seeds = data if self.homogeneous else data[self.format.input_type]
        seeds.batch = seeds.n_id[seeds.mapping]


def sort_nodes(contents: BatchContents) -> BatchContents:
    """Puts the nodes of every type in the order of their ids, and edges in the order of the nodes that own them.

    A repeated seed becomes one node, and its edges are listed once. The array ``mapping`` of the seeds' type, int64 ``[number of seeds]``,
    says where each seed is.
    """
    places: dict[NodeType, torch.Tensor] = {}
    kept: dict[NodeType, torch.Tensor] = {}
    for key, ids in contents.arrays.items():
        if isinstance(key, NodeKey) and key.name == "n_id":
            _, places[key.type] = torch.unique(ids, return_inverse=True)
            first = torch.full((int(places[key.type].max()) + 1 if len(ids) else 0,), len(ids))
            kept[key.type] = first.scatter_reduce_(0, places[key.type], torch.arange(len(ids)), "amin")
    arrays: dict[BatchKey, torch.Tensor] = {}
    order: dict[EdgeType, torch.Tensor] = {}
    for key, values in contents.arrays.items():
        if isinstance(key, EdgeKey) and key.name == "edge_index":
            source, _, target = key.type
            of_first = (kept[target][places[target][values[1]]] == values[1]).nonzero().view(-1)
            row, col = places[source][values[0][of_first]], places[target][values[1][of_first]]
            by_node = col.argsort(stable=True)
            order[key.type], arrays[key] = of_first[by_node], torch.stack([row[by_node], col[by_node]])
        elif isinstance(key, NodeKey) and key.name not in _OF_SEEDS:
            arrays[key] = values[kept[key.type]]
        else:
            arrays[key] = values
    for key, values in contents.arrays.items():
        if isinstance(key, EdgeKey) and key.name != "edge_index" and key.type in order:
            arrays[key] = values[order[key.type]]
    assert isinstance(contents.input_type, str)
    arrays[NodeKey(contents.input_type, _MAPPING)] = places[contents.input_type][: contents.num_seeds]
    return contents._replace(arrays=arrays)


class DistSubGraphLoader(DistNeighborLoader):
    """Samples the neighbourhoods of nodes and shows every edge among the nodes, self loops and edges that were not drawn included.

    Nodes are distinct and in the order of their ids; ``mapping``, on the seeds' type, says where each seed is among them. ``edge_index``
    leads from the neighbour to the node that owns the edge, as in ``DistNeighborLoader``, in the order of the owners. There are no counts
    by hop. Typed graphs work the same way for each type; edges of types with no fan-out in any hop are not shown, unless no type has one.

    Args:
        data: A dataset of a store, or a ``RemoteDistDataset``.
        input_nodes: See ``DistNeighborLoader``.
        num_neighbors: See ``DistNeighborLoader``; None takes the seeds alone.
        batch_size: Seeds per batch.
        shuffle: See ``DistNeighborLoader``, and so for the others.
        drop_last: See there.
        with_edge: See there.
        with_weight: See there.
        edge_dir: See there.
        collect_features: See there.
        to_device: See there.
        random_seed: See there.
        worker_options: See there.
        **options: The other arguments of ``DistNeighborLoader``, by name.

    Raises:
        PlanError: An argument is unusable or does not fit another; nothing was started.
        GnnkitError: As ``Backend.open``.
    """

    _maker = SubgraphMaker

    def __init__(  # noqa: PLR0913
        self,
        data: DistDataset | RemoteDistDataset | None = None,
        input_nodes: Seeds | tuple[NodeType, Seeds] | None = None,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]] | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool | None = None,
        with_weight: bool = False,
        edge_dir: EdgeDir | None = None,
        collect_features: bool = True,
        to_device: torch.device | str | None = None,
        random_seed: int | None = None,
        worker_options: Any = None,
        **options: Any,
    ) -> None:
        alone = num_neighbors is None and options.get("sampler_options") is None
        super().__init__(
            data,
            [0] if alone else num_neighbors,
            input_nodes,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            with_edge=with_edge,
            with_weight=with_weight,
            edge_dir=edge_dir,
            collect_features=collect_features,
            to_device=to_device,
            random_seed=random_seed,
            worker_options=worker_options,
            **options,
        )

    def _complete(self, config: Any) -> None:
        config.sampling_type = SamplingType.SUBGRAPH


_show_options(DistSubGraphLoader, "dataset", "more")


Anchors: TypeAlias = Union["torch.Tensor", tuple[NodeType, "torch.Tensor"], Mapping[int, "ABLPInputNodes"]]


class DistABLPLoader(DistNeighborLoader):
    """Samples the neighbourhoods of anchors and of their labels: supervised link prediction as GiGL does it.

    Labels are edges of the graph whose relation ends in ``_gigl_positive`` or ``_gigl_negative``; they are not sampled, and batches
    do not show them. An anchor's labels are looked up batch by batch: one with many of them makes only its own batch larger. A batch has
    ``y_positive``, and ``y_negative`` where there are negatives: labels by the anchors' numbers in the batch. ``batch`` and ``batch_size``
    are those of the anchors alone, although neighbourhoods are sampled around labels too.

    Args:
        dataset: A dataset of a store, or a ``RemoteDistDataset``, of a graph with labels.
        num_neighbors: See ``DistNeighborLoader``; label edges have no fan-out.
        input_nodes: The anchors: ids ``[n]`` of a homogeneous graph with labels, or ``(anchor type, ids)``; None: the nodes of the
            dataset's part. In the graph-store mode ``{server: ABLPInputNodes}``, see ``RemoteDistDataset.fetch_ablp_input``: the labels
            that come with anchors are the ones that count.
        supervision_edge_type: The type that is supervised, ``(anchor type, relation, label type)``, or a list of some; always as it leads
            from anchors to labels. Only with ``(anchor type, ids)``.
        use_label_edge_index_output: Whether labels come as int64 ``[2, e]`` of anchors and labels, anchor after anchor, instead of
            ``{anchor: labels}``. Several supervised types give a dict of either by edge type.
        max_labels_per_anchor_node: Labels of each kind and anchor, at most: the first ones in the stored order; None is all.
        **options: The other arguments of ``DistNeighborLoader``, by name.

    Raises:
        PlanError: An argument is unusable or does not fit another; nothing was started.
        GnnkitError: As ``Backend.open``.

    Warns:
        FutureWarning: ``use_label_edge_index_output`` is False, as GiGL's loader does; the dict stays available here.
    """

    def __init__(
        self,
        dataset: DistDataset | RemoteDistDataset | None = None,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]] | None = None,
        input_nodes: Anchors | None = None,
        *,
        supervision_edge_type: EdgeType | Sequence[EdgeType] | None = None,
        use_label_edge_index_output: bool = False,
        max_labels_per_anchor_node: int | None = None,
        **options: Any,
    ) -> None:
        if not use_label_edge_index_output:
            warn("labels as a dict are slower than use_label_edge_index_output=True", FutureWarning)
        self._supervision, self._cap = supervision_edge_type, max_labels_per_anchor_node
        self._output: LabelOutput = "edge_index" if use_label_edge_index_output else "dict"
        self._reader: LabelReader | None = None
        super().__init__(dataset, num_neighbors, input_nodes, **options)  # type: ignore[arg-type]  # anchors in place of seeds
        self._make = replace(self._make, labels=self._reader)

    def _seeds(self, dataset: AnyDataset, input_nodes: Any, servers: list[int], runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
        anchors: Any
        if isinstance(dataset, RemoteDistDataset):
            anchors, plain = server_anchors(dataset, input_nodes, self._supervision, self._cap, self._output)
        else:
            anchors, plain = local_anchors(dataset, input_nodes, self._supervision, runtime, self._cap, self._output)
        first: AnchorSamplerInput = anchors[0] if isinstance(anchors, list) else anchors
        self._reader = LabelReader(first.input_type, first.labels, first.output)
        return anchors, plain


_show_options(DistABLPLoader, "more")
