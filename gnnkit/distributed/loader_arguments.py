"""What a loader checks before it starts anything."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.loader_plan import stored
from gnnkit.distributed.remote_dataset import RemoteDistDataset
from gnnkit.distributed.sampling_producer import DistSamplingProducer
from gnnkit.distributed.worker_options import check_worker_options
from gnnkit.errors import PlanError
from gnnkit.vendor import glt

if TYPE_CHECKING:
    import torch

_PRODUCER_PARTS = ("init", "produce_all", "shutdown", "output_channel")


def check_arguments(dataset: Any, sampler_input: Any, worker_options: Any, producer: Any, process_start_gap_seconds: Any) -> None:
    """Makes sure that a loader's arguments are of the kinds that go together.

    Raises:
        PlanError: They are not.
    """
    on_servers = isinstance(dataset, RemoteDistDataset)
    check_worker_options(worker_options, on_servers=on_servers)
    gap = process_start_gap_seconds
    if isinstance(gap, bool) or not isinstance(gap, (int, float)) or not math.isfinite(gap) or gap < 0:
        raise PlanError(f"process_start_gap_seconds must be a number of seconds of at least 0, got {gap!r}")
    if on_servers:
        _check_server_inputs(sampler_input, dataset)
    else:
        _check_local(dataset, sampler_input, producer)


def _check_server_inputs(inputs: Any, dataset: RemoteDistDataset) -> None:
    count = dataset.cluster_info.num_storage_nodes
    if not isinstance(inputs, list) or len(inputs) != count or not all(isinstance(seeds, _kinds()) for seeds in inputs):
        raise PlanError(f"sampler_input must be a list with a NodeSamplerInput for each of {count} servers, got {inputs!r:.200}")


def _kinds() -> tuple[Any, ...]:
    """The records of seeds: nodes and links."""
    return glt.attribute("sampler.NodeSamplerInput"), glt.attribute("sampler.EdgeSamplerInput")


def _check_local(dataset: Any, sampler_input: Any, producer: Any) -> None:
    if not isinstance(sampler_input, _kinds()):
        raise PlanError(
            f"sampler_input must be a NodeSamplerInput, got a {type(sampler_input).__name__}",
            "lists are of the graph-store mode",
        )
    missing = [name for name in _PRODUCER_PARTS if not hasattr(producer, name)]
    if missing:
        raise PlanError(
            f"producer is a {type(producer).__name__} without {missing}",
            "give a DistSamplingProducer, or an object with init(), produce_all(), shutdown() and output_channel",
        )
    if isinstance(producer, DistSamplingProducer) and dataset is not None:
        stored(dataset)
    context = glt.attribute("distributed.get_context")()
    if context is not None and not context.is_worker():
        raise PlanError(
            f"this process is a {context.role.name.lower()} in graphlearn-torch's group {context.group_name!r}, and no worker",
            "make the loader where init_worker_group() was called, or in a process that is in none of graphlearn-torch's groups",
        )


def initialize_colocated_sampling_worker(
    *,
    local_rank: int,
    local_world_size: int,
    node_rank: int,
    node_world_size: int,
    master_ip_address: str,
    device: torch.device,
    num_cpu_threads: int | None,
) -> None:
    """Enters this process into graphlearn-torch's worker group of its local rank, which spans the nodes.

    That is all it does: it changes neither the threads nor the affinity of this process, starts no RPC, and listens nowhere. What
    gnnkit samples with lives in processes of its own and needs none of it; graphlearn-torch's ``get_context()`` knows the group then.

    Args:
        local_rank: This process among those of its node.
        local_world_size: Processes of each node.
        node_rank: This process's node.
        node_world_size: Number of nodes.
        master_ip_address: Taken and not used: nothing has to be met there.
        device: Taken and not used: sampling runs on the CPU.
        num_cpu_threads: Taken and not used: GiGL's torch threads, ``DEFAULT_NUM_CPU_THREADS`` by default.

    Raises:
        PlanError: A rank is not below its size, or graphlearn-torch is not installed.
    """
    for name, rank, size in (("local_rank", local_rank, local_world_size), ("node_rank", node_rank, node_world_size)):
        if not 0 <= rank < size:
            raise PlanError(f"{name} must be between 0 and {size - 1}, got {rank}")
    glt.attribute("distributed.init_worker_group", "initialize_colocated_sampling_worker")(
        node_world_size, node_rank, f"gnnkit-sampling-{local_rank}"
    )
