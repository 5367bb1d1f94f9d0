"""Backends, the places where batches are sampled: one class for each, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, Literal, TypeAlias

from gnnkit.backends.base import Backend, joined
from gnnkit.errors import PlanError, near_matches

BackendName: TypeAlias = Literal["auto", "inprocess", "on_device", "colocated", "graph_store", "glt"]
# What a user may write instead of the class, and where the class is.
_PLACES = {
    "colocated": "gnnkit.backends.colocated:Colocated",
    "glt": "gnnkit.backends.glt.options:Glt",
    "graph_store": "gnnkit.backends.graph_store:GraphStore",
    "inprocess": "gnnkit.backends.inprocess:InProcess",
    "on_device": "gnnkit.backends.on_device:OnDevice",
}


def backend_from_json(value: Mapping[str, Any]) -> Backend:
    """The backend that a plan names.

    Raises:
        PlanError: This gnnkit has no such backend, or the options do not fit it.
    """
    options = dict(value)
    kind = options.pop("kind", None)
    classes = {place.partition(":")[2]: place for place in _PLACES.values()}
    if not isinstance(kind, str) or kind not in classes:
        raise PlanError(f"unknown backend {kind!r}{near_matches(str(kind), list(classes))}", f"known: {sorted(classes)}")
    backend: Backend = resolve_name(classes[kind])(**options)
    return backend


# What others call them.
_MEANT = {
    **dict.fromkeys(("process", "processes", "multiprocessing", "mp", "workers", "local"), "colocated"),
    **dict.fromkeys(("thread", "threads", "threading", "sync"), "inprocess"),
    **dict.fromkeys(("server", "servers", "remote"), "graph_store"),
    **dict.fromkeys(("gpu", "cuda", "device"), "on_device"),
}


def resolve_backend(value: Backend | str, *, is_whole: bool = True) -> Backend:
    """A backend object as it is, or the one that a word such as ``"inprocess"`` stands for.

    After ``gnnkit.distributed.initialize``, "auto" is what it has decided: the servers that it joined, or this process.

    Args:
        value: The object or word.
        is_whole: Whether every host holds the whole graph, for "auto".

    Raises:
        PlanError: The word is not known.
    """
    if isinstance(value, type):
        raise PlanError(f"backend={value.__name__} is a class", f"make an object of it: backend={value.__name__}()")
    if not isinstance(value, str):
        if not hasattr(value, "open") or not hasattr(value, "to_json"):
            raise PlanError(f"backend={value!r:.60} is no backend", f"an object such as InProcess(), or one of {['auto', *_PLACES]}")
        return value
    if value == "auto":
        if (decided := joined()) is not None:
            return decided.backend
        value = "inprocess" if is_whole else "colocated"
    if value.lower() not in _PLACES:
        meant = _MEANT.get(value.lower())
        near = near_matches(value, list(_PLACES)) if meant is None else f"; did you mean {meant!r}?"
        raise PlanError(f"unknown backend {value!r}{near}", f"known: {['auto', *_PLACES]}")
    backend: Backend = resolve_name(_PLACES[value.lower()])()
    return backend
