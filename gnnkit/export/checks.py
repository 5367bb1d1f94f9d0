"""Checks a program before it goes into a job: callable as ``train``, complete, and importable on other machines."""

from __future__ import annotations

import ast
import builtins
import inspect
from pathlib import Path
from types import FunctionType
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.names import MODULE_NAMES, is_installed, names_of
from gnnkit.export.origins import Scope
from gnnkit.files import read_text

NAME = "train"


def file_source(path: Path) -> str:
    """The source of a file that defines ``train``, as it is.

    Raises:
        PlanError: It cannot be read, is no Python, defines no ``train``, or imports a file that other machines do not have.
    """
    try:
        text = read_text(path)
        tree = ast.parse(text, str(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise PlanError(f"train={str(path)!r} cannot be read: {error}", "name a Python file that defines train(loader, ctx)") from error
    if NAME not in names_of(tree, lazy_annotations=True).bound:
        raise PlanError(f"{str(path)!r} defines no train", "write `def train(loader, ctx): ...` in it")
    _check_imports(tree, path.parent)
    return text


def check_train(function: Any) -> None:
    """Checks that something can be called as ``train(loader, ctx)`` and has source.

    Raises:
        PlanError: It cannot, or has none.
    """
    hint = "def train(loader, ctx): ..."
    if not callable(function) or not isinstance(inspect.unwrap(function), FunctionType):
        raise PlanError(f"train must be a function, got {function!r}", hint)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise PlanError(f"{function.__name__}() must be a plain function, without async and yield", hint)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise PlanError(f"{function.__name__}{inspect.signature(function)} cannot be called with a loader and a context", hint) from error


def check_source(text: str) -> None:
    """Checks that a file which was put together is Python and that no name in it is left free.

    Raises:
        PlanError: It is not, or one is.
    """
    try:
        tree = ast.parse(text)
        compile(tree, "train.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise PlanError(
            f"what was brought along is no Python by itself: {error}", "define train and what it uses outside of functions"
        ) from error
    lazy = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    names = names_of(tree, lazy_annotations=lazy)
    free = sorted(name for name in names.used - names.bound - MODULE_NAMES if not is_builtin(name))
    assert not free, f"names without a meaning: {free}"
    _check_imports(tree, None)


def is_builtin(name: str) -> bool:
    """Whether every Python knows a name by itself."""
    return not Scope({}).has(name) and hasattr(builtins, name)


def _check_imports(tree: ast.Module, folder: Path | None) -> None:
    """Looks at imports wherever they are: in functions, too."""
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "."] if not node.level else ["." * node.level + (node.module or "")]
        for module in modules:
            top = module.partition(".")[0]
            beside = folder is not None and top and ((folder / f"{top}.py").exists() or (folder / top / "__init__.py").exists())
            if not top or beside or not is_installed(module):
                raise PlanError(
                    f"train imports {module}, a file of yours that other machines do not have",
                    "install it as a package, or export a function from a cell or script: what it uses is brought along",
                )
