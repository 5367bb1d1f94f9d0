"""Numbers of a batch's nodes on a device, in the order in which they are first met: ``docs/development/sampling.md``, "Numbers".

Nothing here comes back to the host: how many nodes there are is a number on the device until the end of a hop.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LAST = torch.iinfo(torch.int32).max
_NONE = torch.iinfo(torch.int64).max


class Counted:
    """0, 1, 2 and so on, int32, on a device: a piece of it takes no operation.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.values = torch.empty(0, dtype=torch.int32, device=device)

    def __call__(self, begin: int, end: int) -> Tensor:
        """The numbers in ``[begin, end)``."""
        if end > len(self.values):
            self.values = torch.arange(end + end // 4, dtype=torch.int32, device=self.device)
        return self.values[begin:end]


class TableNumbering:
    """The numbers of the nodes of one type in one batch, by a table of four bytes for each node of the type.

    Args:
        num_nodes: Nodes of the type.
        counted: Numbers on the device where the table lies.
    """

    def __init__(self, num_nodes: int, counted: Counted) -> None:
        self._size, self._counted = num_nodes, counted
        self.table = torch.full((num_nodes + 1,), _LAST, dtype=torch.int32, device=counted.device)
        self.table[num_nodes] = -1  # no node: less than any number, so it is never new
        self._count = self._places = 0
        self._is_clean = True

    def begin(self, ids: Tensor, roots: Tensor | None) -> None:
        """Begins a batch with its seeds, store ids, which have the first numbers; a repeated one has one of its own."""
        if not self._is_clean:  # what broke the batch before off has left its numbers
            self.table[: self._size] = _LAST
        self._is_clean = False
        self._count = self._places = len(ids)
        if len(ids):
            self.table.scatter_reduce_(0, ids, self._counted(0, len(ids)), "amin")

    def meet(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        """int32 ``[e]``: how many of the neighbours up to each are met for the first time. The number of nodes stands for none."""
        # Until the hop ends a new node's entry is the first place at which it was met; places are above all numbers.
        place = self._counted(self._places, self._places + len(ids))
        self._places += len(ids)
        self.table.scatter_reduce_(0, ids, place, "amin")
        return (self.table[ids] == place).cumsum(0, dtype=torch.int32)

    def settle(self, ids: Tensor, roots: Tensor | None, numbers: Tensor) -> None:
        """Ends a hop: ``numbers``, int32, are those of the nodes that it has met first."""
        self._count += len(ids)
        self._places = self._count
        # Numbers are less than places, and not less than what stands for no node.
        self.table.scatter_reduce_(0, ids, numbers, "amin")

    def find(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        """int64 ``[e]``: the numbers that nodes have; -1 for those without one."""
        found = self.table[ids].long()
        return found.masked_fill_(found == _LAST, -1)

    def end(self, ids: Tensor) -> None:
        """Ends the batch; ``ids`` are all of its nodes, and perhaps none among them."""
        self.table.index_fill_(0, ids, _LAST)
        self.table[self._size :].fill_(-1)
        self._is_clean = True

    def lose(self) -> None:
        """Ends a batch that was broken off."""
        self._is_clean = False


class RootedNumbering:
    """As ``TableNumbering``, of pairs of a root and a node, by sorting: ``docs/development/sampling.md``, "A neighbourhood for each root".

    Args:
        num_nodes: Nodes of the type.
    """

    def __init__(self, num_nodes: int) -> None:
        self._size = num_nodes

    def begin(self, ids: Tensor, roots: Tensor | None) -> None:
        """Begins a batch with its seeds."""
        self._numbered = self._met = self._key(ids, roots)

    def _key(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        assert roots is not None
        return (roots * self._size + ids).masked_fill_(ids == self._size, _NONE)

    def meet(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        """int32 ``[e]``: how many of the neighbours up to each are met for the first time."""
        known = len(self._met)
        self._met = torch.cat([self._met, self._key(ids, roots)])
        ordered, order = self._met.sort(stable=True)
        begins = ordered != _NONE
        begins[1:] &= ordered[1:] != ordered[:-1]
        return torch.empty_like(begins).scatter_(0, order, begins)[known:].cumsum(0, dtype=torch.int32)

    def settle(self, ids: Tensor, roots: Tensor | None, numbers: Tensor) -> None:
        """Ends a hop, in which these nodes were met first."""
        self._numbered = self._met = torch.cat([self._numbered, self._key(ids, roots)])

    def find(self, ids: Tensor, roots: Tensor | None) -> Tensor:
        """int64 ``[e]``: the numbers that nodes have; -1 for those without one."""
        own = self._key(ids, roots)
        ordered, order = self._numbered.sort(stable=True)
        place = torch.searchsorted(ordered, own).clamp_(max=len(ordered) - 1)
        return order[place].masked_fill_(ordered[place] != own, -1)

    def end(self, ids: Tensor) -> None:
        """Ends the batch; the next one begins with keys of its own."""

    def lose(self) -> None:
        """As ``end``."""


Numbering = TableNumbering | RootedNumbering
