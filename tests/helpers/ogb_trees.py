"""Writes small trees in each of OGB's on-disk layouts, with random data, and zips them as OGB's server offers them.

The layouts are those that ``ogb.io.read_graph_raw`` reads; text is written as OGB wrote it, by plain ``repr`` of numbers.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAG_NODES = {"author": 40, "field_of_study": 15, "institution": 6, "paper": 70}
MAG_EDGES = {
    ("author", "affiliated_with", "institution"): 45,
    ("author", "writes", "paper"): 130,
    ("paper", "cites", "paper"): 160,
    ("paper", "has_topic", "field_of_study"): 25,
}
_SPLIT_NAMES = {"ogbn-products": "sales_ranking", "ogbn-proteins": "species"}
_SPECIES = (3702, 4932, 6239, 7227, 7955, 9606, 10090, 511145)


def write_tree(name: str, root: Path, *, seed: int = 0, folder: str | None = None, num_nodes: int = 60, num_edges: int = 200) -> Path:
    """Writes ``<root>/<folder>`` and returns it; sizes do not apply to ogbn-mag."""
    rng = np.random.default_rng(seed)
    path = root / (folder or name.replace("-", "_"))
    for sub in ("raw", "processed"):
        (path / sub).mkdir(parents=True)
    (path / f"RELEASE_v{2 if name == 'ogbn-mag' else 1}.txt").touch()
    if name == "ogbn-mag":
        _write_mag(path, rng)
    elif name == "ogbn-papers100M":
        _write_papers(path, rng, num_nodes, num_edges)
    else:
        _write_csv(name, path, rng, num_nodes, num_edges)
    return path


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """A ``.csv.gz`` without a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(_text, row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), 4, mtime=0))


def read_text(path: Path) -> str:
    """What is inside a ``.csv.gz``."""
    return gzip.decompress(path.read_bytes()).decode()


def rewrite(path: Path, old: str, new: str) -> None:
    """Replaces the first ``old`` in a ``.csv.gz``."""
    text = read_text(path)
    assert old in text
    path.write_bytes(gzip.compress(text.replace(old, new, 1).encode(), mtime=0))


def archive(tree: Path, top: str) -> bytes:
    """A zip of the tree, as OGB's server offers it: everything in one folder ``top``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path in sorted(tree.rglob("*")):
            name = f"{top}/{path.relative_to(tree).as_posix()}"
            if path.is_dir():
                zipped.mkdir(name) if hasattr(zipped, "mkdir") else zipped.writestr(f"{name}/", b"")
            else:
                zipped.write(path, name)
    return buffer.getvalue()


def _text(value: Any) -> str:
    # A missing value of a single column is written as pandas writes it.
    return '""' if value is None else str(value)


def _rows(values: NDArray[Any]) -> list[list[Any]]:
    return [list(row) for row in (values if values.ndim > 1 else values[:, None])]


def _features(rng: np.random.Generator, num_rows: int, width: int) -> NDArray[np.float32]:
    return np.round(rng.standard_normal((num_rows, width)), 6).astype(np.float32)


def _write_splits(folder: Path, rng: np.random.Generator, num_nodes: int) -> None:
    order = rng.permutation(num_nodes)
    bounds = [max(1, num_nodes // 5), max(2, num_nodes // 3)]
    for split, ids in zip(("train", "valid", "test"), np.split(order, bounds), strict=True):
        write_csv(folder / f"{split}.csv.gz", _rows(ids))


def _write_csv(name: str, path: Path, rng: np.random.Generator, num_nodes: int, num_edges: int) -> None:
    raw = path / "raw"
    write_csv(raw / "num-node-list.csv.gz", [[num_nodes]])
    write_csv(raw / "num-edge-list.csv.gz", [[num_edges]])
    write_csv(raw / "edge.csv.gz", _rows(rng.integers(0, num_nodes, (num_edges, 2))))
    if name == "ogbn-proteins":
        write_csv(raw / "edge-feat.csv.gz", _rows(np.round(rng.random((num_edges, 8)), 3).astype(np.float32)))
        write_csv(raw / "node_species.csv.gz", _rows(rng.choice(_SPECIES, num_nodes)))
        write_csv(raw / "node-label.csv.gz", _rows(rng.integers(0, 2, (num_nodes, 112))))
    else:
        write_csv(raw / "node-feat.csv.gz", _rows(_features(rng, num_nodes, 100 if name == "ogbn-products" else 128)))
        write_csv(raw / "node-label.csv.gz", _rows(rng.integers(0, 40, num_nodes)))
    if name == "ogbn-arxiv":
        write_csv(raw / "node_year.csv.gz", _rows(rng.integers(1971, 2021, num_nodes)))
    _write_splits(path / "split" / _SPLIT_NAMES.get(name, "time"), rng, num_nodes)


def _write_mag(path: Path, rng: np.random.Generator) -> None:
    raw, split = path / "raw", path / "split" / "time"
    types = list(MAG_NODES)
    write_csv(raw / "num-node-dict.csv.gz", [types, MAG_NODES.values()])
    write_csv(raw / "triplet-type-list.csv.gz", MAG_EDGES)
    for flags in (raw / "nodetype-has-feat.csv.gz", raw / "nodetype-has-label.csv.gz", split / "nodetype-has-split.csv.gz"):
        write_csv(flags, [types, [name == "paper" for name in types]])
    for number, (edge_type, num_edges) in enumerate(MAG_EDGES.items()):
        folder = raw / "relations" / "___".join(edge_type)
        ends = [rng.integers(0, MAG_NODES[edge_type[end]], num_edges) for end in (0, 2)]
        write_csv(folder / "edge.csv.gz", _rows(np.stack(ends, axis=1)))
        write_csv(folder / "edge_reltype.csv.gz", [[number]] * num_edges)
        write_csv(folder / "num-edge-list.csv.gz", [[num_edges]])
    num_papers = MAG_NODES["paper"]
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", _rows(_features(rng, num_papers, 128)))
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", _rows(rng.integers(2010, 2020, num_papers)))
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", _rows(rng.integers(0, 349, num_papers)))
    _write_splits(split / "paper", rng, num_papers)


def _write_papers(path: Path, rng: np.random.Generator, num_nodes: int, num_edges: int) -> None:
    raw = path / "raw"
    label = rng.integers(0, 172, (num_nodes, 1)).astype(np.float32)
    label[rng.random(num_nodes) < 0.7] = np.nan
    np.savez_compressed(
        raw / "data.npz",
        edge_index=rng.integers(0, num_nodes, (2, num_edges)),
        node_feat=_features(rng, num_nodes, 128),
        node_year=rng.integers(1900, 2020, (num_nodes, 1)),
        num_nodes_list=np.array([num_nodes]),
        num_edges_list=np.array([num_edges]),
    )
    np.savez_compressed(raw / "node-label.npz", node_label=label)
    _write_splits(path / "split" / "time", rng, num_nodes)
