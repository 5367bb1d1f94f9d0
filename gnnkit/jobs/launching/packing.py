"""Functions on their way to ranks, and what they return on its way back: pickles, between this process and its own children only."""

from __future__ import annotations

import inspect
import io
import linecache
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gnnkit.errors import PlanError, TrainingFailed

_MOST_NAMES = 5


def pack_code(
    train: Callable[..., Any], transform: Callable[..., Any] | None, extra: Any, config: Mapping[str, Any] | None = None
) -> bytes:
    """A train function, with whatever it refers to that no rank could import: what the notebook or script itself defines.

    The text of the notebook's cells goes along: a traceback without it names lines that cannot be looked up.

    Args:
        train: The function.
        transform: The loader's transform.
        extra: Attributes that every batch of a graph in memory carries.
        config: The job's hyper-parameters.

    Raises:
        PlanError: Something that it refers to cannot be sent.
    """
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps((train, transform, extra, dict(config or {}), _cells())))
    except Exception as error:  # whatever an object raises that will not be pickled
        names = list(_unfit(train))[:_MOST_NAMES]
        what = f"{', '.join(names)}, used by {_name(train)}," if names else f"{_name(train)} or what it uses"
        raise PlanError(
            f"{what} cannot be sent to other processes: {type(error).__name__}: {getattr(error, 'message', error)}",
            "make them inside the function; the loader comes as its argument",
        ) from error


def unpack_code(data: bytes) -> tuple[Callable[..., Any], Callable[..., Any] | None, Any, dict[str, Any]]:
    """Reverses ``pack_code``, in a rank.

    Raises:
        PlanError: The function does not come back, because a module is not there, for example.
    """
    try:
        train, transform, extra, config, cells = pickle.loads(data)
    except Exception as error:
        raise PlanError(
            f"the train function cannot be read in another process: {type(error).__name__}: {error}",
            "modules that it imports must be found from the folder and the sys.path of the process that calls launch()",
        ) from error
    linecache.cache.update({name: (sum(map(len, lines)), None, lines, name) for name, lines in cells.items()})
    return train, transform, extra, config


def pack_result(value: Any) -> bytes:
    """Packs the return value of a train function, in a rank.

    Raises:
        PlanError: It cannot be sent.
    """
    import cloudpickle
    import torch

    file = io.BytesIO()
    try:
        torch.save(value, file, pickle_module=cloudpickle)
    except Exception as error:
        raise PlanError(
            f"what the train function has returned cannot be sent back: {type(error).__name__}: {error}",
            "return numbers, tensors or state_dict()s",
        ) from error
    return file.getvalue()


def unpack_result(data: bytes) -> Any:
    """Reverses ``pack_result``; tensors are in memory here, wherever they were.

    Raises:
        TrainingFailed: It cannot be read here.
    """
    import torch

    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except Exception as error:
        raise TrainingFailed(
            f"what the train function has returned cannot be read here: {type(error).__name__}: {error}",
            "return numbers, tensors or state_dict()s: a model in DistributedDataParallel only exists where its process group does",
        ) from error


def _cells() -> dict[str, list[str]]:
    """Returns the code that this process has run and that is in no file: ``{name in tracebacks: lines}``."""
    entries = [(name, entry) for name, entry in list(linecache.cache.items()) if len(entry) == 4]
    return {name: entry[2] for name, entry in entries if entry[1] is None}


def _unfit(train: Callable[..., Any]) -> Iterator[str]:
    """Names that a function uses and that cannot be pickled."""
    import cloudpickle

    try:
        used = inspect.getclosurevars(inspect.unwrap(train))
    except TypeError:  # a callable object
        return
    for name, value in {**used.globals, **used.nonlocals}.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            yield repr(name)


def _name(train: Callable[..., Any]) -> str:
    return str(getattr(train, "__name__", "the train function"))
