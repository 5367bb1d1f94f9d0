"""The example of training with storage servers, run as its first lines say, on the small graph that comes with gnnkit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gnnkit
from gnnkit import Store
from gnnkit.datasets import open_ogb, sample_root
from tests.examples.test_ogbn_products_ddp import processes_of
from tests.helpers.machine import ROOT
from tests.helpers.waiting import wait_until

EXAMPLE = ROOT / "examples/ogbn_products_server_client.py"
EPOCHS, BATCH_SIZE, DEADLINE_S = 2, 32, 240


@contextmanager
def served(store: Store) -> Iterator[str]:
    """Two servers of a store, in the foreground of a process of their own that ends with their last client; gives their address."""
    command = [sys.executable, "-m", "gnnkit", "serve", "--store", str(store.path), "--num-servers", "2", "--stop-with-last-client"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(line.split()[1] for line in process.stdout if line.startswith("address:"))
            yield address
            process.wait(DEADLINE_S)
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_two_ranks_learn_from_two_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, mark = gnnkit.partition(open_ogb("ogbn-products", root=sample_root()), 2, out=tmp_path / "products"), uuid.uuid4().hex
    for name, value in (("HOME", str(tmp_path)), ("TEST_MARK", mark), ("ROLE", "client")):
        monkeypatch.setenv(f"GNNKIT_{name}", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = ["--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
    recorded = [str(ROOT / "tests/examples/recorded.py"), str(tmp_path), str(EXAMPLE), *options]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *recorded]
    with served(store) as address:
        monkeypatch.setenv("GNNKIT_ADDRESSES", address)
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr[-4000:]
    assert wait_until(lambda: processes_of(mark) == []), processes_of(mark)

    splits = {name: set(ids.tolist()) for name, ids in store.splits["node"].items()}
    lines = re.findall(r"Trainer (\d)\] epoch (\d+): accuracy ([\d.]+) of (\d+)", done.stdout)
    assert {(int(rank), int(epoch)) for rank, epoch, _, _ in lines} == {(rank, epoch) for rank in range(2) for epoch in range(EPOCHS)}
    assert all(int(counted) == len(splits["valid"]) for *_, counted in lines)
    assert float(lines[-1][2]) > 2 / 47, "better than a guess"

    facts = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert all(fact["plan"]["backend"]["kind"] == "GraphStore" for fact in facts)
    for epoch in range(EPOCHS):
        batches = [[set(seeds) for seeds in fact["seeds"][epoch]] for fact in facts]
        train = [[seeds for seeds in own if seeds <= splits["train"]] for own in batches]
        assert len(train[0]) == len(train[1]) == len(splits["train"]) // BATCH_SIZE // 2, "as many steps on every rank"
        counts = Counter(seed for own in batches for seeds in own for seed in seeds)
        assert set(counts.values()) == {1} and counts.keys() >= splits["valid"], "each seed once over the ranks, all for validation"


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40
