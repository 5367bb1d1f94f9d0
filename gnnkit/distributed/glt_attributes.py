"""The attributes that graphlearn-torch's constructor gives a loader, set without calling it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnkit.distributed.remote_dataset import RemoteDistDataset
from gnnkit.distributed.remote_producer import batch_counts
from gnnkit.distributed.worker_options import is_collocated
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.runtime_info import DistributedRuntimeInfo


def set_glt_attributes(
    loader: Any,
    dataset: DistDataset | RemoteDistDataset | None,
    sampler_input: Any,
    config: Any,
    worker_options: Any,
    device: torch.device | None,
    runtime: DistributedRuntimeInfo,
    producer: Any,
) -> None:
    """Sets what ``graphlearn_torch.distributed.DistLoader.__init__`` of version 0.2.4 would.

    Args:
        loader: The loader.
        dataset: Its dataset; None for a graph that is in memory only.
        sampler_input: Its seeds; on servers, a list with those of each.
        config: Its sampling configuration.
        worker_options: Its options; they get this process's worker ranks.
        device: Where batches go, None for the CPU.
        runtime: Where this process stands.
        producer: What samples.
    """
    import torch

    loader.input_data = sampler_input
    for name in (
        "sampling_type",
        "num_neighbors",
        "batch_size",
        "shuffle",
        "drop_last",
        "with_edge",
        "with_weight",
        "collect_features",
        "edge_dir",
    ):
        setattr(loader, name, getattr(config, name))
    loader.sampling_config = config
    loader.to_device = torch.device("cpu") if device is None else device
    loader.worker_options = worker_options
    loader._num_recv = loader._epoch = 0
    if isinstance(dataset, RemoteDistDataset):
        _set_remote(loader, dataset, sampler_input, runtime)
    else:
        _set_local(loader, dataset, sampler_input, runtime, producer)


def _set_remote(loader: Any, dataset: RemoteDistDataset, inputs: list[Any], runtime: DistributedRuntimeInfo) -> None:
    loader.data = None
    loader._is_collocated_worker, loader._is_mp_worker, loader._is_remote_worker, loader._with_channel = False, False, True, True
    loader.num_data_partitions, loader.data_partition_idx = dataset.cluster_info.num_storage_nodes, runtime.node_rank
    loader._set_ntypes_and_etypes(dataset.fetch_node_types() or [HOMOGENEOUS_NODE_TYPE], dataset.fetch_edge_types() or [])
    loader._server_rank_list, loader._input_data_list = list(range(len(inputs))), inputs
    loader._input_len, loader._input_type = [len(seeds) for seeds in inputs], inputs[0].input_type
    loader._num_batches = sum(batch_counts(inputs, loader.sampling_config))
    loader._num_expected = float("inf")  # the channel says when an epoch is over


def _set_local(loader: Any, dataset: DistDataset | None, sampler_input: Any, runtime: DistributedRuntimeInfo, producer: Any) -> None:
    loader.data = dataset
    loader._is_collocated_worker = is_collocated(loader.worker_options)
    loader._is_mp_worker, loader._is_remote_worker = not loader._is_collocated_worker, False
    loader._with_channel = not loader._is_collocated_worker
    loader.num_data_partitions = 1 if dataset is None else dataset.num_partitions
    loader.data_partition_idx = 0 if dataset is None else dataset.partition_idx
    types = (None, None) if dataset is None else (dataset.get_node_types(), dataset.get_edge_types())
    loader._set_ntypes_and_etypes(*types)
    loader._input_len, loader._input_type = len(sampler_input), sampler_input.input_type
    loader._num_expected = loader._num_batches = batch_counts([sampler_input], loader.sampling_config)[0]
    if loader._is_collocated_worker:
        loader._collocated_producer = producer
    else:
        loader._mp_producer = producer
        loader.worker_options._set_worker_ranks(runtime)
