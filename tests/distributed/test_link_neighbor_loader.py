"""``DistLinkNeighborLoader``: links of a ring and their negatives, in both modes, against the graph and ``GraphLoader``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from gnnkit.distributed import DistDataset, DistributedRuntimeInfo, NegativeSampling
from gnnkit.errors import PlanError
from gnnkit.loader.inputs import LinkOptions
from tests.distributed.loading import NUM_NODES, TO, dataset_of, labelled, ring, stored, typed_ring
from tests.helpers.batches import items

U2I, I2I = ("user", "u2i", "item"), ("item", "i2i", "item")
RING = ring().edge_index


def glt_negatives(mode: str, amount: float = 1) -> Any:
    return NegativeSampling(mode, amount)


def make(dataset: Any, edge_label_index: Any = RING, num_neighbors: Any = (2, 2), **options: Any) -> Any:
    """A loader that samples in this process unless told otherwise."""
    from gnnkit.distributed import DistLinkNeighborLoader

    fan_outs = num_neighbors if isinstance(num_neighbors, dict) else list(num_neighbors)
    return DistLinkNeighborLoader(dataset, fan_outs, 5, edge_label_index, **{"num_workers": 0, **options})


def without_glts(batch: Any) -> dict[str, Any]:
    """A batch's attributes but graphlearn-torch's words, which repeat others."""
    ours = ("node", "edge", "batch", "batch_size")
    typed = isinstance(batch, HeteroData)
    return {
        k: v
        for k, v in items(batch)
        if k.rpartition(".")[2] not in ours and not (typed and k in ("num_sampled_nodes", "num_sampled_edges"))
    }


def equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert set(left) == set(right)
    for name, value in left.items():
        assert value.equal(right[name]) if isinstance(value, torch.Tensor) else value == right[name], name


# Rings ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_binary_on_a_ring(edge_dir: str, num_parts: int, tmp_path: Path) -> None:
    store = stored(ring(), tmp_path, num_parts, edge_dir=edge_dir)
    loader = make(DistDataset.from_store(store, 0), neg_sampling=glt_negatives("binary"))
    assert len(loader) == 16 and loader.sampling_config.with_neg and loader.sampling_config.sampling_type.name == "LINK"
    batches = list(loader)
    for number, batch in enumerate(batches):
        assert batch.edge_label_index.shape == (2, 10) and batch.edge_label.tolist() == [1.0] * 5 + [0.0] * 5
        source, target = batch.node[batch.edge_label_index][:, :5]
        assert torch.equal(torch.stack([source, target]), RING[:, 5 * number : 5 * number + 5])
        assert set(((target - source) % NUM_NODES).tolist()) <= {1, 2}
        assert batch.batch.equal(batch.node[batch.edge_label_index].unique()) and batch.batch_size == len(batch.batch)
        neighbour, node = batch.node[batch.edge_index]
        assert set((((neighbour - node) * (1 if edge_dir == "out" else -1)) % NUM_NODES).tolist()) == {1, 2}
        assert torch.equal(batch.x[:, 0].long(), batch.node) and torch.equal(batch.edge_attr[:, 0].long(), batch.edge)
    options: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 5, "progress": False, "neg_sampling": "binary"}
    with GraphLoader.from_store(store.path, edge_label_index=RING, **options) as plain:
        for batch, wanted in zip(batches, plain, strict=True):
            equal(without_glts(batch), dict(items(wanted)))
    loader.shutdown()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("amount", [1, 3])
def test_triplets_on_a_typed_ring(edge_dir: str, amount: int, tmp_path: Path) -> None:
    dataset = dataset_of(typed_ring(), tmp_path, 2, edge_dir=edge_dir)
    links = typed_ring()[U2I].edge_index
    loader = make(dataset, (U2I, links), {U2I: [2, 2], I2I: [2, 1]}, neg_sampling=glt_negatives("triplet", amount), neg_strict=True)
    edges = set(map(tuple, links.T.tolist()))
    for number, batch in enumerate(loader):
        source, target = batch["user"].node[batch["user"].src_index], batch["item"].node[batch["item"].dst_pos_index]
        assert torch.equal(torch.stack([source, target]), links[:, 5 * number : 5 * number + 5])
        negatives = batch["item"].node[batch["item"].dst_neg_index]
        assert negatives.shape == ((5,) if amount == 1 else (5, 3))
        drawn = zip(source.repeat_interleave(amount).tolist(), negatives.ravel().tolist(), strict=True)
        assert not edges & set(drawn)
        for node_type in ("user", "item"):
            assert batch[node_type].batch_size == len(batch[node_type].batch) == batch.num_sampled_nodes[node_type][0]
        assert torch.equal(batch["item"].x[:, 0].long(), batch["item"].node)
    loader.shutdown()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_labels_of_a_typed_ring(edge_dir: str, tmp_path: Path) -> None:
    """Of both ends' types; the highest label is one more than the highest given."""
    dataset, labels = dataset_of(typed_ring(), tmp_path, edge_dir=edge_dir), torch.arange(80) % 3
    for edge_type in (U2I, I2I):
        links = typed_ring()[edge_type].edge_index
        loader = make(dataset, (edge_type, links), neg_sampling="binary", edge_label=labels, shuffle=True)
        found = torch.cat([batch[edge_type].edge_label[:5] for batch in loader])
        assert found.bincount().tolist() == [0, 27, 27, 26]
        for batch in loader:
            where = batch[edge_type].input_id
            ends = [batch[t].node[row[:5]] for t, row in zip((edge_type[0], edge_type[2]), batch[edge_type].edge_label_index, strict=True)]
            assert torch.equal(torch.stack(ends), links[:, where])
        loader.shutdown()


