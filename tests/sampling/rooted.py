"""Disjoint, temporal, bidirectional and induced batches compared with ``tests.reference_rooted``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader, OnDevice
from tests import reference_rooted, reference_sampler
from tests.helpers.batches import items, to_pyg, to_reference
from tests.helpers.graphs import ArraySource

# Words of the loader that the reference takes as they are.
SHARED = (
    "edge_dir",
    "replace",
    "weight",
    "disjoint",
    "subgraph_type",
    "time_attr",
    "temporal_strategy",
    "temporal_comparison",
    "time_window",
)


def epoch_of(source: ArraySource, input_type: str, ids: list[int], **options: Any) -> list[Data | HeteroData]:
    """An epoch of a loader around given nodes."""
    nodes: Any = torch.tensor(ids, dtype=torch.int64)
    input_nodes = nodes if source.schema.is_homogeneous else (input_type, nodes)
    with GraphLoader.from_pyg(to_pyg(source), input_nodes=input_nodes, with_edge=True, progress=False, **options) as loader:
        return list(loader)


def check(
    source: ArraySource, input_type: str, ids: list[int], *, num_neighbors: Any, batch_size: int, seed: int = 0, **options: Any
) -> list[Data | HeteroData]:
    """Compares an epoch with the reference, number for number; returns its batches."""
    got = epoch_of(source, input_type, ids, num_neighbors=num_neighbors, batch_size=batch_size, seed=seed, **options)
    fan_outs = num_neighbors if isinstance(num_neighbors, Mapping) else dict.fromkeys(source.edges, list(num_neighbors))
    words = {name: value for name, value in options.items() if name in SHARED}
    batches = reference_sampler.epoch_batches(len(ids), batch_size, seed=seed, name=f"node/{input_type}/ids", epoch=0, shuffle=False)
    made = epoch_of(
        source, input_type, ids, num_neighbors=num_neighbors, batch_size=batch_size, seed=seed, backend=OnDevice("cpu"), **options
    )
    assert [found(batch) for batch in made] == [found(batch) for batch in got], "with a device's operations"
    graph, times, windows = to_reference(source), options.get("input_time"), options.get("time_window")
    assert len(got) == len(batches)
    for batch, (key, positions) in zip(got, batches, strict=True):
        wanted = reference_rooted.sample(
            graph, key, input_type, [ids[p] for p in positions], positions, fan_outs,
            **words | {"time_window": [int(windows[p]) for p in positions] if isinstance(windows, torch.Tensor) else windows},
            input_time=None if times is None else [int(times[p]) for p in positions],
        )  # fmt: skip
        assert found(batch) == expected(source, input_type, wanted)
    return got


def found(batch: Data | HeteroData) -> dict[str, Any]:
    """Everything on a batch by its full name, as lists and numbers."""
    for name, value in items(batch):
        if name.rpartition(".")[2] in ("n_id", "batch", "edge_index", "e_id", "input_id", "seed_time"):
            assert value.dtype == torch.int64, name
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in items(batch)}


def expected(source: ArraySource, input_type: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What the reference says, in the same form."""
    homogeneous, result = source.schema.is_homogeneous, {}
    for t, node in wanted["nodes"].items():
        where = "" if homogeneous else f"{t}."
        result |= {where + name: _as_stored(values, source.node_arrays.get(t, {}).get(name)) for name, values in node.items()}
        if "x" not in node:
            result[f"{where}num_nodes"] = len(node["n_id"])
    for t, edge in wanted["edges"].items():
        where = "" if homogeneous else f"{'__'.join(t)}."
        result |= {where + name: values for name, values in edge.items()}
    where = "" if homogeneous else f"{input_type}."
    result |= {where + name: wanted[name] for name in ("input_id", "batch_size", "seed_time")}
    return {name: value for name, value in result.items() if value is not None}


def _as_stored(values: Any, array: Any) -> Any:
    """Rows of an array of a type without nodes keep their shape."""
    return values if array is None or values else np.zeros((0, *array.shape[1:])).tolist()
