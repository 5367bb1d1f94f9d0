"""``tools.bench`` and ``gnnkit bench``: their measurements, their arithmetic and their tables."""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import json
import mmap
import os
import re
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnnkit import Store
from gnnkit.cluster import namespaces as hosts_here
from gnnkit.datasets import products_like
from gnnkit.errors import PlanError
from gnnkit.export.verify import Difference, VerifyReport
from tests.backends.setups import is_gone
from tests.helpers.command import run
from tests.helpers.machine import ROOT
from tests.helpers.waiting import wait_until
from tools.bench import cluster_tasks, limit_tasks, namespaces
from tools.bench import tasks as bench_tasks
from tools.bench.contenders import CACHES, CONTENDERS, Arena, BenchGraph, environment, why_unavailable
from tools.bench.kinds import KINDS, kind_epoch, make_loader
from tools.bench.lines import LINES, contenders_of, evaluate
from tools.bench.options import PEERS, ROWS, BenchOptions
from tools.bench.process import BenchError, ProcessMeasurement, ProcessorWatch, footprint, measure
from tools.bench.report import COLUMNS, BenchReport, cells, markdown, run_bench, why_not_measured

SCALE = 0.001


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def graph(work_dir: Path) -> BenchGraph:
    folder = work_dir / f"products-like-{SCALE:g}"
    folder.mkdir()
    return BenchGraph(SCALE, folder, [].append)


def options(path: Path, **changes: Any) -> argparse.Namespace:
    values: dict[str, Any] = {
        "threads": 2,
        "workers": 0,
        "servers": 0,
        "clients": 1,
        "address": "",
        "alternate": False,
        "labor": False,
        "by_part": False,
        "epochs": 1,
        "batch_size": 49,
        "fanout": [5, 5],
        "settle": 0.0,
        "look": 0.2,
        "nodes": 2,
        "procs_per_node": 2,
        "partition": "contiguous",
    }
    return argparse.Namespace(path=str(path), **{**values, **changes})


# The graph -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_peers_get_the_same_graph(graph: BenchGraph) -> None:
    row, col, feat, train = (np.load(graph.arrays / f"{name}.npy") for name in ("row", "col", "feat", "train"))
    source = products_like(SCALE)
    edges = np.concatenate(list(source.edge_chunks()), axis=1)
    assert np.array_equal(np.stack([row, col]), edges)
    assert np.array_equal(feat, np.concatenate(list(source.node_array_chunks("node", "x"))))
    assert np.array_equal(train, source.splits["node"]["train"])
    assert {array.dtype.name for array in (row, col, train)} == {"int64"} and feat.dtype == np.float32


def test_files_are_made_once(graph: BenchGraph) -> None:
    before = (graph.arrays / "row.npy").stat().st_mtime_ns
    again = BenchGraph(SCALE, graph.folder, [].append)
    assert (again.arrays / "row.npy").stat().st_mtime_ns == before
    assert graph.store() == again.store()


def test_a_small_graph_still_has_several_batches(graph: BenchGraph) -> None:
    train = len(products_like(SCALE).splits["node"]["train"])
    assert train // graph.batch_size(1024) >= 4
    assert graph.batch_size(3) == 3


# Our own tasks ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_task_epoch_counts_seeds(graph: BenchGraph) -> None:
    values = bench_tasks.epoch(options(graph.store()))
    assert values["seeds_per_s"] > 0 and values["edges_per_s"] > 0 and values["first_epoch"] > 0
    assert 0 < values["first_batch_s"] < 60
    assert 49 < values["nodes_per_batch"] <= products_like(SCALE).schema.num_nodes


def test_labor_and_plain_fan_out_are_measured_in_turn(graph: BenchGraph) -> None:
    values = bench_tasks.labor(options(graph.store(), look=0.02))
    assert 0 < values["nodes"] < 1
    assert values["ratios"] == sorted(values["ratios"]) and len(values["ratios"]) > 4
    assert values["ratios"][0] < values["speed"] < values["ratios"][-1]


@pytest.mark.slow
def test_background_processes_are_measured_in_the_same_way(graph: BenchGraph) -> None:
    values = bench_tasks.epoch(options(graph.store(), workers=2, threads=1))
    assert values["seeds_per_s"] > 0 and values["nodes_per_batch"] > 49
    assert 0 < values["start_s"] == values["first_batch_s"] < 60
    assert 0 < values["close_s"] < 10


def test_the_memory_of_processes_is_told_apart_by_its_use(graph: BenchGraph) -> None:
    values = bench_tasks.worker_memory(options(graph.store(), workers=2, threads=1))
    assert values["processes"] == 2
    assert 2 * 20e6 < values["own_bytes"] < 2 * 400e6, "an interpreter with numpy and numba"
    assert 0 < values["ring_bytes"] < 100e6
    assert 0 < values["graph_bytes"] < 50e6, "a graph of 1.5 MB is not taken for the processes' own"


@pytest.mark.slow
def test_servers_are_measured_from_their_start(graph: BenchGraph) -> None:
    assert 0 < cluster_tasks.serve(options(graph.store(), servers=1))["first_batch_s"] < 60


@pytest.mark.slow
def test_splits_take_turns_on_the_same_servers(graph: BenchGraph) -> None:
    values = cluster_tasks.splits(options(graph.store(), servers=1, alternate=True, batch_size=10))
    assert values["seeds_per_s"] > 0 and values["workers"] == 1, "one server with one sampling process"
    (splits,) = Store.open(graph.store()).splits.values()
    num_batches = min(map(len, splits.values())) // 10
    assert num_batches > 1 and values["batches"] == [num_batches] * 3, "as many seeds of each, in one epoch"


