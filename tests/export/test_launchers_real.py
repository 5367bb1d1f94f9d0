"""Launch files run for real: torchrun on hosts that are network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnnkit import Colocated, GraphLoader, GraphStore, Store
from gnnkit.export.job import JobStore
from gnnkit.plan import Placement
from tests.cluster.hosts.setups import OPTIONS, build, expected
from tests.distributed.ranks import TORCHRUN_VARIABLES
from tests.export.jobs import job, write_files
from tests.helpers.machine import ROOT
from tests.helpers.namespaces import NamespaceHost, network
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.timeout(900)]
DEADLINE_S = 400
ONE_PER_HOST = Placement(((0,), (1,)))
# Every rank writes down its batches, and takes a checkpoint after each. What a test has put into `on_step` may happen then.
TRAINER = """\
import os
import signal

import torch
import torch.distributed as dist
from tests.helpers.batches import digest as batches_digest


def train(loader, ctx):
    model = ctx.ddp(torch.nn.Linear(5, 4))
    ctx.restore(model=model)
    shared, step = ctx.directory.parent, 0
    for epoch in ctx.epochs(2):
        for batch in loader:
            torch.nn.functional.cross_entropy(model(batch.x)[: batch.batch_size], batch.y[: batch.batch_size]).backward()
            with open(shared / f"rank-{ctx.rank}.txt", "a") as file:
                print(batches_digest([batch]), ctx.node_rank, ctx.local_rank, ctx.restarts, file=file)
            ctx.save(model=model)
            dist.barrier()
            step += 1
            on_step(shared, ctx, step)


def on_step(shared, ctx, step):
    pass
"""
KILL = """
def on_step(shared, ctx, step):
    if step == 1 and ctx.rank == ctx.world_size - 1 and not (shared / "killed").exists():
        (shared / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return build(tmp_path_factory.mktemp("store"), 2)


def export(store: Store, folder: Path, trainer: str = TRAINER, **options: Any) -> Any:
    """An exported directory, as far as ranks need it."""
    served = bool(options.get("storage_nodes"))
    backend = GraphStore() if served else Colocated(num_workers=1)
    written = job(
        **options,
        backend=type(backend).__name__,
        store=JobStore("tiny", os.path.relpath(store.path, folder), store.fingerprint, 2, 10**6),
    )
    write_files(written, folder)
    with GraphLoader.from_store(store.path, backend="inprocess", progress=False, **OPTIONS) as loader:
        plan = loader.plan
    spread = written.placement if len(written.placement.hosts) > 1 else None
    replace(plan, backend=backend.to_json(), placement=spread).save(folder / "plan.json")
    (folder / "train.py").write_text(trainer)
    return written


def environment(**variables: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES and not name.startswith("SLURM_")}
    path = f"{ROOT / '.venv/bin'}:{clean['PATH']}"
    return {**clean, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **variables}


@contextmanager
def script(space: NamespaceHost, file: Path, log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A script that runs on a host until it or the block ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*space.enter, str(file)], env=environment(**variables), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def batches(folder: Path, rank: int) -> list[list[str]]:
    """What a rank wrote down: digest, node, place on the node and restarts of each batch."""
    file = folder / f"rank-{rank}.txt"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def check_batches(store: Store, folder: Path, world_size: int, procs_per_node: int) -> None:
    """Every rank had exactly its batches of two epochs, in order, at its place."""
    for rank in range(world_size):
        found, whole = batches(folder, rank), expected(store, epochs=2, rank=rank, world_size=world_size)
        assert [line[0] for line in found] == [digest for epoch in whole for digest in epoch], f"rank {rank}"
        assert {(line[1], line[2]) for line in found} == {tuple(map(str, divmod(rank, procs_per_node)))}


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize(("storage_nodes", "procs_per_node"), [(0, 2), (2, 1)], ids=["colocated", "graph store"])
def test_torchrun_on_two_hosts(store: Store, tmp_path: Path, storage_nodes: int, procs_per_node: int) -> None:
    folder = tmp_path / "job"
    words: dict[str, Any] = {"storage_nodes": storage_nodes, "procs_per_node": procs_per_node}
    written = export(store, folder, launcher="torchrun", placement=ONE_PER_HOST, **words)
    logs = [tmp_path / f"node{index}.log" for index in range(2)]
    with network(2 + storage_nodes) as spaces, ExitStack() as running:
        told = {"STORAGE_ADDRS": ",".join(space.address for space in spaces[2:])} if storage_nodes else {}
        if storage_nodes:
            (folder / "token").write_text("a secret of this test only")
            (folder / "token").chmod(0o600)
        for index, space in enumerate(spaces[2:]):
            running.enter_context(script(space, folder / "serve.sh", tmp_path / f"storage{index}.log", STORAGE_RANK=str(index), **told))
        nodes = [
            running.enter_context(
                script(spaces[index], folder / "launch.sh", logs[index], NODE_RANK=str(index), MASTER_ADDR=spaces[0].address, **told)
            )
            for index in (1, 0)
        ]
        heard: list[set[tuple[str, int]]] = [set() for _ in spaces]

        def done() -> bool:
            for space, seen in zip(spaces, heard, strict=True):
                seen |= space.listeners()
            return all(node.poll() is not None for node in nodes)

        assert wait_until(done, DEADLINE_S)
        assert [node.returncode for node in nodes] == [0, 0], "\n".join(log.read_text() for log in logs)
        assert not any(word in log.read_text() for log in logs for word in ("frame #", "Traceback", "rendezvous"))
    check_batches(store, folder, 2 * procs_per_node, procs_per_node)
    # torchrun listens everywhere, at the port that it is given; nothing else does.
    everywhere = [[address for address, port in seen if port != 29500 or index] for index, seen in enumerate(heard)]
    assert [set(found) for found in everywhere] == [{space.address} for space in spaces]
    if written.num_servers:
        assert {port for seen in heard[2:] for _, port in seen} == {7000}


def test_a_range_of_nodes_from_a_folder_that_cannot_be_written(store: Store, tmp_path: Path) -> None:
    """One node of one or two has come, and its checkpoints go elsewhere."""
    folder, work = tmp_path / "job", tmp_path / "work"
    export(store, folder, launcher="torchrun", nodes=1, placement=Placement(((0, 1),)))
    read_only = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && exec {folder}/launch.sh"
    with network(1) as (space,):
        told = {"NNODES": "1:2", "NODE_RANK": "0", "MASTER_ADDR": space.address, "RUN_DIR": str(work / "run")}
        done = subprocess.run(
            [*space.enter, "unshare", "--mount", "sh", "-c", read_only],
            env=environment(**told),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert done.returncode == 0, done.stderr
    check_batches(store, work, 2, 2)
