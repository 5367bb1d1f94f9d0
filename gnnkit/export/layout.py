"""Imports, constants and definitions as one file, each definition after those that it needs to be executed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnkit.export.source import Piece


def laid_out(header: str, imports: Iterable[str], constants: Mapping[str, str], pieces: Sequence[Piece], lazy_annotations: bool) -> str:
    """The text of a file.

    Args:
        header: Its docstring.
        imports: Lines that import.
        constants: ``{name: literal}``.
        pieces: Its definitions.
        lazy_annotations: Whether it begins with ``from __future__ import annotations``.
    """
    groups = _grouped(set(imports))
    if lazy_annotations:
        groups = ["from __future__ import annotations", *groups]
    blocks = [header, "\n\n".join(groups), "\n".join(f"{name} = {text}" for name, text in constants.items())]
    head = "\n\n".join(block for block in blocks if block)
    return "\n\n\n".join([head, *(piece.text.rstrip() for piece in in_order(pieces))]) + "\n"


def _grouped(lines: set[str]) -> list[str]:
    """Imports in three groups: Python's own, others, gnnkit's."""
    groups: list[list[str]] = [[], [], []]
    for line in sorted(lines, key=lambda line: (line.startswith("from "), line.lower())):
        top = line.split()[1].partition(".")[0]
        groups[0 if top in sys.stdlib_module_names else 2 if top == "gnnkit" else 1].append(line)
    return ["\n".join(group) for group in groups if group]


def in_order(pieces: Sequence[Piece]) -> list[Piece]:
    """Definitions so that each comes after what it needs to be executed, and otherwise after what it uses, ``train`` last."""
    by_name = {piece.name: piece for piece in pieces}
    needs = {name: _needs(piece, by_name) for name, piece in by_name.items()}
    preferred: list[str] = []
    for piece in sorted(pieces, key=lambda piece: piece.line):
        _visit(piece.name, {name: each.names.used for name, each in by_name.items()}, preferred, set())
    done: list[str] = []
    for name in preferred:
        _visit(name, needs, done, set())
    return [by_name[name] for name in done]


def _needs(piece: Piece, by_name: Mapping[str, Piece]) -> frozenset[str]:
    """What a definition needs when it is executed: what it reads then, and what functions among that use once they are called."""
    found, waiting = set(piece.names.eager), [name for name in piece.names.eager if name in by_name]
    seen = set(waiting)
    while waiting:
        used = by_name[waiting.pop()].names.used & by_name.keys()
        found |= used
        waiting += used - seen
        seen |= used
    # What needs the definition itself cannot come before it.
    return frozenset(name for name in found if name in piece.names.eager or not _reaches(name, piece.name, by_name))


def _reaches(start: str, goal: str, by_name: Mapping[str, Piece]) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        used = by_name[waiting.pop()].names.eager & by_name.keys()
        if goal in used:
            return True
        waiting += used - seen
        seen |= used
    return start == goal


def _visit(name: str, edges: Mapping[str, frozenset[str]], done: list[str], under_way: set[str]) -> None:
    if name in done or name in under_way or name not in edges:
        return
    under_way.add(name)
    for other in sorted(edges[name]):
        _visit(other, edges, done, under_way)
    done.append(name)
