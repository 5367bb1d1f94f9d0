"""Real networks: two and three hosts, each in a network namespace with one address and the files of one part, all of the same name."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gnnkit import Store
from tests.cluster.hosts.setups import OPTIONS, TOKEN, Host, ended, expected, stage
from tests.helpers.machine import in_time
from tests.helpers.namespaces import INTERFACE, network
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(400)]
PORT, GROUP_PORT = 7000, 29500
REMAINDERS = ("drop", "pad", "uneven")
# Bytes at random on a port, then calls without the token, and with wrong ones; prints what came of each.
STRANGER = """
import random, socket, struct, sys

host, port = sys.argv[1], int(sys.argv[2])
for size in (1, 100, 4096, 100_000):
    with socket.create_connection((host, port), timeout=60) as connection:
        try:
            connection.sendall(random.Random(size).randbytes(size))
        except OSError:
            pass
text = b'{"name":"here","args":{"name":"me","host":1}}'
call = struct.pack("<B3xIQ", 1, len(text), 0) + text
guesses = [b"gnnkit-gate " + guess + b"\\n" for guess in (b"", b"wrong", b"0" * 64)]
for line in (b"", b"gnnkit-wire " + b"0" * 64 + b" me\\n", *guesses):
    for said in (line, line + call):
        with socket.create_connection((host, port), timeout=60) as connection:
            connection.sendall(said)
            heard = b""
            try:
                while more := connection.recv(4096):
                    heard += more
            except ConnectionError:
                pass
        print("refused" if heard in (b"", b"refused\\n") else heard)
"""


def test_two_hosts_on_a_bad_line(stores: dict[int, Store], tmp_path: Path) -> None:
    """Every remainder policy at world sizes 1 and 2; who listens where; strangers."""
    store, hosts = stores[2], []
    with network(2, delay_s=0.002, loss=0.01) as spaces, ended(hosts):
        addresses = [f"{space.address}:{PORT}" for space in spaces]
        for index, space in enumerate(spaces):
            hosts.append(Host(tmp_path / f"{index}.log", space, GNNKIT_TOKEN=TOKEN))
        paths = [stage(store, tmp_path / f"host{index}", [index]) for index in range(2)]
        backend = {"num_workers": 1, "hosts": addresses, "interface": INTERFACE}

        def lists(world_size: int, remainder: str, **options: Any) -> None:
            ranks = [index % world_size for index in range(2)]
            for host, path, rank in zip(hosts, paths, ranks, strict=True):
                words = {**OPTIONS, "rank": rank, "world_size": world_size, "remainder": remainder, "placement": "partition", **options}
                host.ask("make", name="a", store=str(path), backend=backend, **words)
            assert [host.answer()["plan"]["placement"] for host in hosts] == [[[0], [1]]] * 2
            for host in hosts:
                host.ask("epoch", name="a")
            assert [host.answer() for host in hosts] == [
                expected(store, rank=rank, world_size=world_size, remainder=remainder, **options)[0] for rank in ranks
            ]

        lists(1, "pad", with_edge=True, replace=True)
        for remainder in REMAINDERS:
            lists(2, remainder)
        services = [host.do("status", name="a")["part_service"]["pid"] for host in hosts]
        for space in spaces:
            assert space.listeners() == {(space.address, PORT)}, "one listener, on the interface that was given"
        for source, target in ((0, 1), (1, 0), (0, 0)):
            said = spaces[source].run(sys.executable, "-W", "ignore", "-c", STRANGER, spaces[target].address, str(PORT))
            assert said.splitlines() == ["refused"] * 10
        for host in hosts:
            host.ask("epoch", name="a")
        again = [expected(store, epochs=2, rank=rank, world_size=2, remainder=REMAINDERS[-1])[1] for rank in range(2)]
        assert [host.answer() for host in hosts] == again
        assert [host.do("status", name="a")["part_service"]["pid"] for host in hosts] == services, "the services went on"
        for host in hosts:
            host.finish()
        assert [host.wait(60) for host in hosts] == [0, 0]
        for space in spaces:
            assert wait_until(lambda space=space: not space.pids()) and not space.listeners()


def test_three_hosts_that_find_each_other(stores: dict[int, Store], tmp_path: Path) -> None:
    """Addresses and token through the process group; a host of which everything is killed at once."""
    store, hosts = stores[3], []
    with network(3) as spaces, ended(hosts):
        paths = [stage(store, tmp_path / f"host{index}", [index]) for index in range(3)]
        for index, space in enumerate(spaces):
            words = {"MASTER_ADDR": spaces[0].address, "MASTER_PORT": str(GROUP_PORT), "GLOO_SOCKET_IFNAME": INTERFACE}
            hosts.append(Host(tmp_path / f"{index}.log", space, **words))
            hosts[-1].ask("group", rank=index, world_size=3)
        for host in hosts:
            host.answer()
        before = [space.listeners() for space in spaces]  # torch's own
        for remainder in REMAINDERS:
            for host, path in zip(hosts, paths, strict=True):
                backend = {"num_workers": 1}
                host.ask("make", name=remainder, store=str(path), backend=backend, placement="partition", remainder=remainder, **OPTIONS)
            plans = [host.answer()["plan"] for host in hosts]
            assert [plan["placement"] for plan in plans] == [[[0], [1], [2]]] * 3
            assert [plan["batching"]["rank"] for plan in plans] == [0, 1, 2] and TOKEN not in str(plans)
            for host in hosts:
                host.ask("epoch", name=remainder)
            assert [host.answer() for host in hosts] == [
                expected(store, rank=rank, world_size=3, remainder=remainder)[0] for rank in range(3)
            ]
        for space, old in zip(spaces, before, strict=True):
            ((address, port),) = space.listeners() - old
            assert address == space.address and port > 0, "one service for all loaders of a host"
        os.kill(hosts[2].pid, 9)
        assert wait_until(lambda: not spaces[2].pids()), "a trainer that is killed leaves nothing"
        hosts[0].ask("epoch", name="pad")
        reply = hosts[0].reply()
        assert reply["error"] == "HostUnreachable" and f"host 2 ({spaces[2].address}:" in reply["message"], reply
        for host in hosts[:2]:
            with contextlib.suppress(BrokenPipeError):
                host.finish()
        # Torch's process group has lost a member: how the trainers end is its affair, that they do is ours.
        assert all(wait_until(lambda host=host: host.poll() is not None, 30) for host in hosts[:2])


TRAINER = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from gnnkit import GraphLoader
from tests.helpers.batches import digest as batches_digest

dist.init_process_group("gloo")
torch.manual_seed(0)
loader = GraphLoader.from_store(
    f"{sys.argv[1]}{os.environ['GROUP_RANK']}", num_neighbors=[3, 2], batch_size=8, seed=3, placement="partition", progress=False
)
assert loader.plan.backend["kind"] == "Colocated"
model = DistributedDataParallel(GraphSAGE(5, 8, 2, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    digests = []
    for batch in loader:
        digests.append(batches_digest([batch]))
        loss = torch.nn.functional.cross_entropy(model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("batches", dist.get_rank(), *digests, flush=True)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
everybody = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
dist.all_gather(everybody, weights)
assert all(torch.equal(other, weights) for other in everybody)
print("trained", dist.get_rank(), flush=True)
loader.close()
dist.destroy_process_group()
"""


