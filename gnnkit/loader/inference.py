"""Inference over the whole graph, layer by layer, and the files of embeddings that it writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.bounds import check_flag
from gnnkit.errors import PlanError, StoreError, on_error
from gnnkit.events import EventSink, Stage
from gnnkit.files import give_up_lock, take_lock, user_path, why_unwritable
from gnnkit.loader.inputs import resolve_input_nodes
from gnnkit.loader.pipeline import Pipeline
from gnnkit.plan import Batching, InputNodes, LoaderPlan, NeighborSampling
from gnnkit.printable import printable_line
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.runs import RunFolder, new_run
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE, NodeType, is_label_edge_type
from gnnkit.splits import split_index_of
from gnnkit.storage.arrays import dtype_name
from gnnkit.storage.files import ArrayWriter, FileEntry, FileSpec, open_array, sync
from gnnkit.storage.layout import file_name
from gnnkit.storage.staging import remove_tree

# Of each type its file, by path relative to the folder.
Files = dict[NodeType, tuple[str, FileEntry]]


class Embeddings(Mapping[NodeType, NDArray[Any]]):
    """Embeddings of nodes on disk, ``{node type: [n, ...]}``, mapped read-only.

    Row ``i`` belongs to node ``i`` of the type, or to the ``i``-th of the input nodes where some were given. Of a graph of one node type,
    ``embeddings.array`` is the only array, and NumPy takes the object for it: ``np.asarray(embeddings)``.

    Args:
        path: The folder.
        files: The file of each type, by path relative to the folder.
        owned: The temporary folder that goes with this object, or None.

    Attributes:
        path: The folder that holds the files.
    """

    def __init__(self, path: Path, files: Files, owned: RunFolder | None = None) -> None:
        self.path = path
        self._arrays = {node_type: open_array(path, *file)[0] for node_type, file in files.items()}
        for array in self._arrays.values():
            array.flags.writeable = False
        if owned is not None:
            weakref.finalize(self, _remove, owned, os.getpid())

    @property
    def array(self) -> NDArray[Any]:
        """The only array.

        Raises:
            PlanError: There are several.
        """
        if len(self._arrays) != 1:
            raise PlanError(f"there are embeddings of several node types: {list(self._arrays)}", "name one: embeddings['type']")
        (array,) = self._arrays.values()
        return array

    def __getitem__(self, node_type: NodeType) -> NDArray[Any]:
        return self._arrays[node_type]

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False and dtype not in (None, self.array.dtype):
            raise ValueError(f"{self.array.dtype} becomes {dtype} by copying only")
        return np.array(self.array, dtype, copy=bool(copy) or dtype not in (None, self.array.dtype))

    def __repr__(self) -> str:
        shapes = ", ".join(f"{node_type}: {array.dtype} {list(array.shape)}" for node_type, array in self._arrays.items())
        return printable_line(f"Embeddings({shapes}, {str(self.path)!r})")


@contextlib.contextmanager
def embeddings_folder(out: str | Path | None, name: str) -> Iterator[tuple[Path, RunFolder | None]]:
    """Yields an empty folder that becomes ``out`` when the block ends well, and is gone when it does not.

    While the block runs, the folder is ``<out>.incomplete``; what a killed process has left there is thrown away.

    Args:
        out: The folder; None is a temporary one, which stays until it is closed. What a killed process has left goes with the next.
        name: What the graph is called, for the record of a temporary folder.

    Raises:
        PlanError: ``out`` exists, or another process is writing it.
        StoreError: It cannot be written, or the disk is full.
    """
    if out is None:
        from gnnkit.storage.catalog import temporary_data  # partitioners

        owned = new_run(None, {"embeddings": name}, root=temporary_data())
        with on_error(owned.close):
            yield owned.path, owned
        return
    target = user_path(out)
    _check_free(target)
    folder, lock = target.with_name(f"{target.name}.incomplete"), target.with_name(f".{target.name}.lock")
    with _told(target):
        folder.parent.mkdir(parents=True, exist_ok=True)
        held = take_lock(lock)
    if held is None:
        raise PlanError(f"another process is writing {folder}", "wait for it, or name another folder: out=...")
    try:
        with _told(target):
            remove_tree(folder)
            folder.mkdir()
        yield folder, None
        _check_free(target)
        with _told(target):
            sync(folder)
            folder.rename(target)
            sync(target.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        give_up_lock(lock, held)


def _check_free(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise PlanError(f"out={str(target)!r} exists", "remove it, or name another folder: nothing is overwritten")


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turns errors of the system into the user's."""
    try:
        yield
    except OSError as error:
        what = why_unwritable(error, path)
        raise StoreError(
            f"embeddings cannot be written to {path}: {what}; nothing was left behind", "name another folder: out=..."
        ) from error


