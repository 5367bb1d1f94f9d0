"""The origin of the object behind a name, and its way into a file: an import, a definition of its own, a literal, or not at all."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from gnnkit.errors import PlanError
from gnnkit.export.names import importable, is_installed, literal_text, same_literal
from gnnkit.export.units import Library, Unit, is_within, own_functions


def changed_defaults(name: str, value: Any, node: Any, scope: Scope) -> list[PlanError]:
    """A default that was computed from a name which has another value by now would silently become another one."""
    function = inspect.unwrap(value) if callable(value) else value
    if not isinstance(function, FunctionType) or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return []
    problems: list[PlanError] = []
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = function.__defaults__ or ()
    pairs = list(zip(reversed(positional), reversed(arguments.defaults), reversed(defaults), strict=False))
    pairs += [
        (argument, default, (function.__kwdefaults__ or {}).get(argument.arg))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is not None
    ]
    for argument, default, actual in pairs:
        if isinstance(default, ast.Name) and scope.has(default.id):
            now = scope.value(default.id)
            if now is not actual and not (literal_text(now) is not None and same_literal(now, actual)):
                problems.append(
                    PlanError(
                        f"{name}({argument.arg}={default.id}) was defined when {default.id} was {actual!r:.60}, and now it is {now!r:.60}",
                        f"run the cell of {name} again",
                    )
                )
    return problems


def changed_attributes(value: Any, node: Any, unit: Unit) -> list[PlanError]:
    """A class that was changed after it was made is not what its source says."""
    if not isinstance(value, type) or not isinstance(node, ast.ClassDef):
        return []
    problems: list[PlanError] = []
    for name, function in own_functions(value).items():
        # Methods that a base or a decorator has made are of an installed module, or of no file.
        generated = function.__code__.co_filename.startswith("<") or is_installed(function.__module__ or "builtins")
        if not generated and not is_within(function.__code__, unit, node) and not _in_body(node, name):
            problems.append(PlanError(f"{value.__name__}.{name} was set after the class was made", "write it in the class"))
    for statement in node.body:
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AnnAssign) else []
        )
        for target in targets:
            if not isinstance(target, ast.Name) or target.id not in vars(value):
                continue
            actual = vars(value)[target.id]
            try:
                written = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
            except (ValueError, TypeError, SyntaxError):
                continue
            if literal_text(actual) is not None and not same_literal(written, actual):
                problem = f"{value.__name__}.{target.id} is {actual!r:.60}, and the class says {written!r:.60}"
                problems.append(PlanError(problem, "write it in the class, and run its cell again"))
    return problems


def _in_body(node: ast.ClassDef, name: str) -> bool:
    return any(getattr(statement, "name", None) == name for statement in node.body)


_OWN = "_sitebuiltins", "builtins", "io", "_io"


@dataclass(frozen=True, eq=False)
class Scope:
    """The namespaces in which the names of a definition are looked up.

    Attributes:
        namespace: The module around it.
        closure: The variables of functions around it.
    """

    namespace: Mapping[str, Any]
    closure: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, function: FunctionType) -> Scope:
        """That of a function."""
        closure = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                closure[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        return cls(function.__globals__, closure)

    def has(self, name: str) -> bool:
        """Whether a name has a value that is not one of Python's own."""
        return name in self.closure or name in self.namespace or (hasattr(builtins, name) and not _is_pythons_own(name))

    def value(self, name: str) -> Any:
        """The value of a name that it ``has``."""
        if name in self.closure:
            return self.closure[name]
        return self.namespace[name] if name in self.namespace else getattr(builtins, name)


def _is_pythons_own(name: str) -> bool:
    """Whether a name of ``builtins`` is there everywhere; IPython adds some."""
    return (getattr(getattr(builtins, name), "__module__", None) or "builtins") in _OWN


@dataclass(frozen=True)
class Import:
    """A line that imports a name."""

    line: str


@dataclass(frozen=True)
class Constant:
    """A literal."""

    text: str


@dataclass(frozen=True, eq=False)
class Alias:
    """Another name of a definition."""

    name: str


@dataclass(frozen=True, eq=False)
class Own:
    """A definition whose source is brought along: a function or class, or a decorated one that may have become anything."""

    value: Any
    statement: tuple[Unit, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] | None = None


Origin: TypeAlias = Import | Constant | Alias | Own


