"""Source code of this process: cells, scripts and modules, the statements that made an object, their names, and values as text."""

from __future__ import annotations
import __future__

import ast
import contextlib
import copy
import importlib.util
import inspect
import linecache
import math
import pprint
import symtable
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from importlib import metadata
from operator import or_
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from gnnkit.errors import PlanError

_WIDTH = 100
# A longer literal is data, and does not belong in a program.
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
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(top)
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
        annotations: Further ones, in annotations that are not evaluated.
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
    bare, _ = _reads(_changed(tree, _Without(annotations=True)))
    used = bare if lazy_annotations else whole
    eager, _ = _reads(_changed(tree, _Without(annotations=lazy_annotations, bodies=True)))
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
        free = [symbol for symbol in table.get_symbols() if symbol.is_global()]
        read |= {symbol.get_name() for symbol in free if symbol.is_referenced()}
        bound |= {symbol.get_name() for symbol in free if symbol.is_assigned()}
    return frozenset(read), frozenset(bound)


class _Without(ast.NodeTransformer):
    """Leaves out annotations (a field of a class keeps one that says nothing), or the bodies of functions, which run only when called."""

    def __init__(self, *, annotations: bool = False, bodies: bool = False) -> None:
        self._annotations, self._bodies = annotations, bodies

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None if self._annotations else node.returns
            node.body = [ast.Pass()] if self._bodies else node.body
        elif isinstance(node, ast.Lambda) and self._bodies:
            node.body = ast.Constant(None)
        elif isinstance(node, ast.arg) and self._annotations:
            node.annotation = None
        elif isinstance(node, ast.AnnAssign) and self._annotations:
            node.annotation = ast.Constant(None)
        return super().generic_visit(node)


def _quoted_names(node: ast.AST) -> set[str]:
    """Names in the quoted parts of an argument's, a result's or a variable's annotation."""
    annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
    if not isinstance(annotation, ast.AST):
        return set()
    found: set[str] = set()
    for part in ast.walk(annotation):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            with contextlib.suppress(SyntaxError):
                found |= {name.id for name in ast.walk(ast.parse(part.value, mode="eval")) if isinstance(name, ast.Name)}
    return found


_FUTURES = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))


@dataclass(frozen=True, eq=False)
class Unit:
    """Source that was executed together: a cell or a file.

    Attributes:
        filename: What code objects call it.
        text: The source.
        tree: The same, parsed.
    """

    filename: str
    text: str
    tree: ast.Module

    def segment(self, node: ast.AST) -> str:
        """The source of a node, from its first decorator on and without what its lines are indented by."""
        lines = self.text.splitlines()[_first_line(node) - 1 : node.end_lineno]  # type: ignore[attr-defined]
        indent = len(lines[0]) - len(lines[0].lstrip())
        text = "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)
        plain = ast.unparse(node)
        with contextlib.suppress(SyntaxError):
            if ast.unparse(ast.parse(text)) == plain:
                return text
        return plain  # a text of several lines within it was indented, too


def _first_line(node: Any) -> int:
    """The first line of a definition, from its decorators on."""
    lines: list[int] = [node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]
    return min(lines)


# A statement that defines something, and where it is.
Statement: TypeAlias = tuple[Unit, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]


class Library:
    """All source of this process that can be found; each unit is parsed once."""

    def __init__(self) -> None:
        self._units: dict[tuple[str, str], Unit | None] = {}

    def named(self, filename: str, namespace: Mapping[str, Any] | None = None) -> Unit | None:
        """The unit that code objects call by this name; None where its source is not kept."""
        linecache.checkcache(filename)
        return self._parsed(filename, "".join(linecache.getlines(filename, None if namespace is None else dict(namespace))))

    def _parsed(self, filename: str, text: str) -> Unit | None:
        key = filename, text
        if key not in self._units:
            self._units[key] = None
            with contextlib.suppress(SyntaxError, ValueError):  # it is none of Python's
                self._units[key] = Unit(filename, text, ast.parse(text)) if text.strip() else None
        return self._units[key]

    def statements(self, namespace: Mapping[str, Any]) -> Iterator[tuple[Unit, ast.stmt]]:
        """The statements of a module that are not in a function or class, the newest unit first and in it the last one first."""
        cells = reversed(_cells()) if namespace.get("__name__") == "__main__" else ()
        units, file = [self._parsed("<cell>", text) for text in cells], namespace.get("__file__")
        if isinstance(file, str):
            units.append(self.named(file, namespace))
        for unit in filter(None, units):
            for statement in reversed(list(_outer(unit.tree.body))):
                yield unit, statement

    def decorated(self, name: str, namespace: Mapping[str, Any]) -> Statement | None:
        """The decorated function or class that last gave a name its value; None where something else did."""
        for unit, statement in self.statements(namespace):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and statement.name == name:
                return (unit, statement) if statement.decorator_list else None
            if name in _assigned(statement):
                return None
        return None


