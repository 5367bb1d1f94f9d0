"""``GraphLoader.dist_loader``: a loader with graphlearn-torch's surface over the connection of a loader of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gnnkit.backends import backend_from_json
from gnnkit.backends.colocated import Colocated
from gnnkit.distributed.base_loader import BaseDistLoader
from gnnkit.distributed.connection import DistSamplingProducer
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.loader_options import KHopNeighborSamplerOptions
from gnnkit.distributed.resolve import DistributedRuntimeInfo
from gnnkit.distributed.store_views import DatasetSchema
from gnnkit.errors import PlanError
from gnnkit.loader.pipeline import Pipeline
from gnnkit.plan import InputNodes, LoaderPlan, NeighborSampling
from gnnkit.vendor import glt

_LOOPBACK = "127.0.0.1"


def dist_loader_over(loader: Pipeline) -> BaseDistLoader:
    """A loader with graphlearn-torch's surface over the connection of an open one; see ``GraphLoader.dist_loader``.

    Raises:
        PlanError: It does not sample nodes hop by hop, or graphlearn-torch is not installed.
    """
    if not isinstance(loader.plan.inputs, InputNodes) or not isinstance(loader.plan.sampling, NeighborSampling):
        raise PlanError(
            "dist_loader hands out loaders of nodes that are sampled hop by hop",
            "for links and anchors construct DistLinkNeighborLoader or DistABLPLoader of gnnkit.distributed",
        )
    if loader.plan.sampling.has_roots:
        raise PlanError(
            "dist_loader hands out batches with graphlearn-torch's names, and its batch is the seeds", "leave disjoint and time_attr out"
        )
    plan, schema = loader.plan, DatasetSchema.from_graph(loader.schema, loader.plan.sampling.edge_dir)
    store = loader.store
    dataset = None if store is None else DistDataset.from_store(store, store.local_parts[0])
    config, options = _config(plan, schema), _options(plan)
    seeds = _seeds(loader, homogeneous=schema.edge_types is None)
    batching = plan.batching
    # Which of these ranks share a host does not matter here: the connection is open.
    runtime = DistributedRuntimeInfo(1, 0, batching.rank, batching.world_size, batching.rank, batching.world_size, _LOOPBACK)
    channel = BaseDistLoader.create_colocated_channel(options)
    producer = DistSamplingProducer.over(loader, dataset, seeds, config, options, channel)
    lent = BaseDistLoader(
        dataset, seeds, schema, options, config, loader.device, runtime, producer, KHopNeighborSamplerOptions(config.num_neighbors)
    )
    lent._lend(loader.graph.extra, loader.graph.type_extra, loader.transform)
    return lent


def _config(plan: LoaderPlan, schema: DatasetSchema) -> Any:
    batching, sampling = plan.batching, plan.sampling
    assert isinstance(sampling, NeighborSampling), "nothing else is lent"
    fan_outs = {edge_type: list(fan_out) for edge_type, fan_out in sampling.num_neighbors.items()}
    return glt.attribute("sampler.SamplingConfig")(
        sampling_type=glt.attribute("sampler.SamplingType").NODE,
        num_neighbors=next(iter(fan_outs.values())) if schema.edge_types is None else fan_outs,
        batch_size=batching.batch_size,
        shuffle=batching.shuffle,
        drop_last=batching.drop_last,
        with_edge=sampling.with_edge,
        collect_features=True,
        with_neg=False,
        with_weight=sampling.weight is not None,
        edge_dir=sampling.edge_dir,
        seed=batching.seed,
    )


def _options(plan: LoaderPlan) -> Any:
    """The options that come closest to the loader's backend; nothing is started from them."""
    backend = backend_from_json(plan.backend)
    timeout_s = plan.runtime.batch_timeout_s
    if not isinstance(backend, Colocated):
        return glt.attribute("distributed.CollocatedDistSamplingWorkerOptions")(_LOOPBACK, 0, rpc_timeout=timeout_s)
    return glt.attribute("distributed.MpDistSamplingWorkerOptions")(
        num_workers=backend.num_workers if isinstance(backend.num_workers, int) else 1,
        worker_devices="cpu",
        worker_concurrency=backend.worker_concurrency,
        master_addr=_LOOPBACK,
        master_port=0,
        rpc_timeout=timeout_s,
        channel_size=backend.channel_size,
    )


def _seeds(loader: Pipeline, *, homogeneous: bool) -> Any:
    """The seeds of all ranks: what is dealt to this one is decided batch by batch."""
    inputs = loader.batches.written_out()
    assert isinstance(inputs, InputNodes), "only loaders of nodes are lent"
    whole = np.arange(loader.batches.num_seeds) if inputs.ids is None else np.array(inputs.ids, np.int64)
    return glt.attribute("sampler.NodeSamplerInput")(torch.from_numpy(whole), None if homogeneous else inputs.node_type)
