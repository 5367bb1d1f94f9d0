"""Errors and batch layouts as JSON, for the way between processes."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from gnnkit import errors
from gnnkit.errors import GnnkitError, SamplingError
from gnnkit.sampling.subgraph import BatchLayout, EdgeKey, Field, NodeKey
from gnnkit.schema import EdgeType


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text; the ``__cause__`` of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


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
    own: Any = getattr(errors, str(value["type"]), None)
    if value["ours"] and isinstance(own, type) and issubclass(own, GnnkitError):
        error: GnnkitError = own(str(value["message"]), value["hint"])
    else:
        error = otherwise(f"{what} failed: {value['type']}: {value['message']}")
    error.__cause__ = RemoteTraceback(str(value["traceback"]))
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
    """Reverses ``layout_to_json``."""
    fields = tuple(
        Field(NodeKey(owner, name) if scope == "node" else EdgeKey(_edge_type(owner), name), dtype, tuple(shape), offset)
        for scope, owner, name, dtype, shape, offset in value["fields"]
    )
    return BatchLayout(
        fields,
        value["nbytes"],
        {node_type: counts for node_type, counts in value["nodes"]},
        {_edge_type(edge_type): counts for edge_type, counts in value["edges"]},
        value["input_type"] if isinstance(value["input_type"], str) else _edge_type(value["input_type"]),
        value["num_seeds"],
    )


def _edge_type(value: list[str]) -> EdgeType:
    source, relation, target = value
    return source, relation, target
