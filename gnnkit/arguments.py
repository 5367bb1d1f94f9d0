"""Checks of what users give: values against what signatures say of them, and arrays of any kind, read as NumPy's."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, NewType, TypeVar, cast, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError

F = TypeVar("F", bound=Callable[..., Any])

# The words of annotations that are checked: the types of their values, and what messages call these.
_KINDS: dict[str, tuple[tuple[type, ...], tuple[str, ...]]] = {
    "bool": ((bool,), ("True", "False")),
    "int": ((int,), ("a whole number",)),
    "float": ((int, float), ("a number",)),
    "str": ((str,), ("a text",)),
    "Path": ((os.PathLike,), ("a path",)),
    **dict.fromkeys(("Sequence", "tuple"), ((Sequence, np.ndarray), ("a list",))),
    **dict.fromkeys(("Mapping", "dict"), ((Mapping,), ("a dict",))),
    "Iterable": ((Iterable,), ("a list",)),
    "Callable": ((Callable,), ("a function",)),  # type: ignore[dict-item]
    "None": ((type(None),), ("None",)),
}


def _kinds(annotation: str, namespace: Mapping[str, Any]) -> Iterator[tuple[tuple[type, ...], tuple[str, ...]] | None]:
    """The kinds of values that an annotation names, such as those of "int | None"; None for one that nothing is known of."""
    for word in annotation.split(" | "):
        named = namespace.get(word)
        if word.startswith("Literal["):
            yield (str,), (word.removeprefix("Literal[").removesuffix("]"),)
        elif get_origin(named) is Literal:
            yield (str,), tuple(map(repr, get_args(named)))
        elif isinstance(named, NewType):
            yield _KINDS.get(named.__supertype__.__name__)
        else:
            # An alias such as of a function's type, or the word itself.
            yield _KINDS.get(getattr(get_origin(named), "__name__", word.partition("[")[0]))


def check_kind(name: str, value: Any, annotation: str, namespace: Mapping[str, Any]) -> Any:
    """Checks a value against the annotation of its parameter, as far as that names plain types; texts may be others than the ones named.

    Args:
        name: The parameter.
        value: What the user said.
        annotation: The annotation, as written.
        namespace: What its words stand for.

    Returns:
        The value, Python's number for one of NumPy's.

    Raises:
        PlanError: It is of another kind.
    """
    kinds = list(_kinds(annotation, namespace))
    plain = value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim) else value
    said: list[str] = []
    for kind in kinds:
        if kind is None:  # nothing can be said of the value
            return value
        # True counts as 1 to Python, and to no user.
        if isinstance(plain, kind[0]) and (bool in kind[0] or not isinstance(plain, bool)):
            return plain
        said += kind[1]
    *others, last = said
    raise PlanError(f"{name} must be {', '.join(others)}{' or ' if others else ''}{last}, got {value!r:.200}")


def check_fields(options: Any) -> None:
    """Checks the fields of a dataclass against their annotations; see ``check_kind``."""
    namespace = vars(sys.modules[type(options).__module__])
    for field in fields(options):
        object.__setattr__(options, field.name, check_kind(field.name, getattr(options, field.name), str(field.type), namespace))


def checks_arguments(function: F) -> F:
    """Checks the arguments of a function against its signature, before it runs; see ``check_kind``."""
    parameters, namespace = inspect.signature(function).parameters, inspect.unwrap(function).__globals__
    named = {name: str(each.annotation) for name, each in parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        def of(name: str, value: Any) -> Any:
            return check_kind(name, value, named[name], namespace) if name in named else value

        given = [of(name, value) for name, value in zip(parameters, args, strict=False)]
        return function(*given, *args[len(given) :], **{name: of(name, value) for name, value in kwargs.items()})

    return cast("F", checked)


def to_array(value: Any, what: str, hint: str | None = None) -> NDArray[Any]:
    """An array of numbers from a tensor, array or list.

    Args:
        value: What the user said.
        what: The argument's name, for messages.
        hint: What to give instead.

    Raises:
        PlanError: It is none.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("some of its values are masked")
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # sparse and nested tensors, lists of several lengths
        raise PlanError(f"{what} is a {type(value).__name__} that cannot be read as an array: {error}", hint) from error
    if array.size and array.dtype.kind not in "biuf":
        raise PlanError(f"{what} must hold numbers, got dtype {array.dtype}", hint)
    return array
