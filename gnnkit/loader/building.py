"""Building batches: what was sampled becomes PyG's objects, padded to a few shapes where that was asked for.

Padding stands behind what was sampled: nodes keep their numbers, and edges of padding lead from nodes of padding to nodes of padding. The
counts by hop become the shape's, the same for all batches of it. They are bounds: where a layer drops the hops that it does not need,
at least the nodes and edges of the others are kept. What is kept beyond them are edges into nodes whose values nothing asks for any more.

All arithmetic on sizes is in integers, so that every rank finds the same shapes.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.backends.base import BatchStream
from gnnkit.errors import PlanError, SamplingError
from gnnkit.events import EventSink, Stage
from gnnkit.loader.subgraphs import SaintNorms
from gnnkit.plan import LABEL_COUNTS, LABEL_KINDS, LABEL_NODES, AnchorLabels, InputAnchors, LabelOutput, LoaderPlan, Shape, label_name
from gnnkit.runtime.ring import BlockPool
from gnnkit.sampling.collate import BatchContents, Dequantizer, collate, contents_of, specs_of, with_dims, with_edge_index
from gnnkit.sampling.subgraph import ALIGNMENT, MISSING, BatchKey, EdgeKey, NodeKey, SampledSubgraph
from gnnkit.schema import EdgeType, GraphSchema, NodeType
from gnnkit.storage.layout import FEATURE_NAME

if TYPE_CHECKING:
    import torch


NODE_MASK, EDGE_MASK = "node_mask", "edge_mask"
# The counts by hop of a padded batch as they were sampled; one number where there are none.
REAL_NODES, REAL_EDGES = "num_real_nodes", "num_real_edges"
# Arrays of a batch's inputs, which have a row for each of these and not for each node or edge.
_OF_INPUTS = frozenset(
    ("input_id", "seed_time", "seed_mask", "src_index", "dst_pos_index", "src_neg_index", "dst_neg_index", "edge_label_index")
) | {"edge_label", "edge_label_time", "walks", "neg_walks"}
_ROOTS = "batch"
# Batches of epoch 0 that shapes are found from, evenly spread over it.
_TRIALS = 32
_MOST_SHAPES = 4
# The largest shape is so many eighths of a standard deviation above the mean, or half as far again as the largest trial batch.
_LARGEST = 44
# A batch that fits no shape gets the largest one times (5/4)^k.
_GROWTH = (5, 4)


Owner = NodeType | EdgeType
# By type of nodes (a text) and of edges (three): a number for the end of every hop, ascending, or one where there are no hops.
Sizes = Mapping[Owner, tuple[int, ...]]


def _sizes_of(shape: Shape) -> Sizes:
    sizes: dict[Owner, tuple[int, ...]] = dict(shape.nodes.items())
    sizes.update(shape.edges.items())
    return sizes


def _shape_of(sizes: Sizes) -> Shape:
    nodes = {owner: bounds for owner, bounds in sizes.items() if isinstance(owner, str)}
    return Shape(nodes, {owner: bounds for owner, bounds in sizes.items() if not isinstance(owner, str)})


@dataclass(frozen=True)
class Extent:
    """The sizes of a batch.

    Attributes:
        sizes: ``{node type: (seeds, nodes up to hop 1, ...), edge type: (edges up to hop 1, ...)}``.
        ends: ``{edge type: int64 [2, edges]}``; tensors where they are on a device.
    """

    sizes: Sizes
    ends: Mapping[EdgeType, Any]

    @classmethod
    def of(cls, contents: BatchContents) -> Extent:
        """The sizes of a batch as it was sampled."""
        nodes: dict[Owner, tuple[int, ...]] = {}
        edges: dict[Owner, tuple[int, ...]] = {}
        ends = {}
        for key, tensor in contents.arrays.items():
            if key.scope == "node" and key.name == "n_id":
                nodes[key.type] = tuple(itertools.accumulate(contents.num_sampled_nodes.get(key.type) or [len(tensor)]))
            elif key.scope == "edge" and key.name == "edge_index":
                edges[key.type] = tuple(itertools.accumulate(contents.num_sampled_edges.get(key.type) or [tensor.shape[1]]))
                ends[key.type] = tensor if tensor.is_cuda else tensor.numpy()
        return cls({**nodes, **edges}, ends)

    @property
    def size(self) -> int:
        """Rows and edges of all types."""
        return sum(sizes[-1] for sizes in self.sizes.values())

    def least(self, owner: Owner) -> int:
        """The least size of a type that has room for the batch: for a node of padding, too."""
        return self.sizes[owner][-1] + isinstance(owner, str)

    def reach(self, edge_type: EdgeType, end: int, hop: int, kept: int) -> int:
        """The nodes at one end of the type's edges that a layer has to keep if it keeps the first ``kept`` edges beyond a hop's.

        Args:
            edge_type: The type.
            end: 0 for sources, 1 for targets.
            hop: Edges up to this hop, counted from 0, lead to nodes of their own hop only.
            kept: Edges that are kept, padding included.
        """
        counts, ids = self.sizes[edge_type], self.ends[edge_type][end]
        if kept > counts[-1]:  # edges of padding lead to nodes behind all others
            return self.least(edge_type[2 * end])
        beyond = ids[counts[hop] : kept]
        return int(beyond.max()) + 1 if len(beyond) else 0


def _bounds(bounds: Sequence[int], count: int) -> tuple[int, ...]:
    """A bound for each hop; where a shape says the size alone, it is the bound of all."""
    return tuple(bounds) if len(bounds) == count else (bounds[-1],) * count


def _by_hop(ends: Sequence[int]) -> list[int]:
    """The sizes of hops, of their ends."""
    return [last - first for first, last in zip((0, *ends), ends, strict=False)]


def _fits(shape: Sizes, extent: Extent) -> bool:
    """Whether a batch can be padded to a shape: with a node of padding of each type, and with its counts by hop."""
    limits = {owner: _bounds(shape[owner], len(sizes)) for owner, sizes in extent.sizes.items()}
    for owner, sizes in extent.sizes.items():
        if extent.least(owner) > limits[owner][-1] or any(size > limit for size, limit in zip(sizes, limits[owner], strict=True)):
            return False
    for edge_type in extent.ends:
        for hop, bound in enumerate(limits[edge_type][:-1] if len(shape[edge_type]) > 1 else ()):
            if any(extent.reach(edge_type, end, hop, bound) > limits[edge_type[2 * end]][hop + 1] for end in (0, 1)):
                return False
    return True


def _grown(shape: Shape, times: int) -> Shape:
    """A shape that is larger, without bounds by hop."""
    more, less = _GROWTH[0] ** times, _GROWTH[1] ** times
    return _shape_of({owner: (max(bounds[-1], 1) * more // less + 1,) for owner, bounds in _sizes_of(shape).items()})


def chosen_shape(shapes: Sequence[Shape], extent: Extent) -> tuple[Shape, bool]:
    """The smallest shape that a batch fits, and whether it is none of ``shapes`` but a larger one.

    Raises:
        PlanError: The shapes are of other types than the batch.
    """
    for shape in shapes:
        sizes = _sizes_of(shape)
        if sizes.keys() != extent.sizes.keys():
            raise PlanError(
                f"pad has sizes of {[*sizes]}, and batches have {[*extent.sizes]}",
                "name every type of nodes and edges, edge types as batches show them; or pad='bucket'",
            )
        if _fits(sizes, extent):
            return shape, False
    larger = (_grown(shapes[-1], times) for times in itertools.count(1))
    return next(shape for shape in larger if _fits(_sizes_of(shape), extent)), True


class _Spread(NamedTuple):
    """The mean and the standard deviation of a size over trial batches, times their number.

    Attributes:
        total: Sum over the batches.
        deviation: At least 1 for each batch where sizes differ or are all 0; 0 where they are one and the same.
        batches: Their number.
    """

    total: int
    deviation: int
    batches: int

    @classmethod
    def of(cls, sizes: Sequence[int]) -> _Spread:
        count, total = len(sizes), sum(sizes)
        if total and min(sizes) == max(sizes):
            return cls(total, 0, count)
        return cls(total, max(count, math.isqrt(count * sum(size * size for size in sizes) - total * total)), count)

    def bound(self, level: int) -> int:
        """The size that is ``level`` eighths of a deviation above the mean, rounded up; at least 0."""
        return max(0, -((-8 * self.total - level * self.deviation) // (8 * self.batches)))

    def level(self, size: int) -> int:
        """The lowest level whose bound a size does not exceed."""
        return -(-8 * (self.batches * size - self.total) // self.deviation) if self.deviation else -_LARGEST


def found_shapes(extents: Sequence[Extent], given: Sequence[Shape] | None = None) -> tuple[Shape, ...]:
    """The shapes for batches like these.

    Args:
        extents: Sizes of trial batches, at least one.
        given: The sizes that were asked for, the smallest first; None for what leaves least padding.

    Returns:
        At most four shapes, or those that are given, with bounds by hop; each is at least as large as the one before in every size.
    """
    spreads = {owner: _Spread.of([extent.least(owner) for extent in extents]) for owner in extents[0].sizes}
    levels = sorted(max(spread.level(extent.least(owner)) for owner, spread in spreads.items()) for extent in extents)
    largest = max(_LARGEST, 3 * levels[-1] // 2)
    if given is None:
        chosen = _chosen_levels(levels, largest)
        padded_sizes = [{owner: max(int(isinstance(owner, str)), s.bound(level)) for owner, s in spreads.items()} for level in chosen]
    else:
        padded_sizes = [{owner: bounds[-1] for owner, bounds in _sizes_of(shape).items()} for shape in given]
    by_hop = _bounds_by_hop(extents, largest)
    found = [_shape_of({owner: _clipped(by_hop[owner], size) for owner, size in sizes.items()}) for sizes in padded_sizes]
    return tuple(shape for shape, after in itertools.zip_longest(found, found[1:]) if shape != after)


def _chosen_levels(levels: Sequence[int], largest: int) -> list[int]:
    """The levels of up to four shapes, the highest of which is ``largest``, that leave the least padding in the trial batches."""

    def cost(chosen: tuple[int, ...]) -> int:
        return sum(next(level for level in (*chosen, largest) if level >= own) for own in levels)

    candidates = sorted(set(levels))
    count = min(_MOST_SHAPES - 1, len(candidates))
    return [*min(itertools.combinations(candidates, count), key=cost), largest]


def _clipped(bounds: Sequence[int], size: int) -> tuple[int, ...]:
    """Bounds by hop that ascend and end in a size."""
    return tuple(min(bound, size) for bound in itertools.accumulate(bounds[:-1], max)) + (size,)


def _bounds_by_hop(extents: Sequence[Extent], level: int) -> Sizes:
    """Bounds for the end of every hop; what is kept beyond a hop's own nodes and edges costs no padding, so they are generous."""
    first = extents[0]
    # Types that have nodes by the end of each hop.
    met = [{owner for extent in extents for owner, sizes in extent.sizes.items() if isinstance(owner, str) and sizes[0]}]
    for hop in range(max((len(first.sizes[t]) for t in first.ends), default=0)):
        met.append(met[hop] | {t[0] for t in first.ends if t[2] in met[hop] and any(extent.sizes[t][-1] for extent in extents)})
    edges = {}
    for edge_type in first.ends:
        count = len(first.sizes[edge_type])
        spreads = [_Spread.of([extent.sizes[edge_type][hop] for extent in extents]) for hop in range(count)]
        edges[edge_type] = [s.bound(level) if edge_type[2] in met[hop] or count == 1 else 0 for hop, s in enumerate(spreads)]
    found: dict[Owner, tuple[int, ...]] = {t: _clipped(bounds, max(bounds)) for t, bounds in edges.items()}
    for node_type in [owner for owner in first.sizes if isinstance(owner, str)]:
        own = []
        for hop in range(len(first.sizes[node_type])):
            needed = [max([extent.sizes[node_type][hop], *_reached(extent, node_type, hop - 1, edges)]) for extent in extents]
            own.append(_Spread.of(needed).bound(level) if any(needed) or hop else 0)
        found[node_type] = _clipped(own, max(1, *own))
    return found