def origin(name: str, scope: Scope, library: Library) -> Origin:
    """Determines how a file gets the object that a name stands for.

    Raises:
        PlanError: It cannot get it; the message names the object, the hint what to do.
    """
    value = scope.value(name)
    if name not in scope.closure and (line := _import_line(name, value, scope, library)) is not None:
        return Import(line)
    if isinstance(value, ModuleType):
        return _module(name, value)
    inner = inspect.unwrap(value) if isinstance(value, FunctionType) or hasattr(value, "__wrapped__") else value
    if (place := importable(value)) is not None:
        return Import(_from(place[0], place[1], name))
    if isinstance(value, type) or isinstance(inner, FunctionType):
        return _definition(name, value, inner, scope, library)
    if (text := literal_text(value)) is not None:
        return Constant(text)
    if (statement := library.decorated(name, scope.namespace)) is not None:
        return Own(value, statement)
    raise PlanError(f"`{name}` is {_what(value)}", _advice(name, value))


def _definition(name: str, value: Any, inner: Any, scope: Scope, library: Library) -> Origin:
    own_name, nested = inner.__name__, "<locals>" in inner.__qualname__
    is_plain = inner is value and (own_name in (name, "<lambda>"))
    if (nested or not is_plain) and (statement := library.decorated(name, scope.namespace)) is not None:
        return Own(value, statement)
    if is_plain:
        return Own(value)
    for other, there in scope.namespace.items():
        if there is value and other != name and ((other == own_name and not nested) or library.decorated(other, scope.namespace)):
            return Alias(other)
    if inner is value:
        raise PlanError(f"`{name}` is another name of {own_name}, which is not there any more", f"define it under the name {name}")
    raise PlanError(
        f"`{name}` is what a call made of the function {own_name}()", f"decorate {own_name}() with @ in its cell, or make the call in train"
    )


def _module(name: str, module: ModuleType) -> Import:
    full = module.__name__
    if sys.modules.get(full) is not module or full == "__main__":
        raise PlanError(f"`{name}` is a module that nobody can import", "use one that can be installed")
    if not is_installed(full):
        raise PlanError(
            f"`{name}` is the module {full}, a file of yours that other machines do not have",
            f"write `from {full} import ...`, and the functions are brought along; or install it as a package",
        )
    return Import(f"import {full}" if full == name else f"import {full} as {name}")


def _from(module: str, name: str, bound: str) -> str:
    return f"from {module} import {name}" if name == bound else f"from {module} import {name} as {bound}"


def _import_line(name: str, value: Any, scope: Scope, library: Library) -> str | None:
    """The import that the user wrote for a name, if it still stands for the same object and works on other machines."""
    if name not in scope.namespace:
        return None
    for _, statement in library.statements(scope.namespace):
        for module, attribute, bound in _imports_in(statement):
            if bound not in (name, "*") or not is_installed(module):
                continue
            home = sys.modules.get(module)
            if attribute is None:
                if home is value and bound != module:
                    return f"import {module} as {name}"
            elif bound == "*":
                if home is not None and getattr(home, name, None) is value and not isinstance(value, _LITERALS):
                    return _from(module, name, name)
            elif home is not None and getattr(home, attribute, sys.modules.get(f"{module}.{attribute}")) is value:
                return _from(module, attribute, name)
    return None


_LITERALS = (int, float, str, bytes, tuple, type(None))


def _imports_in(statement: ast.stmt) -> Iterator[tuple[str, str | None, str]]:
    """Module, attribute of it and bound name of what a statement imports; plain ``import a.b`` binds ``a`` and is left out."""
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        for alias in statement.names:
            yield statement.module, alias.name, alias.asname or alias.name
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname:
                yield alias.name, None, alias.asname


def submodules(scope: Scope, library: Library) -> set[str]:
    """Returns the submodules that the ``import a.b`` statements of a module name."""
    found = set()
    for _, statement in library.statements(scope.namespace):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names if "." in alias.name and not alias.asname}
    return found


def _what(value: Any) -> str:
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}, which is neither an import, a definition nor a literal"


def _advice(name: str, value: Any) -> str:
    if _is_a(value, "gnnkit.graph_loader", "GraphLoader"):
        return f"use the loader that train(loader, ctx) is given, or make {name} of it in train: loader.for_split('valid')"
    if _is_a(value, "torch.nn", "Module"):
        return f"create {name} in train: a class or function that does it is brought along"
    if _is_a(value, "torch", "Tensor") or type(value).__module__.startswith("numpy"):
        return f"write the number out ({name} = ...item()), or save {name} to a file and load it in train"
    if hasattr(value, "read") and hasattr(value, "close"):
        return f"open {name} in train"
    if isinstance(value, (list, dict, tuple, set, str, bytes)):
        return f"hold only plain numbers, texts and containers of them in {name}, and not too many, or make it in train"
    return f"make {name} in train, or in a function that train calls"


def _is_a(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class; one of a module that nobody has imported it cannot be."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))
