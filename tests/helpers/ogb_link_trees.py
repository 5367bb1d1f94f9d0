"""Writes small trees of OGB's link datasets, with random data, in the layouts and file formats that OGB distributes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.datasets.ogb import ogb_info
from tests.helpers.ogb_trees import write_csv

LINK_NAMES = ("ogbl-biokg", "ogbl-citation2", "ogbl-collab", "ogbl-ddi", "ogbl-ppa", "ogbl-vessel", "ogbl-wikikg2")
BIOKG_NODES = {"disease": 12, "drug": 25, "protein": 30}
BIOKG_EDGES = {
    ("disease", "disease-protein", "protein"): 40,
    ("drug", "drug-drug_acidosis", "drug"): 35,
    ("drug", "drug-drug_anemia", "drug"): 30,
    ("drug", "drug-protein", "protein"): 50,
    ("protein", "protein-protein_binding", "protein"): 60,
}
NUM_NODES, NUM_EDGES, NUM_NEGATIVES = 50, 160, 7
_SIZES = {"train": 90, "valid": 20, "test": 25}


def write_link_tree(name: str, root: Path, *, seed: int = 0, saved: str = "tensors") -> Path:
    """Writes ``<root>/<folder>`` and returns it.

    Args:
        name: The dataset.
        root: The folder to make its folder in.
        seed: Another seed is other data.
        saved: How splits are saved: "tensors" (zip), "arrays" (of NumPy, in the format before torch 1.6), or "dict", one file for all.
    """
    rng = np.random.default_rng(seed)
    info = ogb_info(name)
    path = root / info.folder
    for folder in (path / "raw", path / "processed", path / "split" / info.split):
        folder.mkdir(parents=True)
    (path / f"RELEASE_v{info.version}.txt").touch()
    if info.is_hetero:
        _write_biokg(path, rng)
    elif info.is_binary:
        _write_vessel(path, rng)
    else:
        _write_csv(name, path, rng)
    save_splits({split: _split(name, split, rng) for split in _SIZES}, path / "split" / info.split, saved)
    return path


def save_splits(splits: Mapping[str, Mapping[str, Any]], folder: Path, saved: str) -> None:
    """Saves splits as one of the ways of ``write_link_tree``."""
    if saved == "dict":
        torch.save({split: dict(values) for split, values in splits.items()}, folder / "split_dict.pt", pickle_protocol=4)
        return
    for split, values in splits.items():
        if saved == "tensors":
            value = {key: torch.tensor(v) if isinstance(v, np.ndarray) else v for key, v in values.items()}
            torch.save(value, folder / f"{split}.pt")
        else:
            torch.save(dict(values), folder / f"{split}.pt", _use_new_zipfile_serialization=False)


def _split(name: str, split: str, rng: np.random.Generator) -> dict[str, Any]:
    count, held_out = _SIZES[split], split != "train"
    if name == "ogbl-biokg":
        return _biokg_split(rng, count, held_out)
    if name == "ogbl-wikikg2":
        value = {"head": _ids(rng, count), "relation": rng.integers(0, 9, count), "tail": _ids(rng, count)}
        return value | ({side: _ids(rng, (count, NUM_NEGATIVES)) for side in ("head_neg", "tail_neg")} if held_out else {})
    if name == "ogbl-citation2":
        value = {"source_node": _ids(rng, count), "target_node": _ids(rng, count)}
        return value | ({"target_node_neg": _ids(rng, (count, NUM_NEGATIVES))} if held_out else {})
    value = {"edge": _ids(rng, (count, 2))}
    if name == "ogbl-collab":
        value |= {"weight": rng.integers(1, 9, count), "year": rng.integers(1963, 2020, count)}
    return value | ({"edge_neg": _ids(rng, (2 * count, 2))} if held_out or name == "ogbl-vessel" else {})


def _ids(rng: np.random.Generator, shape: int | tuple[int, ...], high: int = NUM_NODES) -> NDArray[np.int64]:
    return rng.integers(0, high, shape)


def _biokg_split(rng: np.random.Generator, count: int, held_out: bool) -> dict[str, Any]:
    types = list(BIOKG_EDGES)
    numbers = rng.integers(0, len(types), count)
    heads, tails = ([types[number][end] for number in numbers] for end in (0, 2))
    value: dict[str, Any] = {
        "head_type": heads,
        "head": np.array([rng.integers(0, BIOKG_NODES[t]) for t in heads]),
        "relation": numbers,
        "tail_type": tails,
        "tail": np.array([rng.integers(0, BIOKG_NODES[t]) for t in tails]),
    }
    if held_out:
        value["head_neg"] = np.stack([_ids(rng, NUM_NEGATIVES, BIOKG_NODES[t]) for t in heads])
        value["tail_neg"] = np.stack([_ids(rng, NUM_NEGATIVES, BIOKG_NODES[t]) for t in tails])
    return value


def _write_csv(name: str, path: Path, rng: np.random.Generator) -> None:
    raw = path / "raw"
    write_csv(raw / "num-node-list.csv.gz", [[NUM_NODES]])
    write_csv(raw / "num-edge-list.csv.gz", [[NUM_EDGES]])
    write_csv(raw / "edge.csv.gz", _ids(rng, (NUM_EDGES, 2)))
    if name in ("ogbl-collab", "ogbl-citation2"):
        write_csv(raw / "node-feat.csv.gz", np.round(rng.standard_normal((NUM_NODES, 128)), 6).astype(np.float32))
    if name == "ogbl-ppa":  # one column for each of 58 species
        write_csv(raw / "node-feat.csv.gz", np.eye(58, dtype=np.int64)[rng.integers(0, 58, NUM_NODES)])
    if name == "ogbl-citation2":
        write_csv(raw / "node_year.csv.gz", rng.integers(1900, 2020, (NUM_NODES, 1)))
    if name == "ogbl-collab":
        write_csv(raw / "edge_weight.csv.gz", rng.integers(1, 9, (NUM_EDGES, 1)))
        write_csv(raw / "edge_year.csv.gz", rng.integers(1963, 2018, (NUM_EDGES, 1)))
    if name == "ogbl-wikikg2":
        write_csv(raw / "edge_reltype.csv.gz", rng.integers(0, 9, (NUM_EDGES, 1)))


def _write_vessel(path: Path, rng: np.random.Generator) -> None:
    np.savez_compressed(
        path / "raw" / "data.npz",
        edge_index=_ids(rng, (2, NUM_EDGES)),
        node_feat=rng.standard_normal((NUM_NODES, 3)),
        edge_feat=rng.standard_normal((NUM_EDGES, 3)).astype(np.float32),
        num_nodes_list=np.array([NUM_NODES]),
        num_edges_list=np.array([NUM_EDGES]),
    )


def _write_biokg(path: Path, rng: np.random.Generator) -> None:
    raw = path / "raw"
    types = list(BIOKG_NODES)
    write_csv(raw / "num-node-dict.csv.gz", [types, BIOKG_NODES.values()])
    write_csv(raw / "triplet-type-list.csv.gz", BIOKG_EDGES)
    write_csv(raw / "nodetype-has-feat.csv.gz", [types, [False] * len(types)])
    for number, (edge_type, num_edges) in enumerate(BIOKG_EDGES.items()):
        folder = raw / "relations" / "___".join(edge_type)
        ends = [_ids(rng, num_edges, BIOKG_NODES[edge_type[end]]) for end in (0, 2)]
        write_csv(folder / "edge.csv.gz", np.stack(ends, axis=1))
        write_csv(folder / "edge_reltype.csv.gz", [[number]] * num_edges)
        write_csv(folder / "num-edge-list.csv.gz", [[num_edges]])
