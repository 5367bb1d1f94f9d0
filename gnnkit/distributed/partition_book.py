"""Partition books: which part owns a node or an edge. Ids are the dataset's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.errors import PlanError


class PartitionBook(ABC):
    """Says which part owns an id; ``book[ids]`` with int64 ``[k]`` gives int64 ``[k]``."""

    @abstractmethod
    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        """Parts of ids, of the same shape."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of ids."""

    @abstractmethod
    def ids_of(self, partition_idx: int) -> torch.Tensor:
        """int64 ``[k]``: the ids that a part owns, ascending."""

    @property
    def device(self) -> torch.device:
        """Where ids are looked up."""
        return torch.device("cpu")

    def id_filter(self, node_pb: AnyBook, partition_idx: int) -> torch.Tensor:
        """The ids that a part owns by the book ``node_pb``; under the name by which graphlearn-torch asks a book."""
        return get_ids_on_rank(node_pb, partition_idx)


AnyBook: TypeAlias = PartitionBook | torch.Tensor


class RangePartitionBook(PartitionBook):
    """A book of parts that own one range of ids each; parts may be empty.

    Args:
        partition_ranges: First id and last id + 1 of each part, from 0 and without gaps.
        partition_idx: The part that ``id2index`` is for.

    Raises:
        PlanError: The ranges have gaps or run backwards, or there is no such part.
    """

    def __init__(self, partition_ranges: Sequence[tuple[int, int]], partition_idx: int) -> None:
        bounds = [0, *(end for _, end in partition_ranges)]
        if not partition_ranges or [start for start, _ in partition_ranges] != bounds[:-1] or bounds != sorted(bounds):
            raise PlanError(f"partition_ranges must be ranges from 0 on without gaps, got {list(partition_ranges)}")
        if not 0 <= partition_idx < len(partition_ranges):
            raise PlanError(f"there is no part {partition_idx}", f"parts go from 0 to {len(partition_ranges) - 1}")
        self.partition_bounds = torch.tensor(bounds[1:], dtype=torch.int64)
        self.partition_idx = partition_idx
        self._starts = bounds[:-1]

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self.partition_bounds, _checked(indices, len(self)), right=True)

    def __len__(self) -> int:
        return int(self.partition_bounds[-1])

    def ids_of(self, partition_idx: int) -> torch.Tensor:
        """See ``PartitionBook``."""
        return torch.arange(self._starts[partition_idx], int(self.partition_bounds[partition_idx]), dtype=torch.int64)

    @property
    def id2index(self) -> OffsetId2Index:
        """From an id of the part ``partition_idx`` to its row there."""
        return OffsetId2Index(self._starts[self.partition_idx])


class OffsetId2Index:
    """Maps the ids of a range to rows: ``id - offset``."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        return ids - self.offset


class RenumberedPartitionBook(PartitionBook):
    """The book of a store that numbers its nodes part by part; costs nothing beside the store's own mapped table.

    Args:
        store_ids: Integers ``[num_nodes]``, the store's number of each of the dataset's ids.
        bounds: int64 ``[num_parts + 1]``; part ``p`` owns the store's numbers from ``bounds[p]`` up to ``bounds[p + 1]``.
    """

    def __init__(self, store_ids: NDArray[Any], bounds: NDArray[np.int64]) -> None:
        self._store_ids, self._bounds = store_ids, bounds

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        numbers = self._store_ids[_checked(indices, len(self)).numpy()]
        return torch.from_numpy(np.searchsorted(self._bounds[1:], numbers, side="right"))

    def __len__(self) -> int:
        return len(self._store_ids)

    def ids_of(self, partition_idx: int) -> torch.Tensor:
        """See ``PartitionBook``."""
        low, high = self._bounds[partition_idx : partition_idx + 2]
        return torch.from_numpy(np.flatnonzero((self._store_ids >= low) & (self._store_ids < high)))


class LazyPartitionBook(PartitionBook):
    """A book whose table is made when something is first looked up in it.

    Args:
        make: Returns integers ``[num_ids]``, each id's part.
        num_ids: Its length.
    """

    def __init__(self, make: Callable[[], NDArray[Any]], num_ids: int) -> None:
        self._make, self._num_ids = make, num_ids
        self._table: NDArray[Any] | None = None

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._parts()[_checked(indices, len(self)).numpy()].astype(np.int64))

    def __len__(self) -> int:
        return self._num_ids

    def ids_of(self, partition_idx: int) -> torch.Tensor:
        """See ``PartitionBook``."""
        return torch.from_numpy(np.flatnonzero(self._parts() == partition_idx))

    def _parts(self) -> NDArray[Any]:
        if self._table is None:
            self._table = self._make()
        return self._table


def build_partition_book(num_entities: int, rank: int, world_size: int) -> RangePartitionBook:
    """A book of ranges whose sizes differ by at most 1, larger ones first.

    Args:
        num_entities: Number of ids.
        rank: The part that its ``id2index`` is for.
        world_size: Number of parts.

    Raises:
        PlanError: A number is too small, or there is no such part.
    """
    if num_entities < 0 or world_size < 1:
        raise PlanError(f"{num_entities} ids cannot be cut into {world_size} parts")
    share, more = divmod(num_entities, world_size)
    bounds = [part * share + min(part, more) for part in range(world_size + 1)]
    return RangePartitionBook(list(zip(bounds[:-1], bounds[1:], strict=True)), rank)


def get_ids_on_rank(partition_book: AnyBook, rank: int) -> torch.Tensor:
    """int64 ``[k]``: the ids that the part ``rank`` owns, ascending.

    Args:
        partition_book: A book, or a tensor ``[num_ids]`` with each id's part.
        rank: The part.

    Raises:
        PlanError: The tensor is not one-dimensional, or the value is no book.
    """
    if isinstance(partition_book, PartitionBook):
        return partition_book.ids_of(rank)
    return torch.nonzero(_table(partition_book) == rank).view(-1)


def get_total_ids(partition_book: AnyBook) -> int:
    """Number of ids in a book; arguments and errors as for ``get_ids_on_rank``."""
    return len(partition_book) if isinstance(partition_book, PartitionBook) else _table(partition_book).numel()


def look_up(partition_book: AnyBook, ids: torch.Tensor) -> torch.Tensor:
    """int64 ``[k]``: the parts of ids, by a book or by a tensor with each id's part.

    Raises:
        PlanError: An id is out of range or not a whole number, or the value is no book.
    """
    if isinstance(partition_book, PartitionBook):
        return partition_book[ids]
    table = _table(partition_book)
    return table[_checked(ids, table.numel())].long()


def _table(book: object) -> torch.Tensor:
    if not isinstance(book, torch.Tensor):
        raise PlanError(f"a partition book is a PartitionBook or a tensor with each id's part, got a {type(book).__name__}")
    if book.dim() != 1 or book.is_floating_point():
        raise PlanError(f"a partition book's tensor holds one whole number per id, got {book.dtype} of shape {list(book.shape)}")
    return book


def _checked(ids: torch.Tensor, count: int) -> torch.Tensor:
    """Ids on the CPU as int64, once they have been found to be some: an index below 0 would count from the end."""
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise PlanError(f"ids must be whole numbers, got {ids.dtype}")
    ids = ids.cpu().long()
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= count:
            raise PlanError(f"there is no id {low if low < 0 else high}", f"ids go from 0 to {count - 1}")
    return ids
