"""What a plan's inputs say about each batch: ids, times, labels. The same for every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, StoreError
from gnnkit.plan import InputAnchors, InputLinks, InputNodes, Inputs
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.sampling.damage import VERIFY_HINT


class InputRows(Protocol):
    """A loader's inputs, by position."""

    @property
    def num_inputs(self) -> int:
        """Inputs of an epoch."""
        ...

    def arrays(self, positions: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """What is said about the inputs at these positions; see ``SampleRequest.arrays``."""
        ...

    def given(self, values: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """The same for inputs that a user has given: int64 ``[k]`` node ids, or ``[2 * k]`` sources and then targets."""
        ...

    def written_out(self) -> Inputs:
        """The inputs without reference to a split of the graph."""
        ...


def input_rows(inputs: Inputs, graph: GraphHandle) -> InputRows:
    """The inputs of a plan on a graph."""
    if isinstance(inputs, InputLinks):
        from gnnkit.runtime.link_inputs import LinkArrays

        return LinkArrays(inputs, graph)
    return NodeRows(inputs, graph)


class NodeRows:
    """``InputRows`` of nodes and of anchors.

    Args:
        inputs: The nodes.
        graph: The graph that their ids belong to.
    """

    def __init__(self, inputs: InputNodes | InputAnchors, graph: GraphHandle) -> None:
        self._inputs, self._graph = inputs, graph

    @cached_property
    def _ids(self) -> NDArray[np.int64] | None:
        """int64 ``[n]`` dataset ids; None for every node of the type, in order.

        Raises:
            StoreError: The split is damaged: it holds a node that does not exist.
        """
        inputs = self._inputs
        if inputs.ids is not None:
            return inputs.ids
        if inputs.split is None:
            return None
        ids = np.asarray(self._graph.splits[inputs.node_type][inputs.split])
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._num_nodes:
            raise StoreError(f"the split {inputs.split!r} is damaged: it holds a node that does not exist", VERIFY_HINT)
        return ids

    @property
    def _num_nodes(self) -> int:
        return self._graph.arrays.schema.node_types[self._inputs.node_type].num_nodes

    @property
    def num_inputs(self) -> int:
        """See ``InputRows.num_inputs``."""
        return self._num_nodes if self._ids is None else len(self._ids)

    def arrays(self, positions: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """See ``InputRows.arrays``."""
        found: dict[str, NDArray[Any]] = {"node": positions if self._ids is None else self._ids[positions].astype(np.int64)}
        if isinstance(self._inputs, InputNodes) and self._inputs.time is not None:
            found["time"] = self._inputs.time[positions]
        if isinstance(self._inputs, InputAnchors):
            found |= self._inputs.given(positions)
        return found

    def given(self, values: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """See ``InputRows.given``.

        Raises:
            PlanError: The labels of anchors came with the loader's own anchors.
        """
        if isinstance(self._inputs, InputAnchors) and self._inputs.given(np.empty(0, np.int64)):
            raise PlanError(
                "the labels came with this loader's own anchors, so those of other anchors are not known", "loader.peek() shows a batch"
            )
        return {"node": values}

    def written_out(self) -> InputNodes | InputAnchors:
        """See ``InputRows.written_out``."""
        return self._inputs if self._inputs.split is None else replace(self._inputs, split=None, ids=self._ids)
