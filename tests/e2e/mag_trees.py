"""A graph in ogbn-mag's layout from which a paper's class can be learnt: a little by its features, much better by its neighbourhood."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.helpers.ogb_trees import write_csv

NUM_CLASSES, NUM_FEATURES = 8, 16
NODES = {"author": 3000, "field_of_study": 240, "institution": 60, "paper": 10000}
# How many edges, and how many of them are drawn among the nodes of one class.
EDGES = {
    ("author", "affiliated_with", "institution"): (4000, 0.7),
    ("author", "writes", "paper"): (24000, 0.65),
    ("paper", "cites", "paper"): (30000, 0.65),
    ("paper", "has_topic", "field_of_study"): (24000, 0.6),
}
# As in ogbn-mag, the latest year is for testing and the one before it for validation.
YEARS, YEAR_SHARES = range(2012, 2020), (0.08,) * 6 + (0.07, 0.45)
# A class's centre of features is about so many standard deviations away from another's, in each dimension.
_SHIFT = 0.2


def _ends(rng: np.random.Generator, sources: NDArray[np.int64], targets: NDArray[np.int64], count: int, share: float) -> NDArray[np.int64]:
    """int64 ``[count, 2]``; ``sources`` and ``targets`` are the nodes' classes. Some targets are far more popular than others."""
    source, popularity = rng.integers(0, len(sources), count), rng.pareto(2.0, len(targets)) + 0.2
    target = rng.choice(len(targets), count, p=popularity / popularity.sum())
    alike = rng.random(count) < share
    for c in range(NUM_CLASSES):
        edges, members = np.flatnonzero(alike & (sources[source] == c)), np.flatnonzero(targets == c)
        weights = popularity[members]
        target[edges] = rng.choice(members, len(edges), p=weights / weights.sum())
    return np.stack([source, target], axis=1)


def write_learnable_mag(root: Path, *, seed: int = 0) -> Path:
    """Writes ``<root>/ogbn_mag`` and returns it; some 4500 of the papers are for testing."""
    rng, path = np.random.default_rng(seed), root / "ogbn_mag"
    raw, split = path / "raw", path / "split" / "time"
    (path / "processed").mkdir(parents=True)
    (path / "RELEASE_v2.txt").touch()
    shares = 1 / np.arange(2, NUM_CLASSES + 2)
    classes = {t: rng.choice(NUM_CLASSES, count, p=shares / shares.sum()) for t, count in NODES.items()}
    types = list(NODES)
    write_csv(raw / "num-node-dict.csv.gz", [types, NODES.values()])
    write_csv(raw / "triplet-type-list.csv.gz", EDGES)
    for flags in (raw / "nodetype-has-feat.csv.gz", raw / "nodetype-has-label.csv.gz", split / "nodetype-has-split.csv.gz"):
        write_csv(flags, [types, [name == "paper" for name in types]])
    for number, (edge_type, (count, share)) in enumerate(EDGES.items()):
        folder = raw / "relations" / "___".join(edge_type)
        write_csv(folder / "edge.csv.gz", _ends(rng, classes[edge_type[0]], classes[edge_type[2]], count, share).tolist())
        write_csv(folder / "edge_reltype.csv.gz", [[number]] * count)
        write_csv(folder / "num-edge-list.csv.gz", [[count]])
    label, num_papers = classes["paper"], NODES["paper"]
    centers = _SHIFT * rng.standard_normal((NUM_CLASSES, NUM_FEATURES))
    features = np.round(centers[label] + rng.standard_normal((num_papers, NUM_FEATURES)), 5)
    year = rng.choice(YEARS, num_papers, p=YEAR_SHARES)
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", features.tolist())
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", year[:, None].tolist())
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", label[:, None].tolist())
    for name, chosen in (("train", year < YEARS[-2]), ("valid", year == YEARS[-2]), ("test", year == YEARS[-1])):
        write_csv(split / "paper" / f"{name}.csv.gz", np.flatnonzero(chosen)[:, None].tolist())
    return path
