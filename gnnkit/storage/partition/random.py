"""A seeded random assignment with equal sizes: perfect balance, no locality."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.partition.balance import shuffled_parts


def assign(schema: GraphSchema, num_parts: int, seed: int) -> dict[NodeType, NDArray[np.int32]]:
    """Deals each node type's nodes to the parts in a random order; sizes differ by at most one.

    The order depends on the seed, the type's name and its number of nodes only, so that adding a type changes no other.

    Returns:
        ``{node type: int32 [num_nodes]}``.
    """
    from gnnkit.kernels.keys import stream_key

    return {
        name: shuffled_parts(stream_key(seed, f"partition/{name}"), node_type.num_nodes, num_parts)
        for name, node_type in schema.node_types.items()
    }
