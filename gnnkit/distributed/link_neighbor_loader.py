"""``DistLinkNeighborLoader``: neighbourhoods of links and of their negatives, with graphlearn-torch's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.loader_modes import Mode, RemoteMode
from gnnkit.distributed.neighbor_loader import DistNeighborLoader
from gnnkit.distributed.resolve import DistributedRuntimeInfo
from gnnkit.distributed.sampler_inputs import local_links, server_links
from gnnkit.loader.inputs import LinkOptions
from gnnkit.plan import ExcludeEdges
from gnnkit.schema import EdgeType
from gnnkit.vendor import glt

if TYPE_CHECKING:
    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.remote_dataset import RemoteDistDataset


class DistLinkNeighborLoader(DistNeighborLoader):
    """Samples the neighbourhoods of links' ends; takes graphlearn-torch's arguments.

    Batches are those of ``gnnkit.GraphLoader`` for the same links: ``edge_label_index`` and ``edge_label``, or ``src_index``,
    ``dst_pos_index`` and ``dst_neg_index``, as PyG has them. ``edge_label_index`` is sources and targets under the links' own type,
    whatever the direction of sampling; graphlearn-torch swaps it, in plain batches always and in typed ones for ``edge_dir="out"``.
    ``batch`` and ``batch_size`` are of the distinct ends, which come first among the nodes.

    Args:
        data: A dataset of a store, or a ``RemoteDistDataset``.
        num_neighbors: See ``DistNeighborLoader``.
        batch_size: Links per batch.
        edge_label_index: Links ``[2, n]`` of this process's own, ``(edge type, links)`` for a typed graph; or an edge type, or None where
            there is only one, for the edges of the dataset's part, dealt to the processes of this host. In the graph-store mode
            ``{server: links}`` takes the place of the links.
        edge_label: Numbers ``[n, ...]``; by server in the graph-store mode. With "binary" negatives, those that start from 0 become one
            higher; processes do not know of one another's, so give labels from 1 on where some have no 0.
        neg_sampling: graphlearn-torch's or PyG's ``NegativeSampling``, "binary", "triplet", or None. Negatives are drawn over the whole
            graph.
        neg_strict: Whether negatives are never edges of the links' type, wherever those are.
        exclude_edges: "self" leaves a batch's links out of what is sampled, "reverse" also the edges that lead back.
        **options: The other arguments of ``DistNeighborLoader``, by name.

    Raises:
        PlanError: An argument is unusable or does not fit another; nothing was started.
        GnnkitError: As ``Backend.open``.
    """

    def __init__(
        self,
        data: DistDataset | RemoteDistDataset | None = None,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]] | None = None,
        batch_size: int = 1,
        edge_label_index: Any = None,
        edge_label: Any = None,
        neg_sampling: Any = None,
        *,
        neg_strict: bool = False,
        exclude_edges: ExcludeEdges | None = None,
        **options: Any,
    ) -> None:
        self.neg_sampling = neg_sampling
        self._said = {"edge_label": edge_label, "neg_sampling": neg_sampling, "neg_strict": neg_strict, "exclude_edges": exclude_edges}
        super().__init__(data, num_neighbors, edge_label_index, batch_size=batch_size, **options)
        if not hasattr(neg_sampling, "is_binary"):  # a word: the attribute is an object, as graphlearn-torch's
            self.neg_sampling = glt.attribute("sampler.NegativeSampling").cast(neg_sampling)

    def _complete(self, config: Any) -> None:
        config.sampling_type, config.with_neg = glt.attribute("sampler.SamplingType").LINK, self.neg_sampling is not None

    def _seeds(self, mode: Mode, edge_label_index: Any, runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
        if isinstance(mode, RemoteMode):
            return server_links(mode.dataset, edge_label_index, self._said, mode.servers)
        return local_links(mode.dataset, edge_label_index, LinkOptions(**self._said), runtime)


# Readers and tools see the other arguments, too.
_own = inspect.signature(DistLinkNeighborLoader.__init__).parameters
_others = [
    p
    for name, p in inspect.signature(DistNeighborLoader.__init__).parameters.items()
    if name not in (*_own, "dataset", "data", "input_nodes", "more")
]
DistLinkNeighborLoader.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p for p in [*_own.values()][1:] if p.kind is not p.VAR_KEYWORD] + _others
)
