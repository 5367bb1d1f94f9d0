"""``DistNeighborLoader``: k-hop neighbourhoods of nodes, with the arguments of GiGL's loader and of graphlearn-torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from gnnkit.distributed.base_loader import BaseDistLoader
from gnnkit.distributed.loader_modes import Mode, device_of, mode_of, one_of, runtime_of, sampler_options_of
from gnnkit.distributed.loader_options import SamplerOptions
from gnnkit.distributed.remote_dataset import RemoteDistDataset
from gnnkit.distributed.resolve import DistributedContext, DistributedRuntimeInfo
from gnnkit.errors import PlanError
from gnnkit.schema import EdgeDir, EdgeType, NodeType

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset

# Ids, or ids by server.
Seeds: TypeAlias = Union["torch.Tensor", Mapping[int, "torch.Tensor"]]


class DistNeighborLoader(BaseDistLoader):
    """Samples the neighbourhoods of nodes; takes GiGL's arguments, and graphlearn-torch's.

    Where the two libraries have different words for one thing, give one of them: ``dataset`` or ``data``, ``pin_memory_device``
    or ``to_device``, ``seed`` or ``random_seed``, ``num_workers``, ``worker_concurrency`` and ``channel_size`` or
    ``worker_options``. All but the first three are given by name, because the libraries order them differently.

    Seeds that are given are this process's own: nobody deals them to other processes. Left out, the nodes of the dataset's part are
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
            mode = mode_of(dataset, data, worker_options)
            dataset = mode.dataset
            own = {"num_workers": num_workers, "worker_concurrency": worker_concurrency, "channel_size": channel_size}
            workers = mode.worker_options(worker_options, {**own, "prefetch_size": prefetch_size}, runtime)
            seeds, plain = self._seeds(mode, input_nodes, runtime)
            schema = replace(dataset.schema, is_homogeneous_with_labeled_edge_type=plain)
            number = one_of("seed", seed, "random_seed", random_seed, default=0)
            config = self.create_sampling_config(fan_outs, schema, batch_size, shuffle, drop_last, with_weight=with_weight, seed=number)
            config.with_edge = config.with_edge if with_edge is None else with_edge
            config.edge_dir, config.collect_features = edge_dir or config.edge_dir, collect_features
            self._complete(config)
            producer = mode.producer(seeds, config, workers, options)
            super().__init__(
                dataset,
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

    def _seeds(self, mode: Mode, input_nodes: Any, runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
        """The seeds as a producer takes them, and whether batches are plain although the graph is stored typed."""
        return mode.seeds(input_nodes, runtime)
