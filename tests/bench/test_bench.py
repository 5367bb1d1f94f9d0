"""``gnnkit bench``: its measurements, its arithmetic and its table."""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gnnkit.bench import BenchOptions, BenchReport, namespaces, run_bench
from gnnkit.bench import tasks as bench_tasks
from gnnkit.bench.contenders import CONTENDERS, PEERS, Arena, environment, why_unavailable
from gnnkit.bench.footprint import footprint
from gnnkit.bench.graph import BenchGraph
from gnnkit.bench.lines import LINES
from gnnkit.bench.options import ROWS
from gnnkit.bench.process import BenchError, Measurement, measure
from gnnkit.bench.report import _unavailable
from gnnkit.bench.rows import contenders_of, evaluate
from gnnkit.bench.table import COLUMNS, cells, markdown
from gnnkit.cli.app import run
from gnnkit.datasets.synthetic import products_like
from gnnkit.errors import PlanError
from gnnkit.events import ignore_events

SCALE = 0.001


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def graph(work_dir: Path) -> BenchGraph:
    folder = work_dir / f"products-like-{SCALE:g}"
    folder.mkdir()
    return BenchGraph(SCALE, folder, ignore_events)


def options(path: Path, **changes: Any) -> argparse.Namespace:
    values: dict[str, Any] = {
        "threads": 2,
        "workers": 0,
        "epochs": 1,
        "batch_size": 49,
        "fanout": [5, 5],
        "settle": 0.0,
        "method": "contiguous",
    }
    return argparse.Namespace(path=str(path), **{**values, **changes})


# The graph -------------------------------------------------------------------------------------------------------------


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
    again = BenchGraph(SCALE, graph.folder, ignore_events)
    assert (again.arrays / "row.npy").stat().st_mtime_ns == before
    assert graph.store() == again.store()


def test_a_small_graph_still_has_several_batches(graph: BenchGraph) -> None:
    train = len(products_like(SCALE).splits["node"]["train"])
    assert train // graph.batch_size(1024) >= 4
    assert graph.batch_size(3) == 3


# Our own tasks ---------------------------------------------------------------------------------------------------------


def test_the_task_epoch_counts_seeds(graph: BenchGraph) -> None:
    values = bench_tasks.epoch(options(graph.store()))
    assert values["seeds_per_s"] > 0 and values["edges_per_s"] > 0
    assert 0 < values["first_batch_s"] < 60
    assert 49 < values["nodes_per_batch"] <= products_like(SCALE).schema.num_nodes


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


# Two hosts -------------------------------------------------------------------------------------------------------------


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.mark.netns
def test_two_hosts_reach_each_other_and_nobody_else(capfd: pytest.CaptureFixture[str]) -> None:
    if why := namespaces.why_not():
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
        "assert sorted(name for _, name in socket.if_nameindex()) == ['eth0', 'lo'] and address == '10.77.0.2', address\n"
        "print(json.dumps({'seeds_per_s': 10 + rank}))"
    )
    namespaces.main([sys.executable, "-c", code])
    assert json.loads(capfd.readouterr().out) == {"seeds_per_s": 21.0, "each": [10.0, 11.0]}
    assert interfaces() == before


@pytest.mark.slow
@pytest.mark.netns
def test_two_hosts_are_measured_on_batches_that_were_compared(graph: BenchGraph) -> None:
    if why := namespaces.why_not():
        pytest.skip(why)
    arena = Arena(BenchOptions(scale=SCALE, num_neighbors=(5, 5), batch_size=16), graph)
    done = measure(CONTENDERS["hosts"].command(arena), timeout_s=150, environment=environment())
    assert len(done.values["each"]) == 2 and done.values["seeds_per_s"] == sum(done.values["each"]) > 0


@pytest.mark.netns
def test_a_host_that_fails_ends_the_other() -> None:
    if why := namespaces.why_not():
        pytest.skip(why)
    with pytest.raises(BenchError, match="host 1 ended with code 3"):
        namespaces.run_on_hosts(["sh", "-c", "[ $RANK = 0 ] && exec sleep 60; exit 3"])


def test_without_root_there_is_no_second_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: f"/bin/{name}")
    assert "root" in str(namespaces.why_not())
    with pytest.raises(BenchError, match="root"):
        namespaces.run_on_hosts(["true"])
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: None)
    assert "ip, nsenter, unshare" in str(namespaces.why_not())


def test_the_task_limit_gathers_the_loader_s_rows(graph: BenchGraph) -> None:
    values = bench_tasks.limit(options(graph.store()))
    assert values["seeds_per_s"] > 0
    assert values["nodes_per_batch"] > 49


def test_the_limit_copies_the_right_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows, ids = rng.random((50, 7)).astype(np.float32), rng.integers(0, 50, 20)
    outs: list[np.ndarray[Any, Any]] = []
    monkeypatch.setattr(bench_tasks.np, "ones", lambda shape, dtype: outs.append(np.zeros(shape, dtype)) or outs[-1])
    bench_tasks._gather_speed(rows, [ids], options(Path(), threads=1))
    assert np.array_equal(outs[0], rows[ids])


