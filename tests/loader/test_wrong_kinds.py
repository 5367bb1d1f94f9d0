"""Arguments of the wrong kind, for every argument of every constructor: an error of gnnkit, or a loader that works."""

from __future__ import annotations

import datetime
import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnkit
from gnnkit import HGT, PPR, Colocated, GraphLoader, GraphStore, InProcess, Labor, LayerWise, Walks
from gnnkit.datasets import PyGSource
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, ShaDowKHopSampler
from tests.loader.graphs import plain, typed

CITES = ("paper", "cites", "paper")


def values() -> dict[str, Any]:
    """What no argument can be, or hardly any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes
        prototypes = {
            "nested": torch.nested.nested_tensor([torch.arange(3), torch.arange(2)]),
            "masked": torch.masked.masked_tensor(torch.arange(3), torch.tensor([True, False, True])),
            "quantised": torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8),
        }
    return prototypes | {
        "None": None,
        "True": True,
        "3": 3,
        "2.5": 2.5,
        "nan": float("nan"),
        "2**70": 1 << 70,
        "text": "x",
        "bytes": b"x",
        "list": [1],
        "empty list": [],
        "words": ["a", "b"],
        "lists of two lengths": [[1], [1, 2]],
        "dict": {"a": 1},
        "set": {1},
        "pair": ("a", 3),
        "generator": (number for number in range(3)),
        "object": object(),
        "path": Path("/nonexistent/x"),
        "date": datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
        "one of torch": torch.tensor(3),
        "tensor": torch.arange(3),
        "matrix": torch.zeros(2, 3, dtype=torch.long),
        "sparse": torch.eye(30).to_sparse(),
        "no values": torch.empty(3, device="meta"),
        "complex": torch.zeros(30, dtype=torch.complex64),
        "one of NumPy": np.array(3),
        "backwards": np.arange(20)[::-1],
        "timedelta": np.timedelta64(3, "D"),
        "masked array": np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
        "objects": np.array([None, 1], dtype=object),
    }


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[..., Any]]]:
    """Constructors with all that they need, by name."""
    folder, data = tmp_path_factory.mktemp("kinds"), plain()
    data.time, data.weight = torch.arange(100), torch.rand(700)
    path = gnnkit.partition(data, 1, out=folder / "store", weight="weight", time_attr="time").path
    base: dict[str, Any] = {"num_neighbors": [2], "batch_size": 50, "progress": False, "backend": "inprocess"}
    some = {"edge_label_index": data.edge_index[:, :10]}
    timed = {**base, **some, "time_attr": "time", "edge_label_time": torch.full((10,), 100)}
    found: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
        "from_pyg": (GraphLoader.from_pyg, (data,), base),
        "links": (GraphLoader.from_pyg, (data,), {**base, **some}),
        "times": (GraphLoader.from_pyg, (data,), {**base, "time_attr": "time"}),
        "times of links": (GraphLoader.from_pyg, (data,), timed),
        "typed": (GraphLoader.from_pyg, (typed(),), {**base, "input_nodes": "paper"}),
        "typed links": (GraphLoader.from_pyg, (typed(),), {**base, "edge_label_index": CITES}),
        "from_store": (GraphLoader.from_store, (path,), base),
        "from_source": (GraphLoader.from_source, (PyGSource(plain()),), {**base, "store_dir": folder / "stores"}),
        "from_ogb": (GraphLoader.from_ogb, ("ogbn-arxiv",), {**base, "download": False, "root": folder / "none"}),
        "partition": (gnnkit.partition, (plain(), 1), {"out": folder / "other"}),
        "NeighborLoader": (NeighborLoader, (data, [2]), {"batch_size": 50}),
        "LinkNeighborLoader": (LinkNeighborLoader, (data, [2]), {"batch_size": 50, **some}),
        "HGTLoader": (HGTLoader, (typed(), [2], "paper"), {"batch_size": 50}),
        "ShaDowKHopSampler": (ShaDowKHopSampler, (data, 1, 2), {"batch_size": 50}),
    }
    for kind in (InProcess, Colocated, GraphStore, PPR):
        found[kind.__name__] = (kind, (), {})
    found |= {"Labor": (Labor, ([2],), {}), "HGT": (HGT, ([2],), {}), "LayerWise": (LayerWise, ([2],), {}), "Walks": (Walks, (2,), {})}
    with GraphLoader.from_pyg(data, **base) as loader:
        loader_of: Any = {"for_split": (loader.for_split, (None,), {}), "with_backend": (loader.with_backend, ("inprocess",), {})}
        loader_of["for_links"] = (loader.for_links, (data.edge_index[:, :10],), {})
        loader_of["for_anchors"] = (loader.for_anchors, (("node", "to", "node"),), {})
        yield found | loader_of


# Arguments that say where something is written, is joined or is looked for.
_PLACES = {"out", "parts", "engine", "events", "download", "root", "store_dir", "log_dir"}
_BESIDE = ["batch_size", "num_neighbors", "seed", "shuffle", "device", "pad"]
_BESIDE += ["seed_weights", "rank", "prefetch", "memory_budget", "remainder"]


def arguments(name: str, maker: Callable[..., Any]) -> list[str]:
    """The arguments of a constructor; those of verbs beside the ones that they name."""
    own = [each.name for each in inspect.signature(maker).parameters.values() if each.kind is not each.VAR_KEYWORD]
    beside = _BESIDE if name.startswith(("for_", "with_")) else ["shuffle", "drop_last"] if name.endswith(("Loader", "Sampler")) else []
    return [each for each in (*own, *beside) if each not in (*_PLACES, "data", "source")]


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(
    "name",
    ["from_pyg", "links", "times", "times of links", "typed", "typed links", "from_store", "from_source", "from_ogb", "partition"]
    + ["NeighborLoader", "LinkNeighborLoader", "HGTLoader", "ShaDowKHopSampler"]
    + ["for_split", "for_links", "for_anchors", "with_backend"]
    + ["InProcess", "Colocated", "GraphStore", "PPR", "Labor", "HGT", "LayerWise", "Walks"],
)
def test_an_argument_of_the_wrong_kind(name: str, makers: dict[str, Any]) -> None:
    maker, given, base = makers[name]
    positional = list(inspect.signature(maker).parameters)[: len(given)]
    raw = []
    for argument in arguments(name, maker):
        for kind, value in values().items():
            words = {**dict(zip(positional, given, strict=True)), **base, argument: value}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    made = maker(**words)
                if isinstance(made, GraphLoader):
                    made.close()
            except GnnkitError:
                pass
            except Exception as error:
                raw.append(f"{argument}={kind}: {type(error).__name__}: {error}"[:200])
    assert not raw, "\n".join(raw)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"weight": {"weight": 1}}, "weight must be a text or None"),
        ({"time_attr": ["time"]}, "time_attr must be a text or None"),
        ({"shuffle": "no"}, "shuffle must be True, False or 'parts'"),
        ({"prefetch": [1]}, "prefetch must be a whole number"),
        ({"remainder": 3}, "remainder must be 'drop', 'pad', 'uneven' or None"),
        ({"batch_timeout_s": None}, "batch_timeout_s must be a number"),
        ({"transform": 3}, "transform must be a function or None"),
        ({"input_nodes": torch.tensor(3)}, r"input_nodes must be several, got tensor\(3\)"),
        ({"input_nodes": 3}, "input_nodes must be several, got 3"),
    ],
)
def test_the_argument_is_named(words: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        GraphLoader.from_pyg(plain(), num_neighbors=[2], **words)


def test_numbers_of_numpy_are_numbers() -> None:
    words: dict[str, Any] = {"batch_size": np.int64(10), "prefetch": np.array(1), "drop_last": np.bool_(True), "seed": np.uint8(3)}
    backend = InProcess(num_threads=np.int32(1))  # type: ignore[arg-type]
    with GraphLoader.from_pyg(plain(), input_nodes=torch.arange(100), num_neighbors=[2], backend=backend, **words) as loader:
        assert (loader.plan.batching.batch_size, loader.plan.runtime.prefetch, loader.plan.batching.drop_last) == (10, 1, True)
        assert loader.plan.backend["num_threads"] == 1 and len(loader) == 10
