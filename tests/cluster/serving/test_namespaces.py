"""Real networks: servers in two network namespaces, each with the files of one part, trainers in two others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gnnkit import Store
from tests.cluster.hosts.setups import OPTIONS, Host, build, ended, expected, nursery, stage
from tests.cluster.serving.networked import TOKEN
from tests.helpers.namespaces import INTERFACE, NamespaceHost, network
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.netns
GROUP_PORT, PORTS = 29500, (7000, 7001)
START_S = 120.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The store in two parts; trainers on call."""
    nursery()
    yield build(tmp_path_factory.mktemp("store"), 2)
    nursery().close()
    nursery.cache_clear()


class Machine:
    """A machine of its own for one server: ``gnnkit serve`` in the foreground, with the files of one part.

    Args:
        space: The namespace.
        rank: The server's number.
        path: Its store's folder.
        addresses: Where all servers listen.
        folder: Where its log and its token go.
    """

    def __init__(self, space: NamespaceHost, rank: int, path: Path, addresses: list[str], folder: Path) -> None:
        token, self.log = folder / f"token{rank}", folder / f"server{rank}.log"
        token.touch(0o600)
        token.write_text(TOKEN)
        words = ["--store", str(path), "--rank", str(rank), "--num-servers", "2", "--address", ",".join(addresses)]
        words += ["--placement", "partition", "--token-file", str(token), "--log-dir", str(folder / f"logs{rank}")]
        self._command = [*space.enter, sys.executable, "-W", "ignore", "-m", "gnnkit", "serve", *words]
        self.start()

    def start(self) -> None:
        """Starts it."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Everything of it ends at once, as in a power cut."""
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
            for process in [psutil.Process(self._process.pid), *family]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait(60)

    def stop(self) -> int:
        """Ends it as a user does; its exit status."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(60)


@contextlib.contextmanager
def machines(spaces: list[NamespaceHost], store: Store, folder: Path) -> Iterator[tuple[list[Machine], list[str]]]:
    """Servers in the first two namespaces, and their addresses."""
    addresses = [f"{space.address}:{port}" for space, port in zip(spaces, PORTS, strict=False)]
    found: list[Machine] = []
    try:
        for rank in range(2):
            path = stage(store, folder / f"host{rank}", [rank])
            found.append(Machine(spaces[rank], rank, path, addresses, folder))
        yield found, addresses
    finally:
        for machine in found:
            machine.kill()


TRAINER = """
import sys
import torch.distributed as dist

from gnnkit import GraphLoader, GraphStore
from tests.helpers.batches import digest as batches_digest

dist.init_process_group("gloo")
words = {"num_neighbors": [3, 2], "batch_size": 8, "seed": 3, "remainder": "pad", "shuffle": True, "progress": False}
train = GraphLoader.from_store(backend=GraphStore(address=sys.argv[1], join_timeout_s=90), input_nodes="train", **words)
valid = train.for_split("valid", remainder="pad")
for epoch in range(2):
    both = {"train": iter(train), "valid": iter(valid)}
    found, seeds = {name: [] for name in both}, {name: [] for name in both}
    while both:
        for name, batches in list(both.items()):
            batch = next(batches, None)
            if batch is None:
                del both[name]
                continue
            found[name].append(batches_digest([batch]))
            mask = getattr(batch, "seed_mask", None)
            ids = batch.n_id[: batch.batch_size]
            seeds[name] += (ids if mask is None else ids[mask]).tolist()
    for name in found:
        print("batches", dist.get_rank(), epoch, name, *found[name], flush=True)
        print("seeds", dist.get_rank(), epoch, name, *seeds[name], flush=True)
