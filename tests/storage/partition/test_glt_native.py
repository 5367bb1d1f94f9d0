"""The layout against graphlearn-torch itself: it loads what we write, and we read what its partitioners write."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gnnkit.datasets import ArraySpec, EdgeTypeSchema, GltPartitionSource, GraphSchema, NodeTypeSchema, write_glt_partitions
from gnnkit.schema import edge_type_name
from gnnkit.storage.store import ReplicatedFeatures
from tests.helpers.graphs import ArraySource
from tests.storage.partition.test_glt_format import PartedGraph, assert_same_graph, parted

ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.glt

WRITTEN = [(kind, edge_dir) for kind in ("homo", "hetero") for edge_dir in ("in", "out")]
PARTITIONED = [(kind, *how) for kind in ("homo", "hetero") for how in (("random", "by_dst"), ("frequency", "by_src"))]


def full_source(kind: str) -> ArraySource:
    """Every type with "x", "edge_attr" and "weight", as graphlearn-torch's partitioners want it."""
    rng = np.random.default_rng(4)
    sizes = {"node": 60} if kind == "homo" else {"item": 50, "user": 40}
    edge_types = [("node", "to", "node")] if kind == "homo" else [("item", "near", "item"), ("user", "buys", "item")]
    edges = {t: np.stack([rng.integers(0, sizes[t[0]], 150), rng.integers(0, sizes[t[2]], 150)]) for t in edge_types}
    schema = GraphSchema(
        {t: NodeTypeSchema(n, {"x": ArraySpec("float32", (3,))}) for t, n in sizes.items()},
        {t: EdgeTypeSchema(150, {"edge_attr": ArraySpec("float32", (2,)), "weight": ArraySpec("float32")}) for t in edge_types},
        is_homogeneous=kind == "homo",
    )
    return ArraySource(
        schema,
        edges,
        {t: {"x": rng.random((n, 3)).astype(np.float32)} for t, n in sizes.items()},
        {t: {"edge_attr": rng.random((150, 2)).astype(np.float32), "weight": rng.random(150).astype(np.float32)} for t in edge_types},
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """The folder in which one process of the other interpreter has done everything: starting it takes eight seconds."""
    python = os.environ.get("GNNKIT_GLT_PYTHON", str(ROOT / ".envs" / "glt" / "bin" / "python"))
    if not Path(python).exists():
        pytest.skip(f"no interpreter with native graphlearn-torch at {python} (set GNNKIT_GLT_PYTHON)")
    root = tmp_path_factory.mktemp("glt")
    jobs = []
    for kind, edge_dir in WRITTEN:
        folder = root / f"{kind}-{edge_dir}"
        write_glt_partitions(cached_store(full_source(kind), edge_dir), folder)
        jobs.append(["dump", str(folder), f"{folder}.npz", edge_dir])
    for kind, method, strategy in PARTITIONED:
        source = full_source(kind)
        arrays = {f"x/{t}": a["x"] for t, a in source.node_arrays.items()}
        arrays |= {f"edges/{edge_type_name(t)}": edges for t, edges in source.edges.items()}
        for edge_type, columns in source.edge_arrays.items():
            arrays |= {f"{name}/{edge_type_name(edge_type)}": values for name, values in columns.items()}
        np.savez(root / f"{kind}.npz", **arrays)
        jobs.append(["partition", str(root / f"{kind}.npz"), str(root / f"{kind}-{method}"), method, kind, strategy])
    (root / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("glt_native.py")
    done = subprocess.run([python, str(script), str(root / "jobs.json")], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return root


def cached_store(source: ArraySource, edge_dir: str) -> PartedGraph:
    """Three parts, the first of which replicates five nodes of the second."""
    store = parted(source, 3, edge_dir=edge_dir)
    node_type = next(iter(source.schema.node_types))
    hot = np.sort(store.graph.nodes[node_type][1].global_id[:5])
    store.caches[0] = {node_type: ReplicatedFeatures(hot, source.node_arrays[node_type]["x"][hot])}
    return store


@pytest.mark.parametrize(("kind", "edge_dir"), WRITTEN)
def test_graphlearn_torch_loads_what_is_written(results, kind, edge_dir):
    source = full_source(kind)
    cached_type = next(iter(source.schema.node_types))
    with np.load(results / f"{kind}-{edge_dir}.npz") as arrays:
        seen = {name: arrays[name] for name in arrays.files}
    for edge_type, edges in source.edges.items():
        name, everything = edge_type_name(edge_type), []
        for part in range(3):
            found = {key: seen[f"part{part}/edges/{name}/{key}"] for key in ("rows", "cols", "eids", "weights")}
            eids = found["eids"]
            np.testing.assert_array_equal(np.stack([found["rows"], found["cols"]]), edges[:, eids])
            np.testing.assert_array_equal(found["weights"], source.edge_arrays[edge_type]["weight"][eids])
            owner, owner_type = (found["cols"], edge_type[2]) if edge_dir == "in" else (found["rows"], edge_type[0])
            assert (seen[f"node_pb/{owner_type}"][owner] == part).all()
            assert (seen[f"edge_pb/{name}"][eids] == part).all()
            features = f"part{part}/edge_feat/{name}"
            np.testing.assert_array_equal(np.sort(eids), seen[f"{features}/ids"])
            np.testing.assert_array_equal(seen[f"{features}/feats"], source.edge_arrays[edge_type]["edge_attr"][seen[f"{features}/ids"]])
            walked = {key: seen[f"part{part}/topology/{name}/{key}"] for key in ("own", "other", "eids")}
            pair = (walked["other"], walked["own"]) if edge_dir == "in" else (walked["own"], walked["other"])
            np.testing.assert_array_equal(np.stack(pair), edges[:, walked["eids"]])
            everything.append(eids)
        np.testing.assert_array_equal(np.sort(np.concatenate(everything)), np.arange(edges.shape[1]))
    for node_type, arrays in source.node_arrays.items():
        owned = 0
        for part in range(3):
            features = f"part{part}/node_feat/{node_type}"
            ids, cached = seen[f"{features}/ids"], int(seen[f"{features}/cached"])
            assert cached == (5 if (part, node_type) == (0, cached_type) else 0)
            np.testing.assert_array_equal(seen[f"{features}/feats"], arrays["x"][ids])
            owned += len(ids) - cached
        assert owned == len(arrays["x"])


@pytest.mark.parametrize(("kind", "method", "strategy"), PARTITIONED)
def test_what_graphlearn_torch_partitions_is_read(results, kind, method, strategy):
    read = GltPartitionSource(results / f"{kind}-{method}")
    assert read.num_parts == 2
    assert_same_graph(read, full_source(kind))
