"""The source of a function with everything that it uses, as one file that a person can read and edit."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.checks import NAME, check_source, check_train, is_builtin
from gnnkit.export.names import MODULE_NAMES, Names, attribute_chains, is_installed, literal_text, names_of, same_literal
from gnnkit.export.origins import Alias, Constant, Import, Own, Scope, changed_attributes, changed_defaults, origin, submodules
from gnnkit.export.units import Library, Unit, class_node, function_node, is_within, own_functions


def laid_out(
    header: str, imports: Iterable[str], constants: Mapping[str, str], pieces: Sequence[Definition], lazy_annotations: bool
) -> str:
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


def in_order(pieces: Sequence[Definition]) -> list[Definition]:
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


def _needs(piece: Definition, by_name: Mapping[str, Definition]) -> frozenset[str]:
    """Returns the names that a definition needs when it is executed: those that it reads, and those of functions that it calls."""
    found, waiting = set(piece.names.eager), [name for name in piece.names.eager if name in by_name]
    seen = set(waiting)
    while waiting:
        used = by_name[waiting.pop()].names.used & by_name.keys()
        found |= used
        waiting += used - seen
        seen |= used
    # What needs the definition itself cannot come before it.
    return frozenset(name for name in found if name in piece.names.eager or not _reaches(name, piece.name, by_name))


def _reaches(start: str, goal: str, by_name: Mapping[str, Definition]) -> bool:
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


_HEADER = '''"""{}