train.close()
valid.close()
dist.destroy_process_group()
"""


def run_trainers(spaces: list[NamespaceHost], script: Path, *arguments: str) -> list[str]:
    """What each of two ranks has printed, under torchrun, in a namespace each."""
    processes = []
    try:
        for index, space in enumerate(spaces):
            torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
            where = ["--node-rank", str(index), "--master-addr", spaces[0].address, "--master-port", str(GROUP_PORT)]
            words = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "GNNKIT_TOKEN": TOKEN}
            command = [*space.enter, *torchrun, *where, str(script), *arguments]
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(subprocess.Popen(command, env={**os.environ, **words}, start_new_session=True, **pipes))
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return outputs


def test_training_on_machines_of_their_own(store: Store, tmp_path: Path) -> None:
    """Two servers, two ranks, train and validation at once: no trainer has a file of the store."""
    (tmp_path / "train.py").write_text(TRAINER)
    with network(4) as spaces, machines(spaces, store, tmp_path) as (servers, addresses):
        outputs = run_trainers(spaces[2:], tmp_path / "train.py", addresses[0])
        for space, port in zip(spaces, PORTS, strict=False):
            assert space.listeners() == {(space.address, port)}, "one listener, on the address that was given"
        files = [path for path in tmp_path.rglob("*") if path.suffix == ".log" or path.name == "run.json"]
        assert len(files) >= 6 and not [path for path in files if TOKEN in path.read_text(errors="replace")]
        assert [server.stop() for server in servers] == [0, 0]
        for space in spaces:
            assert wait_until(lambda space=space: not space.pids(), 20) and not space.listeners()
    lines = [line.split() for output in outputs for line in output.splitlines()]
    said = {tuple(line[:4]): line[4:] for line in lines if line[:1] in (["batches"], ["seeds"])}
    for split in ("train", "valid"):
        for rank in range(2):
            lists = expected(store, 2, input_nodes=split, remainder="pad", shuffle=split == "train", rank=rank, world_size=2)
            assert [said["batches", str(rank), str(epoch), split] for epoch in range(2)] == lists
        for epoch in range(2):
            steps = [len(said["batches", str(rank), str(epoch), split]) for rank in range(2)]
            seeds = sorted(int(node) for rank in range(2) for node in said["seeds", str(rank), str(epoch), split])
            assert steps[0] == steps[1] and seeds == sorted(np.asarray(store.splits["node"][split]).tolist())


@pytest.mark.slow(seconds=30)
def test_networks_and_servers_that_break(store: Store, tmp_path: Path) -> None:
    words = {**OPTIONS, "batch_size": 1}
    want = expected(store, 6, batch_size=1)
    with network(3) as spaces, machines(spaces, store, tmp_path) as (servers, addresses):
        trainer = Host(tmp_path / "trainer.log", spaces[2], GNNKIT_TOKEN=TOKEN)
        with ended([trainer]):
            backend = {"kind": "GraphStore", "address": ",".join(addresses), "join_timeout_s": START_S}

            def make(name: str, batch_timeout_s: float, **options: Any) -> None:
                trainer.do("make", name=name, store=None, backend={**backend, **options}, batch_timeout_s=batch_timeout_s, **words)

            trainer.do("ignore_warnings")
            make("plain", 4.0)
            make("patient", 60.0, max_restarts=3)
            # The network goes, and comes back before the deadline.
            trainer.do("begin", name="patient")
            digests = trainer.do("take", name="patient", count=2)
            spaces[2].cut()
            trainer.ask("take", name="patient")
            with pytest.raises(AssertionError, match="no answer"):
                trainer.reply(5.0)
            spaces[2].heal()
            assert digests + trainer.answer() == want[0]
            # It goes for longer than that.
            trainer.do("begin", name="plain")
            digests = trainer.do("take", name="plain", count=2)
            spaces[2].cut()
            trainer.ask("take", name="plain")
            reply = trainer.reply()
            assert reply["error"] == "BatchTimeout" and any(address in reply["message"] for address in addresses), reply
            spaces[2].heal()
            assert trainer.do("epoch", name="plain") == want[1]
            # A server dies: an error at once, and a pause for who has max_restarts. The other server goes on.
            other = spaces[0].pids()
            trainer.do("begin", name="patient")
            digests = trainer.do("take", name="patient", count=2)
            servers[1].kill()
            trainer.ask("epoch", name="plain")
            reply = trainer.reply()
            assert reply["error"] in ("WorkerDied", "HostUnreachable") and f"server 1 ({addresses[1]})" in reply["message"], reply
            trainer.ask("take", name="patient")
            servers[1].start()
            assert digests + trainer.answer() == want[1]
            # The same loader iterates again.
            assert again(trainer, "plain", 5) == want[5]
            assert spaces[0].pids() == other
            trainer.do("close", name="plain")
            trainer.do("close", name="patient")


def again(trainer: Host, name: str, number: int) -> list[str]:
    """An epoch, once a loader gets through it: a server that listens may not have opened its parts yet."""
    found: list[list[str]] = []

    def runs() -> bool:
        trainer.do("set_epoch", name=name, number=number)
        trainer.ask("epoch", name=name)
        found.append(trainer.reply().get("answer", []))
        return bool(found[-1])

    assert wait_until(runs, START_S)
    return found[-1]
