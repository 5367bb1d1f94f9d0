"""``loader.sample(ids, input_time=...)``: batches around nodes as of a time of the caller's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import PlanError

NUM_NODES, NUM_EDGES, DAY = 40, 400, 86_400


def edges() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=draw), torch.arange(NUM_EDGES) * DAY + 1_600_000_000


def typed() -> HeteroData:
    data = HeteroData()
    index, time = edges()
    for node_type in ("user", "tx"):
        data[node_type].x = torch.arange(NUM_NODES, dtype=torch.float32).view(-1, 1)
    data["user", "made", "tx"].edge_index, data["user", "made", "tx"].time = index, time
    data["tx", "of", "user"].edge_index, data["tx", "of", "user"].time = index.flip(0), time
    return data


def plain() -> Data:
    index, time = edges()
    return Data(x=torch.arange(NUM_NODES, dtype=torch.float32).view(-1, 1), edge_index=index, time=time)


OPTIONS: dict[str, Any] = {"num_neighbors": [-1, -1], "time_attr": "time", "batch_size": 4, "progress": False}


@pytest.fixture(scope="module", params=["memory", "inprocess", "colocated", "graph_store"])
def loader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphLoader]:
    now = np.full(NUM_NODES, 1_600_000_000 + 300 * DAY)
    if request.param == "memory":
        made = GraphLoader.from_pyg(plain(), input_time=now, **OPTIONS)
    else:
        store = gnnkit.partition(plain(), 2, out=tmp_path_factory.mktemp("as_of") / "store", time_attr="time")
        made = GraphLoader.from_store(store, input_time=now, backend=request.param, **OPTIONS)
    with made:
        yield made


IDS, AT = [5, 3, 17], 1_600_000_000 + 120 * DAY


def test_it_is_what_a_loader_of_these_times_gives(loader: GraphLoader) -> None:
    with loader.for_split(IDS, input_time=[AT] * 3, shuffle=False) as wanted:
        expected = wanted.peek()
    for now in (AT, np.int64(AT), torch.tensor(AT), [AT] * 3, np.full(3, AT)):
        batch = loader.sample(IDS, input_time=now)
        assert batch.n_id.equal(expected.n_id) and batch.edge_index.equal(expected.edge_index)
        assert batch.seed_time.tolist() == [AT] * 3
    assert loader.sample(IDS, input_time=AT + 200 * DAY).num_edges > expected.num_edges
    each = loader.sample([5, 5], input_time=[AT, 1_600_000_000 - DAY])
    assert each.batch.bincount()[1] == 1, "nothing is as early as the second one's time"


def test_dates_where_the_times_have_a_unit(tmp_path: Path) -> None:
    index, time = edges()
    frame = pandas.DataFrame({"src": index[0], "dst": index[1], "time": pandas.to_datetime(time.numpy(), unit="s")})
    nodes = pandas.DataFrame({"x": np.arange(NUM_NODES, dtype=np.float32)})
    options = {**OPTIONS, "input_time": [datetime(2021, 1, 1)] * NUM_NODES}
    with GraphLoader.from_tables(
        frame, nodes, time={("node", "to", "node"): "time"}, features={"node": ["x"]}, store_dir=tmp_path, **options
    ) as loader:
        found = [loader.sample(IDS, input_time=now) for now in (datetime(2021, 2, 1), pandas.Timestamp("2021-02-01"), "2021-02-01")]
        assert found[0].num_edges and all(batch.n_id.equal(found[0].n_id) for batch in found)


@pytest.mark.parametrize(
    ("options", "ids", "input_time", "says"),
    [
        ({"time_attr": None}, [1], 7, "time_attr='time' where the loader is made"),
        ({}, [1, 2], [7], "one for each of 2 nodes"),
        ({}, [1], 0.5, "must be whole numbers"),
        ({}, [1], None, "loader.sample\\(ids, input_time=...\\) says"),
        ({}, ("tx", [1]), 7, "are of the type 'tx'"),
        ({}, ("user", [1]), None, "for_split\\(\\(type, ids\\)\\) makes a loader of another type"),
        ({}, (("user", "made", "tx"), [[1], [2]]), None, "sample\\(\\) takes ids alone"),
    ],
)
def test_what_it_does_not_take(options: dict[str, Any], ids: Any, input_time: Any, says: str) -> None:
    given = {**OPTIONS, "input_nodes": ("tx", [1, 2]), **options}
    if given["time_attr"]:
        given["input_time"] = [AT, AT]
    with GraphLoader.from_pyg(typed(), **given) as loader, pytest.raises(PlanError) as told:
        loader.sample(ids, input_time=input_time)
    assert re.search(says, str(told.value))
