"""The attributes that graphlearn-torch's constructor gives a loader, set without calling it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnkit.distributed.worker_options import is_collocated

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.runtime_info import DistributedRuntimeInfo


def set_glt_attributes(
    loader: Any,
    dataset: DistDataset | None,
    sampler_input: Any,
    config: Any,
    worker_options: Any,
    device: torch.device | None,
    runtime: DistributedRuntimeInfo,
    producer: Any,
) -> None:
    """Sets what ``graphlearn_torch.distributed.DistLoader.__init__`` of version 0.2.4 would, for both colocated kinds.

    Args:
        loader: The loader.
        dataset: Its dataset; None for a graph that is in memory only.
        sampler_input: Its seeds.
        config: Its sampling configuration.
        worker_options: Its options; they get this process's worker ranks.
        device: Where batches go, None for the CPU.
        runtime: Where this process stands.
        producer: What samples.
    """
    import torch

    loader.data, loader.input_data = dataset, sampler_input
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
    loader._is_collocated_worker = is_collocated(worker_options)
    loader._is_mp_worker, loader._is_remote_worker = not loader._is_collocated_worker, False
    loader._with_channel = not loader._is_collocated_worker
    loader.num_data_partitions = 1 if dataset is None else dataset.num_partitions
    loader.data_partition_idx = 0 if dataset is None else dataset.partition_idx
    types = (None, None) if dataset is None else (dataset.get_node_types(), dataset.get_edge_types())
    loader._set_ntypes_and_etypes(*types)
    loader._num_recv = loader._epoch = 0
    loader._input_len, loader._input_type = len(sampler_input), sampler_input.input_type
    full, rest = divmod(loader._input_len, loader.batch_size)
    loader._num_expected = full + (rest > 0 and not loader.drop_last)
    loader._channel = producer.output_channel
    if loader._is_collocated_worker:
        loader._collocated_producer = producer
    else:
        loader._mp_producer = producer
        worker_options._set_worker_ranks(runtime)
