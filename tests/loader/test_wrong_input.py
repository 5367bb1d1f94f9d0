"""What a user may get wrong: a gnnkit error before anything starts, which names the value and the way out."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit import PPR, GraphLoader, InProcess
from gnnkit.errors import DatasetError, GnnkitError, PlanError, StoreError
from tests.loader.graphs import make, plain, typed

ON = ("tag", "on", "paper")
CITES = ("paper", "cites", "paper")
HAS = ("paper", "has", "tag")
FULL: dict[Any, Any] = {ON: [1, 1], CITES: [1, 1], HAS: [1, 1]}
TOO_LARGE = torch.tensor([3, 100])


def with_weight(values: Any, name: str = "edge_weight") -> Any:
    data = plain()
    data[name] = values
    return data


def negative() -> torch.Tensor:
    weight = torch.ones(700)
    weight[41] = -0.5
    return weight


# What is wrong: options, and what the message and the hint must say between them.
PLAIN: dict[str, tuple[dict[str, Any], str, str]] = {
    "seed node too large": ({"input_nodes": TOO_LARGE}, "holds node 100", "0 to 99"),
    "seed node negative": ({"input_nodes": [5, -3]}, "holds node -3", "0 to 99"),
    "seed nodes are floats": ({"input_nodes": torch.rand(4)}, "float32", "whole numbers"),
    "seed nodes are text": ({"input_nodes": ["a", "b"]}, "'a'", "whole numbers"),
    "seed nodes of two dimensions": ({"input_nodes": torch.zeros(2, 2, dtype=torch.long)}, r"\(2, 2\)", "one-dimensional"),
    "mask of another length": ({"input_nodes": torch.ones(7, dtype=torch.bool)}, "mask of 7", "100 nodes"),
    "unknown split": ({"input_nodes": "trian"}, "'trian'", "'train'"),
    "unknown node type": ({"input_nodes": ("paper", [1])}, "'paper'", "node"),
    "no hops": ({"num_neighbors": []}, "empty", r"\[15, 10, 5\]"),
    "fan-out below -1": ({"num_neighbors": [3, -2]}, "-2", "-1 takes all"),
    "fan-out for all": ({"num_neighbors": [(1 << 63) - 1]}, "9223372036854775807", "-1 takes all"),
    "fan-out of fractions": ({"num_neighbors": [2.5]}, "2.5", "whole number"),
    "fan-out of booleans": ({"num_neighbors": [True]}, "True", "whole number"),
    "fan-out is a number": ({"num_neighbors": 10}, "10", "one number per hop"),
    "fan-out is text": ({"num_neighbors": "10,5"}, "10,5", "one number per hop"),
    "fan-out per type of one type": ({"num_neighbors": {CITES: [1]}}, "homogeneous", "give a list"),
    "a class of samplers": ({"num_neighbors": None, "sampler": PPR}, "PPR", r"gnnkit\.PPR\(\)"),
    "batch size 0": ({"batch_size": 0}, "0", "at least 1"),
    "batch size -1": ({"batch_size": -1}, "-1", "at least 1"),
    "batch size of a fraction": ({"batch_size": 2.5}, "2.5", "whole number"),
    "batch size True": ({"batch_size": True}, "True", "whole number"),
    "batch size None": ({"batch_size": None}, "None", "whole number"),
    "seed negative": ({"seed": -1}, "-1", r"2\*\*64"),
    "seed too large": ({"seed": 1 << 64}, "18446744073709551616", r"2\*\*64"),
    "seed is text": ({"seed": "1"}, "'1'", "whole number"),
    "rank without world size": ({"rank": 1}, "rank=1", "world_size=None"),
    "rank too large": ({"rank": 2, "world_size": 2}, "rank 2", "world_size - 1"),
    "no ranks": ({"rank": 0, "world_size": 0}, "world_size 0", "world_size - 1"),
    "remainder": ({"remainder": "padd"}, "'padd'", "'pad'"),
    "edge_dir": ({"edge_dir": "both"}, "'both'", "'in', 'out'"),
    "backend": ({"backend": "in_process"}, "'in_process'", "inprocess"),
    "prefetch": ({"prefetch": -1}, "-1", "at least 0"),
    "batch_timeout_s": ({"batch_timeout_s": 0}, "0", "positive"),
    "start_timeout_s": ({"start_timeout_s": -5}, "-5", "positive"),
    "memory_budget": ({"memory_budget": -5}, "-5", "at least 0"),
    "max_nodes": ({"max_nodes": -1}, "-1", "at least 0"),
    "max_nodes of a fraction": ({"max_nodes": 1.5}, "1.5", "whole number"),
    "unknown option": ({"num_neighbours": [1]}, "'num_neighbours'", "'num_neighbors'"),
    "unknown device": ({"device": "gpu"}, "'gpu'", "'cuda'"),
    "transform": ({"transform": "normalize"}, "'normalize'", "function"),
    "progress": ({"progress": "loud"}, "'loud'", "True each epoch"),
    "weight that does not exist": ({"weight": "wieght"}, "'wieght'", "edge_attr"),
    "weight of two dimensions": ({"weight": "edge_attr"}, r"\[num_edges, 2\]", "numbers"),
}
TYPED: dict[str, tuple[dict[str, Any], str, str]] = {
    "seed nodes without a type": ({"input_nodes": [1, 2]}, "several node types", r"\['paper', 'tag'\]"),
    "no seed nodes": ({"input_nodes": None}, "several node types", r"\['paper', 'tag'\]"),
    "unknown node type": ({"input_nodes": ("papr", [1])}, "'papr'", "'paper'"),
    "too large for its type": ({"input_nodes": ("tag", [25])}, "node 25", "0 to 19"),
    "unknown edge type": ({"num_neighbors": {**FULL, ("paper", "cite", "paper"): [1, 1]}}, "'cite'", "'cites'"),
    "missing edge type": ({"num_neighbors": {ON: [1], CITES: [1]}}, "'has'", "leave a type out"),
    "other numbers of hops": ({"num_neighbors": {**FULL, ON: [1]}}, "numbers of hops", "pad with 0"),
    "no hops": ({"num_neighbors": dict.fromkeys(FULL, [])}, "numbers of hops|empty", "pad with 0|for example"),
    "fan-out below -1": ({"num_neighbors": {**FULL, ON: [1, -7]}}, "-7", "-1 takes all"),
    "a type that is no triple": ({"num_neighbors": {**FULL, "on": [1, 1]}}, "'on'", "known"),
    "a split that no type has": ({"input_nodes": "train"}, "'train'", "input_nodes"),
}


def no_sampler_runs() -> bool:
    return not any(thread.name.startswith("gnnkit-sampler") for thread in threading.enumerate())


def refused(make_loader: Any, got: str, wanted: str, error_type: type[GnnkitError] = PlanError) -> None:
    with pytest.raises(error_type) as caught:
        make_loader()
    text = str(caught.value)
    import re

    assert re.search(got, text), f"{got!r} is not named in {text!r}"
    assert re.search(wanted, text), f"{wanted!r} is not offered in {text!r}"
    assert no_sampler_runs()


@pytest.mark.parametrize("name", PLAIN)
def test_homogeneous(name: str) -> None:
    options, got, wanted = PLAIN[name]
    refused(lambda: make(**options), got, wanted)


@pytest.mark.parametrize("name", TYPED)
def test_typed(name: str) -> None:
    options, got, wanted = TYPED[name]
    refused(lambda: make(typed(), **{"input_nodes": "paper", **options}), got, wanted)


def test_num_neighbors_has_no_default() -> None:
    refused(lambda: GraphLoader.from_pyg(plain(), progress=False), "num_neighbors is missing", "one number per hop")


@pytest.mark.parametrize("bad", [-0.5, float("nan"), float("inf")])
def test_unusable_weights(bad: float) -> None:
    weight = torch.ones(700)
    weight[41] = bad
    refused(lambda: make(with_weight(weight), weight="edge_weight"), f"edge 41 .* is {bad}", "at least 0")


def test_graphs_that_make_no_sense() -> None:
    data = plain()
    data.edge_index[0, 5] = 100
    refused(lambda: make(data), r"edge_index\[0, 5\].* is 100", "100 nodes", DatasetError)
    data.edge_index = data.edge_index.float()
    refused(lambda: make(data), "float32", "int64", DatasetError)
    refused(lambda: make([1, 2]), "list", "HeteroData")


@pytest.mark.parametrize("threads", [0, -1, 1.5, "all", True])
def test_numbers_of_threads(threads: Any) -> None:
    refused(lambda: InProcess(num_threads=threads), repr(threads), "whole number")


def test_cuda_where_there_is_none() -> None:
    if not torch.cuda.is_available():
        refused(lambda: make(device="cuda"), "'cuda'", "leave device out")
    else:
        refused(lambda: make(device="cuda:99"), "'cuda:99'", "CUDA devices")


def test_torchruns_environment_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(make, "'first'", "unset them")


def test_empty_input_is_no_mistake() -> None:
    for empty in ([], torch.empty(0, dtype=torch.long), np.empty(0)):  # a mask of no node is said
        with make(input_nodes=empty) as loader:
            assert len(loader) == 0 and list(loader) == []


def test_seeds_of_every_integer_dtype() -> None:
    for dtype in (torch.int32, torch.int64, torch.uint8, torch.int16):
        with make(input_nodes=torch.tensor([1, 99], dtype=dtype)) as loader:
            assert next(iter(loader)).n_id[:2].tolist() == [1, 99]


@pytest.mark.parametrize("epoch", [-1, 1.5, "2", None, True])
def test_epochs(epoch: Any) -> None:
    with make() as loader:
        with pytest.raises(PlanError, match="whole number of at least 0"):
            loader.set_epoch(epoch)
        with pytest.raises(PlanError, match="whole number of at least 0"):
            loader.sample([1], epoch=epoch)
        with pytest.raises(PlanError, match="whole number of at least 0"):
            loader.sample([1], index=epoch)


@pytest.mark.parametrize("ids", [[100], [-1], [0.5], [[1]], "train", None])
def test_ids_for_sample(ids: Any) -> None:
    with make() as loader, pytest.raises(PlanError, match="input_nodes"):
        loader.sample(ids)


def test_stores_and_plans_that_are_not_there(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_neighbors": [1], "progress": False}
    refused(lambda: GraphLoader.from_store(tmp_path / "none", **options), str(tmp_path / "none"), "->", StoreError)
    refused(lambda: GraphLoader.from_plan(tmp_path / "none.json"), "none.json", "->")
    (tmp_path / "plan.json").write_text("[1]")
    refused(lambda: GraphLoader.from_plan(tmp_path / "plan.json"), "plan.json|version", "->")
    refused(lambda: GraphLoader.from_store(tmp_path, num_neighbours=[1]), "'num_neighbours'", "'num_neighbors'")


def test_a_loop_that_takes_batches_apart_is_told_how() -> None:
    with make() as loader, make(transform=lambda batch: (batch.x, batch.y)) as pairs:
        with pytest.raises(PlanError, match=r"for batch in loader: x, y = batch\.x, batch\.y\[: batch\.batch_size\]"):
            for _x, _y in loader:
                pass
        # Loops that only look alike.
        assert [number for number, _ in enumerate(loader)] == [number for number, _ in zip(range(len(loader)), loader, strict=True)]
        assert all(len(x) == len(y) for x, y in pairs)