def _cells() -> list[str]:
    """The cells of this notebook as they were run, the oldest first."""
    if "IPython" not in sys.modules:
        return []
    shell = sys.modules["IPython"].get_ipython()
    return [] if shell is None else list(shell.history_manager.input_hist_parsed)


def _outer(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for name in ("body", "orelse", "finalbody"):
                yield from _outer(getattr(statement, name, []))
            for handler in getattr(statement, "handlers", []):
                yield from _outer(handler.body)


def _assigned(statement: ast.stmt) -> set[str]:
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return set()
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def function_node(unit: Unit, function: FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda:
    """The node that made a function.

    Raises:
        PlanError: The unit's source is not, or no longer, that of the function.
    """
    code = function.__code__
    nodes = ast.walk(unit.tree) if _has_code(unit, code) else ()
    defined = [node for node in nodes if isinstance(node, (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef))]
    place = code.co_name, code.co_firstlineno
    found = [node for node in defined if (getattr(node, "name", "<lambda>"), _first_line(node)) == place]
    if len(found) > 1:
        raise PlanError(
            f"line {code.co_firstlineno} of {unit.filename} defines several functions", "write one of them on a line of its own"
        )
    if found:
        return found[0]
    raise PlanError(
        f"the source of {function.__qualname__}() has changed since it was defined, or is not that of {unit.filename}",
        "run its cell again, or reload the module that it is from",
    )


def _has_code(unit: Unit, code: CodeType) -> bool:
    """Whether a unit, compiled anew, holds this code."""
    # Also each statement for itself, as notebooks compile a cell: methods of modules that it imports are then called in another way.
    trees = [unit.tree, *(ast.Module([statement], []) for statement in unit.tree.body)]
    waiting = [compile(tree, unit.filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True) for tree in trees]
    while waiting:
        inner = waiting.pop()
        if inner.co_name == code.co_name and inner.co_firstlineno == code.co_firstlineno and _same(inner, code):
            return True
        waiting += [const for const in inner.co_consts if isinstance(const, CodeType)]
    return False


def _same(left: CodeType, right: CodeType) -> bool:
    if any(getattr(left, name) != getattr(right, name) for name in ("co_code", "co_names", "co_varnames", "co_freevars")):
        return False
    pairs = list(zip(left.co_consts, right.co_consts, strict=False))
    return len(left.co_consts) == len(right.co_consts) and all(
        _same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else (type(a), repr(a)) == (type(b), repr(b)) for a, b in pairs
    )


def own_functions(cls: type) -> dict[str, FunctionType]:
    """The functions that a class's own body holds, by the name of the attribute; of a property the one that reads it."""
    found = {}
    for name, value in vars(cls).items():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        inner = inspect.unwrap(inner) if callable(inner) else inner
        if isinstance(inner, FunctionType):
            found[name] = inner
    return found


def class_node(library: Library, cls: type) -> tuple[Unit, ast.ClassDef]:
    """The statement that made a class, and its unit.

    Raises:
        PlanError: It is not to be found, or has changed since.
    """
    for function in own_functions(cls).values():
        unit = library.named(function.__code__.co_filename, function.__globals__)
        if unit is None or not function.__qualname__.startswith(f"{cls.__qualname__}."):
            continue
        for node in ast.walk(unit.tree):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__ and is_within(function.__code__, unit, node):
                if not _has_code(unit, function.__code__):
                    raise PlanError(
                        f"the source of the class {cls.__qualname__} has changed since it was defined",
                        "run its cell again, or reload the module that it is from",
                    )
                return unit, node
    namespace = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    for unit, statement in library.statements(namespace):
        if isinstance(statement, ast.ClassDef) and statement.name == cls.__qualname__:
            return unit, statement
    raise PlanError(f"the source of the class {cls.__qualname__} cannot be found", "define it in a cell, a script or a module")


def is_within(code: CodeType, unit: Unit, node: ast.ClassDef) -> bool:
    """Whether code was written in the statement of a class."""
    return code.co_filename == unit.filename and node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno)
