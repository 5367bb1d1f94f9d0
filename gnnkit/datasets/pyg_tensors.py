"""Tensors of a PyG object as NumPy arrays on the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError, PlanError
from gnnkit.schema import ArraySpec

if TYPE_CHECKING:
    import torch


def as_rows(value: Any, where: str) -> tuple[NDArray[Any], ArraySpec]:
    """A tensor as a C-contiguous NumPy array on the same memory; a CUDA or non-contiguous tensor is copied.

    Args:
        value: A dense tensor or NumPy array ``[n, ...]``.
        where: Its name in error messages.

    Returns:
        The array, bfloat16 as uint16 bit patterns, and the specification of a row.

    Raises:
        PlanError: It is sparse, or of a dtype that cannot be stored.
    """
    import torch

    if isinstance(value, np.ndarray):
        value = _tensor_of(value, where)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
        kind = str(value.layout) if isinstance(value, torch.Tensor) else type(value).__name__
        raise PlanError(f"{where} must be a dense tensor, got {kind}", f"use {where}.to_dense(), or delete it")
    value = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        rows = value.view(torch.int16).numpy().view(np.uint16)
        return rows, ArraySpec("bfloat16", tuple(rows.shape[1:]))
    try:
        rows = value.numpy()
    except TypeError as error:
        raise PlanError(f"{where} has the dtype {value.dtype}, which NumPy does not know", "convert it first") from error
    return rows, ArraySpec(rows.dtype.name, tuple(rows.shape[1:]))


def edge_index_of(store: Any, where: str) -> NDArray[Any]:
    """The edges of a PyG storage, int64 or int32 ``[2, num_edges]``; ids are not checked.

    Args:
        store: The storage.
        where: Its name in error messages, with the dot behind it.

    Raises:
        PlanError: Edges are held as ``adj`` or ``adj_t``, or are missing.
        DatasetError: ``edge_index`` has another dtype or shape.
    """
    import torch

    for name in ("adj_t", "adj"):
        if name in store:
            raise PlanError(
                f"{where}{name} holds the edges as a sparse matrix; gnnkit reads edge_index",
                f"leave out the transform ToSparseTensor, or delete {where}{name} and set {where}edge_index",
            )
    if "edge_index" not in store:
        raise PlanError(f"{where}edge_index is missing", "a graph without edges has torch.empty(2, 0, dtype=torch.long)")
    value = store["edge_index"]
    if isinstance(value, np.ndarray):
        value = _tensor_of(value, f"{where}edge_index")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise DatasetError(f"{where}edge_index must be a dense tensor, got {type(value).__name__}")
    if value.dtype not in (torch.int64, torch.int32):
        raise DatasetError(f"{where}edge_index has the dtype {value.dtype}; ids are torch.int64", f"{where}edge_index.long()")
    if value.dim() != 2 or value.size(0) != 2:
        transposed = value.dim() == 2 and value.size(1) == 2
        hint = f"{where}edge_index.t().contiguous()" if transposed else "row 0 holds the sources, row 1 the targets"
        raise DatasetError(f"{where}edge_index has the shape {list(value.shape)}, expected [2, num_edges]", hint)
    # An EdgeIndex, a subclass with checks of its own, is looked at as the plain tensor that it is.
    return value.detach().as_subclass(torch.Tensor).cpu().contiguous().numpy()


def _tensor_of(array: NDArray[Any], where: str) -> torch.Tensor:
    import torch

    try:
        # PyTorch has no read-only tensors and warns of memory that is.
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise PlanError(f"{where} has the dtype {array.dtype}, which PyTorch does not know", "convert it first") from error