@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_the_task_build_leaves_nothing(graph: BenchGraph, tmp_path: Path, method: str) -> None:
    values = bench_tasks.build(options(graph.arrays, out=str(tmp_path / "out"), method=method))
    assert values["build_s"] > 0 and values["nbytes"] > 0
    assert values["input_bytes"] == sum((graph.arrays / f"{name}.npy").stat().st_size - 128 for name in ("row", "col", "feat"))
    assert not (tmp_path / "out").exists()


def test_the_task_ingest_reads_every_edge(tmp_path: Path) -> None:
    small = BenchGraph(0.01, tmp_path / "graph", ignore_events)
    values = bench_tasks.ingest(options(small.ogb_tree, out=str(tmp_path / "out")))
    assert values["edges"] == products_like(SCALE).schema.num_edges
    assert not (tmp_path / "out").exists()


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


@pytest.mark.slow
@pytest.mark.glt
@pytest.mark.parametrize("script", ["glt_loader", "pyg_loader"])
def test_peers_run_where_they_are_installed(graph: BenchGraph, glt_interpreter: Path, script: str) -> None:
    sizes = ["--workers", "1", "--batches", "3", "--batch-size", "16", "--fanout", "3", "2"]
    command = [str(glt_interpreter), str(PEERS / f"{script}.py"), str(graph.arrays), *sizes]
    done = measure(command, timeout_s=150, environment=environment())
    assert done.values["seeds_per_s"] > 0
    assert done.values["first_batch_s"] > 0


@pytest.mark.slow
@pytest.mark.glt
def test_the_peer_that_partitions_leaves_nothing(graph: BenchGraph, glt_interpreter: Path, tmp_path: Path) -> None:
    command = [str(glt_interpreter), str(PEERS / "glt_partition.py"), str(graph.arrays), "--out", str(tmp_path / "parts")]
    done = measure(command, timeout_s=150, environment=environment())
    assert done.values["build_s"] > 0
    assert done.values["nbytes"] > done.values["input_bytes"] / 2
    assert not (tmp_path / "parts").exists()


# Processes -------------------------------------------------------------------------------------------------------------


def python(code: str, **arguments: Any) -> Measurement:
    return measure([sys.executable, "-c", code], timeout_s=arguments.pop("timeout_s", 60), environment=environment())


def test_memory_is_seen_from_outside() -> None:
    base = python("import time; time.sleep(0.2); print('{}')")
    heap = python("import time; x = bytearray(200_000_000); time.sleep(0.3); print('{}')")
    assert heap.anonymous_bytes - base.anonymous_bytes == pytest.approx(200e6, rel=0.1)
    shared = python("import mmap, time; m = mmap.mmap(-1, 100_000_000); m.write(b'x' * 100_000_000); time.sleep(0.3); print('{}')")
    assert shared.shared_bytes - base.shared_bytes == pytest.approx(100e6, rel=0.1)
    assert shared.peak_bytes == shared.anonymous_bytes + shared.shared_bytes


def test_memory_of_children_counts() -> None:
    inner = "x = bytearray(150_000_000); import time; time.sleep(1)"
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


def test_children_of_a_measurement_that_takes_too_long_are_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    inner = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)"
    with pytest.raises(BenchError):
        python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])", timeout_s=3)
    pid, deadline = int(note.read_text()), time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child is still there"
        time.sleep(0.05)


# Arithmetic ------------------------------------------------------------------------------------------------------------


def said(*values: dict[str, float]) -> list[Measurement]:
    return [Measurement(value, 1.0, 300_000_000, 0) for value in values]


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


def test_figures_are_not_judged_at_another_scale_or_without_a_peer() -> None:
    measurements = {"gnnkit": said({"seeds_per_s": 10.0}), "glt": said({"seeds_per_s": 10.0})}
    assert evaluate(line_of("seeds-glt"), measurements, {}, 0.1).met is None
    result = evaluate(line_of("seeds-glt"), {"gnnkit": measurements["gnnkit"]}, {"glt": "not measured: no such module"}, 1.0)
    assert (result.peer_value, result.ratio, result.met) == (None, None, None)
    assert "no such module" in result.note


def test_memory_is_judged_by_what_was_seen() -> None:
    assert evaluate(line_of("memory"), {"gnnkit": said({})}, {}, 1.0).met is True


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


def test_a_row_that_needs_a_second_host_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch, graph: BenchGraph) -> None:
    monkeypatch.setattr(namespaces, "why_not", lambda: "there is no cable")
    found = _unavailable(["hosts", "glt-hosts", "colocated-2-parts"], Arena(BenchOptions(scale=SCALE), graph))
    assert found == dict.fromkeys(("hosts", "glt-hosts"), "not measured: there is no cable")


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
    work_dir: Path, graph: BenchGraph, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(command: list[str], **_: Any) -> Measurement:
        raise BenchError(f"{command[2]} broke")

    monkeypatch.setattr("gnnkit.bench.report.measure", fail)
    code = run(["bench", "--scale", str(SCALE), "--rows", "start", "--work-dir", str(work_dir), "--json"])
    captured = capfd.readouterr()
    assert code == 1
    assert "first-cell failed" in captured.err
    assert json.loads(captured.out)["rows"][0]["gnnkit"] is None


def test_an_unknown_row_is_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--rows", "seeds-gtl"]) == 2
    assert "seeds-glt" in capfd.readouterr().err
