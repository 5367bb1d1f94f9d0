"""Splitters by GiGL's names: nodes, or the anchors of supervised edges, into training, validation and test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.bounds import check_choice
from gnnkit.distributed import process_group
from gnnkit.distributed.graph_types import message_passing_to_negative_label, message_passing_to_positive_label
from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeDir, EdgeType, NodeType, is_label_edge_type, opposite_label_types
from gnnkit.splitters import Split, cut, split_nodes, split_sizes

if TYPE_CHECKING:
    import torch

HashFunction: TypeAlias = Callable[["torch.Tensor"], "torch.Tensor"]
Splits: TypeAlias = Split | dict[NodeType, Split]


class DistNodeSplitter:
    """Splits nodes: exact numbers, the same on every rank, and every node in one set.

    Where there is a process group, every rank calls it, with ids of its own or the same ones; what is split are all of them
    together, and each rank gets its own back.

    Args:
        num_val: Share of the nodes for validation, of which the nearest whole number is taken; or that number.
        num_test: The same for test.
        hash_function: ``[n]`` ids to ``[n]`` numbers: the nodes of the smallest ones are for training, of the largest for test. None draws.
        seed: Random seed of the draw.

    Raises:
        PlanError: A share is out of range.
    """

    def __init__(self, num_val: float = 0.1, num_test: float = 0.1, hash_function: HashFunction | None = None, *, seed: int = 0) -> None:
        _check_shares(num_val, num_test)
        self._num_val, self._num_test, self._hash, self._seed = num_val, num_test, hash_function, seed

    def __call__(self, node_ids: torch.Tensor | Mapping[NodeType, torch.Tensor]) -> Splits:
        """Training, validation and test nodes, ascending, as int64; by node type where ids are.

        Args:
            node_ids: Ids ``[n]``, or by node type.

        Raises:
            PlanError: They are not one-dimensional, or there are none.
        """
        if isinstance(node_ids, Mapping):
            return {node_type: self._split(ids, f" of {node_type!r}") for node_type, ids in node_ids.items()}
        return self._split(node_ids, "")

    def _split(self, node_ids: Any, of: str) -> Split:
        import torch

        ids = torch.as_tensor(node_ids)
        if ids.dim() != 1 or len(ids) == 0:
            raise PlanError(f"the node ids{of} must be one-dimensional, and there must be some, got shape {tuple(ids.shape)}")
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise PlanError(f"the node ids{of} must be whole numbers, got {ids.dtype}")
        return self.split_own(np.unique(ids.cpu().numpy()))

    def split_own(self, ids: NDArray[Any]) -> Split:
        """Splits the ids of all ranks together, and gives this rank its own.

        Args:
            ids: Whole numbers ``[n]``, ascending, each once.
        """
        import torch

        every = _of_all_ranks(ids.astype(np.int64))
        if self._hash is None:
            split = split_nodes(every, valid=self._num_val, test=self._num_test, seed=self._seed)
        else:
            order = torch.sort(self._hash(torch.from_numpy(every)), stable=True).indices
            split = cut(every, order.cpu().numpy(), self._num_val, self._num_test)
        if len(every) == len(ids):
            return split
        own = torch.from_numpy(ids.astype(np.int64))
        return Split(*(part[torch.isin(part, own)] for part in split))


class DistNodeAnchorLinkSplitter:
    """Splits the anchors of supervised edges: the nodes that neighbourhoods are sampled around.

    Args:
        sampling_direction: The dataset's ``edge_dir``: "in" takes the targets of stored edges as anchors, "out" their sources.
        num_val: See ``DistNodeSplitter``.
        num_test: See ``DistNodeSplitter``.
        hash_function: See ``DistNodeSplitter``.
        supervision_edge_types: The types whose anchors are split, of a typed graph, as they lead from anchors to labels; None for a
            homogeneous one, with or without labels.
        should_convert_labels_to_edges: Whether anchors are those of the types' label edges, positive and negative, wherever there are
            some (see ``gnnkit.add_label_edges``), and of the types' own edges elsewhere; False: always of their own edges.
        seed: See ``DistNodeSplitter``.

    Attributes:
        should_convert_labels_to_edges: See above; read anew by every call.

    Raises:
        PlanError: The direction is unknown, a share is out of range, or there are no supervision types in the list.
    """

    def __init__(
        self,
        sampling_direction: str,
        num_val: float = 0.1,
        num_test: float = 0.1,
        hash_function: HashFunction | None = None,
        supervision_edge_types: Sequence[EdgeType] | None = None,
        should_convert_labels_to_edges: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        check_choice("sampling_direction", sampling_direction, EdgeDir)
        self._nodes = DistNodeSplitter(num_val, num_test, hash_function, seed=seed)
        if supervision_edge_types is not None and not supervision_edge_types:
            raise PlanError("supervision_edge_types is empty", "name the supervised types, or leave it out for a homogeneous graph")
        self._row = 1 if sampling_direction == "in" else 0
        self._types = None if supervision_edge_types is None else [(a, relation, b) for a, relation, b in supervision_edge_types]
        self.should_convert_labels_to_edges = should_convert_labels_to_edges

    def __call__(self, edge_index: torch.Tensor | Mapping[EdgeType, torch.Tensor]) -> Splits:
        """Training, validation and test anchors, ascending, as int64; by node type where edges are given by type.

        Args:
            edge_index: Supervised edges ``[2, e]``, or by edge type.

        Raises:
            PlanError: Edges are not ``[2, e]``, or typed ones and supervision types do not go together, or one is unknown.
        """
        if not isinstance(edge_index, Mapping):
            if self._types is not None:
                raise PlanError("supervision_edge_types are given, and the edges are not by type", "give {edge type: edge_index}")
            return self._split([self._anchors(edge_index, "")])
        if self._types is None and HOMOGENEOUS_EDGE_TYPE not in edge_index:
            raise PlanError("the edges are by type, and there are no supervision_edge_types", f"name some of {list(edge_index)}")
        anchors: dict[NodeType, list[NDArray[Any]]] = {}
        for edge_type in [HOMOGENEOUS_EDGE_TYPE] if self._types is None else self._types:
            for supervised in self._supervised(edge_type, edge_index):
                found = self._anchors(edge_index[supervised], f" of {supervised}")
                anchors.setdefault(supervised[2 * self._row], []).append(found)
        return {node_type: self._split(found) for node_type, found in anchors.items()}

    def _supervised(self, edge_type: EdgeType, known: Mapping[EdgeType, Any]) -> list[EdgeType]:
        """The stored types whose edges are supervised under a type: its label types, or itself."""
        if self.should_convert_labels_to_edges and not is_label_edge_type(edge_type):
            labels = message_passing_to_positive_label(edge_type), message_passing_to_negative_label(edge_type)
            stored = [next((name for name in self._names(label) if name in known), None) for label in labels]
            if found := [name for name in stored if name is not None]:
                return found
        if edge_type not in known:
            names = [str(name) for name in known]
            raise PlanError(
                f"there are no edges of the supervision type {edge_type}{near_matches(str(edge_type), names)}", f"known: {names}"
            )
        return [edge_type]

    def _names(self, label: EdgeType) -> list[EdgeType]:
        """Returns the names that label edges may have where anchors own them; see ``opposite_label_types``."""
        if self._row == 0:
            return [label]
        # Between nodes of one type GiGL turns the edges and keeps the name, which the direction makes plain here.
        return [*opposite_label_types(label), *([label] if label[0] == label[2] else [])]

    def _anchors(self, edge_index: Any, of: str) -> NDArray[Any]:
        import torch

        edges = torch.as_tensor(edge_index)
        if edges.is_sparse or edges.dim() != 2 or edges.shape[0] != 2:
            found = "a sparse tensor" if edges.is_sparse else f"shape {tuple(edges.shape)}"
            raise PlanError(f"the edges{of} must be a dense tensor of shape [2, e], got {found}")
        if edges.is_floating_point():
            raise PlanError(f"the edges{of} must be whole numbers, got {edges.dtype}")
        anchors: NDArray[Any] = edges[self._row].cpu().numpy()
        return anchors

    def _split(self, anchors: list[NDArray[Any]]) -> Split:
        return self._nodes.split_own(np.unique(np.concatenate(anchors)))


def select_ssl_positive_label_edges(edge_index: torch.Tensor, positive_label_percentage: float, *, seed: int = 0) -> torch.Tensor:
    """Edges drawn to be positive labels of a self-supervised task; they stay among the graph's edges.

    Args:
        edge_index: ``[2, e]``.
        positive_label_percentage: The share to draw, from 0 to 1.
        seed: Random seed.

    Returns:
        ``[2, int(e * share)]`` in the order of ``edge_index``.

    Raises:
        PlanError: The share is out of range, or the edges are not ``[2, e]``.
    """
    share = positive_label_percentage
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise PlanError(f"positive_label_percentage must be from 0 to 1, got {share!r}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise PlanError(f"edge_index must have the shape [2, e], got {tuple(edge_index.shape)}")
    count = int(edge_index.shape[1])
    return edge_index[:, split_nodes(count, valid=count - int(count * share), test=0, seed=seed).train.to(edge_index.device)]


def _check_shares(num_val: float, num_test: float) -> None:
    for name, value in (("num_val", num_val), ("num_test", num_test)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or value < 0 or (isinstance(value, float) and value >= 1):
            raise PlanError(f"{name} must be a share of at least 0 and below 1, or a whole number, got {value!r}")
    if isinstance(num_val, float) and isinstance(num_test, float):
        split_sizes(0, num_val, num_test)


def _of_all_ranks(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids of all ranks of the process group, ascending, each once; its deadline is the group's."""
    if not process_group.is_initialized():
        return ids
    import torch
    import torch.distributed as dist

    world_size = dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    sizes = torch.zeros(world_size, dtype=torch.int64, device=device)
    sizes[dist.get_rank()] = len(ids)
    dist.all_reduce(sizes)
    own = torch.zeros(int(sizes.max()), dtype=torch.int64, device=device)
    own[: len(ids)] = torch.from_numpy(ids)
    found = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(found, own)
    return np.unique(np.concatenate([rows[:size].cpu().numpy() for rows, size in zip(found, sizes.tolist(), strict=True)]))
