"""``DistSubGraphLoader``: every edge among seeds and their neighbours, with graphlearn-torch's arguments and outputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from gnnkit.distributed.batch_maker import BatchMaker
from gnnkit.distributed.neighbor_loader import DistNeighborLoader, Seeds
from gnnkit.sampling.collate import BatchContents
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, NodeKey
from gnnkit.schema import EdgeDir, EdgeType, NodeType
from gnnkit.vendor import glt

if TYPE_CHECKING:
    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.remote_dataset import RemoteDistDataset

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
    return replace(contents, arrays=arrays)


class DistSubGraphLoader(DistNeighborLoader):
    """Samples the neighbourhoods of nodes and shows every edge among the nodes, self loops and edges that nobody drew included.

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
        config.sampling_type = glt.attribute("sampler.SamplingType").SUBGRAPH


# Readers and tools see the other arguments, too.
_own = inspect.signature(DistSubGraphLoader.__init__).parameters
_others = [p for name, p in inspect.signature(DistNeighborLoader.__init__).parameters.items() if name not in (*_own, "dataset", "more")]
DistSubGraphLoader.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p for p in [*_own.values()][1:] if p.kind is not p.VAR_KEYWORD] + _others
)
