"""``GraphLoader.from_ogb("ogbl-...")``: links of the official splits, with their labels and negatives, for all of OGB's link datasets."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from tests.helpers.ogb_link_trees import LINK_NAMES, write_link_tree


def ends(batch: Any, edge_type: Any, plain: bool) -> tuple[torch.Tensor, torch.Tensor, Any, Any]:
    """The dataset's ids of both ends' types, and where a batch says something of its links and of their ends."""
    if plain:
        return batch.n_id, batch.n_id, batch, (batch, batch)
    source, target = batch[edge_type[0]], batch[edge_type[2]]
    return source.n_id, target.n_id, batch[edge_type], (source, target)


@pytest.mark.parametrize("name", LINK_NAMES)
def test_official_splits(name: str, tmp_path: Path) -> None:
    write_link_tree(name, tmp_path)
    options: dict[str, Any] = {"num_neighbors": [2], "batch_size": 8, "root": tmp_path, "progress": False, "download": False}
    edge_type: Any = ("node", "to", "node")
    if name == "ogbl-biokg":
        with pytest.raises(PlanError, match="several edge types have a split 'train'"):
            GraphLoader.from_ogb(name, **options)
        edge_type = ("drug", "drug-protein", "protein")
        options["edge_label_index"] = (edge_type, "train")
    with GraphLoader.from_ogb(name, **options) as loader:
        plain, splits = loader.schema.is_homogeneous, loader.pipeline.graph.link_splits[edge_type]
        for split in splits:
            arrays = splits[split]
            for batch in loader if split == "train" else loader.for_links((edge_type, split)):
                of_src, of_dst, links, (source, target) = ends(batch, edge_type, plain)
                where = links.input_id.numpy()
                if "src_index" in source:
                    found = torch.stack([of_src[source.src_index], of_dst[target.dst_pos_index]])
                    assert found.tolist() == arrays["edge_label_index"][:, where].tolist()
                    for store, key, ids in ((source, "src_neg_index", of_src), (target, "dst_neg_index", of_dst)):
                        assert (key in store) == (key in arrays)
                        if key in arrays:
                            assert ids[store[key]].tolist() == np.asarray(arrays[key])[where].tolist()
                    continue
                every = np.concatenate([arrays["edge_label_index"], arrays.get("neg_edge_index", np.empty((2, 0), np.int64))], 1)
                row, col = links.edge_label_index
                assert torch.stack([of_src[row], of_dst[col]]).tolist() == every[:, where].tolist()
                if "neg_edge_index" in arrays:
                    assert ((links.edge_label == 0).numpy() == (where >= arrays["edge_label_index"].shape[1])).all()
        assert loader.plan.batching.shuffle
        if len(loader.schema.edge_types) == 1:
            with GraphLoader.from_store(loader.store, num_neighbors=[2], progress=False) as again:
                assert again.plan.inputs == loader.plan.inputs
        with pytest.raises(PlanError, match="split 'val' of nodes") as told:
            loader.for_split("val")
        advice = str(told.value.hint).partition("loader.for_links(")[2].partition("), or")[0]
        assert len(loader.for_links(ast.literal_eval(advice)))
