"""The face for scripts written against GiGL and graphlearn-torch: their names, over gnnkit's stores and streams.

    from gnnkit.distributed import DistDataset, resolve_runtime

    runtime = resolve_runtime()
    dataset = DistDataset.from_store(store, partition_idx=runtime.node_rank)

Names that are graphlearn-torch's own (``SamplingConfig``, ``MpDistSamplingWorkerOptions``, ...) are imported from it when they are
used, and say what to install where it is missing. Which name is what: ``docs/coming-from.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Ours: the modules they live in, and the names; importing this package imports none of them.
_MODULES = {
    "base_loader": ("BaseDistLoader",),
    "connection": ("DistSamplingProducer", "RemoteReceivingChannel"),
    "dataset": ("DistDataset", "reduce_dist_dataset"),
    "dist_server": ("DistServer", "get_server", "init_server", "wait_and_shutdown_server"),
    "glt_records": ("RemoteDistSamplingWorkerOptions",),
    "graph_client": (
        "DistContext",
        "DistRole",
        "async_request_server",
        "get_context",
        "get_sampler_pool",
        "init_client",
        "request_server",
        "shutdown_client",
    ),
    "life_cycle": ("exit_client", "initialize", "is_initialized"),
    "loader_options": (
        "DEFAULT_NUM_CPU_THREADS",
        "KHopNeighborSamplerOptions",
        "PPRSamplerOptions",
        "SamplerOptions",
        "create_sampling_config",
        "resolve_sampler_options",
    ),
    "loaders": ("DistABLPLoader", "DistLinkNeighborLoader", "DistNeighborLoader", "DistSubGraphLoader"),
    "remote_dataset": (
        "ABLPInputNodes",
        "FetchABLPInputRequest",
        "FetchNodesRequest",
        "InitSamplingBackendRequest",
        "RegisterBackendRequest",
        "RemoteDistDataset",
        "ServerSlice",
        "compute_server_assignments",
    ),
    "resolve": (
        "DEFAULT_MASTER_INFERENCE_PORT",
        "DistributedContext",
        "DistributedRuntimeInfo",
        "GraphStoreInfo",
        "get_graph_store_info",
        "resolve_runtime",
    ),
    "seeds": (
        "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
        "DEFAULT_HOMOGENEOUS_NODE_TYPE",
        "is_label_edge_type",
        "label_edge_type_to_message_passing_edge_type",
        "message_passing_to_negative_label",
        "message_passing_to_positive_label",
        "patch_fanout_for_sampling",
        "reverse_edge_type",
        "select_label_edge_types",
        "shard_nodes_by_process",
        "worker_seed_ranges",
    ),
    "splitters": ("DistNodeAnchorLinkSplitter", "DistNodeSplitter", "select_ssl_positive_label_edges"),
    "store_views": (
        "DatasetSchema",
        "DistFeature",
        "DistGraph",
        "FeatureInfo",
        "PartitionBook",
        "RangePartitionBook",
        "build_partition_book",
        "get_ids_on_rank",
        "get_total_ids",
    ),
}

# Graphlearn-torch's own: modules of graphlearn_torch, and the names that are taken from them as they are.
_GLT_MODULES = {
    "channel": ("ChannelBase", "SampleMessage", "ShmChannel"),
    "data": ("DeviceGroup", "Feature", "Graph"),
    "distributed": (
        "CollocatedDistSamplingWorkerOptions",
        "ConcurrentEventLoop",
        "DistCollocatedSamplingProducer",
        "DistLoader",
        "DistMpSamplingProducer",
        "DistNeighborSampler",
        "MpDistSamplingWorkerOptions",
        "RpcCalleeBase",
        "RpcDataPartitionRouter",
        "all_gather",
        "barrier",
        "global_all_gather",
        "global_barrier",
        "init_rpc",
        "init_worker_group",
        "rpc_is_initialized",
        "rpc_register",
        "rpc_request",
        "rpc_request_async",
        "rpc_sync_data_partitions",
        "shutdown_rpc",
    ),
    "distributed.dist_feature": ("RpcFeatureLookupCallee",),
    "distributed.dist_neighbor_sampler": ("PartialNeighborOutput", "RpcSamplingCallee", "RpcSubGraphCallee"),
    "distributed.dist_sampling_producer": ("MP_STATUS_CHECK_INTERVAL", "MpCommand"),
    "distributed.dist_server": ("SERVER_EXIT_STATUS_CHECK_INTERVAL",),
    "distributed.rpc": ("get_rpc_current_group_worker_names", "get_rpc_worker_names"),
    "sampler": ("EdgeSamplerInput", "NodeSamplerInput", "RemoteSamplerInput", "SamplingConfig", "SamplingType"),
    "typing": ("Split",),
}
# Classes of ours that are graphlearn-torch's too.
_OVER_GLT = frozenset(
    {
        "BaseDistLoader",
        "DistABLPLoader",
        "DistLinkNeighborLoader",
        "DistNeighborLoader",
        "DistSamplingProducer",
        "DistSubGraphLoader",
        "RemoteDistSamplingWorkerOptions",
        "RemoteReceivingChannel",
    }
)
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_GLT_HOMES = {name: f"{module}.{name}" for module, names in _GLT_MODULES.items() for name in names}

__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from gnnkit.distributed.base_loader import BaseDistLoader as BaseDistLoader
    from gnnkit.distributed.connection import DistSamplingProducer as DistSamplingProducer
    from gnnkit.distributed.connection import RemoteReceivingChannel as RemoteReceivingChannel
    from gnnkit.distributed.dataset import DistDataset as DistDataset
    from gnnkit.distributed.dataset import reduce_dist_dataset as reduce_dist_dataset
    from gnnkit.distributed.dist_server import DistServer as DistServer
    from gnnkit.distributed.dist_server import get_server as get_server
    from gnnkit.distributed.dist_server import init_server as init_server
    from gnnkit.distributed.dist_server import wait_and_shutdown_server as wait_and_shutdown_server
    from gnnkit.distributed.glt_records import RemoteDistSamplingWorkerOptions as RemoteDistSamplingWorkerOptions
    from gnnkit.distributed.graph_client import DistContext as DistContext
    from gnnkit.distributed.graph_client import DistRole as DistRole
    from gnnkit.distributed.graph_client import async_request_server as async_request_server
    from gnnkit.distributed.graph_client import get_context as get_context
    from gnnkit.distributed.graph_client import get_sampler_pool as get_sampler_pool
    from gnnkit.distributed.graph_client import init_client as init_client
    from gnnkit.distributed.graph_client import request_server as request_server
    from gnnkit.distributed.graph_client import shutdown_client as shutdown_client
    from gnnkit.distributed.life_cycle import exit_client as exit_client
    from gnnkit.distributed.life_cycle import initialize as initialize
    from gnnkit.distributed.life_cycle import is_initialized as is_initialized
    from gnnkit.distributed.loader_options import DEFAULT_NUM_CPU_THREADS as DEFAULT_NUM_CPU_THREADS
    from gnnkit.distributed.loader_options import KHopNeighborSamplerOptions as KHopNeighborSamplerOptions
    from gnnkit.distributed.loader_options import PPRSamplerOptions as PPRSamplerOptions
    from gnnkit.distributed.loader_options import SamplerOptions as SamplerOptions
    from gnnkit.distributed.loader_options import create_sampling_config as create_sampling_config
    from gnnkit.distributed.loader_options import resolve_sampler_options as resolve_sampler_options
    from gnnkit.distributed.loaders import DistABLPLoader as DistABLPLoader
    from gnnkit.distributed.loaders import DistLinkNeighborLoader as DistLinkNeighborLoader
    from gnnkit.distributed.loaders import DistNeighborLoader as DistNeighborLoader
    from gnnkit.distributed.loaders import DistSubGraphLoader as DistSubGraphLoader
    from gnnkit.distributed.remote_dataset import ABLPInputNodes as ABLPInputNodes
    from gnnkit.distributed.remote_dataset import FetchABLPInputRequest as FetchABLPInputRequest
    from gnnkit.distributed.remote_dataset import FetchNodesRequest as FetchNodesRequest
    from gnnkit.distributed.remote_dataset import InitSamplingBackendRequest as InitSamplingBackendRequest
    from gnnkit.distributed.remote_dataset import RegisterBackendRequest as RegisterBackendRequest
    from gnnkit.distributed.remote_dataset import RemoteDistDataset as RemoteDistDataset
    from gnnkit.distributed.remote_dataset import ServerSlice as ServerSlice
    from gnnkit.distributed.remote_dataset import compute_server_assignments as compute_server_assignments
    from gnnkit.distributed.resolve import DEFAULT_MASTER_INFERENCE_PORT as DEFAULT_MASTER_INFERENCE_PORT
    from gnnkit.distributed.resolve import DistributedContext as DistributedContext
    from gnnkit.distributed.resolve import DistributedRuntimeInfo as DistributedRuntimeInfo
    from gnnkit.distributed.resolve import GraphStoreInfo as GraphStoreInfo
    from gnnkit.distributed.resolve import get_graph_store_info as get_graph_store_info
    from gnnkit.distributed.resolve import resolve_runtime as resolve_runtime
    from gnnkit.distributed.seeds import DEFAULT_HOMOGENEOUS_EDGE_TYPE as DEFAULT_HOMOGENEOUS_EDGE_TYPE
    from gnnkit.distributed.seeds import DEFAULT_HOMOGENEOUS_NODE_TYPE as DEFAULT_HOMOGENEOUS_NODE_TYPE
    from gnnkit.distributed.seeds import is_label_edge_type as is_label_edge_type
    from gnnkit.distributed.seeds import (
        label_edge_type_to_message_passing_edge_type as label_edge_type_to_message_passing_edge_type,
    )
    from gnnkit.distributed.seeds import message_passing_to_negative_label as message_passing_to_negative_label
    from gnnkit.distributed.seeds import message_passing_to_positive_label as message_passing_to_positive_label
    from gnnkit.distributed.seeds import patch_fanout_for_sampling as patch_fanout_for_sampling
    from gnnkit.distributed.seeds import reverse_edge_type as reverse_edge_type
    from gnnkit.distributed.seeds import select_label_edge_types as select_label_edge_types
    from gnnkit.distributed.seeds import shard_nodes_by_process as shard_nodes_by_process
    from gnnkit.distributed.seeds import worker_seed_ranges as worker_seed_ranges
    from gnnkit.distributed.splitters import DistNodeAnchorLinkSplitter as DistNodeAnchorLinkSplitter
    from gnnkit.distributed.splitters import DistNodeSplitter as DistNodeSplitter
    from gnnkit.distributed.splitters import select_ssl_positive_label_edges as select_ssl_positive_label_edges
    from gnnkit.distributed.store_views import DatasetSchema as DatasetSchema
    from gnnkit.distributed.store_views import DistFeature as DistFeature
    from gnnkit.distributed.store_views import DistGraph as DistGraph
    from gnnkit.distributed.store_views import FeatureInfo as FeatureInfo
    from gnnkit.distributed.store_views import PartitionBook as PartitionBook
    from gnnkit.distributed.store_views import RangePartitionBook as RangePartitionBook
    from gnnkit.distributed.store_views import build_partition_book as build_partition_book
    from gnnkit.distributed.store_views import get_ids_on_rank as get_ids_on_rank
    from gnnkit.distributed.store_views import get_total_ids as get_total_ids


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        if name in _OVER_GLT:
            from gnnkit.vendor import glt  # its error names what was asked for

            glt.load(name)
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _GLT_HOMES:
        from gnnkit.vendor import glt

        # Looked up each time: a script may have graphlearn-torch installed while it runs, or replace one of its names.
        return glt.attribute(_GLT_HOMES[name], f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_GLT_HOMES]
