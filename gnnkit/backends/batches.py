"""From a plan to sample requests: which seeds a batch has and which key it is drawn with. The same for every backend."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import StoreError
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.sampling import stream
from gnnkit.sampling.sampler import SampleRequest
from gnnkit.sampling.schedule import Schedule, epoch_order


class BatchList:
    """Every batch that a plan's epochs consist of.

    Args:
        plan: The plan.
        graph: The graph that its ids belong to.
    """

    def __init__(self, plan: LoaderPlan, graph: GraphHandle) -> None:
        self._plan, self._graph = plan, graph
        self._stream = stream.stream_key(plan.batching.seed, plan.inputs.stream)
        self._now_stream = stream.stream_key(plan.batching.seed, f"{plan.inputs.stream}/sample")
        self._order: tuple[int, NDArray[np.int64] | None] | None = None

    @cached_property
    def input_ids(self) -> NDArray[np.int64] | None:
        """int64 ``[n]`` dataset ids; None for every node of the type, in order.

        Raises:
            StoreError: The split is damaged: it holds a node that does not exist.
        """
        inputs = self._plan.inputs
        if inputs.ids is not None:
            return inputs.ids
        if inputs.split is None:
            return None
        ids = np.asarray(self._graph.splits[inputs.node_type][inputs.split])
        num_nodes = self._graph.arrays.schema.node_types[inputs.node_type].num_nodes
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_nodes:
            raise StoreError(
                f"the split {inputs.split!r} is damaged: it holds a node that does not exist", "gnnkit info --verify names the file"
            )
        return ids

    @property
    def num_seeds(self) -> int:
        """Seeds of an epoch."""
        if self.input_ids is None:
            return self._graph.arrays.schema.node_types[self._plan.inputs.node_type].num_nodes
        return len(self.input_ids)

    def schedule(self, first_batch: int = 0) -> Schedule:
        """This rank's steps of an epoch."""
        return Schedule(self.num_seeds, self._plan.batching, first_batch)

    def request(self, epoch: int, batch_index: int) -> SampleRequest:
        """What batch ``batch_index`` of ``epoch`` is sampled from."""
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self._stream, epoch, self.num_seeds, self._plan.batching.shuffle)
        order, where = self._order[1], self.schedule().positions(batch_index)
        positions = np.arange(where.start, where.stop, dtype=np.int64) if order is None else np.ascontiguousarray(order[where])
        ids = positions if self.input_ids is None else self.input_ids[positions].astype(np.int64)
        return self._request(stream.batch_key(self._stream, epoch, batch_index), ids, positions)

    def request_for(self, epoch: int, index: int, seeds: NDArray[np.int64]) -> SampleRequest:
        """What a batch around given seeds is sampled from; such batches have a stream of their own."""
        return self._request(stream.batch_key(self._now_stream, epoch, index), seeds, np.arange(len(seeds), dtype=np.int64))

    def _request(self, key: int, ids: NDArray[np.int64], positions: NDArray[np.int64]) -> SampleRequest:
        node_type = self._plan.inputs.node_type
        seeds = np.ascontiguousarray(self._graph.to_store_ids(node_type, ids))
        return SampleRequest(key, node_type, seeds, positions)
