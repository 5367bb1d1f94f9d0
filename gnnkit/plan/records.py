"""Records of a plan: frozen dataclasses whose JSON follows from their fields and the types of these."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import xxhash
from numpy.typing import NDArray

from gnnkit.bounds import shown
from gnnkit.errors import PlanError
from gnnkit.plan.files import DamagedPart, array_from_json, array_to_json, edge_type_from_json, options_of, type_from_json
from gnnkit.schema import EdgeType

R = TypeVar("R", bound="Record")

# Metadata of fields: JSON has no such name where the value is the default, so that plans of older versions stay as they are.
OMITTED: Mapping[str, Any] = {"omitted": True}


def column(name: str) -> Mapping[str, Any]:
    """Metadata of a field ``{edge type: value}``: JSON has a row for each type, with its value under a name."""
    return {"column": name}


def read_by(read: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Metadata of a field: what reads its JSON where the type alone does not say how."""
    return {"read": read}


class Record:
    """A frozen dataclass as JSON holds it: its fields by name, and its kind where it is one of several.

    Attributes:
        kind: The word for it among others in its place; empty where there are none.
        takes_defaults: Whether JSON may lack fields that have defaults, those that came later among them.
    """

    kind: ClassVar[str] = ""
    takes_defaults: ClassVar[bool] = False

    def to_json(self) -> Any:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        found: dict[str, Any] = {"kind": self.kind} if self.kind else {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if not ("omitted" in field.metadata and _is_default(field, value)):
                found[field.name] = _written(value, field.metadata.get("column", ""))
        return found

    def digest(self) -> str:
        """32 hexadecimal digits (XXH3) of its kind and values, arrays included."""
        found = xxhash.xxh3_128()
        for piece in _pieces(self):
            found.update(piece.encode() if isinstance(piece, str) else piece)
        return found.hexdigest()

    @classmethod
    @functools.cache
    def readers(cls) -> Mapping[str, Callable[[Any], Any]]:
        """Readers of each field from its JSON, by name."""
        hints = get_type_hints(cls)
        own = {field.name: field.metadata for field in fields(cls)}  # type: ignore[arg-type]
        return {name: how.get("read") or _reader(hints[name], how.get("column", "")) for name, how in own.items()}

    @classmethod
    def from_json(cls: type[R], value: Any) -> R:
        """Reverses ``to_json``.

        Raises:
            DamagedPart: A name is unknown or missing, or a value is not what its field holds.
            PlanError: A value is unusable.
        """
        if not isinstance(value, Mapping):
            raise DamagedPart(shown(value))
        readers = cls.readers()
        if not cls.takes_defaults:
            for field in fields(cls):  # type: ignore[arg-type]
                if "omitted" not in field.metadata:
                    value[field.name]  # the error names the first one that is missing
        given = {name: readers[name](own) if name in readers else own for name, own in value.items()}
        if cls.kind:
            del given["kind"]
        return options_of(cls, given)


def of_kind(kinds: Mapping[str, type[R]], value: Mapping[str, Any], unknown: str) -> R:
    """Reads a record of one of several kinds.

    Args:
        kinds: The records by kind.
        value: Its JSON.
        unknown: What to say of a kind that is none of these, up to its name.

    Raises:
        PlanError: Its kind is unknown.
    """
    kind = value["kind"]
    if kind not in kinds:
        raise PlanError(f"{unknown} {kind!r}", f"known: {list(kinds)}")
    return kinds[kind].from_json(value)


def _is_default(field: Field[Any], value: Any) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return not isinstance(value, np.ndarray) and bool(value == default)


def _written(value: Any, name: str) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, np.ndarray):
        return array_to_json(value)
    if isinstance(value, (list, tuple)):
        return [_written(own, "") for own in value]
    if isinstance(value, Mapping):
        if name:
            return [{"edge_type": list(edge_type), name: _written(own, "")} for edge_type, own in sorted(value.items())]
        return {key: _written(own, "") for key, own in sorted(value.items())}
    return value.item() if isinstance(value, np.generic) else value


def _pieces(value: Any) -> Iterator[Any]:
    """The bytes of a value, each part with what tells it from others."""
    if isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}"
        yield np.ascontiguousarray(value)
    elif isinstance(value, Record):
        yield f"{value.kind}{type(value).__name__}"
        for field in fields(value):  # type: ignore[arg-type]
            yield from _pieces(getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield from _pieces(sorted(value.items()))
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)}:"
        for own in value:
            yield from _pieces(own)
    else:
        yield f"{value!r},"


def _as_it_is(value: Any) -> Any:
    """A number, flag or text, which its record checks."""
    return value


# What ``NDArray[...]`` is made of: from NumPy 2.5 on Python 3.12 and newer, an alias that has a name.
_ARRAYS = (np.ndarray, get_origin(NDArray[Any]))


def _reader(hint: Any, name: str = "") -> Callable[[Any], Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == EdgeType:
        return edge_type_from_json
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json
    if origin in _ARRAYS:
        return array_from_json
    if origin in (Union, types.UnionType):
        (read,) = (_reader(each, name) for each in arguments if each is not type(None)) if type(None) in arguments else (_as_it_is,)
        return read if read is _as_it_is else lambda value: None if value is None else read(value)
    if origin is tuple:
        item = _reader(arguments[0])
        # Numbers that are no list are for their record to complain of.
        return lambda value: tuple(map(item, value)) if isinstance(value, list) or item is not _as_it_is else value
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = _reader(arguments[1])
        if name:
            return lambda rows: {edge_type_from_json(row["edge_type"]): item(row[name]) for row in rows}
        return lambda value: {type_from_json(key): item(own) for key, own in value.items()}
    return _as_it_is
