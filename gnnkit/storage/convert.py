"""Element types of stored arrays: bfloat16, kept as uint16 bit patterns, and features in 8 bits a number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.events import Stage
from gnnkit.kernels.jit import kernel
from gnnkit.schema import QUANTIZED, ArraySpec, EdgeType, EdgeTypeSchema, GraphSchema, NodeType, NodeTypeSchema, Quantization

if TYPE_CHECKING:
    from gnnkit.storage.inputs import BuildInput


def convert_rows(rows: NDArray[Any], source: ArraySpec, target: ArraySpec, name: str) -> NDArray[Any]:
    """Rows of one kind as rows of another.

    Args:
        rows: ``[k, *row_shape]``; uint16 bit patterns where ``source`` is bfloat16.
        source: What ``rows`` are.
        target: What is wanted.
        name: What the array is called, for the error.

    Raises:
        PlanError: A finite value is beyond the largest float16.
    """
    if source == target:
        return rows
    values = bfloat16_to_float32(rows) if source.dtype == "bfloat16" else rows
    if target.quantization is not None:
        return quantize_rows(values, target.quantization)
    with np.errstate(over="ignore"):
        converted = float32_to_bfloat16(values.astype(np.float32)) if target.dtype == "bfloat16" else values.astype(target.dtype)
    if target.dtype == "float16":
        overflow = np.isinf(converted) & np.isfinite(values)
        if overflow.any():
            raise PlanError(
                f"{name} holds {float(values[overflow][0])!r}, which is beyond the largest float16 (65504)",
                'use feature_dtype="bfloat16", or scale the features',
            )
    return converted


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns of the nearest bfloat16 (ties to even); NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    patterns: NDArray[np.uint16] = np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16))
    return patterns


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 bit patterns, exactly."""
    values: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


