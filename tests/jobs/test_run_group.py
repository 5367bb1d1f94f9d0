"""A job's process group: on loopback alone on one host, and ended where a rank, or the host that ranks met at, is gone."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.helpers.namespaces import network
from tests.helpers.ports import free_port
from tests.helpers.waiting import HANG_S, is_readable, wait_until

pytestmark = pytest.mark.slow

PORT = 29411


class Member:
    """A rank; see ``tests.jobs.member``."""

    def __init__(self, variables: dict[str, object], enter: Sequence[str] = (), launcher: Sequence[str] = ()) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD_SIZE", "SLURM_", "MASTER_"))}
        env |= {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}
        command = [*enter, sys.executable, "-W", "ignore", *launcher, "-m", "tests.jobs.member"]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        ready = is_readable(self.process.stdout.fileno(), HANG_S)
        return self.process.stdout.readline().strip() if ready else "nothing"

    def end(self) -> tuple[int, str]:
        """Exit status and error output."""
        assert wait_until(lambda: self.process.poll() is not None), "the rank has not ended"
        return self.process.returncode, self.process.communicate()[1]


@contextlib.contextmanager
def ended(members: list[Member]) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            member.process.kill()
            member.process.communicate()


def test_one_host_listens_on_loopback_and_a_dead_rank_ends_the_others() -> None:
    members: list[Member] = []
    with ended(members):
        port = free_port()
        for rank in range(3):
            slurm = {"SLURM_PROCID": rank, "SLURM_STEP_ID": 0, "SLURM_LOCALID": rank}
            slurm |= {"SLURM_NTASKS": 3, "SLURM_NNODES": 1, "SLURM_NODEID": 0}
            members.append(Member({**slurm, "MASTER_PORT": port}))
        assert [member.hear() for member in members] == ["in"] * 3
        for member in members:
            member.tell("listeners")
        assert {member.hear() for member in members} == {"127.0.0.1"}
        for member in members:
            member.tell("reduce")
        assert [member.hear() for member in members] == ["sum 3"] * 3
        members[0].tell("end")  # it has finished, and stays for the others
        members[1].tell("reduce")
        members[2].process.kill()
        for rank in (0, 1):  # one waits in the group's operation, one has finished: neither for long
            code, said = members[rank].end()
            # The one that waits may be late, and find that the one that had finished has ended too.
            assert code == 1 and re.search(r"rank 2 \(127.0.0.1\).* of this job (is|are) gone", said), said


def test_ranks_that_have_finished_wait_for_the_others() -> None:
    members: list[Member] = []
    with ended(members):
        port = free_port()
        for rank in range(2):
            told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "localhost"}
            members.append(Member({**told, "MASTER_PORT": port}))
        assert [member.hear() for member in members] == ["in"] * 2
        members[0].tell("end")  # which keeps the store
        members[1].tell("listeners")
        assert members[1].hear() == "127.0.0.1" and members[0].process.poll() is None
        members[1].tell("end")
        assert [member.end()[0] for member in members] == [0, 0]


@pytest.mark.slow(seconds=40)
@pytest.mark.netns
def test_a_rendezvous_host_that_vanishes_ends_every_rank() -> None:
    """Nothing comes from it any more, not even the end of a connection: as when its power is cut."""
    members: list[Member] = []
    with network(3) as hosts, ended(members):
        for rank, host in enumerate(hosts):
            told = {"SLURM_PROCID": rank, "SLURM_STEP_ID": 0, "SLURM_NODEID": rank}
            told |= {"SLURM_LOCALID": 0, "SLURM_NTASKS": 3, "SLURM_NNODES": 3}
            members.append(Member({**told, "MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT}, host.enter))
        assert [member.hear() for member in members] == ["in"] * 3
        for host in hosts:
            assert {address for address, _ in host.listeners()} == {host.address}
        members[2].tell("reduce")  # waits in an operation; rank 1 does nothing
        hosts[0].cut()
        for rank in (1, 2):
            code, said = members[rank].end()
            assert code == 1 and re.search("of this job (is|are) gone", said), said
