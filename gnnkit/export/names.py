"""Names in a piece of source: which are taken from around it, which modules are installed, and values as text."""

from __future__ import annotations

import ast
import copy
import importlib.util
import math
import pprint
import symtable
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

_WIDTH = 100
# A longer one is data, which nobody reads in a program.
_LONGEST = 20_000
_PLAIN = (int, complex, str, bytes, bool, type(None), type(Ellipsis))


def literal_text(value: Any) -> str | None:
    """A value as a Python literal; None where it has none, or one that is too long to be read."""
    if isinstance(value, float) and type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    if not _is_plain(value):
        return None
    text = repr(value)
    if len(text) > _LONGEST:
        return None
    if len(text) > _WIDTH and isinstance(value, (list, tuple, set, dict)):
        text = pprint.pformat(value, width=_WIDTH, sort_dicts=False)
    return text if same_literal(ast.literal_eval(text), value) else None


def same_literal(left: Any, right: Any) -> bool:
    """Whether two values are the same literal: 1 is not True, and 1.0 is not 1."""
    return type(left) is type(right) and repr(left) == repr(right) if not isinstance(left, set) else left == right


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind in (list, tuple, set):
        return all(map(_is_plain, value))
    return kind is dict and all(_is_plain(part) for item in value.items() for part in item)


@cache
def distributions_of() -> dict[str, list[str]]:
    """``{top-level module: distributions that install it}``."""
    return {name: sorted(set(found)) for name, found in metadata.packages_distributions().items()}


def is_installed(module: str) -> bool:
    """Whether a module is Python's own or a distribution's; True for one that is not to be found at all.

    Args:
        module: Its name; only the part before the first dot is looked at.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "gnnkit" or top in distributions_of():
        return True
    file = _file_of(top)
    return file is None or any(file.is_relative_to(folder) for folder in _folders())


def _file_of(top: str) -> Path | None:
    known = sys.modules.get(top)
    places: list[str] = []
    if known is not None:
        places = [known.__file__] if isinstance(known.__file__, str) else list(getattr(known, "__path__", []))
    else:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        if spec is not None:
            places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or [])
    return Path(places[0]).resolve() if places else None


@cache
def _folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(path).resolve() for name in names if (path := sysconfig.get_path(name))})


def importable(value: object) -> tuple[str, str] | None:
    """Module and name that an object is imported by on every machine that has its distribution; None where there are none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not name.isidentifier():
        return None
    home = sys.modules.get(module)
    if module == "__main__" or not isinstance(home, ModuleType) or not is_installed(module) or getattr(home, name, None) is not value:
        return None
    return module, name


# What every module has by itself.
MODULE_NAMES = frozenset({"__name__", "__doc__", "__file__", "__builtins__", "__spec__", "__loader__", "__package__", "__annotations__"})


@dataclass(frozen=True)
class Names:
    """The names of the module around it that a piece of source reads.

    Attributes:
        used: All that must be there when it runs.
        eager: Those of them that it reads as it is executed, not only when something in it is called.
        annotations: Further ones that stand in annotations which nobody evaluates.
        bound: What it binds in the module by itself, with ``global`` statements as well.
    """

    used: frozenset[str]
    eager: frozenset[str]
    annotations: frozenset[str]
    bound: frozenset[str]


def names_of(tree: ast.Module, *, lazy_annotations: bool) -> Names:
    """The names of a module's source.

    Args:
        tree: The source.
        lazy_annotations: Whether annotations are not evaluated (``from __future__ import annotations``).

    Raises:
        SyntaxError: It is no module by itself, for example because of a ``nonlocal``.
    """
    whole, bound = _reads(tree)
    bare, _ = _reads(_changed(tree, _WithoutAnnotations()))
    used = bare if lazy_annotations else whole
    eager, _ = _reads(_changed(_changed(tree, _WithoutAnnotations()) if lazy_annotations else tree, _WithoutBodies()))
    quoted = frozenset[str]().union(*(_quoted_names(node) for node in ast.walk(tree)))
    return Names(used, eager & used, (whole | quoted) - used, bound)


def _changed(tree: ast.Module, change: ast.NodeTransformer) -> ast.Module:
    made: ast.Module = ast.fix_missing_locations(change.visit(copy.deepcopy(tree)))
    return made


def _reads(tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Names that a module reads and does not bind on its way, and those that it binds."""
    top = symtable.symtable(ast.unparse(tree), "<export>", "exec")
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()}
    read = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    waiting = list(top.get_children())
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_global():
                if symbol.is_referenced():
                    read.add(symbol.get_name())
                if symbol.is_assigned():
                    bound.add(symbol.get_name())
    return frozenset(read), frozenset(bound)


class _WithoutAnnotations(ast.NodeTransformer):
    """Leaves annotations out; a field of a class keeps an annotation, which says nothing."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


class _WithoutBodies(ast.NodeTransformer):
    """Leaves out what runs only when somebody calls it."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [ast.Pass()]
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.body = [ast.Pass()]
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        node.body = ast.Constant(None)
        return self.generic_visit(node)


def _quoted_names(node: ast.AST) -> set[str]:
    """Names in the quoted parts of an argument's, a result's or a variable's annotation."""
    annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
    if not isinstance(annotation, ast.AST):
        return set()
    found: set[str] = set()
    for part in ast.walk(annotation):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                inner = ast.parse(part.value, mode="eval")
            except SyntaxError:
                continue
            found |= {name.id for name in ast.walk(inner) if isinstance(name, ast.Name)}
    return found


def attribute_chains(tree: ast.AST) -> set[str]:
    """Every ``a.b.c`` that begins with a name, as text, with all of its beginnings."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts, base = [node.attr], node.value
            while isinstance(base, ast.Attribute):
                parts.append(base.attr)
                base = base.value
            if isinstance(base, ast.Name):
                found.add(".".join([base.id, *reversed(parts)]))
    return found
