"""The part of torch_sparse that ``graphlearn_torch.utils.topo`` needs, in torch alone (defect GLT-2).

Only that module ever sees this one: under the name ``torch_sparse`` it would make PyG believe that the real one is there.
"""

from __future__ import annotations

import torch


class SparseTensor:
    """Edges sorted by row, then column; equal edges keep their order. Arguments as in torch_sparse, of which it knows the compressed rows.

    Args:
        row: int64 ``[num_edges]``.
        col: int64 ``[num_edges]``.
        value: ``[num_edges, ...]``, or None.
        sparse_sizes: Rows and columns of the matrix.
    """

    def __init__(self, row: torch.Tensor, col: torch.Tensor, value: torch.Tensor | None, sparse_sizes: tuple[int, int]) -> None:
        by_col = torch.argsort(col, stable=True)
        order = by_col[torch.argsort(row[by_col], stable=True)]
        self._col = col[order]
        self._value = None if value is None else value[order]
        counts = torch.bincount(row, minlength=sparse_sizes[0])
        self._rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    @property
    def storage(self) -> SparseTensor:
        """The object itself, which is asked for rows, columns and values under this name."""
        return self

    def rowptr(self) -> torch.Tensor:
        """int64 ``[num_rows + 1]``."""
        return self._rowptr

    def col(self) -> torch.Tensor:
        """int64 ``[num_edges]``."""
        return self._col

    def value(self) -> torch.Tensor | None:
        """``[num_edges, ...]``, or None."""
        return self._value