def _reached(extent: Extent, node_type: NodeType, hop: int, edges: Mapping[EdgeType, Sequence[int]]) -> Iterable[int]:
    for edge_type, bounds in edges.items():
        if 0 <= hop < len(bounds) - 1:
            yield from (extent.reach(edge_type, end, hop, bounds[hop]) for end in (0, 1) if edge_type[2 * end] == node_type)


def check_paddable(plan: LoaderPlan, schema: GraphSchema) -> None:
    """Checks that batches of a plan can be padded, if they are to be.

    Raises:
        PlanError: They cannot.
    """
    if plan.form.pad is None:
        return
    if plan.backend["kind"] == "Glt":
        raise PlanError(f"pad={_said(plan)}, and batches from Glt() differ from run to run", "use another backend, or leave pad out")
    for types, mask in ((schema.node_types, NODE_MASK), (schema.edge_types, EDGE_MASK)):
        for owner, values in types.items():
            if mask in values.arrays:
                raise PlanError(f"pad={_said(plan)}, and {owner!r} have an array {mask!r}, the name of a padded batch's mask", "rename it")
            for name, spec in values.arrays.items():
                if spec.dim:
                    raise PlanError(f"pad={_said(plan)}, and rows of {name!r} of {owner!r} lie along the dimension {spec.dim}", "delete it")


