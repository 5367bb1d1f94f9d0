"""Functions and classes that are not any more what their source says, because something was changed after they were made."""

from __future__ import annotations

import ast
import inspect
from types import FunctionType
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.installed import is_installed
from gnnkit.export.literals import literal_text, same_literal
from gnnkit.export.origins import Scope
from gnnkit.export.units import Unit, is_within, own_functions


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
