"""Checks of what users give, against what signatures say of it."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from types import UnionType
from typing import Any, Literal, NewType, Protocol, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import numpy as np

from gnnkit.bounds import is_real, is_whole, plain_value
from gnnkit.errors import PlanError, near_matches


class HasArray(Protocol):
    """A tensor, an array or a column of a data frame."""

    def __array__(self) -> Any: ...


# Numbers as users give them, and what batches start from: a split's name, ids, a mask, or None for all, of a type or of the only one.
Array: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | HasArray
Dates: TypeAlias = Sequence[Any] | HasArray
NodesOption: TypeAlias = str | Array | tuple[str, str | Array | None] | None
EdgesOption: TypeAlias = str | Array | tuple[str, str, str] | tuple[tuple[str, str, str] | None, str | Array | None] | None

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
# Characters of a line of a docstring, with its indentation.
_WIDTH = 140
_UNQUOTED = re.compile(r"-?\d+(\.\d*)?|True|False|None")
Kind: TypeAlias = tuple[Callable[[Any], bool], tuple[str, ...]]


def _is_a(*types: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types) and not isinstance(value, bool)


# The words of annotations that are checked: whether a value is one of theirs, and what messages call these.
_KINDS: dict[str, Kind] = {
    "bool": (lambda value: isinstance(value, bool), ("True", "False")),
    "int": (partial(is_whole, least=-math.inf, most=math.inf), ("a whole number",)),
    "float": (lambda value: is_real(value) or isinstance(value, float), ("a number",)),
    "str": (_is_a(str), ("a text",)),
    "Path": (_is_a(os.PathLike), ("a path",)),
    **dict.fromkeys(("Sequence", "tuple"), (_is_a(Sequence, np.ndarray), ("a list",))),
    **dict.fromkeys(("Mapping", "dict"), (_is_a(Mapping), ("a dict",))),
    "Iterable": (_is_a(Iterable), ("a list",)),
    "Callable": (_is_a(Callable), ("a function",)),
    "None": (_is_a(type(None)), ("None",)),
}


def _kinds(annotation: str, namespace: Mapping[str, Any]) -> Iterator[Kind | None]:
    """The kinds of values that an annotation names, such as those of "int | None"; None for one that nothing is known of."""
    for word in annotation.split(" | "):
        named = namespace.get(word)
        if word.startswith("Literal["):
            yield _KINDS["str"][0], (word.removeprefix("Literal[").removesuffix("]"),)
        elif get_origin(named) is Literal:
            yield _KINDS["str"][0], tuple(map(repr, get_args(named)))
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
    plain = plain_value(value)
    said: list[str] = []
    for kind in kinds:
        if kind is None:  # nothing can be said of the value
            return value
        if kind[0](plain):
            return plain
        said += kind[1]
    *others, last = said
    # A number or truth value that was written as a text, as on a command line.
    unquoted = value.strip() if isinstance(value, str) and _UNQUOTED.fullmatch(value.strip()) and "str" not in annotation else None
    hint = None if unquoted is None else f"without quotes: {name}={unquoted}"
    raise PlanError(f"{name} must be {', '.join(others)}{' or ' if others else ''}{last}, got {value!r:.200}", hint)


def check_fields(options: Any) -> None:
    """Checks the fields of a dataclass against their annotations; see ``check_kind``."""
    namespace = vars(sys.modules[type(options).__module__])
    for field in fields(options):
        object.__setattr__(options, field.name, check_kind(field.name, getattr(options, field.name), str(field.type), namespace))


def checks_arguments(function: F) -> F:
    """Checks the arguments of a function against its signature, before it runs; see ``check_kind`` and ``checks_calls``."""
    parameters, namespace = inspect.signature(function).parameters, inspect.unwrap(function).__globals__
    named = {name: str(each.annotation) for name, each in parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        def of(name: str, value: Any) -> Any:
            return check_kind(name, value, named[name], namespace) if name in named else value

        given = [of(name, value) for name, value in zip(parameters, args, strict=False)]
        return function(*given, *args[len(given) :], **{name: of(name, value) for name, value in kwargs.items()})

    made: Any = checks_calls()(checked)
    made.__signature__ = shown_signature(function)
    return cast("F", made)


def shown_signature(function: Callable[..., Any]) -> inspect.Signature:
    """A function's signature, with the texts that parameters permit; see ``with_texts``."""
    signature, namespace = inspect.signature(function), inspect.unwrap(function).__globals__
    own = [each.replace(annotation=with_texts(str(each.annotation), namespace)) for each in signature.parameters.values()]
    return signature.replace(parameters=own)


def checks_calls(hint: str | None = None, /, **instead: str) -> Callable[[T], T]:
    """Answers calls with arguments that there are not, or without those that are needed, as other mistakes: with a ``PlanError``.

    Decorates a function, or a class, of which it is the constructor and the public methods. A call that is right costs nothing more.

    Args:
        hint: What to do instead of such a call; None shows the signature.
        **instead: What to do instead of giving an argument of this name.
    """

    def decorate(made: Any) -> Any:
        if isinstance(made, type):
            for name, member in list(vars(made).items()):
                if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
                    setattr(made, name, decorate(member))
            return made

        @functools.wraps(made)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return made(*args, **kwargs)
            except TypeError:
                _check_call(made, args, kwargs, hint, instead)
                raise

        return called

    return decorate


