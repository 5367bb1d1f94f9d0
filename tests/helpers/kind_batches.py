"""Epochs of batches of every kind: from gnnkit, from the references, and from PyG in the second environment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from tests import reference_sampler
from tests.helpers.batches import expected_batch, to_reference
from tests.helpers.graphs import ArraySource
from tests.helpers.machine import ROOT, glt_python


def epoch_of(data: Data | HeteroData, **options: Any) -> list[Data | HeteroData]:
    """One epoch of gnnkit's, with edge ids."""
    with GraphLoader.from_pyg(data, progress=False, **{"with_edge": True, **options}) as loader:
        return list(loader)


def pyg_epochs(cases: Mapping[str, Any], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Every case's batches, from PyG in the second environment; see ``tests/helpers/pyg_batches.py``."""
    torch.save(dict(cases), folder / "cases.pt")
    script = ROOT / "tests/helpers/pyg_batches.py"
    command = [str(glt_python()), "-W", "ignore", str(script), str(folder / "cases.pt"), str(folder / "out.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = torch.load(folder / "out.pt", weights_only=False)
    return found


def expected_kind(
    sample: Callable[..., dict[str, Any]],
    source: ArraySource,
    input_type: str,
    ids: list[int],
    *,
    batch_size: int,
    seed: int = 0,
    edge_dir: str = "in",
    **sampling: Any,
) -> list[Data | HeteroData]:
    """An epoch's batches of given nodes, in their order, worked out by a reference.

    Args:
        sample: ``sample(graph, key, input_type, seeds, positions, edge_dir=..., **sampling)``, see ``reference_sampler.sample``; edge
            types may have ``edge_weight``, and no counts where hops mean nothing.
        source: The graph.
        input_type: The seeds' type.
        ids: The input nodes.
        batch_size: Seeds of a batch.
        seed: The loader's.
        edge_dir: The loader's.
        **sampling: What else the reference is told.
    """
    graph, found = to_reference(source), []
    for key, positions in reference_sampler.epoch_batches(
        len(ids), batch_size, seed=seed, name=f"node/{input_type}/ids", epoch=0, shuffle=False
    ):  # fmt: skip
        sampled = sample(graph, key, input_type, [ids[p] for p in positions], positions, edge_dir=edge_dir, **sampling)
        batch = expected_batch(source, sampled, input_type, edge_dir, True)
        for edge_type in source.edges:
            shown = reference_sampler.shown(edge_type, edge_dir)
            store: Any = batch if source.schema.is_homogeneous else batch[shown]
            if not store.num_sampled_edges:
                del store["num_sampled_edges"]
            if "edge_weight" in sampled["edges"][shown]:
                store.edge_weight = torch.tensor(sampled["edges"][shown]["edge_weight"], dtype=torch.float64).float()
        found.append(batch)
    return found