def with_shapes(plan: LoaderPlan, stream: BatchStream, num_batches: int, events: EventSink) -> LoaderPlan:
    """The plan with the shapes that its batches are padded to, unless it says them already.

    Batches of epoch 0 tell the sizes, whatever the rank: every rank samples the same ones.

    Args:
        plan: The plan.
        stream: Where its batches come from; its epoch does not advance.
        num_batches: Batches of an epoch of all ranks.
        events: Receives the stage "shapes".

    Raises:
        PlanError: There is no batch, or the sizes that were asked for are of other types.
    """
    if plan.form.pad is None or plan.form.shapes:
        return plan
    count = min(_TRIALS, num_batches)
    if not count:
        raise PlanError(f"pad={_said(plan)}, and an epoch has no batch to find sizes from", "see input_nodes, or leave pad out")
    found: list[tuple[int, Extent]] = []
    with Stage(events, "shapes", total=count, unit="batches") as stage:
        for trial in range(count):
            contents = contents_of(stream.sample_now(0, (2 * trial + 1) * num_batches // (2 * count)))
            found.append((contents.num_seeds, Extent.of(contents)))
            stage.advance()
        most = max(num_seeds for num_seeds, _ in found)
        extents = [extent for num_seeds, extent in found if num_seeds == most]  # the last batch may be short
        given = plan.form.pad if isinstance(plan.form.pad, tuple) else None
        for shape in given or ():
            chosen_shape([shape], extents[0])  # checks its types
        shapes = found_shapes(extents, given)
        stage.summary = f"padding to {len(shapes)} of up to {shapes[-1].size} rows and edges"
    return replace(plan, form=replace(plan.form, shapes=shapes))


def _said(plan: LoaderPlan) -> str:
    return repr(plan.form.pad) if isinstance(plan.form.pad, str) else "[...]"


def padded(contents: BatchContents, shapes: Sequence[Shape], pool: BlockPool) -> tuple[BatchContents, Extent, int, bool]:
    """Pads a batch; its rows are copied.

    Args:
        contents: The batch.
        shapes: The planned shapes, the smallest first.
        pool: Memory for what padded batches consist of.

    Returns:
        The batch with padding, its extent without, rows and edges of padding, and whether it fits none of the planned shapes.

    Raises:
        PlanError: The shapes are of other types than the batch.
    """
    extent = Extent.of(contents)
    shape, is_oversized = chosen_shape(shapes, extent)
    writer = _PaddedWriter(contents, extent, _sizes_of(shape))
    on_device = any(tensor.is_cuda for tensor in contents.arrays.values())
    return writer.written_on_device() if on_device else writer.written(pool), extent, shape.size - extent.size, is_oversized


@dataclass(frozen=True)
class _PaddedWriter:
    """Writes the padded arrays of one batch."""

    contents: BatchContents
    extent: Extent
    shape: Sizes

    def _added(self, key: BatchKey) -> int:
        """Rows of padding of an array."""
        if key.name in _OF_INPUTS or key.type not in self.shape:  # labels of links may be of a type that was not sampled
            return 0
        return self.shape[key.type][-1] - self.extent.sizes[key.type][-1]

    def _masks(self) -> dict[BatchKey, int]:
        """The masks, and the length of each."""
        return {NodeKey(t, NODE_MASK) if isinstance(t, str) else EdgeKey(t, EDGE_MASK): bounds[-1] for t, bounds in self.shape.items()}

    def written_on_device(self) -> BatchContents:
        """The contents with padding where they are; the bytes that are added are written here and copied there."""
        import torch

        arrays = dict(self.contents.arrays)
        device = next(tensor.device for tensor in arrays.values() if tensor.is_cuda)
        for key, tensor in self.contents.arrays.items():
            if added := self._added(key):
                if key.scope == "edge" and key.name == "edge_index":
                    ends = np.empty((2, added), np.int64)
                    self._write_edges(key.type, ends)
                    arrays[key] = torch.cat([tensor, torch.from_numpy(ends).to(device)], 1)
                    continue
                more = tensor.new_zeros((added, *tensor.shape[1:]))
                if key.name == MISSING:
                    more += torch.arange(added, dtype=more.dtype, device=device) + self.extent.sizes[key.type][-1]
                elif key.scope == "node" and key.name == _ROOTS:
                    more += self.contents.num_seeds
                arrays[key] = torch.cat([tensor, more])
        for mask, length in self._masks().items():
            arrays[mask] = torch.arange(length, device=device) < self.extent.sizes[mask.type][-1]
        return self._counted(arrays)

    def written(self, pool: BlockPool) -> BatchContents:
        """The contents with padding."""
        import torch

        wanted: dict[BatchKey, tuple[torch.dtype, tuple[int, ...]]] = {}
        for key, tensor in self.contents.arrays.items():
            along = 1 if key.name == "edge_index" and key.scope == "edge" else 0
            if added := self._added(key):
                shape = tuple(tensor.shape)
                wanted[key] = tensor.dtype, (*shape[:along], shape[along] + added, *shape[along + 1 :])
        wanted |= {mask: (torch.bool, (length,)) for mask, length in self._masks().items()}
        nbytes = {key: dtype.itemsize * math.prod(size) for key, (dtype, size) in wanted.items()}
        starts = [0, *itertools.accumulate(-(-count // ALIGNMENT) * ALIGNMENT for count in nbytes.values())]
        memory = pool.lease(max(1, starts[-1]))
        block, arrays = torch.from_numpy(memory), dict(self.contents.arrays)
        for (key, (dtype, size)), start in zip(wanted.items(), starts, strict=False):
            end = start + nbytes[key]
            self._write(key, self.contents.arrays.get(key), memory[start:end])
            arrays[key] = block[start:end].view(dtype).view(size)
        return self._counted(arrays)

    def _counted(self, arrays: Mapping[BatchKey, torch.Tensor]) -> BatchContents:
        """The contents with these arrays and the shape's counts."""
        return self.contents._replace(
            arrays=arrays,
            num_sampled_nodes={t: self._counts(self.shape[t], own) for t, own in self.contents.num_sampled_nodes.items()},
            num_sampled_edges={t: self._counts(self.shape[t], own) for t, own in self.contents.num_sampled_edges.items()},
        )

    def _counts(self, bounds: Sequence[int], own: Sequence[int]) -> list[int]:
        """The shape's counts by hop; none where batches have none."""
        return _by_hop(_bounds(bounds, len(own))) if own else []

    def _write(self, key: BatchKey, tensor: torch.Tensor | None, out: NDArray[np.uint8]) -> None:
        """Writes the bytes of an array, by NumPy: threads of torch would wait for each other longer than a copy takes."""
        import torch

        if tensor is None:  # a mask
            count = self.extent.sizes[key.type][-1]
            out[:count], out[count:] = 1, 0
            return
        if key.scope == "edge" and key.name == "edge_index":
            ends = out.view(np.int64).reshape(2, -1)
            ends[:, : tensor.shape[1]] = tensor.numpy()
            self._write_edges(key.type, ends[:, tensor.shape[1] :])
            return
        count = tensor.nbytes
        out[:count] = tensor.reshape(-1).view(torch.uint8).numpy()
        if key.name == MISSING:
            out[count:].view(np.int32)[:] = np.arange(self.extent.sizes[key.type][-1], self.shape[key.type][-1])
        elif key.scope == "node" and key.name == _ROOTS:
            out[count:].view(np.int64)[:] = self.contents.num_seeds
        else:
            out[count:] = 0

    def _write_edges(self, edge_type: EdgeType, out: NDArray[np.int64]) -> None:
        """Writes edges between nodes of padding, spread over those that a layer keeps with them.

        Both ends ascend, and no node is its own neighbour where there are two.
        """
        sizes = self.extent.sizes[edge_type]
        bounds, written = _bounds(self.shape[edge_type], len(sizes)), 0
        firsts = [self.extent.sizes[edge_type[end]][-1] for end in (0, 2)]
        for hop, bound in enumerate(bounds):
            count = max(0, bound - sizes[-1]) - written
            if count <= 0:
                continue
            rooms = []
            for end, first in zip((0, 2), firsts, strict=True):
                own = _bounds(self.shape[edge_type[end]], len(self.extent.sizes[edge_type[end]]))
                is_last = hop == len(bounds) - 1
                rooms.append((own[-1] if is_last else own[hop + 1]) - first)
            shift = 1 if edge_type[0] == edge_type[2] and min(rooms) > 1 else 0
            for end in (0, 1):
                places = np.arange(count, dtype=np.int64) * (rooms[end] - shift) // count
                out[end, written : written + count] = firsts[end] + places + shift * end
            written += count
            firsts = [int(out[end, written - 1]) - shift * end for end in (0, 1)]


def real_counts(extent: Extent) -> dict[Owner, dict[str, list[int]]]:
    """Returns the attributes that say how much of a padded batch is real, by type of nodes or edges."""
    return {owner: {REAL_NODES if isinstance(owner, str) else REAL_EDGES: _by_hop(own)} for owner, own in extent.sizes.items()}


@checks_calls()
def unpad(batch: Any) -> Any:
    """Returns a batch as it would be without padding, on the same memory; one that has none as it is.

    Args:
        batch: ``Data`` or ``HeteroData``.
    """
    if not any(REAL_NODES in store for store in batch.stores):
        return batch
    from torch_geometric import EdgeIndex

    found = copy.copy(batch)
    sizes = {store._key: sum(store[REAL_NODES]) for store in batch.stores if REAL_NODES in store}
    for store, before in zip(found.stores, batch.stores, strict=True):
        for mask, real, counted in ((EDGE_MASK, REAL_EDGES, "num_sampled_edges"), (NODE_MASK, REAL_NODES, "num_sampled_nodes")):
            if real not in store:
                continue
            count = sum(store[real])
            if mask == EDGE_MASK:
                ends, edge_index = store._key or (None, None, None), store["edge_index"]
                store["edge_index"] = edge_index.narrow(1, 0, count)
                if isinstance(edge_index, EdgeIndex):
                    store["edge_index"].sparse_resize_(sizes[ends[0]], sizes[ends[2]])
            elif "num_nodes" in store:
                store["num_nodes"] = count
            for name in [name for name in before if _is_of(before, name, mask)]:
                store[name] = store[name][:count]
            if counted in store:
                store[counted] = store[real]
            del store[mask], store[real]
    return found


def _is_of(store: Any, name: str, mask: str) -> bool:
    """Whether an attribute of a padded batch has a row for each node, or for each edge, whose mask is ``mask``."""
    from torch import Tensor

    value = store[name]
    if not isinstance(value, Tensor) or not value.dim() or name in _OF_INPUTS or name == "edge_index" or len(value) != len(store[mask]):
        return False
    if NODE_MASK not in store or EDGE_MASK not in store or len(store[NODE_MASK]) != len(store[EDGE_MASK]):
        return True
    # As many nodes as edges: a batch lists its arrays of nodes before its edges, and those of edges behind them.
    names = list(store)
    is_of_edges = names.index(name) > names.index("edge_index") and name not in (_ROOTS, NODE_MASK)
    return is_of_edges == (mask == EDGE_MASK)


@dataclass(frozen=True)
class LabelReader:
    """Gives the batches of a loader ``y_positive`` and, where there are negatives, ``y_negative``.

    Attributes:
        node_type: The anchors' type.
        labels: The labels, by supervised edge type.
        output: "dict": ``{number of an anchor: int64 [k], numbers of its labels}``, for every anchor; "edge_index": int64 ``[2, e]``,
            numbers of anchors and of their labels, anchor after anchor. With several supervised types, a dict of these by edge type.
    """

    node_type: NodeType
    labels: tuple[AnchorLabels, ...]
    output: LabelOutput

    @classmethod
    def of(cls, inputs: Any) -> LabelReader | None:
        """The reader for a plan's inputs; None where they are no anchors."""
        return cls(inputs.node_type, inputs.labels, inputs.output) if isinstance(inputs, InputAnchors) else None

    def take(self, contents: BatchContents) -> tuple[BatchContents, dict[str, Any]]:
        """A batch's contents without the arrays of labels, and the attributes that are made of these."""
        arrays, found = dict(contents.arrays), {}
        for kind in LABEL_KINDS:
            by_type = {}
            for number, labels in enumerate(self.labels):
                if labels.source(kind) is not None:
                    name = label_name(number, kind)
                    counts, nodes = (arrays.pop(NodeKey(self.node_type, name + part)) for part in (LABEL_COUNTS, LABEL_NODES))
                    by_type[labels.edge_type] = self._shown(counts, nodes)
            if by_type:
                found[f"y_{kind}"] = by_type if len(self.labels) > 1 else next(iter(by_type.values()))
        return contents._replace(arrays=arrays), found

    def _shown(self, counts: torch.Tensor, nodes: torch.Tensor) -> dict[int, torch.Tensor] | torch.Tensor:
        import torch

        if self.output == "dict":
            return dict(enumerate(torch.split(nodes, counts.tolist())))
        return torch.stack([torch.repeat_interleave(counts), nodes])


# Memory for the batch that the user has and for the next one.
_BLOCKS_KEPT = 2


@dataclass(frozen=True)
class BatchBuilder:
    """Collates batches of one loader.

    Attributes:
        schema: The graph's schema.
        plan: The plan of its stream.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole node type or edge type that every batch carries, by type.
        norms: GraphSAINT's, where batches have them.
    """

    schema: GraphSchema
    plan: LoaderPlan
    extra: Mapping[str, Any]
    type_extra: Mapping[Any, Mapping[str, Any]]
    norms: SaintNorms | None = None

    def __post_init__(self) -> None:
        _ = self.dequantizer  # what it needs is loaded before the first batch

    @cached_property
    def dequantizer(self) -> Dequantizer | None:
        """Shows what batches carry quantised; None where there is nothing."""
        on_device = {NodeKey(node_type, FEATURE_NAME) for node_type in self.plan.cached}  # completed there, see FeatureCache
        every = specs_of(self.schema, self.plan.sampling.edge_dir)
        found = {key: spec.quantization for key, spec in every.items() if spec.quantization is not None and key not in on_device}
        pool = BlockPool(_BLOCKS_KEPT * len(found), pinned_for=self.plan.runtime.pin_device)
        return Dequantizer(found, pool.lease) if found else None

    @cached_property
    def dims(self) -> Mapping[BatchKey, int]:
        """The dimensions of arrays whose rows do not lie along the first one."""
        return {key: spec.dim for key, spec in specs_of(self.schema, self.plan.sampling.edge_dir).items() if spec.dim}

    @cached_property
    def pool(self) -> BlockPool:
        """Memory for padded batches."""
        return BlockPool(_BLOCKS_KEPT, pinned_for=self.plan.runtime.pin_device)

    def contents(self, subgraph: SampledSubgraph) -> BatchContents:
        """The batch's contents; with a seed mask where batches may be repeats that only pad an epoch.

        Raises:
            SamplingError: It has more nodes than a batch may have.
        """
        most = self.plan.runtime.max_nodes
        if most is not None and (count := subgraph.layout.sizes()[0]) > most:
            raise SamplingError(
                f"batch {subgraph.batch_index} of epoch {subgraph.epoch} has {count} nodes, more than max_nodes={most}",
                "a smaller batch_size, fewer num_neighbors or a larger max_nodes",
            )
        if subgraph.is_padding is None:
            return contents_of(subgraph)
        import torch

        return contents_of(subgraph, torch.full((subgraph.layout.num_seeds,), not subgraph.is_padding))

    def __call__(self, subgraph: SampledSubgraph) -> Any:
        """``Data`` or ``HeteroData``."""
        contents, extra, type_extra = self.contents(subgraph), self.extra, self.type_extra
        reader = LabelReader.of(self.plan.inputs)
        if reader is not None:
            contents, labels = reader.take(contents)
            extra = {**extra, **labels}
        if self.dequantizer is not None:
            contents = self.dequantizer(contents)
        if self.norms is not None:
            contents = self.norms.added(contents)
        if shapes := self.plan.form.shapes:
            contents, extent, subgraph.padding, subgraph.is_oversized = padded(contents, shapes, self.pool)
            real = real_counts(extent)
            if self.schema.is_homogeneous:
                extra = {**extra, **{name: value for values in real.values() for name, value in values.items()}}
            else:
                type_extra = {**type_extra, **{owner: {**type_extra.get(owner, {}), **values} for owner, values in real.items()}}
        if self.plan.form.is_edge_index:
            contents = with_edge_index(contents)
        if self.dims:
            contents = with_dims(contents, self.dims)
        return collate(contents, extra, type_extra, homogeneous=self.schema.is_homogeneous)
