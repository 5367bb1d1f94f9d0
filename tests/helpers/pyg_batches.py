"""Batches of PyG's own loaders, for comparison: ``python pyg_batches.py <cases.pt> <out.pt>``.

Runs in an interpreter that has pyg-lib or torch-sparse, which need not be able to import gnnkit. ``cases.pt`` holds
``{name: {"edges": {type or "": [2, m]}, "nodes": {type or "": {"num_nodes": n, name: tensor}}, "edge_arrays": {...}, "options": {...},
"loader": "NeighborLoader"}}``, where the loader is another one's name;
what comes out is, per case, a list of batches, each ``{"attribute" or "type.attribute": tensor, list or number}``.
"""

import sys

import torch
from torch_geometric import loader as loaders
from torch_geometric.data import Data, HeteroData


def graph_of(case):
    if "" in case["nodes"]:
        data = Data(edge_index=case["edges"][""])
        stores = [(data, {**case["nodes"][""], **case["edge_arrays"].get("", {})})]
    else:
        data = HeteroData()
        stores = [(data[t], values) for t, values in case["nodes"].items()]
        for edge_type, edge_index in case["edges"].items():
            data[edge_type].edge_index = edge_index
            stores.append((data[edge_type], case["edge_arrays"].get(edge_type, {})))
    for store, values in stores:
        for name, value in values.items():
            setattr(store, name, value)
    return data


def flatten(batch):
    found = {}
    for store in batch.stores:
        key = store._key
        where = "" if key is None else f"{key if isinstance(key, str) else '__'.join(key)}."
        found.update({where + name: value for name, value in store.items()})
    return found


if __name__ == "__main__":
    cases, out = torch.load(sys.argv[1], weights_only=False), {}
    for name, case in cases.items():
        torch.manual_seed(12)
        loader = getattr(loaders, case.get("loader", "NeighborLoader"))(graph_of(case), shuffle=False, **case["options"])
        out[name] = [flatten(batch) for batch in loader]
    torch.save(out, sys.argv[2])