# What may be given ----------------------------------------------------------------------------------------------------------


def test_all_edges_are_dealt(tmp_path: Path) -> None:
    """Those of each part, to the processes of its host."""
    from gnnkit.distributed.glt_records import local_links

    store, found = stored(ring(), tmp_path, 2), []
    for part in range(2):
        for rank in range(2):
            runtime = DistributedRuntimeInfo(2, part, 2 * part + rank, 4, rank, 2, "127.0.0.1")
            record, _ = local_links(DistDataset.from_store(store, part), None, LinkOptions(), runtime)
            assert len(record) == 20
            found += list(zip(record.row.tolist(), record.col.tolist(), strict=True))
    assert sorted(found) == sorted(map(tuple, RING.T.tolist()))
    alone = make(DistDataset.from_store(store, 1), None)
    assert sum(len(batch.input_id) for batch in alone) == 40
    alone.shutdown()


def test_a_graph_that_is_typed_because_of_its_labels(tmp_path: Path) -> None:
    loader = make(dataset_of(labelled(), tmp_path), RING, neg_sampling="triplet")
    batch = next(iter(loader))
    assert isinstance(batch, Data) and torch.equal(batch.node[batch.src_index], RING[0, :5])
    assert set(((batch.node[batch.edge_index[0]] - batch.node[batch.edge_index[1]]) % NUM_NODES).tolist()) <= {NUM_NODES - 1, NUM_NODES - 2}
    loader.shutdown()


def test_in_the_background(tmp_path: Path) -> None:
    dataset = dataset_of(ring(), tmp_path, 2)
    here, there = (make(dataset, neg_sampling="binary", exclude_edges="reverse", num_workers=count) for count in (0, 1))
    for batch, wanted in zip(there, here, strict=True):
        equal(dict(items(batch)), dict(items(wanted)))
        assert not set(map(tuple, batch.node[batch.edge_index].T.tolist())) & set(map(tuple, RING[:, batch.input_id].T.tolist()))
    here.shutdown()
    there.shutdown()


# Wrong input ----------------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no pairs": ([1, 2], {}, r"\[2, n\].*\[2\]"),
    "text": ("train", {}, "links, got a str"),
    "by server": ({0: RING}, {}, "graph-store mode"),
    "typed": ((TO, RING), {}, "graph is homogeneous"),
    "labels of all edges": (None, {"edge_label": [1]}, "are not"),
    "labels with triplet": (RING, {"edge_label": torch.ones(80), "neg_sampling": "triplet"}, "leave edge_label out"),
    "out of range": (RING + 1, {}, "40"),
    "labels of another length": (RING, {"edge_label": [1, 2]}, "80 links"),
    "input_nodes": (RING, {"input_nodes": [1]}, "input_nodes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name: str, tmp_path: Path) -> None:
    links, options, text = WRONG[name]
    with pytest.raises((PlanError, TypeError)) as caught:
        make(dataset_of(ring(), tmp_path), links, **options)
    assert re.search(text, str(caught.value)), caught.value


def test_wrong_types(tmp_path: Path) -> None:
    dataset = dataset_of(typed_ring(), tmp_path)
    for links, text in ((RING, "the graph is typed"), ((("user", "u2j", "item"), RING), "'u2j'"), (None, "None, and the graph is typed")):
        with pytest.raises(PlanError, match=text):
            make(dataset, links)
    with pytest.raises(ValueError, match="triplet.*1.5"):
        glt_negatives("triplet", 1.5)
    assert np.array_equal(RING, ring().edge_index)