def _check_call(
    made: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], hint: str | None, instead: Mapping[str, str]
) -> None:
    """Refuses arguments that do not fit a function's signature."""
    signature, name = inspect.signature(made), made.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        own = {key: each.replace(annotation=each.empty) for key, each in signature.parameters.items() if key not in ("self", "cls")}
        if hint is None and all(each.kind != each.VAR_KEYWORD for each in own.values()):
            check_known(kwargs, own, instead, of=f" of {name}()")
        takes = signature.replace(parameters=list(own.values()), return_annotation=signature.empty)
        raise PlanError(f"{name}() cannot be called like that: {error}", hint or f"it is {name}{takes}") from None


def check_takes(function: Callable[..., Any], count: int, how: str, hint: str, name: str = "") -> None:
    """Checks that something that a user gives can be called with some values, where it tells what it takes.

    Args:
        function: The user's function.
        count: How many values.
        how: What they are, as the message says it.
        hint: What it must look like.
        name: How the message calls it; its own name by default.

    Raises:
        PlanError: It cannot.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        shown = name or getattr(function, "__name__", type(function).__name__)
        raise PlanError(f"{shown}{signature} cannot be called {how}: {error}", hint) from None


def check_known(given: Iterable[str], known: Iterable[str], instead: Mapping[str, str], *, of: str = "") -> None:
    """Refuses names of options that there are not.

    Args:
        given: The names that the user gives.
        known: Those that there are.
        instead: What to do instead, by name.
        of: What has these options, for messages.

    Raises:
        PlanError: A name is unknown; says what was meant, as far as that can be told.
    """
    names = [name for name in known if name != "cls"]
    for name in given:
        if name not in names:
            near = "" if name in instead else near_matches(name, names, 0.7)
            raise PlanError(f"unknown option {name!r}{of}{near}", None if near else instead.get(name, f"known options: {names}"))


@dataclass(frozen=True)
class DocumentedField:
    """An option as signatures and docstrings show it.

    Attributes:
        name: Its name.
        annotation: Its type, as written.
        shown: The same with the texts that it permits.
        default: Its default.
        text: What it does.
    """

    name: str
    annotation: str
    shown: str
    default: Any
    text: str


def with_texts(annotation: str, namespace: Mapping[str, Any]) -> str:
    """An annotation in which names of texts stand as ``Literal[...]``: "EdgeDir | None" is "Literal['in', 'out'] | None"."""

    def shown(named: Any, name: str) -> str:
        options = get_args(named)
        if get_origin(named) is Literal:
            return f"Literal[{', '.join(map(repr, options))}]"
        if get_origin(named) in (Union, UnionType) and any(get_origin(each) is Literal for each in options):
            return " | ".join(
                "None" if each is type(None) else shown(each, re.sub(r"\b[\w.]+\.", "", inspect.formatannotation(each))) for each in options
            )
        return name

    return " | ".join(shown(namespace.get(word), word) for word in annotation.split(" | "))


def documented_section(documented: Any, section: str) -> dict[str, str]:
    """The texts of a section of a docstring, such as "Args", by name."""
    _, _, found = inspect.cleandoc(documented.__doc__ or "").partition(f"{section}:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in found.partition("\n\n")[0].splitlines():
        if begun := re.match(r"    (\w+): (.*)", line):
            name, texts[begun[1]] = begun[1], begun[2]
        else:
            texts[name] += " " + line.strip()
    return texts


def documented_fields(documented: type) -> list[DocumentedField]:
    """The fields of a dataclass, with the texts of the section "Attributes" of its docstring."""
    texts = documented_section(documented, "Attributes")
    namespace, found = vars(sys.modules[documented.__module__]), list[DocumentedField]()
    for name, each in inspect.signature(documented).parameters.items():
        annotation = str(each.annotation)
        found.append(DocumentedField(name, annotation, with_texts(annotation, namespace), each.default, texts.get(name, "")))
    return found


def spelled_out(function: F, options: Sequence[DocumentedField], check_names: Callable[[Iterable[str], Iterable[str]], None]) -> F:
    """A function whose signature and docstring spell out what it takes as ``**options``, and which refuses other names.

    Args:
        function: The function; options that are parameters of its own stay these.
        options: What it takes as ``**options``.
        check_names: Refuses names, the first argument, that are none of the second.
    """
    signature = shown_signature(function)
    rows = [row for row in options if row.name not in signature.parameters]
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    first = [each for each in own if each.kind is not each.KEYWORD_ONLY or each.name == "input_nodes"]
    spelled = [inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default, annotation=row.shown) for row in rows]
    whole = signature.replace(parameters=[*first, *spelled, *(each for each in own if each not in first)])

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        check_names(kwargs, whole.parameters)
        return function(*args, **kwargs)

    made: Any = checks_arguments(named)
    made.__signature__ = whole
    if function.__doc__:  # python -OO takes docstrings out
        begin = re.search(r"^( *)\*\*options: .*\n(?:\1 +.*\n)*", function.__doc__, re.MULTILINE)
        assert begin is not None, function.__doc__
        wrap = textwrap.TextWrapper(_WIDTH, initial_indent=begin[1], subsequent_indent=f"{begin[1]}    ").wrap
        lines = "".join(f"{line}\n" for row in rows for line in wrap(f"{row.name}: {row.text}"))
        made.__doc__ = function.__doc__[: begin.start()] + lines + function.__doc__[begin.end() :]
    return cast("F", made)
