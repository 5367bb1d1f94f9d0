"""The stop button at every stage, in a real kernel: the prompt is back at once, and the same cell run again completes."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.http_files import FileServer, file_server
from tests.helpers.ogb_trees import archive, write_csv, write_tree
from tests.helpers.waiting import wait_until
from tests.jupyter.workplace import Workplace, check_is_short, standing_still, stop, stop_at
from tests.ui.kernels import Cell, Kernel

pytestmark = pytest.mark.slow


def result(cell: Cell) -> str:
    """What a cell printed as its result."""
    (line,) = [line for line in cell.stdout.splitlines() if line.startswith("result ")]
    return line.removeprefix("result ")


def test_compiling_kernels(kernel: Kernel) -> None:
    """First of all: the kernel's home lacks some."""
    cell = """
data = Data(x=torch.ones(100, 2), edge_index=torch.arange(200).reshape(2, 100) % 100)
print("result", sum(batch.batch_size for batch in GraphLoader.from_pyg(data, num_neighbors=[2], batch_size=10)))
"""
    check_is_short(stop_at(kernel, cell, "compile start"), "compile sampling kernels")
    assert result(kernel.run(cell)) == "100"


@pytest.fixture
def slow_server(tmp_path: Path) -> Iterator[FileServer]:
    with file_server() as server:
        server.files["/nodeproppred/arxiv.zip"] = archive(write_tree("ogbn-arxiv", tmp_path / "original"), "arxiv")
        yield server


def test_a_download_twice(kernel: Kernel, slow_server: FileServer, tmp_path: Path) -> None:
    (root := tmp_path / "root").mkdir()
    kernel.run(f"os.environ['GNNKIT_OGB_URL'] = {slow_server.url!r}")
    cell = f"print('result', digest(GraphLoader.from_ogb('ogbn-arxiv', root={str(root)!r}, num_neighbors=[3, 2], batch_size=64)))"
    slow_server.stall_after = 20_000
    check_is_short(stop_at(kernel, cell, "download progress"), "download")  # in the middle
    slow_server.silent = True
    check_is_short(stop_at(kernel, cell, "download start"), "download")  # before the first answer
    slow_server.silent = False
    slow_server.released.set()
    kernel.run(cell)
    assert slow_server.requests[-1] is not None, "what had come was asked for again"
    assert {path.name for path in root.iterdir()} == {"ogbn_arxiv", "stores"}


