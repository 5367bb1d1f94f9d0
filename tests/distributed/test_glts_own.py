"""What of graphlearn-torch is handed on as it is, used as its documents use it, without its native library."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import gnnkit.distributed
from tests.distributed.loading import needs_glt
from tests.helpers.machine import ROOT
from tests.helpers.ports import free_port

pytestmark = needs_glt
DEADLINE_S = 120


def test_an_event_loop_runs_tasks() -> None:
    loop, found = gnnkit.distributed.ConcurrentEventLoop(2), []

    async def doubled(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    loop.start_loop()
    for number in range(5):
        loop.add_task(doubled(number), callback=found.append)
    loop.wait_all()
    assert sorted(found) == [0, 2, 4, 6, 8] and loop.run_task(doubled(21)) == 42
    loop.shutdown_loop()


# One of two processes; its RPC cannot be started twice in one, which is why it has one of its own.
CALLS = """
import json, sys
from gnnkit import distributed as glt

class Sum(glt.RpcCalleeBase):
    def call(self, *args, **kwargs):
        return sum(args)

rank = int(sys.argv[1])
glt.init_worker_group(2, rank, "trainers")
glt.init_rpc("127.0.0.1", int(sys.argv[2]))
glt.barrier(), glt.global_barrier()
names = glt.get_rpc_current_group_worker_names()
parts = glt.rpc_sync_data_partitions(2, rank)
number, other = glt.rpc_register(Sum()), glt.RpcDataPartitionRouter(parts).get_to_worker(1 - rank)
found = [glt.rpc_is_initialized(), names, parts, other, glt.all_gather(rank), glt.global_all_gather(rank + 5),
         glt.rpc_request(other, number, args=(1, 2)), glt.rpc_request_async(other, number, args=(3, 4)).wait(),
         glt.get_context().worker_name, [len(own) for own in glt.get_rpc_worker_names().values()]]
glt.barrier()
glt.shutdown_rpc()
print(json.dumps(found))
"""


def test_calls_between_processes_are_graphlearn_torchs_own() -> None:
    names = ["trainers_0", "trainers_1"]
    command, port = [sys.executable, "-W", "ignore", "-c", CALLS], str(free_port())
    started = [
        subprocess.Popen([*command, str(rank), port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in range(2)
    ]
    try:
        for rank, process in enumerate(started):
            out, err = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, err[-3000:]
            initialized, found, parts, other, gathered, everywhere, total, later, own, groups = json.loads(out.splitlines()[-1])
            assert initialized and found == names and parts == [[name] for name in names] and other == names[1 - rank]
            assert gathered == {name: rank for rank, name in enumerate(names)} and everywhere == {names[0]: 5, names[1]: 6}
            assert (total, later, own, groups) == (3, 7, names[rank], [2])
    finally:
        for process in started:
            process.kill()
            process.communicate()
