"""A trainer on one host: does what it is told on standard input, a line of JSON each, and answers with a line.

A real script would be told all at once; tests want to look, and to break things, in between.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from gnnkit import Colocated, GraphLoader
from gnnkit.errors import GnnkitError
from gnnkit.loader.digest import batches_digest

loaders: dict[str, GraphLoader] = {}


def make(name: str, store: str, backend: dict[str, Any] | str, **options: Any) -> dict[str, Any]:
    if isinstance(backend, dict):
        options["backend"] = Colocated(**backend)
    else:
        options["backend"] = backend
    if isinstance(options.get("placement"), dict):
        options["placement"] = {int(host): parts for host, parts in options["placement"].items()}
    loaders[name] = GraphLoader.from_store(store, progress=False, **options)
    return {"plan": loaders[name].plan.to_json(), "len": len(loaders[name])}


def sibling(name: str, of: str, input_nodes: Any, **options: Any) -> dict[str, Any]:
    loaders[name] = loaders[of].for_split(input_nodes, **options)
    return {"len": len(loaders[name])}


def epoch(name: str, stop_after: int | None = None) -> list[str]:
    digests = []
    for batch in loaders[name]:
        digests.append(batches_digest([batch]))
        if len(digests) == stop_after:
            break
    return digests


def status(name: str) -> dict[str, Any]:
    return {**loaders[name]._stream.status().details, "card": repr(loaders[name])}


def close(name: str) -> float:
    started = time.monotonic()
    loaders.pop(name).close()
    return time.monotonic() - started


def crash() -> None:
    raise RuntimeError("the script's own error")


def group(rank: int, world_size: int) -> None:
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    dist.init_process_group("gloo")


COMMANDS = {function.__name__: function for function in (make, sibling, epoch, status, close, crash, group)}


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
