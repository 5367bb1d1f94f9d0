"""The user's ``train.py``: loaded as a module, with a function ``train(loader, ctx)`` in it."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from gnnkit.errors import PlanError, near_matches
from gnnkit.jobs.running import Train

MODULE = "gnnkit_train"
_HINT = "def train(loader, ctx): ..."


def load_train(path: Path) -> Train:
    """The function ``train`` of a file. Modules beside the file can be imported from it.

    Raises:
        PlanError: There is no such file, it is no Python, or has no function ``train`` of two arguments.
    """
    if not path.is_file():
        raise PlanError(f"there is no file {str(path)!r}", "give the file with the train function: --train train.py")
    module = _module(path)
    found = getattr(module, "train", None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == MODULE]
        here = f"; it has {', '.join(names)}" if names else ""
        raise PlanError(f"{str(path)!r} has no function 'train'{here}{near_matches('train', names)}", _HINT)
    try:
        inspect.signature(found).bind(None, None)
    except TypeError as error:
        raise PlanError(
            f"train{inspect.signature(found)} in {str(path)!r} cannot be called as train(loader, ctx): {error}", _HINT
        ) from error
    train: Train = found
    return train


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise PlanError(f"{str(path)!r} is no Python file", "its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    # What the file defines can be pickled and looked up by its module's name, as in any module.
    sys.modules[MODULE] = module
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}"
        raise PlanError(
            f"{where}: {error.msg}: {(error.text or '').strip()}", "correct the file; python -m py_compile shows the place"
        ) from error
    return module