@kernel("void(uint8[:, ::1], float32[::1], float32[::1], float32[:, ::1])")
def _dequantize(rows: NDArray[np.uint8], scale: NDArray[np.float32], offset: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            out[i, j] = np.float32(rows[i, j]) * scale[j] + offset[j]


def dequantize_rows(rows: NDArray[np.uint8], quantization: Quantization, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Converts quantised rows to the numbers that they stand for.

    Args:
        rows: uint8 ``[n, columns]``.
        quantization: What their numbers stand for.
        out: float32 ``[n, columns]`` to write to; None makes it.

    Returns:
        ``out``: float32 ``[n, columns]``, at most half a step of the column away from what was quantised.
    """
    scale, offset = (np.array(numbers, np.float32) for numbers in (quantization.scale, quantization.offset))
    out = np.empty(rows.shape, np.float32) if out is None else out
    # require() copies what is read-only: the kernel is compiled for arrays that may be written.
    _dequantize(np.require(rows, requirements=["C", "W"]), scale, offset, out)
    return out


T = TypeVar("T", bound=NodeTypeSchema | EdgeTypeSchema)
_LEVELS = 255
_SMALLEST = np.nextafter(np.float32(0), np.float32(1))
_LARGEST = float(np.finfo(np.float32).max)
# Rows that are looked at at once: few enough to stay in the cache as float64.
_BLOCK_BYTES = 1 << 20


def with_quantizations(graph: BuildInput, schema: GraphSchema, stage: Stage) -> GraphSchema:
    """The schema of a store with the scales and offsets of its quantised arrays, which one pass over them finds.

    Args:
        graph: What the store is built from.
        schema: The store's schema; arrays that are quantised already know theirs.
        stage: Advances by the bytes that were read.

    Raises:
        PlanError: A column holds a NaN or an infinite value, or values too far apart for float32; names the column.
    """

    def nodes(node_type: NodeType, found: NodeTypeSchema) -> NodeTypeSchema:
        source = graph.schema.node_types[node_type].arrays
        return _filled(
            found, {name: _measure(graph.node_array_chunks(node_type, name), source[name], name, node_type, stage) for name in _open(found)}
        )

    def edges(edge_type: EdgeType, found: EdgeTypeSchema) -> EdgeTypeSchema:
        source = graph.schema.edge_types[edge_type].arrays

        def chunks(name: str) -> Iterator[NDArray[Any]]:
            return (batch.rows[name] for batch in graph.edge_batches(edge_type, [name]))

        return _filled(found, {name: _measure(chunks(name), source[name], name, edge_type, stage) for name in _open(found)})

    return replace(
        schema,
        node_types={t: nodes(t, found) for t, found in schema.node_types.items()},
        edge_types={t: edges(t, found) for t, found in schema.edge_types.items()},
    )


def bytes_to_measure(source: GraphSchema, stored: GraphSchema) -> int | None:
    """Bytes that ``with_quantizations`` reads; None where there is nothing for it to find.

    Args:
        source: The schema of what the store is built from.
        stored: The store's.
    """
    nodes = sum(source.node_types[t].arrays[name].row_nbytes * s.num_nodes for t, s in stored.node_types.items() for name in _open(s))
    edges = sum(source.edge_types[t].arrays[name].row_nbytes * s.num_edges for t, s in stored.edge_types.items() for name in _open(s))
    is_open = any(map(_open, stored.node_types.values())) or any(map(_open, stored.edge_types.values()))
    return nodes + edges if is_open else None


def quantize_rows(values: NDArray[Any], quantization: Quantization) -> NDArray[np.uint8]:
    """Numbers ``[n, columns]`` as uint8 ``[n, columns]``."""
    scale, offset = (np.array(numbers, np.float64) for numbers in (quantization.scale, quantization.offset))
    steps = values.astype(np.float64)
    steps -= offset
    steps /= np.where(scale > 0, scale, 1.0)
    return np.clip(np.rint(steps, out=steps), 0, _LEVELS, out=steps).astype(np.uint8)


def plain_rows(rows: NDArray[Any], spec: ArraySpec) -> NDArray[Any]:
    """Stored rows as they are in a batch: quantised ones as float32, others as they are."""
    if spec.quantization is None:
        return rows
    return dequantize_rows(rows, spec.quantization)


def plain_spec(spec: ArraySpec) -> ArraySpec:
    """Returns the dtype and shape of the rows that ``plain_rows`` returns."""
    return spec if spec.quantization is None else ArraySpec(spec.batch_dtype, spec.row_shape, dim=spec.dim)


@dataclass
class _Range:
    """The least and largest of each column so far, float64 ``[columns]``; NaN stays NaN."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def take(self, values: NDArray[Any]) -> None:
        np.minimum(self.low, values.min(axis=0), out=self.low)
        np.maximum(self.high, values.max(axis=0), out=self.high)


def _open(schema: NodeTypeSchema | EdgeTypeSchema) -> list[str]:
    return [name for name, spec in schema.arrays.items() if spec.dtype == QUANTIZED and spec.quantization is None]


def _filled(schema: T, found: Mapping[str, Quantization]) -> T:
    arrays = {name: replace(spec, quantization=found.get(name, spec.quantization)) for name, spec in schema.arrays.items()}
    return replace(schema, arrays=arrays)


def _measure(chunks: Iterable[NDArray[Any]], spec: ArraySpec, name: str, owner: NodeType | EdgeType, stage: Stage) -> Quantization:
    found = _Range(np.full(spec.row_shape, np.inf), np.full(spec.row_shape, -np.inf))
    block = max(1, _BLOCK_BYTES // max(1, spec.row_nbytes))
    for chunk in chunks:
        for first in range(0, len(chunk), block):
            rows = chunk[first : first + block]
            found.take(bfloat16_to_float32(rows) if spec.dtype == "bfloat16" else rows)
        stage.advance(chunk.nbytes)
    if not (found.low <= found.high).any() and not np.isnan(found.low).any():  # no rows at all
        found = _Range(np.zeros(spec.row_shape), np.zeros(spec.row_shape))
    return _quantization(found, f"{name!r} of {owner}")


def _quantization(found: _Range, what: str) -> Quantization:
    """Scales and offsets of columns."""
    with np.errstate(over="ignore", invalid="ignore"):
        offset = found.low.astype(np.float32)
        scale = ((found.high - found.low) / _LEVELS).astype(np.float32)
        # A range so small that its 255th part is no float32 still has two ends.
        scale = np.where((scale == 0) & (found.high > found.low), _SMALLEST, scale)
        usable = np.isfinite(found.low) & np.isfinite(found.high) & (np.abs(found.low) <= _LARGEST) & (np.abs(found.high) <= _LARGEST)
        usable &= scale.astype(np.float64) * _LEVELS <= _LARGEST
    if not usable.all():
        column = int(np.flatnonzero(~usable)[0])
        low, high = float(found.low[column]), float(found.high[column])
        raise PlanError(
            f"column {column} of {what} goes from {low!r} to {high!r}, which 8 bits cannot stand for",
            "replace what is missing or infinite, or use another feature_dtype",
        )
    return Quantization(tuple(map(float, scale)), tuple(map(float, offset)))
