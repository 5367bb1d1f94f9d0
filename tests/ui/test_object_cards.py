"""The cards of real objects: what they say, as a line, as a block and as HTML, and that a saved notebook can keep them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit import BuildOptions, GraphLoader, OnDevice, Store, set_options
from gnnkit.errors import PlanError
from tests.helpers.graphs import homogeneous_source, random_edges, random_source, stored
from tests.helpers.waiting import wait_until
from tests.loader.graphs import make, typed
from tests.ui.budgets import MAX_HTML_BYTES
from tests.ui.test_cards import Reader

FAULT_S = 20.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Two parts, with a name that is markup."""
    rng = np.random.default_rng(3)
    source = homogeneous_source(random_edges(rng, 200, 200, 900), 200, x=rng.random((200, 4), np.float32), splits={"train": np.arange(80)})
    source.name, source.notice = "<b>tiny</b>", "synthetic sample, not OGB's data"
    yield stored(source, tmp_path_factory.mktemp("<i>") / "store", BuildOptions(2, "random"))


def shown(thing: Any) -> tuple[str, str, str]:
    """How an object shows itself: its line, its block, and the texts of its HTML."""
    bundle = thing._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    html = bundle["text/html"]
    assert len(html.encode()) < MAX_HTML_BYTES and "<script" not in html and "http" not in html and "url(" not in html
    for name in ("--jp-layout-color0", "--vscode-editor-background", "prefers-color-scheme:dark"):  # the page's theme
        assert name in html
    with set_options(display="text"):
        assert set(thing._repr_mimebundle_()) == {"text/plain"}
    line, block = repr(thing), str(thing)
    assert "\n" not in line and block.count("\n") > 3 and bundle["text/plain"].splitlines()[0] == block.splitlines()[0]
    return line, block, "\n".join(Reader(html).texts)


def test_a_store(store: Store) -> None:
    line, block, texts = shown(store)
    assert line.startswith("Store(<b>tiny</b>: 200 nodes, 900 edges, 2 parts (random)")
    for text in (block, texts):
        for word in (
            "<b>tiny</b>",
            "open",
            "200",
            "900",
            "2 (random), all open",
            "edges cut",
            "train 80",
            "float32[4]",
            store.fingerprint[:16],
        ):
            assert word in text, word
        assert "synthetic sample, not OGB's data" in text and str(store.path) in text and "kB" in text
    half = Store.open(store.path, [1])
    assert "[1] open" in str(half) and "not open" in str(half)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_stores_of_any_shape(tmp_path: Path, edge_dir: Any) -> None:
    for seed in range(0, 4, 3):
        source = random_source(np.random.default_rng(seed), num_node_types=1 + seed, num_edge_types=6 * seed + 1)
        options = BuildOptions(1 + seed, edge_dir=edge_dir, with_edge=bool(seed % 2))
        _, block, texts = shown(stored(source, tmp_path / f"store{seed}", options))
        for name in source.schema.node_types:
            assert name in block and name in texts


def test_loaders_of_a_graph_in_memory() -> None:
    with make() as loader:
        line, block, texts = shown(loader)
        assert line.startswith("<GraphLoader Data (ready): ") and "last epoch" not in block and "last error" not in block
        next(iter(loader))
        assert " epoch 0: 1 of 15 batches" in " ".join(str(loader).split())
        loader.pause()
        assert "(paused)" in repr(loader)
        loader.unpause()
        list(loader)
        line, block, texts = shown(loader)
        for word in (
            "nodes",
            "InProcess, 1 thread",
            "last epoch",
            "1: 15 batches",
            "seeds/s",
            "batches/s",
            "buffers",
            "graph copy",
            "consumer",
        ):
            assert word in line + block and word in texts, word
        assert "processes" not in texts  # there is none but this one
    assert shown(loader)[0].startswith("<GraphLoader Data (closed)")
    with make(typed(), input_nodes="paper") as loader:
        assert "tag__on__paper" in shown(loader)[1]
    with make(backend=OnDevice("cpu")) as loader:
        assert "OnDevice, 1 thread" in shown(loader)[1] and " of the graph on cpu, " in shown(loader)[1]


def test_servers_and_a_loader_of_theirs_and_what_went_wrong(store: Store) -> None:
    """One pair of processes: ready, at work, with a worker killed, and stopped."""
    with gnnkit.serve(store, 1, progress=False, max_restarts=1) as servers:
        assert "(joining)" in shown(servers)[0]
        servers.wait()
        with GraphLoader.from_store(
            store.path, backend=gnnkit.GraphStore(address=servers.address), num_neighbors=[3], batch_size=8, progress=False
        ) as loader:
            batches = sum(1 for _ in loader)
            assert wait_until(lambda: servers.status()["batches"] >= batches, FAULT_S)
            line, block, texts = shown(loader)
            (server,) = servers.status()["servers"]
            worker = server["workers"][0]
            for word in (
                "processes",
                "server 0, process 0",
                str(worker["pid"]),
                worker["log"],
                "1 server at unix:",
                "mapped",
                "2 processes ",
            ):
                assert word in block and word in texts, word
            with pytest.raises(PlanError, match="not this process's to restart"):
                loader.restart_workers()
            assert len(list(loader)) == batches
        for text in shown(servers)[1:]:
            for word in ("ready", "1 of 1 ready", " batches, ", "graph copy", "2 processes ", str(store.path), worker["log"]):
                assert word in text, word
        assert "last error" not in str(servers)
        os.kill(worker["pid"], signal.SIGKILL)
        assert wait_until(lambda: servers.status()["last_error"] is not None and servers.ready, FAULT_S)
        assert "SIGKILL" in str(servers) and "last error" in shown(servers)[2]  # also once another one has its place
        assert all(servers.token not in text for text in shown(servers))
    line, block, texts = shown(servers)
    assert "(stopped)" in line and "processes" not in block and "0 of 1 ready" in texts and str(server["pid"]) not in texts
