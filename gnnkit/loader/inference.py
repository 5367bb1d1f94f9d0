"""Inference over the whole graph, layer by layer, and the files of embeddings that it writes."""

from __future__ import annotations

import contextlib
import fcntl
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
from gnnkit.errors import PlanError, StoreError
from gnnkit.events import EventSink, Stage
from gnnkit.files import is_at, user_path, why_unwritable
from gnnkit.loader.inputs import resolve_input_nodes
from gnnkit.loader.pipeline import Pipeline
from gnnkit.plan import Batching, InputNodes, LoaderPlan, NeighborSampling
from gnnkit.printable import printable_line
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.runs import RunFolder, new_run
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE, NodeType, is_label_edge_type
from gnnkit.storage.arrays import dtype_name
from gnnkit.storage.files import ArrayWriter, FileEntry, FileSpec, open_array, sync
from gnnkit.storage.layout import file_name

_INCOMPLETE = ".incomplete"


class Embeddings(Mapping[NodeType, NDArray[Any]]):
    """Embeddings of nodes on disk, ``{node type: [n, ...]}``, mapped read-only.

    Row ``i`` belongs to node ``i`` of the type, or to the ``i``-th of the input nodes where some were given. Of a graph of one node type,
    ``embeddings.array`` is the only array, and NumPy takes the object for it: ``np.asarray(embeddings)``.

    Args:
        path: The folder.
        entries: The file of each type, by path relative to the folder.
        owned: The temporary folder that goes with this object, or None.

    Attributes:
        path: The folder that holds the files.
    """

    def __init__(self, path: Path, entries: Mapping[NodeType, tuple[str, FileEntry]], owned: RunFolder | None = None) -> None:
        self.path = path
        self._arrays = {node_type: open_array(path, name, entry)[0] for node_type, (name, entry) in entries.items()}
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


class LayerFiles:
    """The files of one layer while they are written.

    Args:
        root: The folder of all layers.
        number: The layer's number, from 1.
    """

    def __init__(self, root: Path, number: int) -> None:
        self.root, self.folder = root, f"layer{number}"
        self.entries: dict[NodeType, tuple[str, FileEntry]] = {}
        self._writers: dict[NodeType, ArrayWriter] = {}

    def spec(self, node_type: NodeType) -> FileSpec | None:
        """Returns the dtype and shape of the file of a type; None before its first rows."""
        writer = self._writers.get(node_type)
        return None if writer is None else writer.spec

    def write(self, node_type: NodeType, first: int, rows: NDArray[Any], num_rows: int) -> None:
        """Writes the rows from number ``first`` on; the type's first ones decide dtype and shape of its file of ``num_rows`` rows."""
        with _told(self.root):
            if node_type not in self._writers:
                spec = FileSpec(rows.dtype, (num_rows, *rows.shape[1:]))
                self._writers[node_type] = ArrayWriter(self.root, f"{self._name(node_type)}{_INCOMPLETE}", spec)
            self._writers[node_type].write(first, rows)

    def finish(self, node_type: NodeType) -> None:
        """Gives the file of a type its name: all of its rows are there, and on the disk."""
        if node_type not in self._writers:
            return
        writer, name = self._writers[node_type], self._name(node_type)
        entry = writer.finish()
        with _told(self.root):
            sync(writer.path)
            writer.path.rename(self.root / name)
        self.entries[node_type] = (name, entry)

    def arrays(self) -> dict[NodeType, NDArray[Any]]:
        """The finished files, mapped."""
        return {node_type: open_array(self.root, name, entry)[0] for node_type, (name, entry) in self.entries.items()}

    def remove(self) -> None:
        """Gives the disk space back; arrays that map the files stay valid."""
        shutil.rmtree(self.root / self.folder)

    def _name(self, node_type: NodeType) -> str:
        return f"{self.folder}/{file_name(node_type)}.npy"


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
        try:
            yield owned.path, owned
        except BaseException:
            owned.close()
            raise
        return
    target = user_path(out)
    _check_free(target)
    folder = target.with_name(target.name + _INCOMPLETE)
    with _told(target):
        claim = _claim(folder)
    try:
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
        os.close(claim)


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


def _claim(folder: Path) -> int:
    """Makes the folder, empty, for this process alone, until the descriptor is closed: the system takes it from a process that dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that had it before may have renamed or removed it meanwhile.
            if is_at(descriptor, folder):
                for path in folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                return descriptor
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise PlanError(f"another process is writing {folder}", "wait for it, or name another folder: out=...") from None
            raise
        os.close(descriptor)


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
        inputs = resolve_input_nodes(input_nodes, graph)
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
        files = LayerFiles(folder, 0)
        for number, layer in enumerate(layers, 1):
            before, files = files, LayerFiles(folder, number)
            siblings = ends if number == len(layers) else every
            total = sum(sibling.batches.num_seeds for sibling in siblings.values())
            with Stage(events, "inference", label=f"layer {number} of {len(layers)}", total=total, unit="nodes") as stage:
                run = _LayerRun(layer, number, before.arrays() if number > 1 else None, files, stage)
                for node_type, sibling in siblings.items():
                    run.of_type(node_type, sibling)
            if number > 1 and not keep_layers:
                before.remove()
        if not files.entries:
            raise PlanError(
                f"the last layer gave no embeddings of any node type of {list(ends)}", "it must return a tensor, or a dict of them"
            )
        made = files.entries
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
        files: Where its rows go.
        stage: Progress, in nodes.
    """

    def __init__(self, layer: Layer, number: int, before: Mapping[NodeType, NDArray[Any]] | None, files: LayerFiles, stage: Stage) -> None:
        self._layer, self._number, self._before, self._files, self._stage = layer, number, before, files, stage

    def of_type(self, node_type: NodeType, sibling: Pipeline) -> None:
        """The layer's rows for all inputs of a loader, which are nodes of one type."""
        num_rows, done = sibling.batches.num_seeds, 0
        # A type without nodes has embeddings of a width too.
        batches = sibling if num_rows else [sibling.sample(np.empty(0, np.int64))]
        for batch in batches:
            rows, count = self._rows(batch, node_type, sibling)
            has_none = rows is None
            if done and has_none != (self._files.spec(node_type) is None):
                raise self._wrong(f"rows of {node_type!r} for some batches and none for others")
            if rows is not None:
                self._check_alike(node_type, rows)
                self._files.write(node_type, done, rows, num_rows)
            done += count
            self._stage.advance(count)
        assert done == num_rows, (done, num_rows)
        self._files.finish(node_type)

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

    def _check_alike(self, node_type: NodeType, rows: NDArray[Any]) -> None:
        spec = self._files.spec(node_type)
        if spec is not None and (spec.dtype, spec.shape[1:]) != (rows.dtype, rows.shape[1:]):
            before, now = (f"{dtype} {list(shape)}" for dtype, shape in ((spec.dtype, spec.shape[1:]), (rows.dtype, rows.shape[1:])))
            raise self._wrong(f"rows of {now} of {node_type!r} after rows of {before}")

    def _wrong(self, what: str, hint: str = "a layer returns a row for each seed: the first batch_size nodes of its batch") -> PlanError:
        return PlanError(f"layer {self._number} returned {what}", hint)
