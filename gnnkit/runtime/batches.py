"""From a plan to sample requests: which seeds a batch has and which key it is drawn with. The same for every backend."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels import stream
from gnnkit.plan import Inputs, LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.inputs import input_rows
from gnnkit.sampling.schedule import Schedule, epoch_order
from gnnkit.sampling.walked import SampleRequest


class BatchList:
    """Every batch that a plan's epochs consist of.

    Args:
        plan: The plan.
        graph: The graph that its ids belong to.
    """

    def __init__(self, plan: LoaderPlan, graph: GraphHandle) -> None:
        self._plan, self._inputs = plan, input_rows(plan.inputs, graph)
        self._stream = stream.stream_key(plan.batching.seed, plan.inputs.stream)
        self._now_stream = stream.stream_key(plan.batching.seed, f"{plan.inputs.stream}/sample")
        self._order: tuple[int, NDArray[np.int64] | None] | None = None

    @property
    def num_seeds(self) -> int:
        """Inputs of an epoch."""
        return self._inputs.num_inputs

    def written_out(self) -> Inputs:
        """The inputs without reference to a split of the graph."""
        return self._inputs.written_out()

    def schedule(self, first_batch: int = 0) -> Schedule:
        """This rank's steps of an epoch."""
        return Schedule(self.num_seeds, self._plan.batching, first_batch)

    def request(self, epoch: int, batch_index: int) -> SampleRequest:
        """What batch ``batch_index`` of ``epoch`` is sampled from."""
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self._stream, epoch, self.num_seeds, self._plan.batching.shuffle)
        order, where = self._order[1], self.schedule().positions(batch_index)
        positions = np.arange(where.start, where.stop, dtype=np.int64) if order is None else np.ascontiguousarray(order[where])
        return SampleRequest(stream.batch_key(self._stream, epoch, batch_index), positions, self._inputs.arrays(positions))

    def request_for(self, epoch: int, index: int, values: NDArray[np.int64]) -> SampleRequest:
        """What a batch around given inputs is sampled from, see ``InputRows.given``; such batches have a stream of their own."""
        arrays = self._inputs.given(values)
        count = len(next(iter(arrays.values())))
        return SampleRequest(stream.batch_key(self._now_stream, epoch, index), np.arange(count, dtype=np.int64), arrays)
