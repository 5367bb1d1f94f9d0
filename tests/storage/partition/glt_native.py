"""Run by the interpreter that has graphlearn-torch with its native library: ``python glt_native.py <jobs.json>``.

A job is a list of words:
``dump <directory> <out.npz> <edge_dir>`` loads every part as graphlearn-torch's training does and saves what it sees;
``partition <in.npz> <directory> random|frequency homo|hetero by_src|by_dst`` runs its own partitioners.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from graphlearn_torch.distributed import DistDataset
from graphlearn_torch.partition import FrequencyPartitioner, RandomPartitioner, cat_feature_cache, load_partition


def name_of(graph_type) -> str:
    return graph_type if isinstance(graph_type, str) else "__".join(graph_type)


def as_dict(value, only) -> dict:
    if value is None:
        return {}
    return value if isinstance(value, dict) else {only: value}


def dump(directory: str, out: str, edge_dir: str) -> None:
    found: dict[str, np.ndarray] = {}
    num_parts = load_partition(directory, 0)[0]
    for part in range(num_parts):
        _, _, graph, node_feat, edge_feat, node_pb, edge_pb = load_partition(directory, part)
        books = {"node": as_dict(node_pb, "node"), "edge": as_dict(edge_pb, ("node", "to", "node"))}
        for kind, by_type in books.items():
            for graph_type, book in by_type.items():
                found[f"{kind}_pb/{name_of(graph_type)}"] = book.numpy()
        for edge_type, data in as_dict(graph, ("node", "to", "node")).items():
            prefix = f"part{part}/edges/{name_of(edge_type)}"
            found[f"{prefix}/rows"], found[f"{prefix}/cols"] = (t.numpy() for t in data.edge_index)
            found[f"{prefix}/eids"] = data.eids.numpy()
            if data.weights is not None:
                found[f"{prefix}/weights"] = data.weights.numpy()
        for kind, features, only in (("node", node_feat, "node"), ("edge", edge_feat, ("node", "to", "node"))):
            for graph_type, data in as_dict(features, only).items():
                prefix = f"part{part}/{kind}_feat/{name_of(graph_type)}"
                ratio, feats, id2idx, feat_pb = cat_feature_cache(part, data, books[kind][graph_type])
                local = torch.where(feat_pb == part)[0]
                found[f"{prefix}/ids"], found[f"{prefix}/feats"] = local.numpy(), feats[id2idx[local]].numpy()
                found[f"{prefix}/cached"] = np.array(0 if data.cache_ids is None else len(data.cache_ids))
        dataset = DistDataset(edge_dir=edge_dir)
        dataset.load(directory, part, graph_mode="CPU", feature_with_gpu=False)
        for edge_type, graph in as_dict(dataset.graph, ("node", "to", "node")).items():
            # Compressed by the owning end: what its samplers walk.
            indptr, indices, eids = graph.topo.indptr, graph.topo.indices, graph.topo.edge_ids
            prefix = f"part{part}/topology/{name_of(edge_type)}"
            found[f"{prefix}/own"] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr.numpy()))
            found[f"{prefix}/other"], found[f"{prefix}/eids"] = indices.numpy(), eids.numpy()
    np.savez(out, **found)


def partition(source: str, directory: str, method: str, kind: str, strategy: str) -> None:
    with np.load(source) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    node_types = sorted(name.split("/")[1] for name in tensors if name.startswith("x/"))
    edge_types = [tuple(name.split("/")[1].split("__")) for name in tensors if name.startswith("edges/")]
    num_nodes = {t: len(tensors[f"x/{t}"]) for t in node_types}
    arguments = {
        "num_nodes": num_nodes,
        "edge_index": {t: tensors[f"edges/{name_of(t)}"] for t in edge_types},
        "node_feat": {t: tensors[f"x/{t}"] for t in node_types},
        "edge_feat": {t: tensors[f"edge_attr/{name_of(t)}"] for t in edge_types},
        "edge_weights": {t: tensors[f"weight/{name_of(t)}"] for t in edge_types},
    }
    if method == "frequency":
        generator = torch.Generator().manual_seed(0)
        arguments["probs"] = {t: [torch.rand(n, generator=generator) for _ in range(2)] for t, n in num_nodes.items()}
        arguments["cache_ratio"] = dict.fromkeys(node_types, 0.2)
    if kind == "homo":
        arguments = {name: next(iter(value.values())) for name, value in arguments.items()}
    partitioner = {"random": RandomPartitioner, "frequency": FrequencyPartitioner}[method]
    partitioner(directory, 2, **arguments, edge_assign_strategy=strategy, chunk_size=7).partition()


if __name__ == "__main__":
    for job, *arguments in json.loads(Path(sys.argv[1]).read_text()):
        {"dump": dump, "partition": partition}[job](*arguments)
