"""Errors and batch layouts as JSON, for the way between processes."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gnnkit import errors
from gnnkit.errors import GnnkitError, SamplingError
from gnnkit.printable import printable
from gnnkit.sampling.subgraph import BatchLayout, EdgeKey, Field, NodeKey
from gnnkit.schema import EdgeType


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text; the ``__cause__`` of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n{printable(self.args[0])}" if self.args else ""


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Returns the facts that raise an error again in another process, as JSON values."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message, hint = (error.message, error.hint) if isinstance(error, GnnkitError) else (str(error), None)
    return {"type": type(error).__name__, "message": message, "hint": hint, "traceback": text, "ours": isinstance(error, GnnkitError)}


def error_from_json(value: Mapping[str, Any], what: str, otherwise: type[GnnkitError] = SamplingError) -> GnnkitError:
    """The error that another process had, with its traceback as ``__cause__``.

    Args:
        value: What ``error_to_json`` gave.
        what: What failed, for an error that is none of gnnkit's own.
        otherwise: The class of such an error.
    """
    kind, message, hint = str(value.get("type")), str(value.get("message")), value.get("hint")
    own: Any = getattr(errors, kind, None)
    if value.get("ours") and isinstance(own, type) and issubclass(own, GnnkitError):
        error: GnnkitError = own(message, hint if isinstance(hint, str) else None)
    else:
        error = otherwise(f"{what} failed: {kind}: {message}")
    error.__cause__ = RemoteTraceback(str(value.get("traceback")))
    return error


def fresh(error: GnnkitError) -> GnnkitError:
    """A copy to raise: an error that was raised holds the frames that it went through, and with them whatever the user has there."""
    copy = type(error)(error.message, error.hint)
    copy.__cause__ = error.__cause__
    return copy


def layout_to_json(layout: BatchLayout) -> dict[str, Any]:
    """A compact form of a layout; ``layout_from_json`` reverses it."""
    return {
        "fields": [[f.key.scope, f.key.type, f.key.name, f.dtype, f.shape, f.offset] for f in layout.fields],
        "nbytes": layout.nbytes,
        "nodes": [[t, counts] for t, counts in layout.num_sampled_nodes.items()],
        "edges": [[t, counts] for t, counts in layout.num_sampled_edges.items()],
        "input_type": layout.input_type,
        "num_seeds": layout.num_seeds,
    }


def layout_from_json(value: Mapping[str, Any]) -> BatchLayout:
    """Reverses ``layout_to_json``.

    Raises:
        SamplingError: The value is none of its.
    """
    try:
        fields = [
            tuple.__new__(Field, (_node_key(owner, name) if scope == "node" else _edge_key(*owner, name), dtype, tuple(shape), offset))
            for scope, owner, name, dtype, shape, offset in value["fields"]
        ]
        return BatchLayout(
            tuple(fields),
            value["nbytes"],
            dict(value["nodes"]),
            {(source, relation, target): counts for (source, relation, target), counts in value["edges"]},
            value["input_type"] if isinstance(value["input_type"], str) else _edge_type(value["input_type"]),
            value["num_seeds"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SamplingError(f"what another process says of a batch cannot be read: {type(error).__name__}: {error}") from error


# Several for each batch, and the same for every one.
_node_key = lru_cache(4096)(NodeKey)


@lru_cache(4096)
def _edge_key(source: str, relation: str, target: str, name: str) -> EdgeKey:
    return EdgeKey((source, relation, target), name)


def _edge_type(value: list[str]) -> EdgeType:
    source, relation, target = value
    return source, relation, target
