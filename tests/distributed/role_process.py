"""A process that ``initialize`` makes what its environment says: ``role_process.py (stay | wait | raise)``.

A server does not get past ``initialize``. A client iterates the loader of its plan, unless it is only to ``stay``, and prints one line of
JSON. Then it waits until its input is closed, or raises (``raise``), without having closed anything.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gnnkit.distributed import get_context, get_sampler_pool, initialize


def main() -> None:
    initialize()
    sys.stdout.write(json.dumps({} if sys.argv[1] == "stay" else trained()) + "\n")
    sys.stdout.flush()
    if sys.argv[1] == "raise":
        raise RuntimeError("the training has failed")
    sys.stdin.read()


def trained() -> dict[str, Any]:
    """What came of an epoch; its imports take longer than the rest, and not every process needs them."""
    from gnnkit import GraphLoader
    from tests.helpers.batches import digest

    loader = GraphLoader.from_plan(progress=False)
    batches, context = list(loader), get_context()
    return {
        "backend": loader.plan.backend["kind"],
        "batches": [digest([batch]) for batch in batches],
        "context": None if context is None else [context.role.name, context.rank, context.world_size, context.num_servers()],
        "samplers": get_sampler_pool()[1],
    }


if __name__ == "__main__":
    main()
