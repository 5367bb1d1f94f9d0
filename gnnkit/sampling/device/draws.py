"""Draws on a device: the integers of ``docs/development/sampling.md``, "Integers and keys", "Neighbours", "Weights" and "LABOR".

Unsigned 64-bit integers are kept as the int64 of the same bits: products, sums and exclusive ors are the same, shifts are masked, and
comparisons flip the highest bit. ``gnnkit.kernels.stream`` and ``gnnkit.sampling.passes`` are the counterparts of processors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnnkit.kernels.keys import GOLDEN, HASH_FACTORS
from gnnkit.sampling.passes import MAX_REDRAWS

_LOW = (1 << 32) - 1
# Above so many picks of a node, comparing each with each takes more memory than sorting them takes time.
_MOST_COMPARED = 64


def signed(value: int) -> int:
    """The int64 of an unsigned integer's bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN, _FIRST, _SECOND = signed(GOLDEN), signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """``value >> bits``, of which zeros are shifted in."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    """``mix(value)``, in the memory of ``value``."""
    value.bitwise_xor_(_shifted(value, 30)).mul_(_FIRST)
    value.bitwise_xor_(_shifted(value, 27)).mul_(_SECOND)
    return value.bitwise_xor_(_shifted(value, 31))


def fold(key: Tensor | int, value: Tensor) -> Tensor:
    """``fold(key, value)`` for each value; ``key`` is one for all, or one for each."""
    own = signed(key) if isinstance(key, int) else key
    return _mix((value * _GOLDEN).bitwise_xor_(own).add_(_GOLDEN))


def variates(key: Tensor, node: Tensor, *, is_wide: bool) -> Tensor:
    """The variate of each node, from 0 to 2^32 - 1.

    Args:
        key: int64, one for all, or one for each.
        node: int64, the dataset's ids.
        is_wide: Whether there may be one of 2^32 or more.
    """
    own = torch.where(node >> 32 == 0, key, fold(key, node >> 32)) if is_wide else key
    value = (node ^ own).bitwise_and_(_LOW)
    value = (value ^ (value >> 16)).mul_(HASH_FACTORS[0]).add_(_shifted(own, 32)).bitwise_and_(_LOW)
    value = (value ^ (value >> 15)).mul_(HASH_FACTORS[1]).bitwise_and_(_LOW)
    return value ^ (value >> 16)


class Steps(NamedTuple):
    """The common part of the draws of a node, and of its picks; made once, since each operation of a device counts.

    Attributes:
        numbers: int64 ``[k]``, 0, 1, 2 and so on.
        ends: int64 ``[k]``, one more.
        addends: int64 ``[k]``, of ``draws``.
    """

    numbers: Tensor
    ends: Tensor
    addends: Tensor

    @classmethod
    def of(cls, count: int, device: torch.device, first: int = 0) -> Steps:
        """Those of ``count`` draws, from number ``first`` on."""
        numbers = torch.arange(first, first + count + 1, device=device)
        return cls(numbers[:-1], numbers[1:], numbers[1:] * _GOLDEN)


def draws(key: Tensor, addends: Tensor) -> Tensor:
    """``draw(key, i)`` for the i of ``Steps.addends``; the two are broadcast."""
    return _mix(key + addends)


def _halves(values: Tensor, dtype: torch.dtype) -> Tensor:
    """``[..., 2]``: the low and high 32 bits of int64 values, which are looked at and not computed."""
    return values.view(dtype).view(*values.shape, 2)


def bounded(draw: Tensor, n: Tensor, *, is_wide: bool) -> Tensor:
    """``bounded(draw, n)`` for n of at least 0; int32 where they are not wide.

    Args:
        draw: int64, the draws.
        n: int64, likewise.
        is_wide: Whether an n may be 2^31 or more.
    """
    if not is_wide:
        products = _halves(draw, torch.uint32).long().mul_(n[..., None])
        # High halves of what is not negative are what shifting by 32 bits gives.
        return _halves(products[..., 1] + _halves(products, torch.int32)[..., 0, 1], torch.int32)[..., 1]
    high, low = _shifted(draw, 32), draw & _LOW
    n_high, n_low = n >> 32, n & _LOW
    left, right = high * n_low, low * n_high
    carried = _shifted(low * n_low, 32).add_(left & _LOW).add_(right & _LOW) >> 32
    return (high * n_high).add_(_shifted(left, 32)).add_(_shifted(right, 32)).add_(carried)