@pytest.mark.parametrize(("alternate", "order"), [(True, "adebf"), (False, "abdef")])
def test_whose_turn_it_is(alternate: bool, order: str) -> None:
    taken: list[str] = []

    def loader(batches: str) -> Any:
        for batch in batches:
            taken.append(batch)
            yield batch

    assert cluster_tasks.go_through([loader("ab"), loader("d"), loader("ef")], alternate=alternate) == [2, 1, 2]
    assert "".join(taken) == order


@pytest.mark.slow
def test_the_memory_of_servers_is_theirs_and_their_workers(graph: BenchGraph) -> None:
    values = cluster_tasks.server_memory(options(graph.store(), servers=1, clients=2))
    assert values["processes"] == 2
    assert 2 * 20e6 < values["own_bytes"] < 2 * 400e6
    assert values["server_bytes"] == values["own_bytes"] + values["graph_bytes"] and values["ring_bytes"] > 0


def test_footprints_count_every_mapping_once(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "x.npy").write_bytes(b"0" * 30_000_000)
    code = (
        "import mmap, os, pathlib, sys\n"
        "def block(name, count):\n"
        "    fd = os.memfd_create(name); os.ftruncate(fd, count)\n"
        "    m = mmap.mmap(fd, count); m.write(b'x' * count); return m\n"
        "kept = [block('gnnkit-graph', 20_000_000), block('gnnkit-ring', 10_000_000), block('gnnkit-other', 5_000_000)]\n"
        "m = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, access=mmap.ACCESS_READ); sum(m[::4096])\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "store" / "x.npy")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        sizes = footprint([process.pid], tmp_path / "store")
        smaps = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        process.communicate("")
    total = int(next(line for line in smaps.splitlines() if line.startswith("Pss:")).split()[1]) * 1024
    assert sizes["ring_bytes"] == pytest.approx(10e6, rel=0.01)
    assert sizes["graph_bytes"] == pytest.approx(50e6, rel=0.01)
    assert sizes["own_bytes"] > 5e6
    assert sizes["graph_bytes"] + sizes["ring_bytes"] + sizes["own_bytes"] == pytest.approx(total, rel=0.02)


# Single answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_single_answers_are_timed_and_compared(graph: BenchGraph, servers: int) -> None:
    values = cluster_tasks.serving(options(graph.store(), servers=servers, fanout=[3, 2], rate=100.0, seconds=0.3))
    assert values["answers"] == 30 and values["answers_per_s"] > 0
    assert 0 < values["p50_us"] <= values["p99_us"] <= values["longest_us"] and values["alone_p50_us"] > 0
    assert {line.key for line in LINES if line.row == "serving"} <= values.keys()


def answer(number: int) -> Data:
    return Data(x=torch.tensor([number]))


def test_a_wrong_answer_has_no_speed() -> None:
    numbers = itertools.count()
    with pytest.raises(RuntimeError, match="another one where 8 threads ask"):
        cluster_tasks.ask_at(lambda number: answer(next(numbers)), [0.0] * 10)


def test_requests_come_whether_or_not_those_before_are_answered() -> None:
    due = [0.02 * number for number in range(cluster_tasks.CALLERS)]
    asked: dict[int, float] = {}
    all_ask = threading.Barrier(cluster_tasks.CALLERS)

    def ask(number: int) -> Data:
        if number not in asked:  # one thread alone asks once more afterwards
            asked[number] = time.perf_counter()
            all_ask.wait(20)  # nobody is answered before the last one has asked
        return answer(number)

    began = time.perf_counter()
    took, alone = cluster_tasks.ask_at(ask, due)
    assert all(asked[number] >= began + due[number] for number in range(len(due)))
    # Each counts from when it was due, and those before cannot have been due later than that they were asked.
    waited = max(asked.values()) - min(asked.values())
    assert all(took[number] + due[number] >= waited for number in range(len(due)))
    assert len(alone) == len(due) and all(alone > 0)


# The device ------------------------------------------------------------------------------------------------------------

# torch's own threads wait for each other where others sample, or test, beside them.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NEEDS_A_GPU = "import pytest\n@pytest.mark.gpu\ndef test_gpu():\n    assert {}\ndef test_none():\n    assert False\n"


def measure_gpu(tmp_path: Path, work_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script behind ``make gpu`` with tests of its own."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(ROOT / "tools/measure_gpu.py"),
        "--scale",
        str(SCALE),
        "--work-dir",
        str(work_dir),
        "--seconds",
        "0",
    ]
    env = environment() | ONE_THREAD
    return subprocess.run([*command, "--tests", str(tmp_path), *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=250)


@pytest.mark.slow(seconds=60)
def test_a_device_is_measured_with_the_cpu_in_its_place(graph: BenchGraph, work_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "test_of_gpu.py").write_text(NEEDS_A_GPU.format(True))
    done = measure_gpu(tmp_path, work_dir, "--device", "cpu", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["tests"]["passed"] == said["tests"]["tests"] == 1 and said["tests"]["ok"]
    surveyed = said["survey"]
    assert list(surveyed)[:2] == ["threads", "threads, page-locked, to the device"] and len(surveyed) == 11
    assert all(found.get("seeds_per_s", 0) > 0 for name, found in surveyed.items() if name not in ("clusters", "saint", "walks")), surveyed
    assert json.loads(said["doctor"])["checks"]
    runs = [said["runs"][f"device-{cache}"][0] for cache in CACHES]
    for run_of, line in itertools.product(runs, [line for line in LINES if line.row == "device"]):
        assert run_of[line.key] >= 0
    assert all(each["batches"] == each["batches_held"] == 4 and each["ratio"] == each["epoch_s"] / each["resident_s"] for each in runs)
    (sampled_there,) = said["runs"]["device-sampled"]
    assert sampled_there["feed_seeds_per_s"] > 0 and {each["digest"] for each in (*runs, sampled_there)} == {sampled_there["digest"]}
    whole, part, none = ((each["nbytes"], each["cached_nbytes"]) for each in runs)
    assert whole[0] > part[0] > none[0] > 0 == whole[1] < part[1] < none[1], "what is kept there does not travel"


@pytest.mark.slow
def test_a_test_that_fails_on_the_device_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_of_gpu.py").write_text(NEEDS_A_GPU.format(False))
    code = "import json, pathlib, sys, measure_gpu; print(json.dumps(measure_gpu.run_tests([pathlib.Path(sys.argv[1])])))"
    env = environment()
    env["PYTHONPATH"] += f":{ROOT / 'tools'}"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True, timeout=100)
    said = json.loads(done.stdout)
    assert (said["passed"], said["failures"], said["exit_code"], said["ok"]) == (0, 1, 1, False), done.stderr


@pytest.mark.slow
def test_without_a_device_nothing_is_measured(tmp_path: Path, work_dir: Path) -> None:
    done = measure_gpu(tmp_path, work_dir, "--device", "cuda:99")
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert "device 'cuda:99' was asked for" in line


def test_the_row_of_the_device_says_that_there_is_none(graph: BenchGraph) -> None:
    found = why_not_measured(["device-0", "limit"], Arena(BenchOptions(scale=SCALE, device="cuda:99"), graph))
    assert list(found) == ["device-0"] and found["device-0"].startswith("not measured: device 'cuda:99' was asked for")


# Memory groups and the disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, pytest.param({"workers": 1}, marks=pytest.mark.slow)])
def test_loaders_on_a_large_store_are_measured_and_compared(graph: BenchGraph, changes: dict[str, int]) -> None:
    values = limit_tasks.disk_epoch(options(graph.papers_store(), seconds=0.05, batch_size=16, **changes))
    assert values["rows_per_s"] > values["seeds_per_s"] > 0 and values["rows_per_batch"] > 16
    assert values["pages_per_s"] >= 0 and values["pages_per_batch"] >= 0


def test_a_wrong_batch_has_no_speed(graph: BenchGraph) -> None:
    """Measured from a disk or over a network: the same comparison."""
    words = options(graph.papers_store(), batch_size=16)
    with make_loader(words) as right, make_loader(words, seed=1) as wrong:
        cluster_tasks.check_batches(right, words)
        with pytest.raises(RuntimeError, match="not the one that a single process samples"):
            cluster_tasks.check_batches(wrong, words)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="Linux has reads past the page cache")
def test_the_disk_and_rows_that_are_asked_for_ahead(graph: BenchGraph) -> None:
    probed = limit_tasks.disk_probe(options(graph.papers_store(), seconds=0.02))
    assert list(probed["each"]) == ["1", "2", "4", "8", "16", "32", "64", "128", "256"]
    assert probed["pages_per_s"] == max(probed["each"].values()) == probed["each"][str(probed["depth"])] > 0
    ahead = limit_tasks.disk_ahead(options(graph.papers_store(), seconds=1.0, batch_size=16))
    assert ahead["rows_per_s"] > 0 and ahead["pages_per_s"] >= 0


def test_rows_in_memory_groups_say_why_there_are_none(graph: BenchGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arena, wanted = Arena(BenchOptions(scale=SCALE), graph), ["disk-probe", "disk-colocated-4", "limit"]
    monkeypatch.setenv("PATH", str(tmp_path))  # without a shell, nothing enters a group
    found = why_not_measured(wanted, arena)
    assert list(found) == wanted[:2]
    assert all(re.match("not measured: (memory cgroups cannot be made here|no memory controller)", why) for why in found.values())


@pytest.mark.cgroup
def test_rows_in_memory_groups_that_are_too_small_are_not_measured(graph: BenchGraph) -> None:
    arena, wanted = Arena(BenchOptions(scale=SCALE), graph), ["disk-probe", "disk-colocated-4", "limit"]
    found = why_not_measured(wanted, arena)
    assert list(found) == wanted[:2] and "1/4 of the store has" in found["disk-colocated-4"] and "larger scale" in found["disk-probe"]
    command = CONTENDERS["disk-colocated-4"].command(arena)
    nbytes = sum(path.stat().st_size for path in graph.papers_store().rglob("*.npy"))
    assert (
        command[1:5] == ["-m", "tools.bench.memory_groups", "--bytes", str(nbytes // 4)] and command[command.index("--workers") + 1] == "2"
    )


@pytest.mark.cgroup
def test_a_command_in_a_memory_group(tmp_path: Path) -> None:
    enter = [sys.executable, "-m", "tools.bench.memory_groups", "--bytes", str(64 << 20), sys.executable, "-c"]
    seen = "from gnnkit.host import total_memory; print(total_memory())"
    done = subprocess.run([*enter, seen], env=environment(), capture_output=True, text=True, timeout=100)
    assert (done.returncode, int(done.stdout)) == (0, 64 << 20), done.stderr
    done = subprocess.run([*enter, "print(len(bytearray(200 << 20)))"], env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and "67108864 bytes are not enough" in done.stderr
    done = subprocess.run([*enter, "raise SystemExit(7)"], env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 7


# Two hosts -------------------------------------------------------------------------------------------------------------


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.mark.netns
def test_two_hosts_reach_each_other_and_nobody_else(capfd: pytest.CaptureFixture[str]) -> None:
    if why := hosts_here.why_not():
        pytest.skip(why)
    before = interfaces()
    code = (
        "import json, os, socket\n"
        "rank, port = int(os.environ['RANK']), int(os.environ['MASTER_PORT'])\n"
        "if rank == 0:\n"
        "    with socket.create_server((os.environ['MASTER_ADDR'], port)) as server:\n"
        "        server.settimeout(20); them, (address, _) = server.accept(); them.recv(1)\n"
        "else:\n"
        "    for _ in range(400):\n"
        "        try: them = socket.create_connection((os.environ['MASTER_ADDR'], port), 20); break\n"
        "        except ConnectionRefusedError: __import__('time').sleep(0.05)\n"
        "    address = them.getsockname()[0]; them.send(b'x')\n"
        "assert sorted(name for _, name in socket.if_nameindex()) == ['eth0', 'lo'] and address == '10.99.0.2', address\n"
        "print(json.dumps({'seeds_per_s': 10 + rank}))"
    )
    namespaces.main([sys.executable, "-c", code])
    assert json.loads(capfd.readouterr().out) == {"seeds_per_s": 21.0, "each": [10.0, 11.0]}
    assert interfaces() == before


def on_two_hosts(contender: str, graph: BenchGraph) -> dict[str, Any]:
    """What a contender in two namespaces measures."""
    if why := hosts_here.why_not():
        pytest.skip(why)
    arena = Arena(BenchOptions(scale=SCALE, num_neighbors=(5, 5), batch_size=16), graph)
    return measure(CONTENDERS[contender].command(arena), timeout_s=240, environment=environment()).values


@pytest.mark.slow(seconds=40)
@pytest.mark.netns
def test_two_hosts_are_measured_on_batches_that_were_compared(graph: BenchGraph) -> None:
    values = on_two_hosts("hosts", graph)
    assert len(values["each"]) == 2 and values["seeds_per_s"] == sum(values["each"]) > 0
    assert 0 < values["busy"] <= 1 and values["own_busy"] > 0, "they and others, on all processors"
    assert values["cable_bytes_per_s"] > 0, "half of the rows are on the other host"


@pytest.mark.slow
@pytest.mark.netns
def test_the_wire_is_measured_at_the_cable(graph: BenchGraph) -> None:
    values = on_two_hosts("wire", graph)
    assert values["seeds_per_s"] > 0
    assert 0 < values["counted_bytes_per_batch"] < values["wire_bytes_per_batch"]
    # The rows of a batch alone are more than half of its bytes, and they have to come.
    assert 0.5 < values["wire_share"] == pytest.approx(values["wire_bytes_per_batch"] / values["batch_bytes"])


@pytest.mark.netns
def test_a_host_that_fails_ends_the_other() -> None:
    if why := hosts_here.why_not():
        pytest.skip(why)
    with pytest.raises(BenchError, match="host 1 ended with code 3"):
        namespaces.run_on_hosts(["sh", "-c", "[ $RANK = 0 ] && exec sleep 60; exit 3"])


def test_without_the_means_there_is_no_second_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ip, nsenter, unshare" in str(hosts_here.why_not())
    with pytest.raises(BenchError, match="ip, nsenter, unshare"):
        namespaces.run_on_hosts(["true"])


def test_the_task_limit_gathers_the_loader_s_rows(graph: BenchGraph) -> None:
    values = bench_tasks.limit(options(graph.store()))
    assert values["seeds_per_s"] > 0
    assert values["nodes_per_batch"] > 49


def test_the_limit_copies_the_right_rows() -> None:
    rng = np.random.default_rng(0)
    rows, ids = rng.random((50, 7)).astype(np.float32), rng.integers(0, 50, 20)
    out = np.zeros((20, 7), np.float32)
    assert bench_tasks.gather(rows, [ids], [out]) > 0
    assert np.array_equal(out, rows[ids])


@pytest.mark.parametrize("partition", ["contiguous", "random"])
def test_the_task_build_leaves_nothing(graph: BenchGraph, tmp_path: Path, partition: str) -> None:
    values = bench_tasks.build(options(graph.arrays, out=str(tmp_path / "out"), partition=partition))
    assert values["build_s"] > 0 and values["nbytes"] > 0
    assert values["input_bytes"] == sum((graph.arrays / f"{name}.npy").stat().st_size - 128 for name in ("row", "col", "feat"))
    assert not (tmp_path / "out").exists()


# Runs a script of a peer's for several kinds, one after another in one process: each ends with its line of JSON.
EACH_KIND = """
import os, runpy, sys
script, kinds, words = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
sys.path.insert(0, os.path.dirname(script))
for kind in kinds:
    sys.argv = [script, *words, "--kind", kind]
    runpy.run_path(script, run_name="__main__")
"""


def of_each_kind(python: Path, script: str, kinds: Sequence[str], *words: object) -> list[dict[str, Any]]:
    """What a script of a peer's measures for each kind."""
    command = [str(python), "-c", EACH_KIND, str(PEERS / script), ",".join(kinds), *map(str, words)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(kinds), done.stdout
    return found


def test_the_task_tables_reads_every_edge(tmp_path: Path) -> None:
    small, kinds = BenchGraph(0.01, tmp_path, [].append), ("int64", "string")
    for kind, peer in zip(kinds, of_each_kind(Path(sys.executable), "pandas_tables.py", kinds, small.tables), strict=True):
        values = bench_tasks.tables(options(small.tables, out=str(tmp_path / "out"), keys=kind))
        assert values["edges"] == products_like(0.003).schema.num_edges == peer["edges"] and values["tables_s"] > 0
        assert not (tmp_path / "out").exists()


def test_the_task_append_writes_a_version_and_takes_it_away(tmp_path: Path) -> None:
    small = BenchGraph(0.001, tmp_path, [].append)
    values = bench_tasks.append(options(small.tables_store, out=str(tmp_path / "out")))
    of_tables = Store.open(small.tables_store).schema
    assert values["new_edges"] == of_tables.num_edges // 120 and values["append_s"] > 0
    assert (of_tables.num_nodes, of_tables.num_edges) == (small.source.schema.num_nodes, small.source.schema.num_edges)
    assert not (tmp_path / "out").exists()


def test_the_task_ingest_reads_every_edge(tmp_path: Path) -> None:
    small = BenchGraph(0.01, tmp_path / "graph", [].append)
    values = bench_tasks.ingest(options(small.ogb_tree, out=str(tmp_path / "out")))
    assert values["edges"] == products_like(SCALE).schema.num_edges
    assert not (tmp_path / "out").exists()


# Kinds -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_measured(graph: BenchGraph, kind: str) -> None:
    values = kind_epoch(options(graph.kind_store(kind), kind=kind, arrays=str(graph.kind_arrays(kind)), batches=2, batch_size=20))
    assert values["seeds_per_s"] > 0 and values["edges_per_batch"] > 0
    most = {"hgt": 20 + 4 * 512, "layer-wise": 20 + 2 * 512, "ppr": 20 * 50, "disjoint": 20 * (1 + 10 + 50)}.get(kind, 10**6)
    assert 20 < values["nodes_per_batch"] <= most
    nodes = products_like(SCALE).num_nodes
    alone = kind in ("disjoint", "shadow", "temporal")
    assert alone or values["nodes_per_batch"] <= nodes, "nodes of one batch are there once"


def test_every_kind_has_a_line_and_who_is_measured_for_it() -> None:
    lines = [line for line in LINES if line.row == "kinds"]
    assert [line.contender for line in lines] == [f"kind-{kind}" for kind in KINDS]
    assert all(name in CONTENDERS for line in lines for name in (line.contender, line.peer) if name)
    assert all((line.peer is None) == (not line.targets) for line in lines)


def test_graphs_for_kinds_differ_in_what_kinds_need(graph: BenchGraph) -> None:
    plain, weighted, timed, labeled = (Store.open(graph.kind_store(kind)) for kind in ("hgt", "weighted", "temporal", "anchors"))
    (edges,), (nodes,) = weighted.schema.edge_types.values(), timed.schema.node_types.values()
    assert "weight" in edges.arrays and "time" in nodes.arrays and weighted.options.weight == "weight" and timed.options.time_attr == "time"
    assert len(labeled.schema.edge_types) == 2 and plain.schema.is_homogeneous
    assert {store.schema.node_types["node"].num_nodes for store in (plain, weighted, timed, labeled)} == {products_like(SCALE).num_nodes}


# Advice ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_following_advice_gains_is_measured(graph: BenchGraph) -> None:
    words = options(graph.store(), batch_size=10)

    def make(stack: contextlib.ExitStack) -> tuple[Any, Any]:
        return stack.enter_context(make_loader(words).pipeline), limit_tasks.Waiting(0.03)

    values = limit_tasks.gain_of("consumer", make, 0.3)
    assert values["gain"] == values["after"] / values["before"] > 1.2 and values["change"] == "{}"
    assert "make the training step faster" in values["sentence"]
    with pytest.raises(RuntimeError, match="the bottleneck is 'disk', and the loader says 'consumer'"):
        limit_tasks.gain_of("disk", make, 0.3)


@pytest.mark.slow
def test_a_slow_loop_body_is_found_out(graph: BenchGraph) -> None:
    values = limit_tasks.bottleneck(options(graph.store(), bottleneck="consumer", fanout=[30, 30], batch_size=10, look=0.6))
    assert values["gain"] > 0 and "make the training step faster" in values["sentence"]


def test_pages_of_a_store_are_dropped_again_and_again(graph: BenchGraph) -> None:
    with contextlib.ExitStack() as stack:
        loader, body = limit_tasks.dropped_cache(options(graph.store(with_edge=True)), stack)  # of which nobody has made a copy
        assert body is None and limit_tasks.run(loader, 0.2, body) > 0
        assert loader.status().graph_bytes == 0, "nothing but the store's files is read"
        arrays = [array for array in loader.graph.arrays.each() if array.nbytes]
        assert arrays and all(isinstance(limit_tasks.map_of(array), mmap.mmap) for array in arrays)
    assert limit_tasks.map_of(np.zeros(3)) is None


def test_every_bottleneck_has_a_line() -> None:
    lines = [line for line in LINES if line.row == "advice"]
    assert [line.contender for line in lines] == [f"advice-{name}" for name in limit_tasks.BOTTLENECKS]


@pytest.mark.slow
def test_a_launch_is_timed_to_its_first_step(graph: BenchGraph) -> None:
    values = cluster_tasks.launched(options(graph.store(), batch_size=10))
    assert 0 < values["returned_s"] < values["first_step_s"]
    assert line_of("launch").key in values


@pytest.mark.slow
def test_verifying_a_job_is_timed(graph: BenchGraph) -> None:
    # Ranks start in the same way, however many there are.
    values = cluster_tasks.verified(options(graph.store(), batch_size=1024, nodes=1, procs_per_node=1))
    assert values["verify_s"] > 0 and (values["batches"], values["ranks"]) == (100, 1)
    assert values["batch_size"] == len(np.load(graph.arrays / "train.npy")) // 100
    assert line_of("verify").key in values


@pytest.mark.parametrize(("batches", "differences"), [(100, (Difference(7, 1, 3, "x", "other values"),)), (99, ()), (100, ())])
def test_a_job_that_gives_other_batches_has_no_time(batches: int, differences: tuple[Difference, ...]) -> None:
    report = VerifyReport("job", "launch.sh", 2, 2, batches, 100, 900, (), differences, 9.0)
    with contextlib.nullcontext() if batches == 100 and not differences else pytest.raises(RuntimeError, match="100 equal batches"):
        cluster_tasks.check_equal(report)


def burn(seconds: float) -> None:
    """Takes processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.slow
def test_own_work_is_told_from_others() -> None:
    code = (
        "import sys, time\n"
        "sys.stdin.readline(); end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass\n"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        begin, watch = time.perf_counter(), ProcessorWatch()
        child.stdin.write("go\n")
        child.stdin.flush()
        burn(0.5)
        assert child.stdout.readline() == "\n"
        shares, elapsed = watch.shares(), time.perf_counter() - begin
    # Clocks tick, and only what others have done is added.
    assert shares["own_busy"] * elapsed * len(os.sched_getaffinity(0)) > 0.9
    assert shares["own_busy"] - 0.1 <= shares["busy"] <= 1


# Peers -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", sorted(PEERS.glob("*.py")), ids=lambda path: path.stem)
def test_peers_know_nothing_of_gnnkit(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        assert not [name for name in (*names, module) if name.split(".")[0] == "gnnkit"]


def test_a_peer_that_is_not_there_is_named_with_the_reason() -> None:
    reason = why_unavailable("graphbolt", Path(sys.executable))
    assert reason is not None and "dgl" in reason


@pytest.mark.slow(seconds=40)
@pytest.mark.glt
@pytest.mark.parametrize(("script", "more"), [("glt_loader", ""), ("pyg_loader", "--tuned"), ("glt_servers", "--parts")])
def test_peers_run_where_they_are_installed(graph: BenchGraph, glt_interpreter: Path, script: str, more: str) -> None:
    sizes = ["--workers", "1", "--batches", "3", "--batch-size", "16", "--fanout", "3", "2", *more.split()]
    command = [str(glt_interpreter), str(PEERS / f"{script}.py"), str(graph.arrays), *sizes]
    done = measure(command, timeout_s=240, environment=environment())
    assert done.values["seeds_per_s"] > 0
    assert done.values["first_batch_s"] > 0
    if script == "pyg_loader":
        assert re.match(r"PyG [\d.]+ with (pyg-lib|torch-sparse) [\d.]+, tuned", done.values["engine"])


@pytest.mark.slow
@pytest.mark.glt
def test_pyg_s_loaders_of_other_kinds_run(graph: BenchGraph, glt_interpreter: Path) -> None:
    kinds = ("link-binary", "link-triplet", "induced", "shadow", "hgt")
    sizes = ["--workers", "1", "--batches", "2", "--batch-size", "16", "--fanout", "3", "2"]
    for values in of_each_kind(glt_interpreter, "pyg_kinds.py", kinds, graph.arrays, *sizes):
        assert values["seeds_per_s"] > 0 and values["edges_per_s"] > 0


@pytest.mark.slow
@pytest.mark.glt
def test_the_peer_that_partitions_leaves_nothing(graph: BenchGraph, glt_interpreter: Path, tmp_path: Path) -> None:
    command = [str(glt_interpreter), str(PEERS / "glt_partition.py"), str(graph.arrays), "--out", str(tmp_path / "parts")]
    done = measure(command, timeout_s=240, environment=environment())
    assert done.values["build_s"] > 0
    assert done.values["nbytes"] > done.values["input_bytes"] / 2
    assert not (tmp_path / "parts").exists()


def test_the_table_says_what_a_peer_has_sampled_with() -> None:
    (line,) = (line for line in LINES if line.peer == "pyg")
    engine = "PyG 2.8.1 with pyg-lib 0.9.0, 0 workers, the better of 0 and 2"
    runs = {
        "gnnkit": [ProcessMeasurement({"seeds_per_s": 300.0}, 1.0, 0, 0)],
        "pyg": [ProcessMeasurement({"seeds_per_s": 100.0, "engine": engine}, 1.0, 0, 0)],
    }
    result = evaluate(line, runs, {}, 1.0)
    assert cells(result)[1] == f"against PyG NeighborLoader, as it comes ({engine})" and result.to_json()["peer_engine"] == engine


# pyg-lib itself is in neither environment of the tests: what the script needs of PyG is put in its place.
STAND_IN = """
import sys, types
sys.path.insert(0, {scripts!r})
typing = types.SimpleNamespace(WITH_PYG_LIB={has_lib})
sys.modules["torch_geometric"] = types.SimpleNamespace(typing=typing, __version__="2.8.1")
sys.modules["torch"] = types.SimpleNamespace(__version__="2.9")
for package, version in (("pyg_lib", "0.9.0"), ("torch_sparse", "0.6.18")):
    sys.modules[package] = types.SimpleNamespace(__version__=version)
import _common
options = types.SimpleNamespace(workers=2, tuned={tuned})
engine = _common.pyg_engine(by_sparse_alone={sparse})
_common.finish(_common.best_of_workers(lambda workers: {{"seeds_per_s": 10.0 - workers}}, engine, options))
"""


@pytest.mark.parametrize(
    ("has_lib", "sparse", "tuned", "engine"),
    [
        (True, False, False, "PyG 2.8.1 with pyg-lib 0.9.0, 0 workers, the better of 0 and 2"),
        (True, True, False, "PyG 2.8.1 with torch-sparse 0.6.18, 2 workers"),
        (False, False, False, "PyG 2.8.1 with torch-sparse 0.6.18, 2 workers"),
        (True, False, True, "PyG 2.8.1 with pyg-lib 0.9.0, tuned, 0 workers, the best of 0 and 1 and 2"),
    ],
)
def test_pyg_lib_is_measured_where_it_is_there(has_lib: bool, sparse: bool, tuned: bool, engine: str) -> None:
    code = STAND_IN.format(scripts=str(PEERS), has_lib=has_lib, sparse=sparse, tuned=tuned)
    assert measure([sys.executable, "-c", code], timeout_s=60, environment=environment()).values["engine"] == engine


# Processes -------------------------------------------------------------------------------------------------------------


def python(code: str, **arguments: Any) -> ProcessMeasurement:
    return measure([sys.executable, "-c", code], timeout_s=arguments.pop("timeout_s", 60), environment=environment())


@pytest.mark.slow
def test_memory_is_seen_from_outside() -> None:
    base = python("import time; time.sleep(1.5); print('{}')")
    heap = python("import time; x = bytearray(200_000_000); time.sleep(1.5); print('{}')")
    assert heap.anonymous_bytes - base.anonymous_bytes == pytest.approx(200e6, rel=0.1)
    shared = python("import mmap, time; m = mmap.mmap(-1, 100_000_000); m.write(b'x' * 100_000_000); time.sleep(1.5); print('{}')")
    assert shared.shared_bytes - base.shared_bytes == pytest.approx(100e6, rel=0.1)
    assert shared.peak_bytes == shared.anonymous_bytes + shared.shared_bytes


def test_memory_of_children_counts() -> None:
    inner = "x = bytearray(150_000_000); import time; time.sleep(2)"
    done = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}]); print('{{}}')")
    assert done.anonymous_bytes > 150e6


def test_the_last_line_counts() -> None:
    done = python("""print('noise'); print('{"a": 1}')""")
    assert done.values == {"a": 1}
    assert 0 < done.wall_s < 60


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('broken here')", "broken here"),
        ("print('no json')", "instead of JSON"),
        ("pass", "ended with code 0"),
        ("import time; time.sleep(60)", "took more than 1 s"),
    ],
)
def test_a_measurement_that_fails_says_why(code: str, words: str) -> None:
    with pytest.raises(BenchError, match=words):
        python(code, timeout_s=1 if "sleep" in code else 60)


@pytest.mark.slow
def test_children_of_a_measurement_that_takes_too_long_are_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    inner = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)"
    with pytest.raises(BenchError):
        python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])", timeout_s=10)
    assert wait_until(lambda: is_gone(int(note.read_text()))), "the child is still there"


# Arithmetic ------------------------------------------------------------------------------------------------------------


def said(*values: dict[str, float]) -> list[ProcessMeasurement]:
    return [ProcessMeasurement(value, 1.0, 300_000_000, 0) for value in values]


def line_of(row: str) -> Any:
    return next(line for line in LINES if line.row == row)


@pytest.mark.parametrize(("ours", "met"), [((20_000, 24_000), True), ((8_000, 9_000), False)])
def test_medians_make_the_ratio_and_the_verdict(ours: tuple[float, ...], met: bool) -> None:
    measurements = {
        "gnnkit": said(*({"seeds_per_s": value} for value in ours)),
        "glt": said({"seeds_per_s": 2_500.0}, {"seeds_per_s": 1_500.0}),
    }
    result = evaluate(line_of("seeds-glt"), measurements, {}, 1.0)
    assert result.ratio == pytest.approx(sum(ours) / 2 / 2_000)
    assert result.met is met


def test_for_times_the_ratio_says_how_much_faster_we_are() -> None:
    measurements = {"gnnkit": said({"first_batch_s": 0.5}), "glt": said({"first_batch_s": 50.0})}
    result = evaluate(line_of("open"), measurements, {}, 1.0)
    assert result.ratio == 100 and result.met is True
    slow = {"gnnkit": said({"first_batch_s": 1.5}), "glt": said({"first_batch_s": 500.0})}
    assert evaluate(line_of("open"), slow, {}, 1.0).met is False, "the absolute figure is missed"


@pytest.mark.parametrize(
    ("seeds_per_s", "busy", "met", "said_of_it"),
    [
        (1_400.0, 0.5, True, "yes"),
        (1_400.0, 0.97, True, "yes"),
        (1_000.0, 0.97, True, "yes, processors are the limit"),
        (1_000.0, 0.8, False, "no"),
    ],
)
def test_two_ranks_are_faster_or_name_what_limits_them(seeds_per_s: float, busy: float, met: bool, said_of_it: str) -> None:
    line = line_of("ranks")
    measurements = {
        line.contender: said({"seeds_per_s": seeds_per_s, "busy": busy, "own_busy": 0.375}),
        "one-rank": said({"seeds_per_s": 1_000.0, "busy": 0.5, "own_busy": 0.5}),
    }
    result = evaluate(line, measurements, {}, 1.0)
    row = cells(result)
    assert result.met is met and row[-1] == said_of_it
    assert f"(processors {busy:.0%} busy, 38% with this)" in row[1] and row[-2] == "at least 1.3x, or processors at least 90% busy"
    assert result.to_json()["bound"]["share"] == busy and result.to_json()["limited"] is (said_of_it == "yes, processors are the limit")
    assert evaluate(line, measurements, {}, 0.1).met is None
    assert evaluate(line, {line.contender: measurements[line.contender]}, {"one-rank": "failed"}, 1.0).met is None


def test_figures_are_not_judged_at_another_scale_or_without_a_peer() -> None:
    measurements = {"gnnkit": said({"seeds_per_s": 10.0}), "glt": said({"seeds_per_s": 10.0})}
    assert evaluate(line_of("seeds-glt"), measurements, {}, 0.1).met is None
    result = evaluate(line_of("seeds-glt"), {"gnnkit": measurements["gnnkit"]}, {"glt": "not measured: no such module"}, 1.0)
    assert (result.peer_value, result.ratio, result.met) == (None, None, None)
    assert "no such module" in result.note


def test_memory_is_judged_by_what_was_seen() -> None:
    assert evaluate(line_of("memory"), {"gnnkit": said({"batch_bytes": 0})}, {}, 1.0).met is True


def test_every_row_has_a_line_and_every_line_its_contenders() -> None:
    assert {line.row for line in LINES} == set(ROWS)
    assert set(contenders_of(ROWS)) - set(CONTENDERS) == {"store", "store-edge-ids"}


@pytest.mark.parametrize(
    "wrong",
    [{"rows": ("seeds-gtl",)}, {"repeats": 0}, {"num_threads": 0}, {"batch_size": 0}, {"interpreters": {"glt": Path("/nonexistent")}}],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        BenchOptions(**wrong)


def test_a_row_that_needs_a_second_host_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graph: BenchGraph) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = why_not_measured(["hosts", "glt-hosts", "colocated-2-parts"], Arena(BenchOptions(scale=SCALE), graph))
    why = "hosts are network namespaces of Linux, made with ip, nsenter, unshare"
    assert found == dict.fromkeys(("hosts", "glt-hosts"), f"not measured: {why}")


# The whole -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(work_dir: Path, graph: BenchGraph) -> BenchReport:
    graph.store()
    rows = ("seeds-graphbolt", "limit", "size", "start")
    return run_bench(BenchOptions(scale=SCALE, rows=rows, work_dir=work_dir, repeats=1, settle_s=0.0))


@pytest.mark.slow
def test_one_table_holds_what_was_asked_for(report: BenchReport) -> None:
    assert [result.line.row for result in report.results] == ["seeds-graphbolt", "limit", "start", "size", "size"]
    assert report.ok and not report.failed
    values = {result.line.title: result for result in report.results}
    assert all(result.value for result in report.results)
    assert values["against DGL GraphBolt"].peer_value is None
    assert "graphbolt" in report.unavailable
    assert values["store on disk, with edge ids"].value > values["store on disk"].value
    start = next(result.value for result in report.results if result.line.row == "start")
    assert 0.5 < start < 120


@pytest.mark.slow
def test_the_table_is_written_as_json_and_markdown(report: BenchReport) -> None:
    again = json.loads(json.dumps(report.to_json()))
    assert len(again["rows"]) == len(report.results)
    assert again["runs"]["gnnkit"][0]["anonymous_bytes"] > 50e6
    lines = markdown(report).splitlines()
    header = lines.index("| " + " | ".join(COLUMNS) + " |")
    assert len(lines) - header - 2 == len(report.results)
    assert all(len(cells(result)) == len(COLUMNS) for result in report.results)


@pytest.mark.slow
def test_the_command_line_ends_with_1_when_a_contender_fails(
    work_dir: Path, graph: BenchGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('numpy broke')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["bench", "--scale", str(SCALE), "--rows", "start", "--work-dir", str(work_dir), "--json"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("tools.bench", run_name="__main__")
    captured = capfd.readouterr()
    assert ended.value.code == 1
    assert "first-cell failed" in captured.err and "numpy broke" in captured.err
    assert json.loads(captured.out)["rows"][0]["gnnkit"] is None


def test_an_unknown_row_is_named() -> None:
    with pytest.raises(PlanError, match="seeds-glt"):
        BenchOptions(rows=("seeds-gtl",))


# gnnkit's own command -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("given", [[], ["store"]], ids=["generated", "store"])
def test_a_user_measures_his_machine(given: list[str], graph: BenchGraph, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--scale", str(SCALE), "--num-neighbors", "3,2", "--batch-size", "16", "--seconds", "0.2", "--threads", "1", "--json"]
    assert run(["bench", *[str(graph.store()) for _ in given], *words]) == 0
    found = json.loads(capfd.readouterr().out)
    assert list(found["backends"]) == ["InProcess", "Colocated", "GraphStore"] and found["num_threads"] == 1
    for figures in found["backends"].values():
        assert len(figures["seeds_per_s"]) == 3 and min(figures["seeds_per_s"]) > 0 and figures["start_s"] > 0
        for seeds, edges in zip(figures["seeds_per_s"], figures["edges_per_s"], strict=True):
            assert edges <= seeds * (3 + 3 * 2)
    assert found["gather_bytes_per_s"] > 0 < found["copy_bytes_per_s"] and found["least_bytes"] > 0
    assert found["row_copies"]["rows_ahead"] >= 1 and min(found["row_copies"]["bytes_per_s"].values()) > 0
    (tmp_path / "bench.json").write_text(json.dumps(found))
    assert run(["plan-capacity", str(graph.store()), "--num-neighbors", "3,2", "--bench", str(tmp_path / "bench.json")]) == 0


@pytest.mark.slow
def test_the_table_of_a_users_machine_says_how_near_the_limit_is(graph: BenchGraph, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(graph.store()), "--num-neighbors", "3", "--batch-size", "16", "--seconds", "0.1"]) == 0
    shown = capfd.readouterr().out
    assert "GraphStore" in shown and "is the fastest here" in shown and "% of the limit" in shown