def _remove(folder: RunFolder, owner: int) -> None:
    if os.getpid() == owner:
        folder.close()


Layer = Callable[[Any], Any]
# What a layer may give: types that NumPy has too.
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def infer(
    loader: Pipeline,
    layers: list[Layer],
    out: str | Path | None,
    input_nodes: Any,
    batching: tuple[int | None, Any],
    keep_layers: bool,
    events: EventSink,
) -> Embeddings:
    """Runs a model's layers over all nodes; see ``GraphLoader.inference``.

    Args:
        loader: Whose graph, backend and device are used.
        layers: What ``check_layers`` has returned.
        out: As for ``GraphLoader.inference``.
        input_nodes: As for ``GraphLoader.inference``.
        batching: Batch size and device; None in either place is the loader's.
        keep_layers: As for ``GraphLoader.inference``.
        events: Receives the stage "inference".

    Raises:
        PlanError: ``out`` exists, or another process writes it, or a layer returns something else than rows of nodes.
        StoreError: The embeddings cannot be written.
    """
    graph = loader.graph
    node_types = list(graph.arrays.schema.node_types)
    everything = {node_type: resolve_input_nodes((node_type, None), graph) for node_type in node_types}
    last = everything
    if input_nodes is not None:
        inputs = resolve_input_nodes(input_nodes, graph, split_index=split_index_of(loader.plan.inputs.split))
        last = {inputs.node_type: inputs}
    with ExitStack() as stack, embeddings_folder(out, graph.name) as (folder, owned):
        plan, (batch_size, device) = loader.plan, batching
        sampling = NeighborSampling(_all_neighbors(plan, graph), edge_dir=plan.sampling.edge_dir, with_edge=plan.sampling.with_edge)
        steps = Batching(plan.batching.batch_size if batch_size is None else batch_size, seed=plan.batching.seed)
        # Those of gnnkit.pyg put attributes of a user's in the place of ids, which rows of the layer before are found by.
        transform = getattr(loader.transform, "keeping_ids", loader.transform)
        options: dict[str, Any] = {"backend": loader.backend, "transform": transform, "cache": loader.cache}
        options["device"] = loader.device if device is None else device

        def open_(inputs: InputNodes) -> Pipeline:
            """A loader of one hop and every neighbour that visits the inputs in their order, each once."""
            own = replace(plan, inputs=inputs, sampling=sampling, batching=steps)
            return stack.enter_context(Pipeline(own, graph, events, **options))

        every = {node_type: open_(inputs) for node_type, inputs in everything.items()} if len(layers) > 1 or last is everything else {}
        ends = every if last is everything else {node_type: open_(inputs) for node_type, inputs in last.items()}
        made: Files = {}
        for number, layer in enumerate(layers, 1):
            before = {node_type: open_array(folder, *file)[0] for node_type, file in made.items()} if number > 1 else None
            siblings = ends if number == len(layers) else every
            total = sum(sibling.batches.inputs.num_inputs for sibling in siblings.values())
            with Stage(events, "inference", label=f"layer {number} of {len(layers)}", total=total, unit="nodes") as stage:
                run = _LayerRun(layer, number, before, folder, stage)
                for node_type, sibling in siblings.items():
                    run.of_type(node_type, sibling)
            made = run.files
            if number > 1 and not keep_layers:
                shutil.rmtree(folder / f"layer{number - 1}", ignore_errors=True)  # arrays that map its files stay valid
        if not made:
            raise PlanError(
                f"the last layer gave no embeddings of any node type of {list(ends)}", "it must return a tensor, or a dict of them"
            )
    path = folder if owned is not None else user_path(str(out))
    return Embeddings(path, made, owned)


def check_layers(layers: Any, out: Any, keep_layers: Any) -> list[Layer]:
    """The layers as a list; refuses what can be found out before anything is opened."""
    if not (out is None or isinstance(out, (str, Path))):
        raise PlanError(f"out must be the path of a folder, or None for a temporary one, got {out!r}")
    check_flag("keep_layers", keep_layers)
    if not hasattr(layers, "__iter__"):
        raise PlanError(f"layers must be a list of functions of a batch, got {layers!r}", "layers=[function] is a model of one layer")
    functions: list[Layer] = list(layers)
    if not functions:
        raise PlanError("layers is empty", "give one function of a batch for each layer of the model")
    for number, layer in enumerate(functions, 1):
        if not callable(layer):
            raise PlanError(f"layer {number} must be a function of a batch, got {layer!r}")
    return functions


