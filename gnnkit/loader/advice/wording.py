"""Options as a user would write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def backend_options(backend: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some options that belong to a backend; the others are keywords of the loader.

    Args:
        backend: The backend's options, as in a plan.
        change: Names and values.
    """
    return {name: value for name, value in change.items() if name in backend}


def in_words(backend: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """Options as arguments of a loader: ``backend=InProcess(num_threads=4), prefetch=8``.

    Args:
        backend: The backend's options, as in a plan.
        change: Options of the backend and keywords of the loader.
    """
    own = backend_options(backend, change)
    words = [f"backend={backend['kind']}({_arguments(own)})"] if own else []
    rest = {name: value for name, value in change.items() if name not in own}
    return ", ".join([*words, *([_arguments(rest)] if rest else [])])


def _arguments(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={f'{value:_}' if isinstance(value, int) else repr(value)}" for name, value in options.items())


def workers(kind: str, count: int) -> str:
    """Who samples for a backend: "1 thread", "3 workers"."""
    one, many = ("thread", "threads") if kind == "InProcess" else ("worker", "workers")
    return f"{count} {one if count == 1 else many}"


def batches(count: int) -> str:
    """How many batches: "1 batch", "3 batches"."""
    return f"{count} {'batch' if count == 1 else 'batches'}"
