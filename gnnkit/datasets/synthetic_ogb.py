"""Writes a generated graph in OGB's own raw layout, as an unpacked ``products.zip`` or ``papers100M-bin.zip`` would be.

``write_ogb_layout(products_like(0.002), "data/sample")`` makes ``data/sample/ogbn_products``, which ogb, PyG and gnnkit read like the
real thing. The file ``NOTICE.gnnkit`` in it says that it is not.
"""

from __future__ import annotations

import gzip
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.datasets.ogb import NOTICE_FILE
from gnnkit.datasets.synthetic import PRODUCTS, GeneratedSource
from gnnkit.errors import PlanError, on_error
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import user_path
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE

SAMPLE_NOTICE = "synthetic sample, not OGB's data"


@checks_calls()
def write_ogb_layout(
    source: GeneratedSource, root: str | Path, name: str | None = None, *, compresslevel: int = 6, events: EventSink = ignore_events
) -> Path:
    """Writes a generated graph under ``<root>/ogbn_products`` or ``<root>/ogbn_papers100M``, as OGB lays these out; in bounded memory.

    Of ``products_like`` edges are written in one direction, as OGB's raw file has them: reading adds each one's inverse right behind it.
    ``papers_like`` becomes ``data.npz`` and ``node-label.npz``, in which a node without a label has NaN; its "node_year" is left out.

    Args:
        source: What to write.
        root: The folder to make the dataset's in; made if it is missing.
        name: The dataset to lay it out as: the one whose shape the graph has, which is the default.
        compresslevel: That of gzip and zip, 1 (fast) to 9 (small); 0 stores.
        events: Receives the stage "write".

    Returns:
        The folder made.

    Raises:
        PlanError: The folder exists, or there is no such layout.
    """
    if name not in (None, source.shape.dataset):
        raise PlanError(f"{source.name} can be laid out as {source.shape.dataset!r} only, not as {name!r}")
    if source.shape.both_directions and source.shape is not PRODUCTS:
        raise PlanError(
            f"{source.name} has each edge in both directions, and the files of {source.shape.dataset} in one", "undirected=False"
        )
    target = user_path(root) / source.shape.dataset.replace("-", "_")
    if target.exists():
        raise PlanError(f"{target} exists already", "remove it first, or give another root")
    partial = target.with_name(f"{target.name}.incomplete")
    shutil.rmtree(partial, ignore_errors=True)
    write = _write_products if source.shape is PRODUCTS else _write_papers
    with on_error(lambda: shutil.rmtree(partial, ignore_errors=True)):
        write(source, partial, compresslevel, events)
        (partial / "processed").mkdir()  # where ogb's own reader keeps what it has read, and which it does not make
        (partial / "RELEASE_v1.txt").write_text("")
        (partial / NOTICE_FILE).write_text(f"{SAMPLE_NOTICE}\n")
        partial.rename(target)
    return target


def _write_products(source: GeneratedSource, folder: Path, compresslevel: int, events: EventSink) -> None:
    tables: dict[str, Iterable[NDArray[Any]]] = {
        "raw/num-node-list": [np.array([[source.num_nodes]])],
        "raw/num-edge-list": [np.array([[source.num_draws]])],
        "raw/edge": (np.ascontiguousarray(chunk[:, ::2].T) for chunk in source.edge_chunks()),
        "raw/node-feat": source.node_array_chunks(HOMOGENEOUS_NODE_TYPE, "x"),
        "raw/node-label": (labels[:, None] for labels in source.node_array_chunks(HOMOGENEOUS_NODE_TYPE, "y")),
        **_split_tables(source, "sales_ranking"),
    }
    rows = 2 + source.num_draws + 3 * source.num_nodes
    with Stage(events, "write", label=str(folder), total=rows, unit="rows") as stage:
        for file, chunks in tables.items():
            _write_csv_gz(folder / f"{file}.csv.gz", _counted(chunks, stage), compresslevel)


def _write_papers(source: GeneratedSource, folder: Path, compresslevel: int, events: EventSink) -> None:
    num_nodes, num_edges = source.num_nodes, source.num_draws
    # The second row of edge_index begins where the whole first one ends: edges are generated once for each.
    ends = (np.ascontiguousarray(chunk[end]) for end in (0, 1) for chunk in source.edge_chunks())
    data = {
        "edge_index": ((2, num_edges), ends),
        "node_feat": ((num_nodes, source.shape.num_features), source.node_array_chunks(HOMOGENEOUS_NODE_TYPE, "x")),
        "num_nodes_list": ((1,), [np.array([num_nodes])]),
        "num_edges_list": ((1,), [np.array([num_edges])]),
    }
    labels = (np.where(y < 0, np.float32(np.nan), y.astype(np.float32)) for y in source.node_array_chunks(HOMOGENEOUS_NODE_TYPE, "y"))
    splits = _split_tables(source, "time")
    rows = 2 + 2 * num_edges + 2 * num_nodes + sum(len(rows) for (rows,) in splits.values())
    with Stage(events, "write", label=str(folder), total=rows, unit="rows") as stage:
        _write_npz(folder / "raw/data.npz", data, compresslevel, stage)
        _write_npz(folder / "raw/node-label.npz", {"node_label": ((num_nodes, 1), labels)}, compresslevel, stage)
        for file, chunks in splits.items():
            _write_csv_gz(folder / f"{file}.csv.gz", _counted(chunks, stage), compresslevel)


def _split_tables(source: GeneratedSource, split: str) -> dict[str, list[NDArray[Any]]]:
    return {f"split/{split}/{name}": [ids[:, None]] for name, ids in source.splits[HOMOGENEOUS_NODE_TYPE].items()}


def _write_npz(path: Path, arrays: Mapping[str, tuple[tuple[int, ...], Iterable[NDArray[Any]]]], compresslevel: int, stage: Stage) -> None:
    """Writes arrays of given shapes, each from chunks that follow each other in C order; the same arrays give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    method = zipfile.ZIP_DEFLATED if compresslevel else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method, compresslevel=compresslevel) as archive:
        for name, (shape, chunks) in arrays.items():
            item = zipfile.ZipInfo(f"{name}.npy")  # of a fixed date
            item.compress_type, item._compresslevel = method, compresslevel  # type: ignore[attr-defined]
            with archive.open(item, "w", force_zip64=True) as file:
                for number, chunk in enumerate(_counted(chunks, stage)):
                    if not number:
                        header = {"descr": np.lib.format.dtype_to_descr(chunk.dtype), "fortran_order": False, "shape": shape}
                        np.lib.format.write_array_header_1_0(file, header)
                    file.write(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data)


def _counted(chunks: Iterable[NDArray[Any]], stage: Stage) -> Iterator[NDArray[Any]]:
    for chunk in chunks:
        yield chunk
        stage.advance(len(chunk))


def _write_csv_gz(path: Path, chunks: Iterable[NDArray[Any]], compresslevel: int) -> None:
    """Writes rows ``[k, columns]`` without a header; the same rows give the same bytes (no name and time in the file)."""
    import pyarrow as pa  # heavy
    import pyarrow.csv  # heavy

    path.parent.mkdir(parents=True, exist_ok=True)
    options = pyarrow.csv.WriteOptions(include_header=False)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel, raw, mtime=0) as packed:
        for chunk in chunks:
            columns = [np.ascontiguousarray(chunk[:, j]) for j in range(chunk.shape[1])]
            pyarrow.csv.write_csv(pa.table(columns, names=[str(j) for j in range(len(columns))]), packed, options)
