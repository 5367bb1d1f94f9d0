"""Checks of the backends: each of them yes, or no with the reason."""

from __future__ import annotations

import sys

from gnnkit.cli.checks.row import Check

# PyTorch, PyG and Numba hold for every backend; the rest are the names under which gnnkit offers them.
BACKENDS = ("InProcess", "Colocated", "GraphStore")
_NEEDS_PROCESSES = ("Colocated", "GraphStore")


def backend(name: str, broken: list[Check]) -> Check:
    """Whether a backend works here.

    Args:
        name: Its class in ``gnnkit``.
        broken: Checks that failed and that every backend depends on.
    """
    import gnnkit

    row = f"backend {name}"
    if name not in gnnkit.__all__:
        return Check(row, f"no: it is not part of gnnkit {gnnkit.__version__}", "no")
    if broken:
        return Check(row, f"no: {', '.join(check.name for check in broken)}, see above", "error", broken[0].fix)
    if name in _NEEDS_PROCESSES:
        if sys.platform != "linux":
            return Check(row, f"no: it needs Linux, this is {sys.platform}", "no")
        return Check(row, "yes")
    try:
        seeds = _sample_once()
    except Exception as error:  # whatever it is: the answer is no, and this is the reason
        return Check(row, f"no: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", "error", "please report this")
    return Check(row, f"yes: a batch of {seeds} seeds was sampled")


def _sample_once() -> int:
    """Samples one batch of a ring of eight nodes and returns its number of seeds."""
    import torch
    from torch_geometric.data import Data

    from gnnkit.loader import GraphLoader

    nodes = torch.arange(8)
    data = Data(x=nodes.float().view(-1, 1), edge_index=torch.stack([nodes, (nodes + 1) % 8]))
    with GraphLoader.from_pyg(data, num_neighbors=[2, 2], batch_size=4, progress=False) as loader:
        batch = next(iter(loader))
        if not torch.equal(batch.x.view(-1).long(), batch.n_id):
            raise RuntimeError("the batch does not hold the features of its nodes")
        return int(batch.batch_size)
