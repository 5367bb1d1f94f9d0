"""``Glt()``: graphlearn-torch's own engine under ``GraphLoader``, in the environment where its native library fits."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest

import gnnkit
from gnnkit import Glt
from gnnkit.backends import backend_from_json
from gnnkit.errors import PlanError
from gnnkit.plan import NeighborSampling
from tests.backends.glt.graphs import ring, town
from tests.helpers.chi_square import check_counts
from tests.helpers.glt import is_native
from tests.helpers.machine import ROOT, glt_python, in_time
from tests.helpers.namespaces import INTERFACE, NamespaceHost, network
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until
from tests.loader.graphs import make

FAULT_S = 5.0
LIMIT_S = 280.0
# graphlearn-torch's processes take long to import and start, the more so beside other tests.
pytestmark = pytest.mark.timeout(LIMIT_S + 20)
# Libraries of that environment warn of each other at import.
QUIET = ("-W", "error:::gnnkit", "-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")


def command(python: Path, *words: object) -> list[str]:
    return [str(python), *QUIET, "-m", "tests.backends.glt.scenario", *map(str, words)]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "GNNKIT_HOME": str(folder / "home"), **more}


Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a scenario and returns what it found. One process runs them all: what each starts must be gone before the next."""
    python, folder = glt_python(), tmp_path_factory.mktemp("glt")
    with (
        (folder / "errors").open("w+") as errors,
        subprocess.Popen(
            command(python or Path()), cwd=ROOT, env=environment(folder), stdin=PIPE, stdout=PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def call(name: str, folder: Path) -> dict[str, Any]:
            requests.write(f"{name} {folder}\n")
            requests.flush()
            try:
                found = next((json.loads(line) for line in answers if line.startswith("{")), None)
            except BaseException:  # it took too long: what it answers later is for nobody
                process.kill()
                raise
            assert found is not None, Path(errors.name).read_text()[-6000:]
            assert "failed" not in found, found["failed"] + Path(errors.name).read_text()[-6000:]
            return dict(found)

        yield call
        process.kill()


def test_what_it_takes_where_the_native_library_does_not_fit() -> None:
    if is_native():
        pytest.skip("graphlearn-torch's native library fits here; to enable: run with a torch that it does not fit")
    with pytest.raises(PlanError) as caught:
        make(backend=Glt())
    sentence, _, hint = str(caught.value).partition("\n")
    assert sentence.startswith("Glt() needs graphlearn-torch's native library: ") and "pip install" in hint or "has wheels for" in hint


def test_options_are_checked_and_come_back_from_json() -> None:
    backend = Glt(mode="server_client", num_workers=2, graph_mode="CUDA", channel_size="2GB", master_port=4000, interface="eth0")
    assert backend_from_json(backend.to_json()) == backend
    assert backend.to_json()["drawn_by"] == "graphlearn-torch" and backend.channel_bytes == 2 << 30
    assert gnnkit.Glt is Glt
    for options in (
        {"mode": "client"},
        {"graph_mode": "GPU"},
        {"num_workers": 0},
        {"num_workers": True},
        {"worker_concurrency": 33},
        {"channel_size": "many"},
        {"channel_size": None},
        {"master_port": 0},
        {"interface": ""},
        {"rpc_timeout_s": 0},
        {"log_dir": ""},
        {"drawn_by": "gnnkit"},
    ):
        with pytest.raises(PlanError, match=next(iter(options))):
            Glt(**options)


def test_what_graphlearn_torch_gets_wrong_is_refused() -> None:
    from gnnkit.backends.glt.options import check_sampling

    edge_type = ("a", "to", "b")
    for fan_outs in ((3, 2), (3, 0), (0, 0), (-1, 5)):
        check_sampling(NeighborSampling({edge_type: fan_outs}))
    with pytest.raises(PlanError, match="takes nothing at hop 1 and something later"):
        check_sampling(NeighborSampling({edge_type: (0, 5)}))
    with pytest.raises(PlanError, match="neighbours of weight 0"):
        check_sampling(NeighborSampling({edge_type: (3,)}, weight="w"))


@pytest.mark.glt
def test_worker_mode_on_two_parts_of_a_typed_graph(run: Run, tmp_path: Path) -> None:
    found = run("worker", tmp_path)
    assert found["workers"] == 2
    assert found["said"][1] == "graphlearn-torch" and "drawn by graphlearn-torch" in found["said"][0]
    assert not found["left"] and not found["changed"]


@pytest.mark.glt
def test_servers_and_a_client_draw_all_neighbours_alike(run: Run, tmp_path: Path) -> None:
    found = run("server_client", tmp_path)
    assert found["servers"] == 3
    check_counts(found["counts"])
    assert found["listeners"] == ["127.0.0.1"]
    assert not found["left"]


@pytest.mark.slow(seconds=40)
@pytest.mark.glt
def test_faults_are_errors_and_the_loader_goes_on(run: Run, tmp_path: Path) -> None:
    found = run("faults", tmp_path)
    assert "does not fit the channel" in found["too large"] and "raise channel_size" in found["too large"]
    assert "in _checked" in found["too large"], "the remote traceback is missing"
    assert re.search(r"no batch within \d+ s", found["stopped"]) and "is stopped (SIGSTOP)" in found["stopped"]
    assert "was killed by SIGKILL" in found["worker killed"] and "graphlearn-torch worker" in found["worker killed"]
    assert in_time(found["seen after"], FAULT_S)
    assert "was killed by SIGKILL" in found["driver killed"] and "its log" in found["driver killed"]
    assert in_time(found["gone after"], FAULT_S) and not found["left"]


def start_rank(number: int, hosts: list[NamespaceHost], python: Path, folder: Path, mode: str) -> subprocess.Popen[str]:
    more = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29555", "RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    more |= {"LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(number), "GROUP_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": INTERFACE}
    more |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "GLT_MODE": mode}
    words = [*hosts[number].enter, *command(python, "rank", folder)]
    return subprocess.Popen(words, cwd=ROOT, env=environment(folder, **more), stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)


@pytest.mark.glt
@pytest.mark.netns
@pytest.mark.parametrize("mode", ["worker", "server_client"])
def test_two_hosts_with_a_part_each_leave_nothing(mode: str, glt_interpreter: Path, tmp_path: Path) -> None:
    store = gnnkit.partition(ring(), 2, "random", out=tmp_path / "store")
    for number in range(2):
        shutil.copytree(store.path, tmp_path / f"host{number}")
        shutil.rmtree(tmp_path / f"host{number}" / f"part{1 - number}")
    with network(2) as hosts:
        started = [start_rank(number, hosts, glt_interpreter, tmp_path, mode) for number in range(2)]
        try:
            found = []
            for process in started:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, process.communicate(timeout=LIMIT_S)[1][-6000:]
                found.append(json.loads(line))
            # The process group's own store, torch's, is the one that listens everywhere.
            open_to_all = {port for host in hosts for ip, port in host.listeners() if ip in ("0.0.0.0", "::")}
            assert open_to_all <= {29555}
            assert all(len(one["pids"]) >= (2 if mode == "worker" else 3) for one in found)
            pids = {process.pid for process in started}.union(*(one["pids"] for one in found))
            assert segments_of(pids)  # graphlearn-torch's channels
            for process in started:
                if mode == "worker":
                    process.kill()
                else:
                    assert process.stdin is not None
                    process.stdin.write("\n")
                    process.stdin.flush()
            answers = [process.communicate(timeout=LIMIT_S) for process in started]
        finally:
            for process in started:
                process.kill()
                process.communicate()
        assert wait_until(lambda: not any(map(psutil.pid_exists, pids)), FAULT_S)
    assert not segments_of(pids)
    for process, (_, errors) in zip(started, answers, strict=True):
        assert process.returncode == (-signal.SIGKILL if mode == "worker" else 0), errors[-6000:]
    assert sorted(found[0]["seen"] + found[1]["seen"]) == list(range(60)) and all(one["seen"] for one in found)


def segments_of(pids: set[int]) -> list[str]:
    """System V's shared memory that some processes have made; that of tests beside this one is not its business."""
    lines = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return [fields[1] for fields in lines if int(fields[4]) in pids]


@pytest.mark.glt
def test_datasets_are_graphlearn_torchs_own(glt_interpreter: Path, tmp_path: Path) -> None:
    for name, source, dtype in (("ring", ring(), "quint8"), ("town", town(), None)):
        gnnkit.partition(source, 2, "random", out=tmp_path / name, with_edge=True, feature_dtype=dtype)
    port = str(free_port())
    started = [
        subprocess.Popen(
            command(glt_interpreter, "dataset", tmp_path),
            cwd=ROOT,
            env=environment(tmp_path, RANK=str(number), PORT=port, TP_SOCKET_IFNAME="lo"),
            stdout=PIPE,
            stderr=PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        answers = [process.communicate(timeout=LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    for process, (out, errors) in zip(started, answers, strict=True):
        assert process.returncode == 0, errors[-6000:]
        assert json.loads(out.splitlines()[-1])["batches"] >= 4


@pytest.mark.gpu
@pytest.mark.glt
@pytest.mark.parametrize("graph_mode", ["ZERO_COPY", "CUDA"])
def test_sampling_on_a_gpu(graph_mode: str, glt_interpreter: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command(glt_interpreter, "gpu", tmp_path),
        cwd=ROOT,
        env=environment(tmp_path, GLT_GRAPH_MODE=graph_mode),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
