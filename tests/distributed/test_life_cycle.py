"""``initialize`` and ``exit_client``: what a process becomes, where its loaders sample, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from gnnkit import Colocated, GraphLoader, InProcess, Store
from gnnkit.distributed import exit_client, get_context, get_sampler_pool, initialize, is_initialized
from gnnkit.errors import LoaderClosed, PlanError, StoreError
from tests.cluster.serving.networked import HOSTS, TOKEN
from tests.distributed.loading import ring, stored
from tests.helpers.batches import digest, same
from tests.helpers.leaks import KEPT_PROCESSES
from tests.helpers.machine import ROOT
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 8, "input_nodes": None, "progress": False}
DEADLINE_S = 120


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return stored(ring(), tmp_path_factory.mktemp("life"), num_parts=2)


@pytest.fixture(autouse=True)
def clean_slate(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable says anything, and nothing stays initialised."""
    for name in [*(name for name in os.environ if name.startswith("GNNKIT_") and name != "GNNKIT_HOME"), "RANK", "WORLD_SIZE"]:
        monkeypatch.delenv(name, raising=False)
    yield
    exit_client()


def written_plan(store: Store, folder: Path) -> Path:
    """A plan file of a loader on a store."""
    with GraphLoader.from_store(store.path, **OPTIONS) as loader:
        loader.plan.save(folder / "plan.json")
    return folder / "plan.json"


def alike(left: Any, right: Any) -> None:
    """The same batches, one by one."""
    for one, other in zip(left, right, strict=True):
        same(one, other)


# Without servers ----------------------------------------------------------------------------------------------------------


def test_without_variables_a_script_runs_in_one_process(store: Store) -> None:
    expected = list(GraphLoader.from_store(store.path, **OPTIONS))
    assert not is_initialized()
    initialize()
    assert is_initialized() and get_sampler_pool() == (None, 0)
    with GraphLoader.from_store(store.path, **OPTIONS) as loader:
        assert loader.plan.backend["kind"] == "InProcess"
        alike(loader, expected)


def test_the_seeds_standalone_call_makes_no_pool_and_tells_its_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_NUM_SAMPLERS", "2")
    initialize("ip_config.txt", 1, 0, 1024, "socket", num_worker_threads=1)  # no such file, which DGL does not read here either
    assert is_initialized() and get_sampler_pool() == (None, 2)
    exit_client()
    initialize(ip_config="ip_config.txt")
    assert get_sampler_pool() == (None, 2)


def test_it_can_be_done_again_once_it_is_undone(store: Store) -> None:
    for _ in range(3):
        initialize()
        loader = GraphLoader.from_store(store.path, **OPTIONS)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(PlanError, match=r"initialised already\n  -> call exit_client\(\) first"):
            initialize()
        exit_client()
        assert not is_initialized()
        with pytest.raises(LoaderClosed):
            next(iterator)
    exit_client()


def test_a_plan_file_runs_where_initialize_says_and_a_written_backend_where_it_says(store: Store, tmp_path: Path) -> None:
    file = written_plan(store, tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "backend": Colocated(1).to_json()}))
    initialize(file)
    with GraphLoader.from_plan(progress=False) as loader:
        assert loader.plan.backend["kind"] == "InProcess"
        alike(loader, GraphLoader.from_store(store.path, backend=InProcess(), **OPTIONS))
    with GraphLoader.from_store(store.path, backend=Colocated(1), **OPTIONS) as loader:
        assert loader.plan.backend["kind"] == "Colocated"


