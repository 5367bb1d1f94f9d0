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

# Ours: names and the modules they live in; importing this package imports none of them.
_HOMES = {
    "ABLPInputNodes": "server_values",
    "BaseDistLoader": "base_loader",
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE": "seeds",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE": "seeds",
    "DEFAULT_MASTER_INFERENCE_PORT": "resolve",
    "DEFAULT_NUM_CPU_THREADS": "loader_options",
    "DatasetSchema": "store_views",
    "DistABLPLoader": "loaders",
    "DistContext": "context",
    "DistDataset": "dataset",
    "DistFeature": "store_views",
    "DistGraph": "store_views",
    "DistLinkNeighborLoader": "loaders",
    "DistNeighborLoader": "loaders",
    "DistNodeAnchorLinkSplitter": "splitters",
    "DistNodeSplitter": "splitters",
    "DistRole": "context",
    "DistSamplingProducer": "connection",
    "DistServer": "dist_server",
    "DistSubGraphLoader": "loaders",
    "DistributedContext": "resolve",
    "DistributedRuntimeInfo": "resolve",
    "FeatureInfo": "store_views",
    "FetchABLPInputRequest": "server_values",
    "FetchNodesRequest": "server_values",
    "GraphStoreInfo": "resolve",
    "InitSamplingBackendRequest": "server_values",
    "KHopNeighborSamplerOptions": "loader_options",
    "PPRSamplerOptions": "loader_options",
    "PartitionBook": "store_views",
    "RangePartitionBook": "store_views",
    "RegisterBackendRequest": "server_values",
    "RemoteDistDataset": "remote_dataset",
    "RemoteDistSamplingWorkerOptions": "remote_worker_options",
    "RemoteReceivingChannel": "connection",
    "SamplerOptions": "loader_options",
    "ServerSlice": "server_values",
    "async_request_server": "graph_client",
    "build_partition_book": "store_views",
    "compute_server_assignments": "server_values",
    "create_sampling_config": "loader_options",
    "exit_client": "life_cycle",
    "get_context": "context",
    "get_graph_store_info": "resolve",
    "get_ids_on_rank": "store_views",
    "get_sampler_pool": "graph_client",
    "get_server": "dist_server",
    "get_total_ids": "store_views",
    "init_client": "graph_client",
    "init_server": "dist_server",
    "initialize": "life_cycle",
    "is_initialized": "life_cycle",
    "is_label_edge_type": "seeds",
    "label_edge_type_to_message_passing_edge_type": "seeds",
    "message_passing_to_negative_label": "seeds",
    "message_passing_to_positive_label": "seeds",
    "patch_fanout_for_sampling": "seeds",
    "reduce_dist_dataset": "dataset",
    "request_server": "graph_client",
    "resolve_runtime": "resolve",
    "resolve_sampler_options": "loader_options",
    "reverse_edge_type": "seeds",
    "select_label_edge_types": "seeds",
    "select_ssl_positive_label_edges": "splitters",
    "shard_nodes_by_process": "seeds",
    "shutdown_client": "graph_client",
    "wait_and_shutdown_server": "dist_server",
    "worker_seed_ranges": "seeds",
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
_GLT_HOMES = {name: f"{module}.{name}" for module, names in _GLT_MODULES.items() for name in names}

__all__ = [
    "ABLPInputNodes",
    "BaseDistLoader",
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE",
    "DEFAULT_MASTER_INFERENCE_PORT",
    "DEFAULT_NUM_CPU_THREADS",
    "DatasetSchema",
    "DistABLPLoader",
    "DistContext",
    "DistDataset",
    "DistFeature",
    "DistGraph",
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistNodeAnchorLinkSplitter",
    "DistNodeSplitter",
    "DistRole",
    "DistSamplingProducer",
    "DistServer",
    "DistSubGraphLoader",
    "DistributedContext",
    "DistributedRuntimeInfo",
    "FeatureInfo",
    "FetchABLPInputRequest",
    "FetchNodesRequest",
    "GraphStoreInfo",
    "InitSamplingBackendRequest",
    "KHopNeighborSamplerOptions",
    "PPRSamplerOptions",
    "PartitionBook",
    "RangePartitionBook",
    "RegisterBackendRequest",
    "RemoteDistDataset",
    "RemoteDistSamplingWorkerOptions",
    "RemoteReceivingChannel",
    "SamplerOptions",
    "ServerSlice",
    "async_request_server",
    "build_partition_book",
    "compute_server_assignments",
    "create_sampling_config",
    "exit_client",
    "get_context",
    "get_graph_store_info",
    "get_ids_on_rank",
    "get_sampler_pool",
    "get_server",
    "get_total_ids",
    "init_client",
    "init_server",
    "initialize",
    "is_initialized",
    "is_label_edge_type",
    "label_edge_type_to_message_passing_edge_type",
    "message_passing_to_negative_label",
    "message_passing_to_positive_label",
    "patch_fanout_for_sampling",
    "reduce_dist_dataset",
    "request_server",
    "resolve_runtime",
    "resolve_sampler_options",
    "reverse_edge_type",
    "select_label_edge_types",
    "select_ssl_positive_label_edges",
    "shard_nodes_by_process",
    "shutdown_client",
    "wait_and_shutdown_server",
    "worker_seed_ranges",
]

if TYPE_CHECKING:
    from gnnkit.distributed.base_loader import BaseDistLoader as BaseDistLoader
    from gnnkit.distributed.connection import DistSamplingProducer as DistSamplingProducer
    from gnnkit.distributed.connection import RemoteReceivingChannel as RemoteReceivingChannel
    from gnnkit.distributed.context import DistContext as DistContext
    from gnnkit.distributed.context import DistRole as DistRole
    from gnnkit.distributed.context import get_context as get_context
    from gnnkit.distributed.dataset import DistDataset as DistDataset
    from gnnkit.distributed.dataset import reduce_dist_dataset as reduce_dist_dataset
    from gnnkit.distributed.dist_server import DistServer as DistServer
    from gnnkit.distributed.dist_server import get_server as get_server
    from gnnkit.distributed.dist_server import init_server as init_server
    from gnnkit.distributed.dist_server import wait_and_shutdown_server as wait_and_shutdown_server
    from gnnkit.distributed.graph_client import async_request_server as async_request_server
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
    from gnnkit.distributed.remote_dataset import RemoteDistDataset as RemoteDistDataset
    from gnnkit.distributed.remote_worker_options import RemoteDistSamplingWorkerOptions as RemoteDistSamplingWorkerOptions
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
    from gnnkit.distributed.server_values import ABLPInputNodes as ABLPInputNodes
    from gnnkit.distributed.server_values import FetchABLPInputRequest as FetchABLPInputRequest
    from gnnkit.distributed.server_values import FetchNodesRequest as FetchNodesRequest
    from gnnkit.distributed.server_values import InitSamplingBackendRequest as InitSamplingBackendRequest
    from gnnkit.distributed.server_values import RegisterBackendRequest as RegisterBackendRequest
    from gnnkit.distributed.server_values import ServerSlice as ServerSlice
    from gnnkit.distributed.server_values import compute_server_assignments as compute_server_assignments
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
