"""The face for scripts written against GiGL and graphlearn-torch: their names, over gnnkit's stores and streams.

    from gnnkit.distributed import DistDataset, resolve_runtime

    runtime = resolve_runtime()
    dataset = DistDataset.from_store(store, partition_idx=runtime.node_rank)

Nothing of it needs graphlearn-torch but that library's own samplers, channels and RPC (``DistNeighborSampler``, ``ShmChannel``,
``init_rpc``, ...), which are imported from it when they are used, and say what to install where it is missing. Which name is what:
``docs/coming-from.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gnnkit.stubs import homes_of

# What graphlearn-torch's native library is behind: modules of graphlearn_torch, and the names that are taken from them as they are.
_GLT_MODULES = {
    "channel": "ShmChannel",
    "data": "DeviceGroup Feature Graph",
    "distributed": "ConcurrentEventLoop DistCollocatedSamplingProducer DistMpSamplingProducer DistNeighborSampler RpcCalleeBase "
    "RpcDataPartitionRouter all_gather barrier global_all_gather global_barrier init_rpc rpc_is_initialized rpc_register rpc_request "
    "rpc_request_async rpc_sync_data_partitions shutdown_rpc",
    "distributed.dist_feature": "RpcFeatureLookupCallee",
    "distributed.dist_neighbor_sampler": "PartialNeighborOutput RpcSamplingCallee RpcSubGraphCallee",
    "distributed.dist_sampling_producer": "MP_STATUS_CHECK_INTERVAL MpCommand",
    "distributed.dist_server": "SERVER_EXIT_STATUS_CHECK_INTERVAL",
    "distributed.rpc": "get_rpc_current_group_worker_names get_rpc_worker_names",
    "sampler": "RemoteSamplerInput",
}
# Ours: names, and the modules they live in; importing this package imports none of them.
_HOMES = homes_of(__file__)
_GLT_HOMES = {name: f"{module}.{name}" for module, names in _GLT_MODULES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _GLT_HOMES:
        from gnnkit.vendor import glt  # metadata

        # Looked up each time: a script may have graphlearn-torch installed while it runs, or replace one of its names.
        return glt.attribute(_GLT_HOMES[name], f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_GLT_HOMES]
