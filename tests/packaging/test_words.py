"""The words of the package: things have names and roles, a docstring says something itself, and what it names exists."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

# A reader takes these for a translation: things have names and roles, such as "the consumer", or "the rank past its start deadline".
PERSONAL = re.compile(r"\b(somebody|nobody|whoever|anybody|everybody|someone|whose turn|of his|his own|by himself)\b", re.IGNORECASE)
SEE = re.compile(r"See ``[^\n]*")
# How many of them packages still have.
PERSONAL_LEFT = {
    "backends": 49,
    "callers": 1,
    "cluster": 127,
    "datasets": 5,
    "distributed": 29,
    "errors": 4,
    "events": 1,
    "files": 6,
    "graph_loader": 4,
    "host": 3,
    "kernels": 8,
    "loader": 32,
    "partitioning": 1,
    "plan": 6,
    "pyg": 2,
    "ray": 10,
    "runtime": 58,
    "sampling": 9,
    "schema": 1,
    "serving": 5,
    "storage": 32,
    "vendor": 2,
    "waiting": 1,
}
SEE_LEFT = {
    "backends": 15,
    "cluster": 9,
    "datasets": 84,
    "distributed": 7,
    "loader": 1,
    "pyg": 6,
    "ray": 5,
    "runtime": 9,
    "samplers": 5,
    "sampling": 26,
    "storage": 13,
    "vendor": 1,
}

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


def package_of(path: Path) -> str:
    return path.relative_to(ROOT / "gnnkit").with_suffix("").parts[0]


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
    ("look", "left", "why"),
    [
        (personal, PERSONAL_LEFT, "name the thing or its role"),
        (pointers, SEE_LEFT, "say what it does, or leave it to @override"),
        (dangling, {}, "there is no such name"),
    ],
)
def test_words(look: Callable[[Path, str], Iterator[str]], left: dict[str, int], why: str) -> None:
    found = [(package_of(path), line) for path, source in sources().items() for line in look(path.relative_to(ROOT), source)]
    counts = Counter(package for package, _ in found)
    above = {package for package, count in counts.items() if count > left.get(package, 0)}
    assert not above, f"{why}:\n" + "\n".join(line for package, line in found if package in above)


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