`gnnkit run plan.json --train train.py` calls train(loader, ctx) in every rank; ctx is a gnnkit.jobs.context.TrainContext.
"""'''


@dataclass(frozen=True)
class Definition:
    """A definition that goes into the file.

    Attributes:
        name: What it defines.
        text: Its source.
        names: The names that it reads.
        line: Where it was written, to keep an order that people know.
    """

    name: str
    text: str
    names: Names
    line: int


@dataclass
class _Found:
    """The collected objects, by the name that each gets in the file."""

    values: dict[str, Any] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    pieces: dict[str, Definition] = field(default_factory=dict)
    problems: list[PlanError] = field(default_factory=list)
    has_lazy_annotations: bool = False


def function_source(function: Callable[..., Any], about: str) -> str:
    """A file that defines a function as ``train``, with the imports, definitions and constants that it uses.

    Args:
        function: ``train(loader, ctx)``, from a cell, a script or a module.
        about: The file's first line.

    Raises:
        PlanError: It is no such function, its source is not to be found or has changed since, or it uses something that cannot be brought
            along.
    """
    check_train(function)
    inner = inspect.unwrap(function)
    assert isinstance(inner, FunctionType)
    found, library = _Found(), Library()
    scope = Scope.of(inner)
    own, statement = _written_as(function, inner, scope, library)
    named = NAME if own == "<lambda>" else own
    found.values[named] = function
    _bring(named, Own(function, statement), scope, found, library)
    if found.problems:
        raise _joined(function.__name__, found.problems)
    if named != NAME:
        _rename(named, found)
    text = laid_out(_HEADER.format(about), _lines(found.imports), found.constants, list(found.pieces.values()), found.has_lazy_annotations)
    check_source(text)
    return text


def _written_as(function: Any, inner: FunctionType, scope: Scope, library: Library) -> tuple[str, Any]:
    """The name that a function was defined with, and the statement that did it where its code does not tell: it is decorated."""
    if inner is not function or "<locals>" in inner.__qualname__:
        for namespace in (scope.namespace, vars(sys.modules["__main__"])):
            for name, value in list(namespace.items()):
                if value is function and (statement := library.decorated(name, namespace)) is not None:
                    return name, statement
    if inner is not function:
        hint = f"decorate {inner.__name__}() with @ in its cell, or export that function itself"
        raise PlanError(f"train is what a call made of the function {inner.__name__}()", hint)
    return inner.__name__, None


def _lines(imports: dict[str, str]) -> list[str]:
    """Lines that import: ``import a.b`` does what ``import a`` does."""
    implied = {f"import {name.partition('.')[0]}" for name, line in imports.items() if "." in name}
    return [line for line in imports.values() if line not in implied]


def _joined(name: str, problems: list[PlanError]) -> PlanError:
    if len(problems) == 1:
        return PlanError(f"{name}() cannot be exported: {problems[0].message}", problems[0].hint)
    return PlanError(
        f"{name}() cannot be exported: " + "; ".join(problem.message for problem in problems),
        "; ".join(dict.fromkeys(problem.hint for problem in problems if problem.hint)),
    )


def _bring(name: str, own: Own, scope: Scope, found: _Found, library: Library) -> None:
    """Brings a definition along, and whatever it uses."""
    unit, node, inner_scope = _located(own, scope, library)
    text = unit.segment(node)
    if isinstance(node, ast.Lambda):
        text = f"{name} = {text if not text.startswith('(') else text}"
    lazy = any(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in unit.tree.body) or _is_lazy(own.value)
    found.has_lazy_annotations |= lazy
    try:
        tree = ast.parse(text)
        names = names_of(tree, lazy_annotations=lazy)
    except SyntaxError as error:
        raise PlanError(f"{name} cannot stand by itself: {error}", "define it outside of functions") from error
    found.pieces[name] = Definition(name, text, names, node.lineno)
    found.problems += changed_defaults(name, own.value, node, inner_scope) + changed_attributes(own.value, node, unit)
    chains = attribute_chains(tree)
    for module in submodules(inner_scope, library):
        if any(chain == module or chain.startswith(f"{module}.") for chain in chains) and is_installed(module):
            found.imports[module] = f"import {module}"
    changed = {name for name in names.bound if name in inner_scope.namespace}  # with a ``global`` statement
    for used in sorted(names.used | changed):
        _add(used, name, inner_scope, found, library)
    for mentioned in sorted(names.annotations):
        if inner_scope.has(mentioned):
            kept, found.problems = found.problems, []
            _add(mentioned, name, inner_scope, found, library)  # nobody needs it to run
            found.problems = kept


def _is_lazy(value: Any) -> bool:
    import __future__

    functions = [value] if isinstance(value, FunctionType) else list(own_functions(value).values()) if isinstance(value, type) else []
    return any(function.__code__.co_flags & __future__.annotations.compiler_flag for function in functions)


def _located(own: Own, scope: Scope, library: Library) -> tuple[Unit, Any, Scope]:
    """The unit and the node that defined something, and where its names are looked up."""
    if own.statement is not None:
        return (*own.statement, Scope(scope.namespace))
    if isinstance(own.value, type):
        unit, node = class_node(library, own.value)
        closure: dict[str, Any] = {}
        home = sys.modules.get(own.value.__module__)
        namespace = scope.namespace if home is None else vars(home)
        for function in own_functions(own.value).values():
            if is_within(function.__code__, unit, node):
                within = Scope.of(function)
                closure |= {name: value for name, value in within.closure.items() if name != "__class__"}
                namespace = within.namespace
        return unit, node, Scope(namespace, closure)
    function = inspect.unwrap(own.value)
    unit_or_none = library.named(function.__code__.co_filename, function.__globals__)
    if unit_or_none is None:
        raise PlanError(f"the source of {function.__qualname__}() cannot be found", "define it in a cell, a script or a module")
    return unit_or_none, function_node(unit_or_none, function), Scope.of(function)


def _add(name: str, user: str, scope: Scope, found: _Found, library: Library) -> None:
    """Adds what a definition uses under a name, unless it is there."""
    if not scope.has(name):
        if name not in MODULE_NAMES and not is_builtin(name) and not any(name in piece.names.bound for piece in found.pieces.values()):
            found.problems.append(PlanError(f"`{name}`, which {user} uses, is not defined", f"define {name}, or take it out of {user}"))
        return
    if name in MODULE_NAMES:
        return
    value = scope.value(name)
    if name in found.values:
        known = found.values[name]
        if known is not value and not (literal_text(known) is not None and same_literal(known, value)):
            found.problems.append(
                PlanError(
                    f"`{name}` is two different things: {known!r:.60} and, for {user}, {value!r:.60}", "give one of them another name"
                )
            )
        return
    found.values[name] = value
    try:
        what = origin(name, scope, library)
        if isinstance(what, Import):
            found.imports[name] = what.line
        elif isinstance(what, Constant):
            found.constants[name] = what.text
        elif isinstance(what, Alias):
            _add(what.name, name, scope, found, library)
            text = f"{name} = {what.name}"
            found.pieces[name] = Definition(name, text, names_of(ast.parse(text), lazy_annotations=False), 1 << 30)
        else:
            _bring(name, what, scope, found, library)
    except PlanError as error:
        head, tail = f"`{name}`, which {user} uses", error.message.removeprefix(f"`{name}`")
        message = f"{head},{tail}" if tail != error.message else f"{head}: {error.message}"
        found.problems.append(PlanError(message, error.hint))


def _rename(own: str, found: _Found) -> None:
    """Has the file define ``train``: under its own name where others call it by that, else in place of that."""
    if NAME in found.values:
        raise PlanError(f"{own}() uses something that is called train, which must be the name of {own}() in the file", "rename one of them")
    piece = found.pieces[own]
    header = re.compile(rf"^(\s*def\s+){re.escape(own)}\b", re.MULTILINE)
    mentioned = [other for other in found.pieces.values() if own in other.names.used]
    if not mentioned and len(header.findall(piece.text)) == 1:
        del found.pieces[own]
        text = header.sub(rf"\g<1>{NAME}", piece.text)
        found.pieces[NAME] = Definition(NAME, text, piece.names, piece.line)
    else:
        text = f"{NAME} = {own}"
        found.pieces[NAME] = Definition(NAME, text, names_of(ast.parse(text), lazy_annotations=False), 1 << 30)
