"""Numbers of a batch's nodes on a device, in the order in which they are first met: ``docs/development/sampling.md``, "Numbers".

Nothing here comes back to the host: how many nodes there are is a number on the device until the end of a hop.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from typing_extensions import override

_LAST = torch.iinfo(torch.int32).max
_NONE = torch.iinfo(torch.int64).max
# Entries of the table behind those of nodes: what stands for no node, and what is written where nothing is to be.
_NO_NODE, _NOWHERE = 0, 1


class Numbered(NamedTuple):
    """The numbers of neighbours.

    Attributes:
        number: int64 ``[e]``, their numbers; of no use where there is no neighbour.
        is_first: Bool ``[e]``, whether it is a new number.
    """

    number: Tensor
    is_first: Tensor


class Numbering(Protocol):
    """The numbers of the nodes of one type in one batch."""

    def begin(self, ids: Tensor, roots: Tensor | None) -> None:
        """Begins a batch with its seeds, store ids, which have the first numbers; a repeated one has one of its own."""

    def number(self, ids: Tensor, roots: Tensor | None, valid: Tensor | None) -> Numbered:
        """Numbers neighbours, store ids ``[e]``; ``valid`` says which of them are some."""

    def settle(self, count: int) -> None:
        """Says how many nodes there are at the end of a hop."""

    def find(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        """int64 ``[e]``: the numbers that nodes have; -1 for those without one."""

    def end(self, ids: Tensor) -> None:
        """Ends the batch; ``ids`` are all of its nodes."""


class TableNumbering(Numbering):
    """Numbers by a table of four bytes for each node of the type.

    Args:
        num_nodes: Nodes of the type.
        device: Where the table lies.
    """

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        self._size = num_nodes
        self.table = torch.full((num_nodes + 2,), _LAST, dtype=torch.int32, device=device)
        self.table[num_nodes + _NO_NODE] = -1  # is less than any number, so it is never new
        self._count: Tensor | int = 0
        self._is_clean = True

    @override
    def begin(self, ids: Tensor, roots: Tensor | None) -> None:
        if not self._is_clean:  # what broke the batch before off has left its numbers
            self.table[: self._size] = _LAST
        self._is_clean = False
        self._count = len(ids)
        if len(ids):
            self.table.scatter_reduce_(0, ids, torch.arange(len(ids), dtype=torch.int32, device=ids.device), "amin")

    @override
    def number(self, ids: Tensor, roots: Tensor | None, valid: Tensor | None) -> Numbered:
        ids = ids if valid is None else torch.where(valid, ids, self._size + _NO_NODE)
        order = torch.arange(len(ids), dtype=torch.int32, device=ids.device).add_(self._count)
        self.table.scatter_reduce_(0, ids, order, "amin")
        is_first = self.table[ids] == order
        number = is_first.cumsum(0, dtype=torch.int32).add_(self._count)
        self.table.scatter_(0, torch.where(is_first, ids, self._size + _NOWHERE), number - 1)
        self._count = number[-1]
        return Numbered(self.table[ids].long(), is_first)

    @override
    def settle(self, count: int) -> None:
        self._count = count

    @override
    def find(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        found = self.table[ids].long()
        return torch.where(found == _LAST, -1, found)

    @override
    def end(self, ids: Tensor) -> None:
        self.table[ids] = _LAST
        self._is_clean = True


class RootedNumbering(Numbering):
    """Numbers of pairs of a root and a node, by sorting: ``docs/development/sampling.md``, "A neighbourhood for each root".

    Args:
        num_nodes: Nodes of the type.
    """

    def __init__(self, num_nodes: int) -> None:
        self._size = num_nodes

    @override
    def begin(self, ids: Tensor, roots: Tensor | None) -> None:
        self._keys, self._numbers = self._key(ids, roots), torch.arange(len(ids), device=ids.device)
        self._count: Tensor | int = len(ids)

    def _key(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        assert roots is not None
        return roots * self._size + ids

    @override
    def number(self, ids: Tensor, roots: Tensor | None, valid: Tensor | None) -> Numbered:
        own = self._key(ids, roots)
        own = own if valid is None else torch.where(valid, own, _NONE)
        known, keys = len(self._keys), torch.cat([self._keys, own])
        ordered, order = keys.sort(stable=True)
        place = torch.arange(len(keys), device=keys.device)
        begins = torch.ones_like(ordered, dtype=torch.bool)
        begins[1:] = ordered[1:] != ordered[:-1]
        first = torch.empty_like(place).scatter_(0, order, order[torch.where(begins, place, 0).cummax(0)[0]])[known:]
        is_first = (first == place[known:]) & (own != _NONE)
        count = is_first.cumsum(0).add_(self._count)
        numbers = torch.cat([self._numbers, count - 1])
        number = numbers[first]
        # Only what is new is kept, the rest stands for no node; the same pair is not found twice.
        self._keys, self._numbers = torch.cat([self._keys, torch.where(is_first, own, _NONE)]), numbers
        self._count = count[-1]
        return Numbered(number, is_first)

    @override
    def settle(self, count: int) -> None:
        if len(self._keys) > count:
            order = torch.where(self._keys == _NONE, _NONE, self._numbers).argsort()[:count]
            self._keys, self._numbers = self._keys[order], self._numbers[order]
        self._count = count

    @override
    def find(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        own = self._key(ids, roots)
        ordered, order = self._keys.sort()
        place = torch.searchsorted(ordered, own).clamp_(max=len(ordered) - 1)
        return torch.where(ordered[place] == own, self._numbers[order[place]], -1)

    def end(self, ids: Tensor) -> None:
        """Ends the batch; the next one begins with keys of its own."""