def _repeats(values: Tensor) -> Tensor:
    """Bool ``[n, k]``: whether a value stands in its row before already."""
    count = values.shape[1]
    if count <= _MOST_COMPARED:
        equal = values[:, :, None] == values[:, None, :]
        return equal.tril_(-1).any(2)
    ordered, order = values.sort(dim=1, stable=True)
    found = torch.zeros_like(values, dtype=torch.bool)
    return found.scatter_(1, order[:, 1:], ordered[:, 1:] == ordered[:, :-1])


def pick_distinct(key: Tensor, least: Tensor, steps: Steps, *, is_wide: bool) -> Tensor:
    """Floyd's sample of k of each node's d edges, for all picks at once; less ``d - k``, which place a pick falls back on.

    Pick i is t_i, or d - k + i where t_i was taken already. What is taken before it are the values t of earlier picks, and the d - k + j
    of each earlier pick j that was a repeat itself: so t_i leads to one earlier pick, and whether that one was a repeat is found by
    following such leads, twice as far in each round.

    Args:
        key: int64 ``[n]``, the nodes' generators.
        least: int64 ``[n]``, d - k, and 0 for nodes with fewer edges: their picks are 0, 1, 2 and so on.
        steps: Those of k picks.
        is_wide: Whether a degree may be 2^31 or more.

    Returns:
        int64 ``[n, k]``, in the order in which they are taken.
    """
    numbers, count = steps.numbers, len(steps.numbers)
    picks = bounded(draws(key[:, None], steps.addends), least[:, None] + steps.ends, is_wide=is_wide) - least[:, None]
    if count == 1:
        return picks
    repeated = _repeats(picks)
    # A repeat leads to itself, and what leads to no earlier pick leads to the first, which is no repeat.
    leads, reach = torch.where(repeated, numbers, picks.clamp(min=0)), 1
    while reach < count - 1:
        leads, reach = leads.gather(1, leads), 2 * reach
    return torch.where(repeated.gather(1, leads), numbers, picks)


def first_above(values: Tensor, begin: Tensor, end: Tensor, limit: Tensor, rounds: int) -> Tensor:
    """The first place in ``[begin, end)`` whose value exceeds a limit, or ``end``; all are broadcast.

    Args:
        values: int64, ascending within each range.
        begin: int64, the first places.
        end: int64, the places behind the last ones.
        limit: int64, the limits.
        rounds: The length in binary of the longest range.
    """
    largest = len(values) - 1
    for _ in range(rounds):
        middle = (begin + end) >> 1
        is_behind = (values[middle.clamp(max=largest)] <= limit) & (begin < end)
        begin, end = torch.where(is_behind, middle + 1, begin), torch.where(is_behind, end, middle)
    return begin


class WeightedEdges:
    """The edges of nodes by their integer weights.

    Args:
        prefix: int64, running sums of the weights of a type's edges, which begin anew with each node.
        begin: int64 ``[n]``, places of the nodes' first edges that count.
        end: int64 ``[n]``, places behind the last ones.
        base: int64 ``[n]``, the running sums before the first ones.
        rounds: See ``first_above``.
    """

    def __init__(self, prefix: Tensor, begin: Tensor, end: Tensor, base: Tensor, rounds: int) -> None:
        self.prefix, self.begin, self.end, self.base, self._rounds = prefix, begin, end, base, rounds
        last = prefix[(end - 1).clamp(min=0)]
        self.total = torch.where(end > begin, last - base, 0)

    def at(self, places: Tensor) -> Tensor:
        """int64 ``[k, n]`` or ``[n]``: the edges at these offsets of the running sums; counted from the nodes' first ones."""
        return first_above(self.prefix, self.begin, self.end, places + self.base, self._rounds) - self.begin

    def before(self, picks: Tensor) -> Tensor:
        """The sums of the weights before the nodes' edges ``picks``, ``[n, k]``."""
        place = self.begin[:, None] + picks
        return torch.where(picks > 0, self.prefix[(place - 1).clamp(min=0)] - self.base[:, None], 0)

    def rows(self, chosen: Tensor) -> WeightedEdges:
        """The same of some of the nodes."""
        begin, end, base = (values[chosen] for values in (self.begin, self.end, self.base))
        return WeightedEdges(self.prefix, begin, end, base, self._rounds)


