"""A trainer on one host: does what it is told on standard input, a line of JSON each, and answers with a line.

A real script would be told all at once; tests want to look, and to break things, in between.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import GnnkitError
from tests.helpers.batches import digest, digests

loaders: dict[str, GraphLoader] = {}
running: dict[str, Iterator[Any]] = {}


def make(name: str, store: str | None, backend: dict[str, Any] | str, **options: Any) -> dict[str, Any]:
    if isinstance(backend, dict):
        options["backend"] = getattr(gnnkit, backend.pop("kind", "Colocated"))(**backend)
    else:
        options["backend"] = backend
    if isinstance(options.get("placement"), dict):
        options["placement"] = {int(host): parts for host, parts in options["placement"].items()}
    loaders[name] = GraphLoader.from_store(store, progress=False, **options)
    return {"plan": loaders[name].plan.to_json(), "len": len(loaders[name])}


def sibling(name: str, of: str, input_nodes: Any, **options: Any) -> dict[str, Any]:
    loaders[name] = loaders[of].for_split(input_nodes, **options)
    return {"len": len(loaders[name])}


def infer(name: str, out: str) -> list[int]:
    def add_up(batch: Any) -> Any:
        return batch.x.index_add(0, batch.edge_index[1], batch.x[batch.edge_index[0]])

    return list(loaders[name].inference([add_up, add_up], out, progress=False).array.shape)


def epoch(name: str, stop_after: int | None = None) -> list[str]:
    digests = []
    for batch in loaders[name]:
        digests.append(digest([batch]))
        if len(digests) == stop_after:
            break
    return digests


def begin(name: str) -> None:
    running[name] = iter(loaders[name])


def set_epoch(name: str, number: int) -> None:
    loaders[name].set_epoch(number)


def take(name: str, count: int | None = None) -> list[str]:
    return digests(itertools.islice(running[name], count))


def status(name: str) -> dict[str, Any]:
    loader = loaders[name]
    return {**loader.status().details, "card": repr(loader), "cached_nbytes": loader.stats().cached_nbytes}


def close(name: str) -> float:
    started = time.monotonic()
    loaders.pop(name).close()
    return time.monotonic() - started


def ignore_warnings() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)


def crash() -> None:
    raise RuntimeError("the script's own error")


def group(rank: int, world_size: int) -> None:
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    dist.init_process_group("gloo")


FUNCTIONS = (make, sibling, infer, epoch, begin, set_epoch, take, ignore_warnings, status, close, crash, group)
COMMANDS = {function.__name__: function for function in FUNCTIONS}


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    for line in sys.stdin:
        words = json.loads(line)
        started = time.monotonic()
        try:
            answer: dict[str, Any] = {"answer": COMMANDS[words.pop("do")](**words)}
        except GnnkitError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        sys.stdout.write(json.dumps({**answer, "seconds": time.monotonic() - started}, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
