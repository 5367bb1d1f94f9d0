"""The inputs of graphlearn-torch's loaders and servers: one part as its dataset, its options, and the places where processes meet."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from gnnkit.backends.glt.batches import MessageReader
from gnnkit.backends.glt.data import IdScheme, PartBuilder, unwrapped
from gnnkit.backends.glt.sampler import SeedList
from gnnkit.cluster.hosts import environment_int
from gnnkit.plan import InputNodes, LoaderPlan, NeighborSampling
from gnnkit.storage.arrays import GraphArrays
from gnnkit.vendor import glt

_JOIN_S = 600.0


@dataclass(frozen=True)
class GltPlace:
    """The place of a process among those that sample together.

    Attributes:
        part: The part that it holds, which is its number among the holders of parts.
        num_parts: Number of parts, and of their holders.
        samplers: Address and port at which sampling workers find each other.
        group: Address and port at which servers and clients do; None without servers.
        client: Which client it is or serves.
        num_clients: Number of clients; 0 without servers.
    """

    part: int
    num_parts: int
    samplers: tuple[str, int]
    group: tuple[str, int] | None
    client: int
    num_clients: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GltPlace:
        """A place as ``gnnkit.backends.glt.fleet`` describes it."""
        fields: Any = {name: tuple(part) if isinstance(part, list) else part for name, part in value.items()}
        return cls(**fields)


@dataclass(frozen=True)
class EngineOptions:
    """The user's options for graphlearn-torch's engine: see ``gnnkit.Glt``."""

    plan: LoaderPlan
    num_workers: int
    graph_mode: Any
    worker_concurrency: int
    channel_bytes: int
    rpc_timeout_s: float

    @property
    def devices(self) -> list[torch.device]:
        """The device of each worker: those of one trainer share its GPU."""
        device = torch.device("cpu") if self.gpu is None else torch.device("cuda", self.gpu)
        return [device] * self.num_workers

    @property
    def gpu(self) -> int | None:
        """The trainer's GPU; None where sampling runs on the CPU."""
        return None if self.graph_mode == "CPU" else (environment_int("LOCAL_RANK") or 0) % torch.cuda.device_count()


def listen(address: str, port: int) -> tuple[Any, int]:
    """A rendezvous store on one address: torch's own would listen on every interface.

    Args:
        address: The address.
        port: The port; 0 is a free one.

    Returns:
        The store, which ends with its last reference, and the port.

    Raises:
        OSError: The address or the port is not to be had.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    end = socket.socket(family)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    end.bind((address, port))
    end.listen(128)
    port = int(end.getsockname()[1])
    distributed: Any = torch.distributed
    store = distributed.TCPStore(
        address,
        port,
        is_master=True,
        timeout=timedelta(seconds=_JOIN_S),
        wait_for_workers=False,
        master_listen_fd=end.detach(),
        use_libuv=False,
    )
    return store, port


def part_dataset(graph: GraphArrays, part: int, options: EngineOptions) -> Any:
    """A ``DistDataset`` of graphlearn-torch's with one part's edges and features, in the store's ids."""
    builder = PartBuilder(IdScheme(graph, of_dataset=False), part, options.graph_mode, options.gpu)
    schema, homogeneous = graph.schema, graph.schema.is_homogeneous
    reader, used = MessageReader(options.plan, graph), fan_outs(options.plan, graph)
    nodes = {t: builder.node_table(t) for t in schema.node_types} if reader.needs_nodes else None
    rows = {t: builder.edge_table(t, with_edge=options.plan.sampling.with_edge) for t in used} if reader.needs_edges else None
    return glt.attribute("distributed.DistDataset")(
        graph.num_parts,
        part,
        graph_partition=unwrapped({t: builder.edges(t) for t in used}, homogeneous=homogeneous),
        node_feature_partition=None if nodes is None else unwrapped(nodes, homogeneous=homogeneous),
        edge_feature_partition=None if rows is None else unwrapped(rows, homogeneous=homogeneous),
        # Labels are among the features; of typed graphs it asks for some, whatever they are (GLT-10).
        whole_node_labels=None if homogeneous else {"": torch.empty(0)},
        node_pb=unwrapped({t: builder.node_book(t) for t in schema.node_types}, homogeneous=homogeneous),
        edge_pb=unwrapped({t: builder.edge_book(t) for t in used}, homogeneous=homogeneous),
        edge_dir=graph.edge_dir,
    )


def fan_outs(plan: LoaderPlan, graph: GraphArrays) -> dict[Any, list[int]]:
    """Fan-outs by edge type; types of which nothing is sampled are left out where others remain."""
    sampling = plan.sampling
    assert isinstance(sampling, NeighborSampling), "Glt() has refused everything else"
    found = {t: list(sampling.num_neighbors.get(t, (0,) * sampling.num_hops)) for t in graph.schema.edge_types}
    return {t: fans for t, fans in found.items() if any(fans)} or found


def sampling_config(options: EngineOptions, graph: GraphArrays) -> Any:
    """Returns the configuration of graphlearn-torch's samplers."""
    fans, batching = fan_outs(options.plan, graph), options.plan.batching
    return glt.attribute("sampler.SamplingConfig")(
        sampling_type=glt.attribute("sampler.SamplingType").NODE,
        num_neighbors=unwrapped(fans, homogeneous=graph.schema.is_homogeneous),
        batch_size=1,  # one job, with as many seeds as it holds
        shuffle=True,  # which has its workers wait for jobs rather than for the start of an epoch
        drop_last=False,
        with_edge=MessageReader(options.plan, graph).needs_edges,
        collect_features=True,
        with_neg=False,
        with_weight=False,
        edge_dir=graph.edge_dir,
        seed=(batching.seed * 31 + batching.rank) % (1 << 31),
    )


def direct_seeds(options: EngineOptions, graph: GraphArrays) -> SeedList:
    """Returns the object that graphlearn-torch receives in place of a list of seeds."""
    inputs = options.plan.inputs
    assert isinstance(inputs, InputNodes), "Glt() has refused everything else"
    return SeedList(None if graph.schema.is_homogeneous else inputs.node_type, options.channel_bytes)