def test_the_plan_of_the_environment_is_dealt_to_torchruns_ranks(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_PLAN", str(written_plan(store, tmp_path)))
    seeds = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        initialize()
        with GraphLoader.from_plan(progress=False) as loader:
            assert (loader.plan.batching.rank, loader.plan.batching.world_size) == (rank, 2)
            seeds.append(torch.cat([batch.n_id[: batch.batch_size][batch.seed_mask] for batch in loader]))
        exit_client()
    assert (
        len(seeds[0])
        and len(seeds[1])
        and torch.equal(torch.cat(seeds).sort().values, torch.arange(store.schema.node_types["node"].num_nodes))
    )


def test_a_plan_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the plan"):
        initialize(tmp_path / "plan.json")
    assert not is_initialized()
    initialize()
    with pytest.raises(PlanError, match=r"from_plan\(\) was given no file"):
        GraphLoader.from_plan()


def test_a_missing_variable_is_named_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_ROLE", "client")
    with pytest.raises(PlanError, match="GNNKIT_ADDRESSES is not set"):
        initialize()
    assert not is_initialized()
    monkeypatch.setenv("GNNKIT_MODE", "standalone")
    initialize()
    assert is_initialized()


def test_a_forked_child_is_not_initialised_and_undoes_nothing(store: Store) -> None:
    initialize()
    loader = GraphLoader.from_store(store.path, **OPTIONS)
    pid = os.fork()
    if pid == 0:
        ok = not is_initialized()
        exit_client()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert is_initialized() and len(list(loader)) == len(loader)


# With servers -------------------------------------------------------------------------------------------------------------


class Run:
    """Processes of one run, told what they are by their environment; whatever is left of them is killed at the end."""

    def __init__(self, plan: Path, address: str, **variables: str) -> None:
        self.address = address
        self.common = {"GNNKIT_PLAN": str(plan), "GNNKIT_ADDRESSES": address, **variables}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, role: str, what: str, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **self.common, "GNNKIT_ROLE": role, **{f"GNNKIT_{name}": value for name, value in variables.items()}}
        for name in ("RANK", "WORLD_SIZE"):
            if (value := environment.pop(f"GNNKIT_{name}", None)) is not None:
                environment[name] = value
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.role_process", what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self._started.append(process)
        return process

    def servers(self, **variables: str) -> list[subprocess.Popen[str]]:
        return [self.start("server", "", SERVER_ID=str(rank), **variables) for rank in range(2)]

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        # What a killed server has started ends by itself.
        assert wait_until(lambda: not _processes_in(self.address), 5.0), _processes_in(self.address)


def _processes_in(address: str) -> list[str]:
    """Processes that were told of a run's servers, or started by one that was."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if process.environ().get("GNNKIT_ADDRESSES") == address and not any(kept in command for kept in KEPT_PROCESSES):
                found.append(f"{process.pid}: {command[:160]}")
        except psutil.Error:
            continue
    return found


@pytest.fixture
def plan(store: Store, tmp_path: Path) -> Path:
    return written_plan(store, tmp_path)


@pytest.fixture
def run(plan: Path, tmp_path: Path) -> Iterator[Run]:
    """Two servers of this host."""
    run = Run(plan, f"unix:{tmp_path}/sockets", GNNKIT_NUM_SERVERS="2")
    yield run
    run.end()


@pytest.fixture
def cluster(plan: Path, tmp_path: Path) -> Iterator[Run]:
    """Two machines with a server each, in a file of DGL's."""
    file, token = tmp_path / "ip_config.txt", tmp_path / "token"
    file.write_text("".join(f"{ip} {free_port(ip)}\n" for ip in HOSTS))
    token.touch(0o600)
    token.write_text(TOKEN)
    run = Run(plan, str(file), GNNKIT_NUM_SERVERS="1", GNNKIT_TOKEN_FILE=str(token))
    yield run
    run.end()


def facts_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a client has printed."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=DEADLINE_S)[1]
    found: dict[str, Any] = json.loads(line)
    return found


def ended(process: subprocess.Popen[str]) -> int:
    """The exit status of a process that ends by itself."""
    process.wait(DEADLINE_S)
    return process.returncode


@pytest.mark.core
def test_one_script_is_servers_and_trainers_and_servers_end_with_the_last_trainer(cluster: Run, store: Store) -> None:
    servers = cluster.servers(NUM_CLIENTS="2", NUM_SAMPLERS="1")
    common = {"WORLD_SIZE": "2", "NUM_CLIENTS": "2", "NUM_SAMPLERS": "3"}
    failing, waiting = cluster.start("client", "raise", RANK="0", **common), cluster.start("client", "wait", RANK="1", **common)
    for rank, trainer in enumerate((failing, waiting)):
        facts = facts_of(trainer)
        assert facts["backend"] == "GraphStore" and facts["samplers"] == 3 and facts["context"] == ["CLIENT", rank, 2, 2]
        with GraphLoader.from_store(store.path, rank=rank, world_size=2, **OPTIONS) as loader:
            assert facts["batches"] == [digest([batch]) for batch in loader]
    assert ended(failing) == 1 and all(server.poll() is None for server in servers)
    waiting.communicate("", DEADLINE_S)
    assert waiting.returncode == 0
    assert [ended(server) for server in servers] == [0, 0]