def test_reading_text_twice(kernel: Kernel, tmp_path: Path) -> None:
    num_edges, block = 3_000_000, 120_000
    tree = write_tree("ogbn-arxiv", tmp_path, num_nodes=1000)
    write_csv(tree / "raw/num-edge-list.csv.gz", [[num_edges]])
    text = "".join(f"{i * 31 % 1000},{i * 7 % 1000}\n" for i in range(block)).encode()
    # A gzip file may have many members; each is the same text.
    (tree / "raw/edge.csv.gz").write_bytes(gzip.compress(text, 1) * (num_edges // block))
    cell = f"""
loader = GraphLoader.from_ogb("ogbn-arxiv", root={str(tmp_path)!r}, num_neighbors=[3, 2], batch_size=64)
print("result", loader.schema.num_edges, digest(loader))
"""
    for _ in range(2):
        check_is_short(stop_at(kernel, cell, "ingest progress"), "ingest ogbn-arxiv at ")
        assert not list((tmp_path / "stores").iterdir())
    first = result(kernel.run(cell))
    assert first.split()[0] == str(num_edges)
    assert result(kernel.run(cell)) == first
    assert len(list((tmp_path / "stores").iterdir())) == 1


def test_partitioning(place: Workplace, kernel: Kernel, tmp_path: Path) -> None:
    cell = f"""
options = {{"num_neighbors": [3, 2], "batch_size": 1024, "num_parts": 4, "store_dir": {str(tmp_path)!r}, "progress": True}}
print("result", digest(GraphLoader.from_source(products_like(0.02), partition=method, **options)))
"""
    kernel.run("method = 'ldg'")
    check_is_short(stop_at(kernel, cell, "partition progress"), "partition")
    kernel.run("method = 'metis'")
    running = kernel.begin(cell)
    assert wait_until(lambda: bool(place.started()), 60)  # METIS computes in a process of its own
    check_is_short(stop(kernel, running), "partition metis, 4 parts")
    assert wait_until(lambda: not place.children())
    assert not list(tmp_path.glob("*.incomplete"))
    kernel.run("method = 'ldg'")
    by_ldg = result(kernel.run(cell))
    kernel.run("method = 'metis'")
    assert len(by_ldg) > 20 and result(kernel.run(cell)) == by_ldg  # batches do not depend on the parts


BACKENDS = {"colocated": "Colocated(2)", "graph_store": "GraphStore(2)", "network": "GraphStore(1, address='127.0.0.1:0')"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_starting_and_receiving(place: Workplace, kernel: Kernel, store: Path, backend: str) -> None:
    """Processes that stand still, where they start and in the middle of an epoch; the loader goes on with the same ones."""
    options = f"num_neighbors=[10, 5], batch_size=100, shuffle=True, backend={BACKENDS[backend]}"
    kernel.run(f"store = {str(store)!r}")
    make = f"loader = GraphLoader.from_store(store, {options})"
    running = kernel.begin(make)
    assert wait_until(lambda: bool(place.started()), 30)
    with standing_still(place.started()):
        check_is_short(stop(kernel, running), "")
    assert wait_until(lambda: not place.children())  # those of a loader that was not made
    kernel.run(make)

    running = kernel.begin("seen = []\nfor batch in loader:\n    seen.append(batch.input_id)\n    print('one')\n    go()\nprint('over')")
    with pytest.raises(AssertionError, match="NameError"):
        kernel.finish(running)
    kernel.run("go = lambda: None")
    with standing_still(place.children()):
        running = kernel.begin("batches = iter(loader)\nprint('waits')\nfor batch in batches:\n    seen.append(batch.input_id)")
        kernel.wait_for(lambda: "waits" in running.stdout)
        check_is_short(stop(kernel, running), "epoch 1")
        again = kernel.begin("batches = loader.resume()\nprint('waits')\nfor batch in batches:\n    seen.append(batch.input_id)")
        kernel.wait_for(lambda: "waits" in again.stdout)
        check_is_short(stop(kernel, again), "epoch 1")
    before = {child.pid for child in place.children()}
    rest = kernel.run("rest = list(loader.resume())\nprint('result', len(seen) - 1 + len(rest))")
    assert result(rest) == "10"
    whole = kernel.run("print('result', torch.cat([batch.input_id for batch in loader]).sort().values.equal(torch.arange(1000)))")
    assert result(whole) == "True"
    assert {child.pid for child in place.children()} == before
    kernel.run("loader.close()")


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """A socket that takes connections and answers nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_waiting_for_servers_that_are_not_there(kernel: Kernel, store: Path, tmp_path: Path, deaf: socket.socket) -> None:
    network = f"127.0.0.1:{deaf.getsockname()[1]}"
    (tmp_path / "servers").mkdir(mode=0o700)
    for address in (network, f"unix:{tmp_path / 'servers'}"):
        kernel.run(f"address, store = {address!r}, {str(store)!r}")
        cell = """
with GraphLoader.from_store(num_neighbors=[10, 5], batch_size=100, backend=GraphStore(address=address)) as loader:
    print("result", sum(batch.batch_size for batch in loader))
"""
        check_is_short(stop_at(kernel, cell, "start start"), "start servers at ")
        deaf.close()
        kernel.run("servers = gnnkit.serve(store, 1, address=address, progress=False)")
        assert result(kernel.run(cell)) == "1000"
        kernel.run("servers.stop()")


@pytest.mark.slow(seconds=30)
def test_checking_an_export(place: Workplace, kernel: Kernel, store: Path, tmp_path: Path) -> None:
    """In the middle of the job that runs on trial: nothing of it is left."""
    job, train = tmp_path / "job", tmp_path / "train.py"
    train.write_text("def train(loader, ctx):\n    pass\n")
    kernel.run(f"""
from dataclasses import replace
from gnnkit.export.exporter import JobOptions, export_plan
from gnnkit.export.verify import verify_export
with GraphLoader.from_store({str(store)!r}, num_neighbors=[3, 2], batch_size=100, progress=False) as loader:
    plan = replace(loader.plan, backend=Colocated(num_workers=1).to_json())
_ = export_plan(plan, {str(job)!r}, JobOptions(gpus_per_node=0), train={str(train)!r})
""")
    launch = job / "launch.sh"
    whole = launch.read_text()
    # One that does not end when it is asked, and one in a session of its own; the script waits for both.
    launch.write_text("#!/bin/sh\n(trap '' TERM; exec sleep 600) &\nsetsid sleep 600 &\nwait\n")
    cell = f"print('result', verify_export({str(job)!r}).equal)"
    running = kernel.begin(cell)
    assert wait_until(lambda: any("sleep" in child.cmdline() for child in place.children()))
    check_is_short(stop(kernel, running), "export check job")
    assert wait_until(lambda: not place.children())
    launch.write_text(whole)
    assert result(kernel.run(cell)) == "True"
