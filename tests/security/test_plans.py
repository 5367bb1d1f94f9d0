"""Plans by strangers: what they hold is believed only as far as it has been looked at."""

from __future__ import annotations

import base64
import json
import re
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import HGT, PPR, GraphLoader, Labor, LayerWise, LoaderPlan, Walks, partition
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.plan.files import array_from_json, array_to_json
from tests.loader.graphs import plain


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("plans")
    partition(plain(), 1, out=folder / "store")
    with GraphLoader.from_store(folder / "store", num_neighbors=[2], batch_size=4, input_nodes=np.arange(20), progress=False) as loader:
        loader.plan.save(folder / "plan.json")
    value: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    value["store"]["path"] = str(folder / "store")
    return value


def bomb(nbytes: int) -> str:
    """So many zeros, compressed a thousandfold."""
    packer, piece = zlib.compressobj(1), bytes(1 << 20)
    packed = b"".join(packer.compress(piece) for _ in range(nbytes >> 20)) + packer.flush()
    return base64.b64encode(packed).decode()


BOMB = bomb(256 << 20)
MORE, LESS = zlib.compress(bytes(161)), zlib.compress(bytes(159))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"data": BOMB}, "more"),
        ({"data": BOMB, "shape": [0]}, "more"),
        ({"shape": [10**12]}, "quarter of the memory"),
        ({"shape": [10**6]}, "whose data are"),
        ({"shape": [2**40, 2**40]}, "quarter of the memory"),
        ({"shape": [-1]}, "shape"),
        ({"shape": [True]}, "shape"),
        ({"shape": [1] * 40}, "shape"),
        ({"shape": {}}, "shape"),
        ({"shape": 20}, "shape"),
        ({"dtype": "O"}, "object"),
        ({"dtype": "V1000000000"}, "void|V1"),
        ({"dtype": "i8,i8"}, "array of"),
        ({"data": 5}, "shape|array"),
        ({"data": "!!!!"}, "cannot be read"),
        ({"data": base64.b64encode(MORE).decode()}, "more"),
        ({"data": base64.b64encode(LESS).decode()}, "159"),
        ({"data": base64.b64encode(zlib.compress(bytes(160))[:-4]).decode()}, "160"),
        ({"data": base64.b64encode(b"nothing").decode()}, "cannot be read"),
    ],
)
def test_an_array_is_what_it_says_or_an_error_before_it_takes_memory(
    plan: dict[str, Any], tmp_path: Path, words: dict[str, Any], complaint: str
) -> None:
    value = json.loads(json.dumps(plan))
    assert value["inputs"]["ids"]["shape"] == [20] and value["inputs"]["ids"]["dtype"] == "<i8"
    value["inputs"]["ids"].update(words)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(value))
    tracemalloc.start()
    try:
        with pytest.raises(PlanError, match=complaint):
            GraphLoader.from_plan(file, progress=False)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10),
        np.zeros((0, 3), np.float32),
        np.arange(5, dtype=">i4"),
        np.zeros((3, 1_000_000), np.int64),
        np.array([True, False]),
        np.random.default_rng(0).random((7, 3, 2)),
    ],
)
def test_arrays_come_back(array: np.ndarray[Any, Any]) -> None:
    found = array_from_json(json.loads(json.dumps(array_to_json(array))))
    assert found is not None and found.shape == array.shape and found.flags.writeable
    assert found.dtype == array.dtype.newbyteorder("=") and np.array_equal(found, array)


WAYS: dict[str, dict[str, Any]] = {
    "fan-outs": {"num_neighbors": [3, 2], "shuffle": True, "seed_weights": np.ones(20), "disjoint": True},
    "hgt": {"sampler": HGT([3, 2])},
    "ppr": {"sampler": PPR(max_ppr_nodes=3, include_sampled_edges=False)},
    "layers": {"sampler": LayerWise([3, 2])},
    "walks": {"sampler": Walks(3, 2, 0.5, 2, 1)},
    "labor": {"sampler": Labor([2]), "pad": [(400, 900)], "prefetch": 1},
    "links": {"num_neighbors": [2], "edge_label_index": np.array([[0, 1], [2, 3]]), "neg_sampling": "binary"},
}
# Values that a place of a plan does not have: each was read as another, took memory, or ended in an error of Python's own.
STRANGE: tuple[Any, ...] = (
    *(10**29, 2**63, 2**62, -1, 2.7, 1e29, float("inf"), float("nan"), True, None),
    *("\ud800", "3", "x", [], {}, [1], ["a", "b", "c"], {"a": 1}),
)
# Python's own words for a value of the wrong kind.
RAW = re.compile(r"Error: |object is not|object has no|not understood|unpack|argument after|codec|NoneType")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@pytest.mark.parametrize("way", WAYS)
def test_a_value_is_what_it_says_or_an_error_in_words(plan: dict[str, Any], tmp_path: Path, way: str) -> None:
    """At every place of a plan: nothing is rounded, taken for a number or cut; what is refused is named."""
    inputs = {} if way == "links" else {"input_nodes": np.arange(20)}
    with GraphLoader.from_store(plan["store"]["path"], progress=False, batch_size=4, **inputs, **WAYS[way]) as loader:
        sample = json.loads(json.dumps(loader.plan.to_json()))
    refused = 0
    for path in places(sample):
        for strange in STRANGE:
            value = json.loads(json.dumps(sample))
            at(value, path[:-1])[path[-1]] = strange
            try:
                found = json.loads(json.dumps(LoaderPlan.from_json(value).to_json()))
                if path[0] == "backend":  # which only its own backend knows
                    GraphLoader.from_plan(write(tmp_path / "plan.json", value), progress=False).close()
            except GnnkitError as error:
                refused += 1
                assert not RAW.search(str(error)), (path, strange, str(error))
                continue
            except Exception as error:
                raise AssertionError(f"{path}: {strange!r}") from error
            if isinstance(strange, (int, float, str)):  # for the others the usual values may stand
                assert repr(at(found, path)) == repr(strange), path
    assert refused > 100


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path
