"""Contiguous fractional shares: pieces in a row, cut evenly among takers in a row.

On a line of ``num_pieces * num_takers`` units taker ``t`` has ``[t * num_pieces, (t + 1) * num_pieces)`` and piece ``p`` covers
``[p * num_takers, (p + 1) * num_takers)``; where they overlap, the taker has that fraction of the piece. Everything of every piece
belongs to exactly one taker, and a taker touches as few pieces as can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Fraction(NamedTuple):
    """A taker's fraction of a piece: from ``start / denominator`` of it up to ``end / denominator``.

    Attributes:
        piece: The piece.
        start: Numerator of its beginning.
        end: Numerator of its end.
        denominator: Number of takers.
    """

    piece: int
    start: int
    end: int
    denominator: int

    def bounds(self, length: int) -> tuple[int, int]:
        """The elements of a piece of ``length`` elements: first, and last + 1."""
        return length * self.start // self.denominator, length * self.end // self.denominator


def fractions(num_pieces: int, num_takers: int, taker: int) -> list[Fraction]:
    """What one taker has, in the order of the pieces.

    Args:
        num_pieces: Pieces, at least 1.
        num_takers: Takers, at least 1.
        taker: The taker, from 0.
    """
    low, high = taker * num_pieces, (taker + 1) * num_pieces
    found = []
    for piece in range(low // num_takers, -(-high // num_takers)):
        start, end = max(low - piece * num_takers, 0), min(high - piece * num_takers, num_takers)
        found.append(Fraction(piece, start, end, num_takers))
    return found


def server_shares(holders: Sequence[Sequence[int]], rank: int) -> list[Fraction]:
    """What a server answers for: fractions of parts, so that every node is some server's, and no node two servers'.

    Servers that hold the same parts share them; a part that is held by servers of several such groups is the first one's.

    Args:
        holders: The parts of every server, in the order of ranks.
        rank: The server.
    """
    own = tuple(holders[rank])
    group = [server for server, parts in enumerate(holders) if tuple(parts) == own]
    earlier = {part for parts in holders[: group[0]] for part in parts}
    parts = [part for part in own if part not in earlier]
    if not parts:
        return []
    return [share._replace(piece=parts[share.piece]) for share in fractions(len(parts), len(group), group.index(rank))]
