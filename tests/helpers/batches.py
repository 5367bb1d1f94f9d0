"""Batches compared bit by bit: with each other, and with what the reference sampler says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from tests import reference_sampler
from tests.helpers.graphs import ArraySource

COUNTS = ("num_sampled_nodes", "num_sampled_edges", "batch_size", "num_nodes")


def to_pyg(source: ArraySource) -> Data | HeteroData:
    """The graph of a source as a PyG object on copies of its arrays."""
    if source.schema.is_homogeneous:
        (node_type,), (edge_type,) = source.schema.node_types, source.schema.edge_types
        data = Data(edge_index=torch.tensor(source.edges[edge_type]), num_nodes=source.schema.num_nodes)
        for name, values in (*source.node_arrays[node_type].items(), *source.edge_arrays[edge_type].items()):
            data[name] = torch.tensor(values)
        return data
    typed = HeteroData()
    for node_type, node_schema in source.schema.node_types.items():
        typed[node_type].num_nodes = node_schema.num_nodes
        for name, values in source.node_arrays.get(node_type, {}).items():
            typed[node_type][name] = torch.tensor(values)
    for edge_type, edge_index in source.edges.items():
        typed[edge_type].edge_index = torch.tensor(edge_index)
        for name, values in source.edge_arrays.get(edge_type, {}).items():
            typed[edge_type][name] = torch.tensor(values)
    return typed


def to_reference(source: ArraySource) -> dict[str, Any]:
    """The graph of a source as the reference sampler takes it."""
    nodes = {
        t: {"num_nodes": s.num_nodes, "rows": {name: values.tolist() for name, values in source.node_arrays.get(t, {}).items()}}
        for t, s in source.schema.node_types.items()
    }
    edges = {
        t: {
            "ends": list(map(tuple, edge_index.T.tolist())),
            "rows": {name: v.tolist() for name, v in source.edge_arrays.get(t, {}).items()},
        }
        for t, edge_index in source.edges.items()
    }
    return {"nodes": nodes, "edges": edges}


def items(batch: Data | HeteroData) -> Iterator[tuple[str, Any]]:
    """Every attribute of a batch with its full name, in the batch's order; sizes as plain lists and numbers."""
    for store in batch.stores:
        key = store._key
        where = "" if key is None else f"{key if isinstance(key, str) else '__'.join(key)}."
        yield from ((f"{where}{name}", value) for name, value in store.items())


def same(left: Data | HeteroData, right: Data | HeteroData, *, any_order: bool = False) -> None:
    """Asserts that two batches are equal: attributes and, unless told otherwise, their order, dtypes, shapes, values bit for bit."""
    assert type(left) is type(right)
    first, second = list(items(left)), list(items(right))
    if any_order:
        first, second = sorted(first, key=lambda item: item[0]), sorted(second, key=lambda item: item[0])
    assert [name for name, _ in first] == [name for name, _ in second]
    for (name, a), (_, b) in zip(first, second, strict=True):
        _same_value(name, a, b)


def _same_value(name: str, a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor), name
        assert a.dtype == b.dtype and a.shape == b.shape, f"{name}: {a.dtype} {list(a.shape)}, {b.dtype} {list(b.shape)}"
        assert raw(a) == raw(b), f"{name}: {a} is not {b}"
    elif isinstance(a, dict):  # labels of anchors
        assert isinstance(b, dict) and list(a) == list(b), f"{name}: {list(a)} is not {list(b)}"
        for key in a:
            _same_value(f"{name}[{key}]", a[key], b[key])
    else:
        assert type(a) is type(b) and a == b, f"{name}: {a!r} is not {b!r}"