def test_one_process_joins_servers_again_and_again_and_they_survive_it(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, killed = run.servers()
    with GraphLoader.from_store(store.path, **OPTIONS) as loader:
        expected, seeds = list(loader), [[start, start + 1] for start in range(0, 20, 2)]
        sampled = [loader.sample(ids) for ids in seeds]
    for name, value in (("ROLE", "client"), ("ADDRESSES", run.address), ("NUM_SAMPLERS", "2"), ("NUM_SERVERS", "3")):
        monkeypatch.setenv(f"GNNKIT_{name}", value)
    with pytest.raises(PlanError, match="initialize: 3 servers are expected, and there are 2"):
        initialize()
    assert not is_initialized() and get_sampler_pool() == (None, 0)
    monkeypatch.delenv("GNNKIT_NUM_SERVERS")
    other = run.start("client", "stay")
    assert facts_of(other) == {}
    other.kill()
    ended(other)
    for _ in range(3):
        initialize()
        context, (pool, size) = get_context(), get_sampler_pool()
        assert context is not None and context.is_client() and context.num_servers() == 2
        loader = GraphLoader.from_store(num_neighbors=OPTIONS["num_neighbors"], batch_size=8, input_nodes=None, progress=False)
        assert loader.plan.backend["kind"] == "GraphStore" and loader.plan.backend["address"] == run.address
        alike(loader, expected)
        assert pool is not None and size == 2
        alike(pool.map(loader.sample, seeds), sampled)
        exit_client()
        with pytest.raises(LoaderClosed):
            iter(loader)
        with pytest.raises(ValueError, match="not running"):
            pool.map(len, seeds)
        with GraphLoader.from_store(store.path, **OPTIONS) as alone:
            assert alone.plan.backend["kind"] == "InProcess"
    assert stopped.poll() is None and killed.poll() is None
    stopped.send_signal(signal.SIGTERM)
    assert ended(stopped) == 0
    assert len(_processes_in(run.address)) == 3, "the other script, its server and its sampling process"
    killed.kill()
    ended(killed)
    assert wait_until(lambda: not _processes_in(run.address), 5.0), _processes_in(run.address)


@pytest.mark.parametrize("kind", ["run", "cluster"])
def test_a_process_that_comes_twice_counts_twice(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in DGL, whose tests initialise, exit and initialise again; loaders that come and go are no visits."""
    started: Run = request.getfixturevalue(kind)
    servers = started.servers(NUM_CLIENTS="2")
    for name, value in {**started.common, "GNNKIT_NUM_CLIENTS": "2"}.items():
        monkeypatch.setenv(name, value)
    for visit in range(2):
        initialize()
        for _ in range(2):
            with GraphLoader.from_plan(progress=False) as loader:
                assert len(list(loader)) == len(loader)
        assert all(server.poll() is None for server in servers), f"visit {visit}"
        exit_client()
    assert [ended(server) for server in servers] == [0, 0]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PLAN": ""}, "GNNKIT_PLAN is not set, so that this server has nothing to serve"),
        ({"SERVER_ID": "2"}, "GNNKIT_SERVER_ID=2, but there are 2 servers"),
    ],
)
def test_a_server_without_something_to_serve_says_so(
    plan: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    usual = {"ROLE": "server", "SERVER_ID": "0", "NUM_SERVERS": "2", "ADDRESSES": f"unix:{tmp_path}", "PLAN": str(plan)}
    for name, value in {**usual, **variables}.items():
        monkeypatch.setenv(f"GNNKIT_{name}", value)
    with pytest.raises(PlanError, match=message):
        initialize()
    assert not is_initialized()


def test_a_server_refuses_a_store_that_the_plan_was_not_made_for(
    plan: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = json.loads(plan.read_text())
    written["store"]["graph"] = "0" * 64
    plan.write_text(json.dumps(written))
    usual = {"ROLE": "server", "SERVER_ID": "0", "NUM_SERVERS": "1", "ADDRESSES": f"unix:{tmp_path}", "PLAN": str(plan)}
    for name, value in usual.items():
        monkeypatch.setenv(f"GNNKIT_{name}", value)
    with pytest.raises(StoreError, match=f"is {store.reference.graph[:16]}, and the plan was made for {'0' * 16}"):
        initialize()
