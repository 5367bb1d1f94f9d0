"""Consecutive ranges of the dataset's ids: needs nothing, keeps whatever locality the numbering has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.partition.balance import contiguous_parts


def assign(schema: GraphSchema, num_parts: int) -> dict[NodeType, NDArray[np.int32]]:
    """Gives part ``p`` the ``p``-th range of each node type; sizes differ by at most one.

    Returns:
        ``{node type: int32 [num_nodes]}``.
    """
    return {name: contiguous_parts(node_type.num_nodes, num_parts) for name, node_type in schema.node_types.items()}
