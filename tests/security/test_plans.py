"""Plans by strangers: what they hold is believed only as far as it has been looked at."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.partitioning import partition
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
