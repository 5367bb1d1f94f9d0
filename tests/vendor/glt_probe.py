"""Run by an interpreter of its own: imports graphlearn-torch through gnnkit and prints, as JSON, what that did to the process.

``python glt_probe.py whole | retry``
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from typing import Any


def state() -> dict[str, Any]:
    """What belongs to the user's process."""
    import numpy
    import torch

    return {
        "environment": dict(os.environ),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()),
        "affinity": sorted(os.sched_getaffinity(0)),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "random": [hash(random.getstate()), torch.initial_seed(), torch.random.get_rng_state().sum().item()],
        "numpy": str(numpy.random.get_state()),
        "finders": [str(finder) for finder in sys.meta_path],
        "hook": str(sys.excepthook),
        "torch_sparse": str(sys.modules.get("torch_sparse")) if torch.__version__ > "2.5" else "",
    }


def refusal(call: Any) -> str:
    from gnnkit.errors import PlanError

    try:
        call()
    except PlanError as error:
        return str(error)
    return ""


def topologies() -> bool:
    """Whether GLT's Python part sorts edges as it should: what it needs torch_sparse for."""
    import torch
    from graphlearn_torch.data import Topology

    row, col = torch.tensor([3, 0, 3, 1, 0]), torch.tensor([1, 2, 0, 1, 0])
    csr, csc = Topology((row, col), layout="CSR"), Topology((row, col), layout="CSC")
    return (
        csr.indptr.tolist() == [0, 2, 3, 3, 5]
        and csr.indices.tolist() == [0, 2, 1, 0, 1]
        and csr.edge_ids.tolist() == [4, 1, 3, 2, 0]
        and csc.indptr.tolist() == [0, 2, 4, 5]
        and csc.indices.tolist() == [0, 3, 1, 3, 0]
    )


def whole() -> dict[str, Any]:
    import gnnkit.distributed
    from gnnkit.vendor import glt

    found: dict[str, Any] = {"late": "graphlearn_torch" not in sys.modules}
    status = glt.status()
    found |= {"kind": status.kind, "reason": status.reason, "fix": status.fix, "status is late": "graphlearn_torch" not in sys.modules}
    importlib.import_module("torch_geometric")
    before = state()
    packages: list[Any] = []
    threads = [threading.Thread(target=lambda: packages.append(glt.load("a test"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = state()
    start = time.perf_counter()
    again = glt.load("a test")
    found |= {
        "changed": [key for key in before if before[key] != after[key]],
        "one package": len(packages) == 8 and len({id(package) for package in [*packages, again]}) == 1,
        "second load": time.perf_counter() - start,
        "kind after": glt.status().kind,
        "sorts": topologies(),
        "refused": refusal(lambda: glt.require_native("ZERO_COPY sampling")),
    }
    gnnkit.distributed.init_worker_group(2, 1, "group")
    context = gnnkit.distributed.get_context()
    found["context"] = [context.rank, context.world_size, context.is_worker(), context.worker_name]
    found["names"] = {name: type(getattr(gnnkit.distributed, name)).__name__ for name in gnnkit.distributed._GLT_HOMES}
    return found


def retry() -> dict[str, Any]:
    """A try of the user's own that fails half-way, then one of ours that cannot work, then one that can."""
    found: dict[str, Any] = {}
    try:
        importlib.import_module("graphlearn_torch")
        found["plain import"] = "works"
    except Exception as error:
        found["plain import"] = type(error).__name__
    for name in [name for name in sys.modules if name.partition(".")[0] == "graphlearn_torch" and found["plain import"] == "works"]:
        if not name.endswith("py_graphlearn_torch"):
            del sys.modules[name]
    from gnnkit.vendor import glt

    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "torch_geometric"}
    sys.modules["torch_geometric"] = None  # type: ignore[assignment]
    try:
        glt.load("MyLoader")
    except Exception as error:
        found["first"] = [type(error).__name__, str(error), type(error.__cause__).__name__]
    del sys.modules["torch_geometric"]
    sys.modules.update(hidden)
    sys.modules["torch_sparse"] = None  # type: ignore[assignment]  # as if it were not installed
    found["second"] = glt.attribute("distributed.DistLoader").__name__
    found["sorts by itself"], found["stand-in is gone"] = topologies(), "torch_sparse" not in sys.modules
    return found


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps({"whole": whole, "retry": retry}[sys.argv[1]]()))
