"""Everything that a node or an edge carries, as one row of 32-bit words: graphlearn-torch fetches one table of features for each.

Words are called float32, which it handles everywhere; nobody computes with them, so that every bit arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import ArraySpec, EdgeType, NodeType
from gnnkit.storage.arrays import GraphArrays

_WORD = 4
N_ID, E_ID = "n_id", "e_id"
_ID = ArraySpec("int64", ())


@dataclass(frozen=True)
class Columns:
    """What a row consists of.

    Attributes:
        specs: ``{name: spec}``, in the order of the row; ids under "n_id" or "e_id" where they differ from the store's.
    """

    specs: Mapping[str, ArraySpec]

    @classmethod
    def of_nodes(cls, graph: GraphArrays, node_type: NodeType) -> Columns:
        """Rows of a node type."""
        ids = {} if graph.store_id[node_type] is None else {N_ID: _ID}
        return cls({**ids, **graph.schema.node_types[node_type].arrays})

    @classmethod
    def of_edges(cls, graph: GraphArrays, edge_type: EdgeType, *, with_edge: bool) -> Columns:
        """Rows of an edge type; with the dataset's ids if there are any and ``with_edge`` asks for them."""
        has_ids = graph.local_edges(edge_type)[0].edge_id is not None
        return cls({**({E_ID: _ID} if with_edge and has_ids else {}), **graph.schema.edge_types[edge_type].arrays})

    @property
    def num_words(self) -> int:
        """Words of a row; at least one, because a type without features is an error to graphlearn-torch where others have some (GLT-10)."""
        return max(1, sum(-(-spec.row_nbytes // _WORD) for spec in self.specs.values()))

    def _places(self) -> Iterator[tuple[str, ArraySpec, int, int]]:
        """Name, spec, first byte and end of each column."""
        start = 0
        for name, spec in self.specs.items():
            nbytes = spec.row_nbytes
            yield name, spec, start, start + nbytes
            start += -(-nbytes // _WORD) * _WORD

    def pack(self, arrays: Mapping[str, NDArray[Any] | None], table: NDArray[np.float32]) -> None:
        """Fills a table.

        Args:
            arrays: ``{name: [n, *row_shape]}``; None for what rows do not have.
            table: ``[n, num_words]``.
        """
        rows = table.view(np.uint8)
        for name, spec, start, end in self._places():
            given = arrays[name]
            assert given is not None, f"rows have {name}, and this part has not"
            values = np.ascontiguousarray(given, spec.numpy_dtype)
            if end > start:
                rows[:, start:end] = values.reshape(-1).view(np.uint8).reshape(len(table), end - start)

    def unpack(self, table: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """``{name: [n, *row_shape]}``, bfloat16 as uint16 bit patterns; reverses ``pack``."""
        rows, found = table.view(np.uint8), {}
        for name, spec, start, end in self._places():
            values = np.ascontiguousarray(rows[:, start:end]).reshape(-1).view(spec.numpy_dtype)
            found[name] = values.reshape(len(table), *spec.row_shape)
        return found