def pick_weighted(key: Tensor, edges: WeightedEdges, steps: Steps) -> Tensor:
    """int64 ``[n, k]``: picks by weight, with replacement."""
    return edges.at(bounded(draws(key, steps.addends[:, None]), edges.total, is_wide=True)).T


def pick_weighted_distinct(key: Tensor, edges: WeightedEdges, count: int) -> Tensor:
    """int64 ``[n, count]``: picks by weight, without replacement: ``count`` draws for each node at a time, until all have their picks.

    Args:
        key: int64 ``[n]``, the nodes' generators.
        edges: The nodes' edges, more than ``count`` of which have a weight.
        count: Picks of each node, at least 1.
    """
    size = len(key)
    picks = torch.full((size, count + 1), -1, dtype=torch.int64, device=key.device)  # the last column is for what is not taken
    done, tries = torch.zeros((2, size), dtype=torch.int64, device=key.device)
    step = 0
    while size and (step == 0 or bool((done < count).any())):
        drawn = draws(key, Steps.of(count, key.device, step).addends[:, None])
        for draw, pick in zip(drawn, edges.at(bounded(drawn, edges.total, is_wide=True)), strict=True):
            is_taken = (picks[:, :count] == pick[:, None]).any(1)
            if step >= MAX_REDRAWS:
                rest = (tries == MAX_REDRAWS).nonzero()[:, 0]
                if len(rest):
                    pick[rest] = _of_the_rest(draw[rest], edges.rows(rest), picks[rest, :count], done[rest])
                    is_taken[rest] = False
            is_new = ~is_taken & (done < count)
            picks.scatter_(1, torch.where(is_new, done, count)[:, None], pick[:, None])
            done, tries = done + is_new, torch.where(is_new, 0, tries + 1)
            step += 1
    return picks[:, :count]


def _of_the_rest(draw: Tensor, edges: WeightedEdges, picks: Tensor, done: Tensor) -> Tensor:
    """int64 ``[n]``: an edge of each node by one draw among the weights that were not taken yet."""
    is_pick = torch.arange(picks.shape[1], device=picks.device) < done[:, None]
    ordered = torch.where(is_pick, picks, torch.iinfo(torch.int64).max).sort(1)[0]
    ordered = torch.where(is_pick, ordered, 0)
    before = edges.before(ordered)
    weight = torch.where(is_pick, edges.before(ordered + 1) - before, 0)
    place = bounded(draw, edges.total - weight.sum(1), is_wide=True)
    for i in range(picks.shape[1]):
        place = torch.where(is_pick[:, i] & (place >= before[:, i]), place + weight[:, i], place)
    return edges.at(place)


def smallest(ranks: Tensor, node: Tensor, first: Tensor, count: int) -> Tensor:
    """Bool ``[e]``: whether an edge is among the ``count`` of its node with the smallest ranks, of equal ones the first.

    Args:
        ranks: ``[e]``, node after node.
        node: int64 ``[e]``, ascending: whose edge it is.
        first: int64 ``[n]``, the places of the nodes' first edges.
        count: How many.
    """
    order = ranks.argsort(stable=True)
    order = order[node[order].argsort(stable=True)]
    place = torch.arange(len(order), device=order.device) - first[node[order]]
    return torch.zeros_like(place, dtype=torch.bool).scatter_(0, order, place < count)