def test_training_with_torchrun(stores: dict[int, Store], tmp_path: Path) -> None:
    """``torchrun --nnodes 2`` with DistributedDataParallel."""
    store, processes = stores[2], []
    (tmp_path / "train.py").write_text(TRAINER)
    for index in range(2):
        stage(store, tmp_path / f"host{index}", [index])
    with network(2) as spaces:
        try:
            for index, space in enumerate(spaces):
                torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
                where = ["--node-rank", str(index), "--master-addr", spaces[0].address, "--master-port", str(GROUP_PORT)]
                command = [*space.enter, *torchrun, *where, str(tmp_path / "train.py"), str(tmp_path / "host")]
                environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
                processes.append(
                    subprocess.Popen(
                        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, start_new_session=True
                    )
                )
            outputs = [process.communicate(timeout=240)[0] for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.communicate()
        assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
        for rank, output in enumerate(outputs):
            lines = [line.split() for line in output.splitlines()]
            assert ["trained", str(rank)] in lines
            found = [line[2:] for line in lines if line[:2] == ["batches", str(rank)]]
            assert found == expected(store, epochs=2, rank=rank, world_size=2)
        for space in spaces:
            assert wait_until(lambda space=space: not space.pids())


def test_two_ranks_on_each_host(stores: dict[int, Store], tmp_path: Path) -> None:
    """One service for both; it stays while any rank of the other host is there."""
    store, ranks = stores[2], []
    with network(2) as spaces, ended(ranks):
        paths = [stage(store, tmp_path / f"host{index}", [index]) for index in range(2)]
        for rank in range(4):
            host, local = divmod(rank, 2)
            words = {"MASTER_ADDR": spaces[0].address, "MASTER_PORT": str(GROUP_PORT), "GLOO_SOCKET_IFNAME": INTERFACE}
            words |= {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": str(host), "GROUP_WORLD_SIZE": "2"}
            ranks.append(Host(tmp_path / f"{rank}.log", spaces[host], **words))
            ranks[-1].ask("group", rank=rank, world_size=4)
        for rank in ranks:
            rank.answer()
        for number, rank in enumerate(ranks):
            words = {**OPTIONS, "placement": {0: [0], 1: [1]}, "batch_size": 4, "remainder": "uneven"}
            rank.ask("make", name="a", store=str(paths[number // 2]), backend={"num_workers": 1}, **words)
        for rank in ranks:
            rank.answer()
        lists = [expected(store, rank=number, world_size=4, batch_size=4, remainder="uneven")[0] for number in range(4)]
        for number in (0, 1, 2):
            assert ranks[number].do("epoch", name="a") == lists[number]
        services = [rank.do("status", name="a")["part_service"] for rank in ranks]
        assert [service is not None for service in services] == [True, False, True, False]
        for number in (0, 1, 2):
            assert in_time(ranks[number].do("close", name="a"), 0.5)
        assert ranks[3].do("epoch", name="a") == lists[3], "host 0 serves although its ranks have finished"
        ranks[3].do("close", name="a")
        assert wait_until(lambda: not any(Path(f"/proc/{service['pid']}").exists() for service in services if service), 10)