def raw(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes: NaNs and signs of zeros count."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def digest(batches: Iterable[Data | HeteroData]) -> str:
    """SHA-256 over the names, dtypes, shapes and little-endian bytes of everything in some batches, in order."""
    total = hashlib.sha256()
    for batch in batches:
        for name, value in items(batch):
            _add_to_digest(total, name, value)
    return total.hexdigest()


def digests(batches: Iterable[Data | HeteroData]) -> list[str]:
    """The digest of each batch."""
    return [digest([batch]) for batch in batches]


def _add_to_digest(total: Any, name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        total.update(f"{name} {value.dtype} {list(value.shape)}".encode() + raw(value))
    elif isinstance(value, dict):  # labels of anchors
        for key, own in value.items():
            _add_to_digest(total, f"{name}[{key}]", own)
    else:
        total.update(f"{name} {value!r}".encode())


def expected_batch(source: ArraySource, sampled: Mapping[str, Any], input_type: str, edge_dir: str, with_edge: bool) -> Data | HeteroData:
    """What the reference sampler's answer looks like as a PyG object, attributes in the documented order."""
    schema = source.schema
    batch: Any = Data() if schema.is_homogeneous else HeteroData()
    for t in schema.node_types:
        found, store = sampled["nodes"][t], batch if schema.is_homogeneous else batch[t]
        store.n_id = torch.tensor(found["n_id"], dtype=torch.int64)
        for name, spec in schema.node_types[t].arrays.items():
            store[name] = _rows(found[name], spec)
    shown_types = {t: reference_sampler.shown(t, edge_dir) for t in sorted(source.edges)}
    for t, shown in shown_types.items():
        found, store = sampled["edges"][shown], batch if schema.is_homogeneous else batch[shown]
        store.edge_index = torch.tensor(found["edge_index"], dtype=torch.int64).reshape(2, -1)
        if with_edge:
            store.e_id = torch.tensor(found["e_id"], dtype=torch.int64)
        for name, spec in schema.edge_types[t].arrays.items():
            store[name] = _rows(found[name], spec)
    seeds = batch if schema.is_homogeneous else batch[input_type]
    seeds.input_id = torch.tensor(sampled["input_id"], dtype=torch.int64)
    for t, node_schema in schema.node_types.items():
        store = batch if schema.is_homogeneous else batch[t]
        if not schema.is_homogeneous:
            store.num_sampled_nodes = sampled["nodes"][t]["num_sampled_nodes"]
        if "x" not in node_schema.arrays:
            store.num_nodes = len(sampled["nodes"][t]["n_id"])
    if schema.is_homogeneous:
        (node_type,), (shown,) = schema.node_types, shown_types.values()
        batch.batch_size = sampled["batch_size"]
        batch.num_sampled_nodes = sampled["nodes"][node_type]["num_sampled_nodes"]
        batch.num_sampled_edges = sampled["edges"][shown]["num_sampled_edges"]
        return batch
    for shown in shown_types.values():
        batch[shown].num_sampled_edges = sampled["edges"][shown]["num_sampled_edges"]
    seeds.batch_size = sampled["batch_size"]
    return batch


def _rows(values: list[Any], spec: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, spec.numpy_dtype).reshape(len(values), *spec.row_shape))


def expected_epoch(
    source: ArraySource,
    *,
    num_neighbors: Any,
    batch_size: int,
    input_type: str,
    input_nodes: list[int],
    stream: str = "ids",
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = False,
    drop_last: bool = False,
    edge_dir: str = "in",
    replace: bool = False,
    weight: str | None = None,
    with_edge: bool = True,
    labor: Mapping[str, Any] | None = None,
) -> list[Data | HeteroData]:
    """An epoch's batches, worked out by the reference sampler; ``labor`` is what ``gnnkit.Labor`` is told beside fan-outs."""
    graph = to_reference(source)
    fan_outs = num_neighbors if isinstance(num_neighbors, Mapping) else dict.fromkeys(source.edges, list(num_neighbors))
    batches = reference_sampler.epoch_batches(
        len(input_nodes), batch_size, seed=seed, name=f"node/{input_type}/{stream}", epoch=epoch, shuffle=shuffle, drop_last=drop_last
    )
    expected, name = [], f"node/{input_type}/{stream}"
    for index, (key, positions) in enumerate(batches):
        seeds = [input_nodes[p] for p in positions]
        variate = None if labor is None else reference_sampler.labor(seed, name, epoch, index, **labor)
        sampled = reference_sampler.sample(
            graph, key, input_type, seeds, positions, fan_outs, edge_dir=edge_dir, replace=replace, weight=weight, variate=variate
        )  # fmt: skip
        expected.append(expected_batch(source, sampled, input_type, edge_dir, with_edge))
    return expected


def reference_batch(source: ArraySource, sampling: Any, request: Any, node_type: str) -> Data | HeteroData:
    """One batch, worked out by the reference sampler.

    Args:
        source: The graph.
        sampling: How it is sampled.
        request: Its key and positions.
        ids: Its seeds, dataset ids.
    """
    sampled = reference_sampler.sample(
        to_reference(source), request.key, node_type, request.arrays["node"].tolist(), request.input_id.tolist(), sampling.num_neighbors,
        edge_dir=sampling.edge_dir, replace=sampling.replace, weight=sampling.weight,
    )  # fmt: skip
    return expected_batch(source, sampled, node_type, sampling.edge_dir, sampling.with_edge)
