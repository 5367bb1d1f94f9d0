"""What OGB's numbers mean: which are allowed, and how they become gnnkit's arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.ogb_table import RESTORE_HINT
from gnnkit.errors import DatasetError


def check_ids(ids: NDArray[Any], bound: int, path: Path, *, first_row: int, what: str) -> None:
    """Refuses ids outside ``[0, bound)``.

    Args:
        ids: ``[k]`` integers.
        bound: Number of nodes.
        path: The file they come from.
        first_row: Rows of the file before ``ids[0]``.
        what: What they are ("source").

    Raises:
        DatasetError: Names the first such id, its file and its row, counted from 1.
    """
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= bound):
        row = int(np.flatnonzero((ids < 0) | (ids >= bound))[0])
        raise DatasetError(f"{path}: row {first_row + row + 1}: {what} {int(ids[row])} is outside [0, {bound})", RESTORE_HINT)


def class_ids(values: NDArray[Any], num_classes: int, path: Path, *, first_row: int) -> NDArray[np.int64]:
    """Labels as OGB's files have them, as int64.

    A node without a label is NaN in the files. Where nodes have one label it becomes -1, as PyG's examples expect of
    nodes to leave out; no dataset has several labels of which some are missing, so there it is an error.

    Args:
        values: ``[k, num_tasks]``, integers or floating-point.
        num_classes: Classes per task.
        path: The file they come from.
        first_row: Rows of the file before ``values[0]``.

    Returns:
        ``[k]`` for one task, else ``[k, num_tasks]``.

    Raises:
        DatasetError: A label is no class, or is missing where that is not allowed.
    """
    if values.shape[1] == 1:
        values = values[:, 0]
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)
        numbers = np.where(missing, -1, values)
    else:
        missing = np.zeros(values.shape, np.bool_)
        numbers = values
    # NaN fails both comparisons, so it is wrong wherever it was not declared missing.
    right = missing | ((numbers >= 0) & (numbers < num_classes) & (np.trunc(numbers) == numbers))
    if not right.all():
        at = tuple(int(i) for i in np.argwhere(~right)[0])
        message = f"{path}: row {first_row + at[0] + 1}: label {numbers[at]} is not one of the classes 0 to {num_classes - 1}"
        raise DatasetError(message, RESTORE_HINT)
    return numbers.astype(np.int64, copy=False)


def with_inverses(source: NDArray[Any], target: NDArray[Any]) -> NDArray[np.int64]:
    """Each edge followed by its inverse, as ``ogb.io.read_graph_raw`` orders them.

    Args:
        source: ``[k]`` ids.
        target: ``[k]`` ids.

    Returns:
        ``[2, 2 k]``: edge ``2 i`` is (source[i], target[i]), edge ``2 i + 1`` its inverse.
    """
    edges = np.empty((2, 2 * len(source)), np.int64)
    edges[0, 0::2] = edges[1, 1::2] = source
    edges[1, 0::2] = edges[0, 1::2] = target
    return edges
