"""Run by the interpreter that has graphlearn-torch with its native library: ``glt_loader_probe.py <folder>``.

Makes a loader of graphlearn-torch's own and one of ours over the same graph, and prints what each is like, as JSON. The folder has
a store and graphlearn-torch's partitions of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from tests.helpers.ports import free_port

SEEDS = 40


def options(kind: str) -> Any:
    from gnnkit.distributed import CollocatedDistSamplingWorkerOptions, MpDistSamplingWorkerOptions

    if kind == "collocated":
        return CollocatedDistSamplingWorkerOptions("127.0.0.1", free_port(), rpc_timeout=60)
    return MpDistSamplingWorkerOptions(1, [torch.device("cpu")], 2, "127.0.0.1", free_port(), channel_size="16MB", rpc_timeout=60)


def plain(value: Any) -> Any:
    """A value of an attribute, in words."""
    if isinstance(value, (int, str, float, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, torch.device) else type(value).__name__


def described(loader: Any) -> dict[str, Any]:
    found = {name: plain(value) for name, value in vars(loader).items()}
    workers = {name: plain(value) for name, value in vars(loader.worker_options).items() if "worker" in name or "concurrency" in name}
    return {**found, "worker_options": workers, "sampling_config": {k: plain(v) for k, v in vars(loader.sampling_config).items()}}


def is_right(batch: Any) -> bool:
    """Whether a batch of the typed ring, or of the plain one, is one."""
    if not hasattr(batch, "node_types"):
        steps = (batch.node[batch.edge_index[0]] - batch.node[batch.edge_index[1]]) % SEEDS
        features = torch.equal(batch.x[:, 0].long(), batch.node) and torch.equal(batch.edge_attr[:, 0].long(), batch.edge)
        return features and set(steps.tolist()) <= {1, 2} and len(steps) > 0
    wanted = {"u2i": {1, 2}, "i2i": {2, 3}}
    for source, relation, target in batch.edge_types:
        edges = batch[source, relation, target]
        steps = (batch[source].node[edges.edge_index[0]] - batch[target].node[edges.edge_index[1]]) % SEEDS
        if not set(steps.tolist()) <= wanted[relation.removeprefix("rev_")]:
            return False
        if edges.edge_index.shape[1] and not torch.equal(edges.edge_attr[:, 0].long(), edges.edge):
            return False
    return all(torch.equal(batch[t].x[:, 0].long(), batch[t].node) for t in ("user", "item"))


def epoch(loader: Any) -> list[list[Any]]:
    """What the batches of an epoch are like: whether right, their seeds, their attributes."""
    found = []
    for batch in loader:  # none may be held: they lie in slots of graphlearn-torch's channel
        store = batch["user"] if hasattr(batch, "node_types") else batch
        found.append([is_right(batch), store.batch.tolist(), sorted(map(str, batch.to_dict()))])
        del batch, store
    return found


def loaders(kind: str, folder: Path, name: str, seeds: Any) -> dict[str, Any]:
    from gnnkit.distributed import DistDataset, DistNeighborLoader
    from gnnkit.vendor import glt

    native = glt.load("a comparison with graphlearn-torch")
    theirs_data = native.distributed.DistDataset(edge_dir="out")
    partitions = folder / f"{name}-glt"
    # Its samplers of typed graphs do not start without labels.
    labels = {path.stem: str(path) for path in (partitions / "node_label").glob("*.pt")} if name == "typed" else None
    theirs_data.load(str(partitions), 0, graph_mode="CPU", feature_with_gpu=False, whole_node_label_file=labels)
    ours_data = DistDataset.from_store(folder / name / "store")
    edge_types = [("user", "u2i", "item"), ("item", "i2i", "item")]
    fan_outs = [2, 2] if name == "plain" else dict.fromkeys(edge_types, [2, 2])
    common = {"num_neighbors": fan_outs, "input_nodes": seeds, "batch_size": 7, "with_edge": True, "collect_features": True}
    common |= {"to_device": torch.device("cpu"), "random_seed": 3}
    theirs = native.distributed.DistNeighborLoader(theirs_data, **common, worker_options=options(kind))
    ours = DistNeighborLoader(data=ours_data, **common, worker_options=options(kind))
    assert isinstance(ours, native.distributed.DistLoader)
    found: dict[str, Any] = {"theirs": described(theirs), "ours": described(ours)}
    for who, loader in (("ours", ours), ("theirs", theirs)):
        found[f"batches of {who}"] = epoch(loader)
        found[f"after {who}"] = [loader._num_recv, loader._epoch]
    ours.shutdown()
    theirs.shutdown()
    return found


def foreign(folder: Path) -> list[Any]:
    """Graphlearn-torch's own producer and channel under our loader."""
    from gnnkit.distributed import (
        BaseDistLoader,
        DistDataset,
        DistMpSamplingProducer,
        KHopNeighborSamplerOptions,
        NodeSamplerInput,
        ShmChannel,
    )

    dataset = DistDataset.from_store(folder / "plain" / "store")
    config = BaseDistLoader.create_sampling_config([2, 2], dataset.schema, batch_size=7, seed=3)
    workers, seeds = options("mp"), NodeSamplerInput(torch.arange(SEEDS))
    channel = ShmChannel(workers.channel_capacity, workers.channel_size)
    producer = DistMpSamplingProducer(dataset, seeds, config, workers, channel)
    runtime = BaseDistLoader.resolve_runtime(rank=0, world_size=1)
    arguments = (dataset, seeds, dataset.schema, workers, config, "cpu", runtime, producer, KHopNeighborSamplerOptions([2, 2]))
    loader = BaseDistLoader(*arguments)
    epochs = [epoch(loader) for _ in range(2)]
    assert [len(found) for found in epochs] == [len(loader)] * 2
    loader.shutdown()
    return epochs


def main(folder: Path) -> None:
    from gnnkit.vendor import glt

    glt.load("a comparison with graphlearn-torch").distributed.init_worker_group(1, 0)
    found: dict[str, Any] = {"mp": loaders("mp", folder, "typed", ("user", torch.arange(SEEDS))), "foreign": foreign(folder)}
    found["collocated"] = loaders("collocated", folder, "plain", torch.arange(SEEDS))  # last: it starts RPC in this process
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Graphlearn-torch mixes start methods from Python 3.11 on unless all are the same.
    torch.multiprocessing.set_start_method("spawn")
    main(Path(sys.argv[1]))
