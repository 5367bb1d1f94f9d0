"""From a plan to sample requests: the inputs of each batch and the key that it is drawn with. The same for every backend."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, StoreError
from gnnkit.kernels.keys import batch_key, stream_key
from gnnkit.plan import Batching, InputAnchors, InputLinks, InputNodes, Inputs, LoaderPlan, NeighborSampling, named
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.sampling.owners import Variates
from gnnkit.sampling.schedule import PartOrder, Schedule, epoch_order
from gnnkit.sampling.subgraph import VERIFY_HINT, SampleRequest
from gnnkit.schema import EdgeType, find_reverse
from gnnkit.storage.arrays import GraphArrays, all_dataset_ids, dataset_ids, node_values
from gnnkit.storage.link_splits import id_rows
from gnnkit.user_arrays import integer_weights

OWN_NEGATIVES = ("neg_edge_index", "src_neg_index", "dst_neg_index")


class LinkArrays:
    """The links of an epoch, and the arrays that go with them.

    A split's own pairs of negatives ("official") are inputs like its links, and stand behind them.

    Args:
        inputs: The plan's inputs.
        graph: The graph of the links.
    """

    def __init__(self, inputs: InputLinks, graph: GraphHandle) -> None:
        self._inputs, self._graph = inputs, graph
        self._is_official = inputs.neg_sampling is not None and inputs.neg_sampling.mode == "official"
        self._split: Mapping[str, NDArray[Any]] = {} if inputs.split is None else graph.link_splits[inputs.edge_type][inputs.split]

    @property
    def num_inputs(self) -> int:
        """Links of an epoch, with a split's own pairs of negatives."""
        return self._num_links + self._num_negatives

    @property
    def _num_links(self) -> int:
        if self._inputs.edge_label_index is not None:
            return int(self._inputs.edge_label_index.shape[1])
        if self._split:
            return int(self._split["edge_label_index"].shape[1])
        return self._graph.arrays.schema.edge_types[self._inputs.edge_type].num_edges

    @property
    def _num_negatives(self) -> int:
        return int(self._split["neg_edge_index"].shape[1]) if self._is_official and "neg_edge_index" in self._split else 0

    @property
    def _given_label(self) -> NDArray[Any] | None:
        return self._split.get("edge_label") if self._inputs.edge_label is None else self._inputs.edge_label

    @property
    def _time(self) -> NDArray[np.int64] | None:
        return self._split.get("edge_label_time") if self._inputs.edge_label_time is None else self._inputs.edge_label_time

    @cached_property
    def _links(self) -> NDArray[Any]:
        """``[2, num_inputs]`` dataset ids.

        Raises:
            StoreError: The split is damaged: it holds a node that does not exist.
            PlanError: As ``edges_in_order``.
        """
        inputs, schema = self._inputs, self._graph.arrays.schema
        if inputs.edge_label_index is not None:
            return inputs.edge_label_index
        if not self._split:
            return edges_in_order(self._graph.arrays, inputs.edge_type)
        for name in ("edge_label_index", *(OWN_NEGATIVES if self._is_official else ())):
            for ids, count in id_rows(schema, inputs.edge_type, name, self._split[name]) if name in self._split else ():
                if not 0 <= ids.min() <= ids.max() < count:
                    raise StoreError(
                        f"the split {inputs.split!r} of {inputs.edge_type} is damaged: {name} holds a node that does not exist", VERIFY_HINT
                    )
        if not self._num_negatives:
            return self._split["edge_label_index"]
        return np.concatenate([self._split["edge_label_index"], self._split["neg_edge_index"]], axis=1)

    @cached_property
    def _labels(self) -> NDArray[Any] | None:
        """``[num_inputs, ...]`` labels; where 0 is to mean a negative, those that start from 0 are one higher."""
        mode = None if self._inputs.neg_sampling is None else self._inputs.neg_sampling.mode
        label = self._given_label
        if mode != "binary" and not self._num_negatives:
            return label
        if label is not None and len(label) and label.min() == 0:
            # A dtype whose largest number is taken has no room for one more.
            is_full = label.dtype.kind in "biu" and (label.dtype == np.bool_ or label.max() == np.iinfo(label.dtype).max)
            label = (label.astype(np.int64) if is_full else label) + 1
        if self._num_negatives:
            label = np.ones(self._num_links, np.float32) if label is None else label
            label = np.concatenate([label, np.zeros((self._num_negatives, *label.shape[1:]), label.dtype)])
        return label

    def arrays(self, positions: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Returns the arrays of the links at these positions; see ``gnnkit.sampling.seeders.links.LinkSeeder`` for what there is.

        Raises:
            StoreError: The split is damaged.
            PlanError: As ``edges_in_order``.
        """
        found: dict[str, NDArray[Any]] = {
            name: np.ascontiguousarray(self._links[end][positions], np.int64) for end, name in enumerate(("src", "dst"))
        }
        if self._labels is not None:
            found["label"] = np.ascontiguousarray(self._labels[positions])
        if self._time is not None and not self._num_negatives:
            found["time"] = np.ascontiguousarray(self._time[positions], np.int64)
        if self._inputs.window is not None:
            found["window"] = np.ascontiguousarray(self._inputs.window[positions])
        if self._num_negatives:
            found["is_negative"] = positions >= self._num_links
        elif self._is_official:
            for name, own in (("neg_src", "src_neg_index"), ("neg_dst", "dst_neg_index")):
                if own in self._split:
                    found[name] = np.ascontiguousarray(self._split[own][positions], np.int64)
        return found

    def check(self, time_attr: str | None) -> None:
        """Checks links against their graph, as far as it is here.

        Args:
            time_attr: Name of the array that their times are compared with; None where time plays no part.

        Raises:
            PlanError: They are all edges, whose order is not known; a link is older than every node that could be a negative of it; or
                edges that lead back along them are to be left out, and there are none.
        """
        inputs, arrays, edge_type = self._inputs, self._graph.arrays, self._inputs.edge_type
        if inputs.split is None and inputs.edge_label_index is None and any(part.edge_id is None for part in arrays.edges[edge_type]):
            raise missing_edge_ids(edge_type)
        negatives, times = None if self._is_official else inputs.neg_sampling, self._time
        if time_attr is not None and times is not None and negatives is not None and negatives.amount >= 1 and arrays.has_structure:
            sources = [(negatives.src_weight, edge_type[0])] if negatives.mode == "binary" else []
            for weight, node_type in (*sources, (negatives.dst_weight, edge_type[2])):
                if time_attr not in arrays.schema.node_types[node_type].arrays:
                    continue
                found = [part.arrays[time_attr] for part in arrays.local_nodes(node_type)]
                if weight is not None:
                    found = [node_values(arrays, node_type, time_attr)[weight > 0]]
                earliest = min((int(rows.min()) for rows in found if len(rows)), default=None)
                if earliest is not None and (early := int((times < earliest).sum())):
                    raise PlanError(
                        f"{early} of {len(times)} links are older than every {node_type!r} node, so that no negative can be drawn for them",
                        f"leave out links whose edge_label_time is below {earliest}, or use neg_sampling=None",
                    )
        if inputs.exclude_edges == "reverse" and find_reverse(edge_type, arrays.schema.edge_types) is None:
            raise PlanError(f"exclude_edges='reverse', and no edge type holds the reverses of {edge_type}", "use exclude_edges='self'")

    def given(self, values: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Returns the ends of links that a user has given; such links have no labels."""
        return {"src": values[: len(values) // 2], "dst": values[len(values) // 2 :]}

    def written_out(self) -> InputLinks:
        """The inputs without reference to a split of the graph."""
        assert not self._is_official, "a split's own negatives are read where they are stored"
        if self._inputs.split is None:
            return self._inputs
        links = np.ascontiguousarray(self._links, np.int64)
        return replace(self._inputs, split=None, edge_label_index=links, edge_label=self._given_label, edge_label_time=self._time)


def edges_in_order(arrays: GraphArrays, edge_type: EdgeType) -> NDArray[Any]:
    """Every edge of a type, in the order in which the dataset lists them.

    Args:
        arrays: The graph.
        edge_type: The type.

    Returns:
        int32 or int64 ``[2, num_edges]`` dataset ids of sources and targets.

    Raises:
        PlanError: Parts are on other hosts, or the graph was stored without the edges' ids.
        StoreError: An edge has an id that the dataset does not have.
    """
    if not arrays.has_structure:
        raise PlanError(
            f"all edges of {edge_type} are to be loaded, and some are on other hosts", "give them: edge_label_index=(edge type, tensor)"
        )
    num_edges = arrays.schema.edge_types[edge_type].num_edges
    largest = max(arrays.schema.node_types[node_type].num_nodes for node_type in (edge_type[0], edge_type[2])) - 1
    found = np.empty((2, num_edges), np.int32 if largest < 1 << 31 else np.int64)
    for p, part in enumerate(arrays.checked(edge_type).edges[edge_type]):
        ids = part.edge_id
        if ids is None:
            raise missing_edge_ids(edge_type)
        found[:, ids] = edges_of_part(arrays, edge_type, p)
    return found


def edges_of_part(arrays: GraphArrays, edge_type: EdgeType, part: int, first: int = 0, last: int | None = None) -> NDArray[Any]:
    """The edges of a type that nodes of a part own, in the order in which they are stored.

    Args:
        arrays: The graph.
        edge_type: The type.
        part: The part, which is open.
        first: The first of its nodes.
        last: The last one + 1; None for all.

    Returns:
        int64 ``[2, n]`` dataset ids of sources and targets.
    """
    edges, ids = arrays.checked(edge_type).edges[edge_type][part], dataset_ids(arrays, arrays.frontier_type(edge_type), part)[first:last]
    indptr = edges.indptr[first : first + len(ids) + 1]
    own = np.repeat(ids, np.diff(indptr))
    other = all_dataset_ids(arrays, arrays.neighbor_type(edge_type))[edges.indices[int(indptr[0]) : int(indptr[-1])]]
    return np.stack([other, own] if arrays.edge_dir == "in" else [own, other])


def missing_edge_ids(edge_type: EdgeType) -> PlanError:
    """All edges are to be loaded, and their order is not known."""
    return PlanError(
        f"all edges of {edge_type} are to be loaded, and the graph was stored without the edges' ids, which say their order",
        "build it with with_edge=True, or give the links: edge_label_index=(edge type, tensor)",
    )


class InputRows(Protocol):
    """A loader's inputs, by position."""

    @property
    def num_inputs(self) -> int:
        """Inputs of an epoch."""

    def arrays(self, positions: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Returns the arrays of the inputs at these positions; see ``SampleRequest``, whose ``input_id`` they may hold, too."""

    def given(self, values: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """The same for inputs that a user has given, int64.

        ``[k]`` node ids, or ``[2 * k]``: sources and then targets of links, or ``~ids`` and then times of nodes, which tells them from ids.
        """

    def written_out(self) -> Inputs:
        """The inputs without reference to a split of the graph."""


class DrawnRows(InputRows):
    """Base of ``InputRows`` whose positions an epoch draws, with replacement."""

    @property
    def draws(self) -> NDArray[np.int64]:
        """Running sums of the integer weights of all positions."""
        raise NotImplementedError


def input_rows(inputs: Inputs, graph: GraphHandle) -> InputRows:
    """The inputs of a plan on a graph."""
    if isinstance(inputs, InputLinks):
        return LinkArrays(inputs, graph)
    return NodeInputRows(inputs, graph)


class NodeInputRows:
    """The nodes or anchors of an epoch, and the arrays that go with them.

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
        """Inputs of an epoch."""
        return self._num_nodes if self._ids is None else len(self._ids)

    def arrays(self, positions: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Returns the arrays of the inputs at these positions."""
        found: dict[str, NDArray[Any]] = {"node": positions if self._ids is None else self._ids[positions].astype(np.int64)}
        if isinstance(self._inputs, InputNodes) and self._inputs.time is not None:
            found["time"] = self._inputs.time[positions]
        if isinstance(self._inputs, InputNodes) and self._inputs.window is not None:
            found["window"] = self._inputs.window[positions]
        if isinstance(self._inputs, InputAnchors):
            found |= self._inputs.given(positions)
        return found

    def given(self, values: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Returns the arrays of nodes that a user has given.

        Raises:
            PlanError: The labels of anchors came with the loader's own anchors.
        """
        if isinstance(self._inputs, InputAnchors) and self._inputs.given(np.empty(0, np.int64)):
            raise PlanError(
                "the labels came with this loader's own anchors, so those of other anchors are not known", "loader.peek() shows a batch"
            )
        if len(values) and values[0] < 0:
            nodes, time = values.reshape(2, -1)
            return {"node": ~nodes, "time": time}
        return {"node": values}

    def written_out(self) -> InputNodes | InputAnchors:
        """The inputs without reference to a split of the graph."""
        return self._inputs if self._inputs.split is None else replace(self._inputs, split=None, ids=self._ids)


class BatchList:
    """Every batch that a plan's epochs consist of. May be used from any thread.

    Args:
        plan: The plan.
        graph: The graph that its ids belong to.

    Attributes:
        inputs: What batches consist of.
    """

    def __init__(self, plan: LoaderPlan, graph: GraphHandle) -> None:
        rows = plan.sampling.rows
        self._plan, self._arrays = plan, graph.arrays
        self.inputs: InputRows = named(rows)(plan, graph) if rows else input_rows(plan.inputs, graph)
        self._stream = stream_key(plan.batching.seed, plan.inputs.stream)
        self._now_stream = stream_key(plan.batching.seed, f"{plan.inputs.stream}/sample")
        self._order: tuple[int, NDArray[np.int64] | None] = -1, None
        self._ordering = threading.Lock()

    @cached_property
    def _weight_sums(self) -> NDArray[np.int64] | None:
        if isinstance(self.inputs, DrawnRows):
            return self.inputs.draws
        weights = self._plan.inputs.weights
        return None if weights is None else np.cumsum(integer_weights(weights, self.inputs.num_inputs, "seed_weights", "inputs"))

    @cached_property
    def _shows_nodes(self) -> bool:
        """Whether inputs are named by their nodes, and not by their positions."""
        inputs = self._plan.inputs
        return isinstance(inputs, InputNodes) and inputs.is_mask

    @cached_property
    def _whole(self) -> Schedule:
        return self.schedule()

    @cached_property
    def _by_part(self) -> PartOrder | None:
        """The parts of the inputs, of links those of their sources, where batches have seeds of one part each."""
        plan = self._plan
        if not plan.batching.is_by_part:
            return None
        arrays, ids = self._arrays, next(iter(self.inputs.arrays(np.arange(self.inputs.num_inputs)).values()))
        node_type = plan.inputs.edge_type[0] if isinstance(plan.inputs, InputLinks) else plan.inputs.node_type
        table = arrays.checked(node_type).store_id[node_type]
        parts = np.searchsorted(arrays.node_bounds[node_type], ids if table is None else table[ids], side="right") - 1
        return PartOrder(parts.astype(np.min_scalar_type(arrays.num_parts)), arrays.num_parts, plan.batching.batch_size)

    def schedule(self, batching: Batching | None = None, first_batch: int = 0) -> Schedule:
        """The steps of an epoch.

        Args:
            batching: The plan's, with the rank that is asked for; None is the one that the plan was opened with.
            first_batch: The first batch that is left of it.
        """
        return Schedule(self.inputs.num_inputs, batching or self._plan.batching, first_batch, self._by_part)

    def request(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampleRequest:
        """Returns the request that batch ``batch_index`` of ``epoch`` is sampled from.

        Args:
            epoch: The epoch.
            batch_index: The batch's number.
            seeds: Inputs (``InputRows.given``) for a batch around them instead; such batches have a stream of their own.

        Raises:
            PlanError: There is no such batch.
        """
        if seeds is not None:
            arrays = self.inputs.given(seeds)
            count = len(next(iter(arrays.values())))
            return self._request(self._now_stream, epoch, batch_index, np.arange(count, dtype=np.int64), arrays)
        if not 0 <= batch_index < self._whole.num_batches:
            raise PlanError(f"there is no batch {batch_index}: an epoch has {self._whole.num_batches}")
        order, where = self._order_of(epoch), self._whole.positions(batch_index)
        positions = np.arange(where.start, where.stop, dtype=np.int64) if order is None else np.ascontiguousarray(order[where])
        arrays = self.inputs.arrays(positions)
        return self.request_of(epoch, batch_index, arrays.get("node", positions) if self._shows_nodes else positions, arrays)

    def request_of(self, epoch: int, batch_index: int, input_id: NDArray[np.int64], arrays: Mapping[str, NDArray[Any]]) -> SampleRequest:
        """Returns the request for a batch of any inputs, with the draws of batch ``batch_index`` of ``epoch``; see ``SampleRequest``."""
        return self._request(self._stream, epoch, batch_index, input_id, arrays)

    def _order_of(self, epoch: int) -> NDArray[np.int64] | None:
        """The order of an epoch's inputs, see ``epoch_order``; that of the last epoch is kept."""
        known, order = self._order
        if known != epoch:
            with self._ordering:  # so that it, and what the inputs keep of themselves, is not worked out by every thread
                known, order = self._order
                if known != epoch:
                    self.inputs.arrays(np.empty(0, np.int64))
                    is_shuffled = bool(self._plan.batching.shuffle)
                    order = epoch_order(self._stream, epoch, self.inputs.num_inputs, is_shuffled, self._weight_sums, self._by_part)
                    self._order = epoch, order
        return order

    def _request(self, key: int, epoch: int, index: int, input_id: NDArray[np.int64], arrays: Mapping[str, NDArray[Any]]) -> SampleRequest:
        sampling, input_id = self._plan.sampling, arrays.get("input_id", input_id)
        labor = sampling.labor if isinstance(sampling, NeighborSampling) else None
        variates = None if labor is None else Variates.of(labor, key, epoch, index)
        return SampleRequest(batch_key(key, epoch, index), input_id, arrays, variates)
