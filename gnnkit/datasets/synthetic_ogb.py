"""Writes a generated graph in OGB's own raw layout, as an unpacked ``products.zip`` would be.

    python -m gnnkit.datasets.synthetic_ogb --scale 0.002 --root data/sample

makes ``data/sample/ogbn_products``, which ogb, PyG and gnnkit read like the real thing. The file ``NOTICE.gnnkit`` in it
says that it is not.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.synthetic import GeneratedSource, products_like
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE

# A tree with this file is shown with the line that it holds, wherever its name is.
NOTICE_FILE = "NOTICE.gnnkit"
SAMPLE_NOTICE = "synthetic sample, not OGB's data"
_NAME = "ogbn-products"


def write_ogb_layout(
    source: GeneratedSource, root: str | Path, name: str = _NAME, *, compresslevel: int = 6, events: EventSink = ignore_events
) -> Path:
    """Writes a generated graph under ``<root>/ogbn_products`` as OGB lays out ogbn-products; streams in bounded memory.

    Edges are written in one direction, as OGB's raw file has them: reading adds each one's inverse right behind it.

    Args:
        source: What to write.
        root: The folder to make ``ogbn_products`` in; made if it is missing.
        name: The dataset to lay it out as; only "ogbn-products" has this graph's shape.
        compresslevel: gzip's, 1 (fast) to 9 (small).
        events: Receives the stage "write".

    Returns:
        The folder made.

    Raises:
        PlanError: The folder exists, or there is no such layout.
    """
    if name != _NAME:
        raise PlanError(f"a generated graph can be laid out as {_NAME!r} only, not as {name!r}")
    target = Path(root) / name.replace("-", "_")
    if target.exists():
        raise PlanError(f"{target} exists already", "remove it first, or give another root")
    partial = target.with_name(f"{target.name}.incomplete")
    shutil.rmtree(partial, ignore_errors=True)
    splits = source.splits[HOMOGENEOUS_NODE_TYPE]
    tables: dict[str, Iterable[NDArray[Any]]] = {
        "raw/num-node-list": [np.array([[source.num_nodes]])],
        "raw/num-edge-list": [np.array([[source.num_draws]])],
        "raw/edge": (np.ascontiguousarray(chunk[:, ::2].T) for chunk in source.edge_chunks()),
        "raw/node-feat": source.node_array_chunks(HOMOGENEOUS_NODE_TYPE, "x"),
        "raw/node-label": (labels[:, None] for labels in source.node_array_chunks(HOMOGENEOUS_NODE_TYPE, "y")),
        **{f"split/sales_ranking/{split}": [ids[:, None]] for split, ids in splits.items()},
    }
    rows = 2 + source.num_draws + 3 * source.num_nodes
    try:
        with Stage(events, "write", label=str(target), total=rows, unit="rows") as stage:
            for file, chunks in tables.items():
                _write_csv_gz(partial / f"{file}.csv.gz", _counted(chunks, stage), compresslevel)
        (partial / "RELEASE_v1.txt").write_text("")
        (partial / NOTICE_FILE).write_text(f"{SAMPLE_NOTICE}\n")
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def _counted(chunks: Iterable[NDArray[Any]], stage: Stage) -> Iterator[NDArray[Any]]:
    for chunk in chunks:
        yield chunk
        stage.advance(len(chunk))


def _write_csv_gz(path: Path, chunks: Iterable[NDArray[Any]], compresslevel: int) -> None:
    """Writes rows ``[k, columns]`` without a header; the same rows give the same bytes (no name and time in the file)."""
    import pyarrow as pa
    import pyarrow.csv

    path.parent.mkdir(parents=True, exist_ok=True)
    options = pyarrow.csv.WriteOptions(include_header=False)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel, raw, mtime=0) as packed:
        for chunk in chunks:
            columns = [np.ascontiguousarray(chunk[:, j]) for j in range(chunk.shape[1])]
            pyarrow.csv.write_csv(pa.table(columns, names=[str(j) for j in range(len(columns))]), packed, options)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of this module; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gnnkit.datasets.synthetic_ogb", description="Writes a generated graph in OGB's layout."
    )
    parser.add_argument("--scale", type=float, default=0.002, help="size relative to ogbn-products (default 0.002)")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another graph (default 0)")
    parser.add_argument("--root", type=Path, required=True, help="the folder to make ogbn_products in")
    given = parser.parse_args(arguments)
    try:
        path = write_ogb_layout(products_like(given.scale, seed=given.seed), given.root)
    except GnnkitError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{path}: {SAMPLE_NOTICE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
