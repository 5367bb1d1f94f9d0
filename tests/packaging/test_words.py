"""The words of the package: things have names and roles, a docstring says something itself, and what it names exists."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

# A reader takes these for a translation: things have names and roles, such as "the consumer", or "the rank past its start deadline".
PERSONAL = re.compile(r"\b(somebody|nobody|whoever|anybody|everybody|someone|whose turn|of his|his own|by himself)\b", re.IGNORECASE)
SEE = re.compile(r"See ``[^\n]*")
QUOTED = re.compile(r"``([^`\n]+)``")
OF_GNNKIT = re.compile(r"gnnkit(\.\w+)+")
# Two words at least, so that no word at the beginning of a sentence, no dtype and no message is one.
CAMEL_CASE = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+(?:\.\w+)?")
# Classes of others and what else is written like one.
FOREIGN = {
    *("DataLoader", "HeteroConv", "TensorFrame", "ToUndirected"),
    *("LinkPropPredDataset", "NodePropPredDataset", "PygNodePropPredDataset", "get_edge_split"),
    *("MpDistSamplingWorkerOptions", "SamplingConfig"),
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "gnnkit").rglob("*.py"))}


parsed = cache(ast.parse)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and text of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, text


def personal(path: Path, source: str) -> Iterator[str]:
    """Yields the personal words of a file's comments, docstrings and messages."""
    strings = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline) if PERSONAL.search(source) else ():
        if token.type in strings:
            for match in PERSONAL.finditer(token.string):
                yield f"{path}:{token.start[0] + token.string.count(chr(10), 0, match.start())}: {match[0]}"


def pointers(path: Path, source: str) -> Iterator[str]:
    """Yields the docstrings of a file that only point elsewhere."""
    for line, text in docstrings(parsed(source)):
        if SEE.fullmatch(text.strip()):
            yield f"{path}:{line}: {text}"


@cache
def defined() -> frozenset[str]:
    """Every name that gnnkit defines, imports or gives an object."""
    found = set(dir(builtins)) | FOREIGN
    for path, source in sources().items():
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.update(parts)
        for node in ast.walk(parsed(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.alias):
                found.update((node.asname or node.name).split("."))
    return frozenset(found)


def dangling(path: Path, source: str) -> Iterator[str]:
    """Yields the names in double backquotes of a file's docstrings that look like gnnkit's and are not."""
    for line, text in docstrings(parsed(source)):
        for name in QUOTED.findall(text):
            bare = name.removesuffix("()").partition("(")[0]
            if (OF_GNNKIT.fullmatch(bare) or CAMEL_CASE.fullmatch(bare)) and not set(bare.split(".")) <= defined():
                yield f"{path}:{line}: {name}"


@pytest.mark.parametrize(
    ("look", "why"),
    [
        (personal, "name the thing or its role"),
        (pointers, "say what it does, or leave it to @override"),
        (dangling, "there is no such name"),
    ],
)
def test_words(look: Callable[[Path, str], Iterator[str]], why: str) -> None:
    found = [line for path, source in sources().items() for line in look(path.relative_to(ROOT), source)]
    assert not found, f"{why}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("look", "source", "line"),
    [
        (personal, "# nobody reads it\n", 1),
        (personal, 'x = 1\nraise ValueError(f"{x} is somebody else\'s")\n', 2),
        (personal, '"""Module.\n\nWhoever reads it.\n"""\n', 3),
        (pointers, 'def f():\n    """See ``g``."""\n', 2),
        (dangling, '"""Goes through ``gnnkit.storage.no_such_module``."""\n', 1),
        (dangling, '"""Held by a ``NoSuchClass``."""\n', 1),
        (dangling, '"""Calls ``GraphLoader.no_such_method()``."""\n', 1),
    ],
)
def test_each_would_be_found(look: Callable[[Path, str], Iterator[str]], source: str, line: int) -> None:
    assert [found.split(":")[1] for found in look(Path("m.py"), source)] == [str(line)]


def test_names_that_exist_are_no_finding() -> None:
    assert not [*dangling(Path("m.py"), '"""``GraphLoader.from_ogb(name)``, ``gnnkit.errors.PlanError``, ``DataLoader``, ``None``."""\n')]
