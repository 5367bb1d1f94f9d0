"""From a sampled batch to the PyG object that the user sees."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import interruptible
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, NodeKey, SampledSubgraph, shown_name
from gnnkit.schema import (
    ELEMENT_TYPES,
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    ArraySpec,
    EdgeDir,
    EdgeType,
    GraphSchema,
    NodeType,
    Quantization,
    reverse_edge_type,
)
from gnnkit.storage.arrays import viewed

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data, HeteroData

# The import of what batches are made of, once it has begun.
_classes: Future[None] | None = None
_classes_lock = threading.Lock()
_SLICE_S = 0.5


class BatchContents(NamedTuple):
    """The contents of a batch, wherever it was sampled and however it came.

    Attributes:
        arrays: Tensors by their keys; edge types as the batch shows them.
        num_sampled_nodes: ``{node type: [seeds, new nodes of hop 1, ...]}``, for every node type that the batch shows.
        num_sampled_edges: ``{edge type: [edges of hop 1, ...]}``, likewise.
        input_type: The type of the loader's inputs: a node type, or an edge type for links.
        num_seeds: Inputs in the batch.
        seed_mask: bool ``[num_seeds]``, False where the batch only repeats another; None where no batch of the loader can.
    """

    arrays: Mapping[BatchKey, torch.Tensor]
    num_sampled_nodes: Mapping[NodeType, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]]
    input_type: NodeType | EdgeType
    num_seeds: int
    seed_mask: torch.Tensor | None = None


def _put(store: Any, values: Mapping[str, Any]) -> None:
    """Puts attributes into an empty PyG storage at once: one by one, each costs as much as making its tensor."""
    store._mapping.update({name: value for name, value in values.items() if value is not None})


@cache
def _blank_data() -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """The classes of an empty ``Data`` and of its storage, and what both hold beside the attributes and each other."""
    from torch_geometric.data import Data

    data = Data()
    own, of_store = dict(vars(data)), dict(vars(data._store))
    del own["_store"], of_store["_mapping"], of_store["_parent"]
    return Data, type(data._store), own, of_store


def _data_of(values: dict[str, Any]) -> Data:
    """A ``Data`` of attributes that are not None, made as its own ``copy.copy`` makes one: its constructor takes four times as long."""
    data_class, store_class, own, of_store = _blank_data()
    data: Data = data_class.__new__(data_class)
    store = store_class.__new__(store_class)
    store.__dict__.update(of_store, _mapping=values, _parent=weakref.ref(data))
    data.__dict__.update(own, _store=store)
    return data


def contents_of(subgraph: SampledSubgraph, seed_mask: torch.Tensor | None = None) -> BatchContents:
    """A sampled batch's contents, on the batch's own memory.

    Args:
        subgraph: The sampled batch.
        seed_mask: See ``BatchContents``.
    """
    import torch

    layout, as_tensor, arrays = subgraph.layout, torch.from_numpy, subgraph.tensors
    if not arrays:
        arrays = {
            key: viewed(as_tensor(array), dtype) if dtype in ELEMENT_TYPES else as_tensor(array)
            for (key, dtype, _, _), array in zip(layout.fields, subgraph.views(layout.fields), strict=True)
        }
    return BatchContents(arrays, layout.num_sampled_nodes, layout.num_sampled_edges, layout.input_type, layout.num_seeds, seed_mask)


def with_edge_index(contents: BatchContents) -> BatchContents:
    """The contents with PyG's ``EdgeIndex`` in the place of plain tensors.

    Each says how many nodes its types have, and its sort order: "col" where targets ascend, as they do in all batches that list edges for
    one node after another; "row" where sources do, as with PPR; None where neither does.
    """
    from torch_geometric import EdgeIndex

    arrays = dict(contents.arrays)
    for key, tensor in contents.arrays.items():
        if key.scope == "edge" and key.name == "edge_index":
            first, _, last = key.type
            size = len(arrays[NodeKey(first, "n_id")]), len(arrays[NodeKey(last, "n_id")])
            # Not by torch where it need not be, whose threads wait for each other longer than this takes.
            sources, targets = tensor if tensor.is_cuda else tensor.numpy()
            order = next((name for name, row in (("col", targets), ("row", sources)) if bool((row[1:] >= row[:-1]).all())), None)
            arrays[key] = EdgeIndex(tensor, sparse_size=size, sort_order=order)
    return contents._replace(arrays=arrays)


class Dequantizer:
    """Shows a batch's quantised arrays as the float32 that they stand for.

    Args:
        quantizations: What their numbers stand for, by what batches call the arrays.
        lease: Gives memory, uint8 of at least the bytes that it is asked for. It is written once, and the batch's from then on.
    """

    def __init__(self, quantizations: Mapping[BatchKey, Quantization], lease: Callable[[int], NDArray[np.uint8]]) -> None:
        # Here, so that nothing is compiled or loaded in the middle of an epoch.
        from gnnkit.storage.convert import dequantize_rows  # kernels

        self._rows = dequantize_rows
        self._rows(np.empty((0, 0), np.uint8), Quantization((), ()))
        self._quantizations, self._lease = dict(quantizations), lease

    def __call__(self, contents: BatchContents) -> BatchContents:
        """The contents with float32 in the place of uint8."""
        import torch

        arrays = dict(contents.arrays)
        for key, quantization in self._quantizations.items():
            # A sampler of another library may give numbers already.
            if key in arrays and arrays[key].dtype == torch.uint8:
                rows, columns = arrays[key].numpy(), len(quantization.scale)
                nbytes = 4 * columns * len(rows)
                out = self._lease(nbytes)[:nbytes].view(np.float32).reshape(len(rows), columns)
                arrays[key] = torch.from_numpy(self._rows(rows, quantization, out))
        return contents._replace(arrays=arrays)


def specs_of(schema: GraphSchema, edge_dir: EdgeDir) -> dict[BatchKey, ArraySpec]:
    """Returns the specifications of a graph's arrays by the arrays' keys in batches.

    Args:
        schema: The graph's schema.
        edge_dir: The direction in which it is sampled.
    """
    found: dict[BatchKey, ArraySpec] = {}
    for node_type, nodes in schema.node_types.items():
        found |= {NodeKey(node_type, shown_name(name)): spec for name, spec in nodes.arrays.items()}
    for edge_type, edges in schema.edge_types.items():
        shown = edge_type if edge_dir == "in" or schema.is_homogeneous else reverse_edge_type(edge_type)
        found |= {EdgeKey(shown, shown_name(name)): spec for name, spec in edges.arrays.items()}
    return found


def with_dims(contents: BatchContents, dims: Mapping[BatchKey, int]) -> BatchContents:
    """The contents with rows along the dimensions that the graph has them along, ``ArraySpec.dim``."""
    moved = {key: contents.arrays[key].movedim(0, dim).contiguous() for key, dim in dims.items() if key in contents.arrays}
    return contents._replace(arrays={**contents.arrays, **moved})


@interruptible("the import of PyTorch and PyG")
def is_importing() -> bool:
    """Whether a batch waits for the import of what it is made of."""
    return _classes is not None and not _classes.done()


def load_batch_classes(events: EventSink = ignore_events) -> None:
    """Imports what batches are made of: seconds, the first time in a process, of which ``events`` receives the stage "import".

    An interrupt ends the wait, not the import: torch that was imported by half cannot be imported any more. A thread does it, which
    a process that ends waits for.
    """
    global _classes
    with _classes_lock:
        if _classes is None or (_classes.done() and _classes.exception() is not None):
            importing: Future[None] = Future()
            threading.Thread(target=_import_classes, args=(importing,), name="gnnkit-import").start()
            _classes = importing  # only once it runs: nothing would end a wait for one that never began
        importing = _classes
    wait([importing], timeout=_SLICE_S)
    if not importing.done():
        with Stage(events, "import", label="torch and PyG, of which batches are made"):
            while not importing.done():  # in slices: an interrupt in the moment in which a wait without an end begins would not end it
                wait([importing], timeout=_SLICE_S)
    importing.result()


def _import_classes(classes: Future[None]) -> None:
    try:
        import torch_geometric.data  # noqa: F401
    except BaseException as error:  # for the thread that waits
        classes.set_exception(error)
    else:
        classes.set_result(None)


def collate(
    contents: BatchContents,
    extra: Mapping[str, Any],
    type_extra: Mapping[Any, Mapping[str, Any]],
    *,
    homogeneous: bool,
    dequantize: Dequantizer | None = None,
) -> Data | HeteroData:
    """Builds what PyG's ``NeighborLoader`` would give.

    Args:
        contents: What the batch consists of.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole node type or edge type that every batch carries, by type.
        homogeneous: Whether the batch shows one node type and one edge type.
        dequantize: Shows quantised arrays as float32; None where there are none.

    Returns:
        ``Data`` for a homogeneous graph, otherwise ``HeteroData``; ``docs/batches.md`` lists the attributes.
    """
    contents = contents if dequantize is None else dequantize(contents)
    return _collate_homogeneous(contents, extra) if homogeneous else _collate_typed(contents, extra, type_extra)


def _collate_homogeneous(contents: BatchContents, extra: Mapping[str, Any]) -> Data:
    values = {name: value for name, value in extra.items() if value is not None}
    for (_, name, _), tensor in contents.arrays.items():
        values[name] = tensor
    if "x" not in values:
        values["num_nodes"] = len(values["n_id"])
    if isinstance(contents.input_type, str):  # as in PyG, batches of links have none
        values["batch_size"] = contents.num_seeds
    # As in PyG, where hops mean nothing there are no counts.
    if contents.num_sampled_nodes[HOMOGENEOUS_NODE_TYPE]:
        values["num_sampled_nodes"] = contents.num_sampled_nodes[HOMOGENEOUS_NODE_TYPE]
    if contents.num_sampled_edges.get(HOMOGENEOUS_EDGE_TYPE):
        values["num_sampled_edges"] = contents.num_sampled_edges[HOMOGENEOUS_EDGE_TYPE]
    if contents.seed_mask is not None:
        values["seed_mask"] = contents.seed_mask
    return _data_of(values)


def _collate_typed(contents: BatchContents, extra: Mapping[str, Any], type_extra: Mapping[Any, Mapping[str, Any]]) -> HeteroData:
    from torch_geometric.data import HeteroData

    of_type: dict[Any, dict[str, Any]] = {owner: dict(values) for owner, values in type_extra.items()}
    for key, tensor in contents.arrays.items():
        of_type.setdefault(key.type, {})[key.name] = tensor
    for node_type, counts in contents.num_sampled_nodes.items():
        own = of_type.setdefault(node_type, {})
        if counts:
            own["num_sampled_nodes"] = counts
        if NodeKey(node_type, "x") not in contents.arrays:
            own["num_nodes"] = len(own["n_id"])
    for edge_type, counts in contents.num_sampled_edges.items():
        if counts:
            of_type.setdefault(edge_type, {})["num_sampled_edges"] = counts
    if isinstance(contents.input_type, str):
        of_type[contents.input_type]["batch_size"] = contents.num_seeds
    if contents.seed_mask is not None:
        of_type[contents.input_type]["seed_mask"] = contents.seed_mask
    data = HeteroData()
    for name, value in extra.items():
        data[name] = value
    for owner, values in of_type.items():
        _put(data[owner], values)
    return data