def _all_neighbors(plan: LoaderPlan, graph: GraphHandle) -> dict[Any, tuple[int, ...]]:
    """One hop along every edge type that holds no labels and that the loader does not leave out."""
    given = plan.sampling.num_neighbors if isinstance(plan.sampling, NeighborSampling) else {}
    return {t: (0 if is_label_edge_type(t) or not any(given.get(t, (-1,))) else -1,) for t in graph.arrays.schema.edge_types}


class _LayerRun:
    """One layer over all nodes.

    Args:
        layer: The function.
        number: Its number, from 1.
        before: ``{node type: rows of the layer before}``; None for the first one, which sees the graph's own features.
        root: The folder of all layers.
        stage: Progress, in nodes.

    Attributes:
        files: The finished file of each type.
    """

    def __init__(self, layer: Layer, number: int, before: Mapping[NodeType, NDArray[Any]] | None, root: Path, stage: Stage) -> None:
        self._layer, self._number, self._before, self._root, self._stage = layer, number, before, root, stage
        self.files: Files = {}

    def of_type(self, node_type: NodeType, sibling: Pipeline) -> None:
        """Writes the layer's rows for all inputs of a loader, which are nodes of one type; the first ones decide their dtype and shape."""
        num_rows, done = sibling.batches.inputs.num_inputs, 0
        name, writer = f"layer{self._number}/{file_name(node_type)}.npy", None
        # A type without nodes has embeddings of a width too.
        batches = sibling if num_rows else [sibling.sample(np.empty(0, np.int64))]
        for batch in batches:
            rows, count = self._rows(batch, node_type, sibling)
            if done and (rows is None) != (writer is None):
                raise self._wrong(f"rows of {node_type!r} for some batches and none for others")
            if rows is not None:
                with _told(self._root):
                    if writer is None:
                        writer = ArrayWriter(self._root, name, FileSpec(rows.dtype, (num_rows, *rows.shape[1:])))
                    self._check_alike(writer.spec, node_type, rows)
                    writer.write(done, rows)
            done += count
            self._stage.advance(count)
        assert done == num_rows, (done, num_rows)
        if writer is not None:
            with _told(self._root):
                self.files[node_type] = name, writer.finish()
                sync(writer.path)

    def _rows(self, batch: Any, node_type: NodeType, sibling: Pipeline) -> tuple[NDArray[Any] | None, int]:
        """The layer's rows for the seeds of a batch, and how many seeds those are."""
        import torch

        homogeneous = sibling.schema.is_homogeneous
        own = batch if homogeneous else batch[node_type]
        count, num_nodes = int(own.batch_size), int(own.n_id.numel())
        if self._before is not None:
            self._replace(batch, homogeneous)
        with torch.no_grad():
            given = self._layer(batch)
        if isinstance(given, Mapping) and not homogeneous:
            given = given.get(node_type)
        if given is None and not homogeneous:
            return None, count
        if isinstance(given, torch.Tensor) and given.layout != torch.strided:
            raise self._wrong(f"a tensor of the layout {given.layout}", ".to_dense() makes it one that can be written")
        if not isinstance(given, torch.Tensor):
            raise self._wrong(f"{type(given).__name__} where a tensor{'' if homogeneous else ' or a dict of tensors'} must be")
        dtype = dtype_name(given)
        if dtype not in _DTYPES:
            raise self._wrong(f"a tensor of {dtype}, which is none of {', '.join(_DTYPES)}", ".float() makes it one that NumPy has")
        if given.ndim == 0 or len(given) not in (count, num_nodes):
            raise self._wrong(
                f"a tensor {list(given.shape)} where a row for each of the {count} seeds, or of all {num_nodes} nodes, must be"
            )
        return given[:count].detach().cpu().numpy(), count

    def _replace(self, batch: Any, homogeneous: bool) -> None:
        """Puts the rows of the layer before in the place of the features."""
        import torch

        assert self._before is not None
        for store in [batch] if homogeneous else batch.node_stores:
            rows = self._before.get(HOMOGENEOUS_NODE_TYPE if homogeneous else store._key)
            device = store.n_id.device
            if rows is None:
                store.pop("x", None)
            else:
                store.x = torch.from_numpy(rows[store.n_id.cpu().numpy()]).to(device)

    def _check_alike(self, spec: FileSpec, node_type: NodeType, rows: NDArray[Any]) -> None:
        if (spec.dtype, spec.shape[1:]) != (rows.dtype, rows.shape[1:]):
            before, now = (f"{dtype} {list(shape)}" for dtype, shape in ((spec.dtype, spec.shape[1:]), (rows.dtype, rows.shape[1:])))
            raise self._wrong(f"rows of {now} of {node_type!r} after rows of {before}")

    def _wrong(self, what: str, hint: str = "a layer returns a row for each seed: the first batch_size nodes of its batch") -> PlanError:
        return PlanError(f"layer {self._number} returned {what}", hint)
