"""``job.sbatch`` as a cluster runs it: Slurm's commands, and ``gnnkit``, are stand-ins that honour the environment's contract."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.distributed.ranks import TORCHRUN_VARIABLES
from tests.export.jobs import SERVED, job, write_files
from tests.export.slurm_standin import JOB_ID, install
from tests.helpers.machine import ROOT
from tests.helpers.waiting import wait_until

DEADLINE_S = 120
# Writes down what it was told; then it serves until it is ended, or does what the test has put into `rank`, once all ranks are there: where
# one fails, srun ends the others at once.
GNNKIT = """\
#!/usr/bin/env bash
line="$*"
printf '%s\\t%s\\n' "$line" "$(env | grep -E '^(SLURM_|MASTER_|GNNKIT_)' | tr '\\n' ' ')" >>"$STANDIN_SLURM/calls"
case "$line" in
*--prepare) ;;
serve*) trap 'exit 0' TERM; for ((i = 0; i < 1200; i++)); do sleep 0.1; done; exit 9 ;;
*)
    start="$STANDIN_SLURM/start-${SLURM_RESTART_COUNT:-0}"
    touch "$start-$SLURM_PROCID"
    until (($(compgen -G "$start-*" | wc -l) == SLURM_NTASKS)); do sleep 0.1; done
    . "$STANDIN_SLURM/rank"
    ;;
esac
"""


def cluster(folder: Path, nodes: int, rank: str = "true") -> dict[str, str]:
    """Nodes, and a ``gnnkit`` whose ranks run ``rank``."""
    told = install(folder, [{"name": f"node{index}", "enter": []} for index in range(nodes)], ROOT)
    (folder / "bin/gnnkit").write_text(GNNKIT)
    (folder / "bin/gnnkit").chmod(0o755)
    (folder / "rank").write_text(rank)
    clean = {
        name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES and not name.startswith(("SLURM_", "GNNKIT_"))
    }
    return clean | told


def submit(folder: Path, environment: dict[str, str], *options: str, **variables: str) -> tuple[int, str]:
    """Runs the job of a folder; its exit status and its log."""
    done = subprocess.run(
        ["sbatch", *options, "job.sbatch"], cwd=folder, env={**environment, **variables}, capture_output=True, text=True, timeout=DEADLINE_S
    )
    log = folder / f"tiny-{JOB_ID}.log"
    return done.returncode, done.stderr + (log.read_text() if log.exists() else "")


def calls(environment: dict[str, str], word: str) -> list[dict[str, str]]:
    """The environments of the calls of ``gnnkit`` whose arguments hold a word; under "" the arguments."""
    found = []
    for line in (Path(environment["STANDIN_SLURM"]) / "calls").read_text().splitlines():
        arguments, _, variables = line.partition("\t")
        if word in arguments:
            found.append({"": arguments, **dict(item.split("=", 1) for item in variables.split())})
    return found


def test_ranks_of_every_node(tmp_path: Path) -> None:
    folder, environment = write_files(job("slurm"), tmp_path / "job"), cluster(tmp_path / "slurm", 2)
    code, log = submit(folder, environment)
    assert code == 0, log
    prepared, ranks = calls(environment, "--prepare"), calls(environment, "--train train.py")
    assert sorted((call["SLURM_NODEID"], call["SLURM_PROCID"]) for call in prepared) == [("0", "0"), ("1", "1")]
    places = sorted((call["SLURM_PROCID"], call["SLURM_NODEID"], call["SLURM_LOCALID"]) for call in ranks)
    assert places == [("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"), ("3", "1", "1")]
    assert {(call["MASTER_ADDR"], call["MASTER_PORT"]) for call in ranks} == {("node0", str(15000 + int(JOB_ID)))}
    assert all("GNNKIT_ROLE" not in call and "SLURM_RESTART_COUNT" not in call for call in ranks)


def test_options_of_the_command_line_count_more_than_what_is_written(tmp_path: Path) -> None:
    folder, environment = write_files(job("slurm"), tmp_path / "job"), cluster(tmp_path / "slurm", 2)
    code, log = submit(folder, environment, "--nodes=1", "--ntasks-per-node=3")
    assert code == 0, log
    assert len(calls(environment, "--prepare")) == 1
    assert sorted((call["SLURM_PROCID"], call["SLURM_NODEID"]) for call in calls(environment, "--train")) == [
        ("0", "0"),
        ("1", "0"),
        ("2", "0"),
    ]


def test_a_rank_that_fails_starts_the_job_again(tmp_path: Path) -> None:
    folder = write_files(job("slurm"), tmp_path / "job")
    fails_once = '[ -n "${SLURM_RESTART_COUNT:-}" ] || { [ "$SLURM_PROCID" = 3 ] && exit 7; sleep 100; }'
    environment = cluster(tmp_path / "slurm", 2, fails_once)
    code, log = submit(folder, environment)
    assert code == 0, log
    assert "a step has failed; asking Slurm to start the job again (restart 1)" in log
    counts = [call.get("SLURM_RESTART_COUNT", "0") for call in calls(environment, "--train")]
    assert sorted(counts) == ["0"] * 4 + ["1"] * 4


def test_one_that_always_fails_ends_the_job(tmp_path: Path) -> None:
    folder, environment = write_files(job("slurm"), tmp_path / "job"), cluster(tmp_path / "slurm", 2, "exit 7")
    code, log = submit(folder, environment, MAX_RESTARTS="1")
    assert code == 7, log
    assert "the job was started again 1 times" in log
    assert len(calls(environment, "--train")) == 8


def test_storage_servers_are_a_component_of_their_own(tmp_path: Path) -> None:
    folder, environment = write_files(job("slurm", **SERVED), tmp_path / "job"), cluster(tmp_path / "slurm", 4, "sleep 1")
    code, log = submit(folder, environment)
    assert code == 0, log
    servers, ranks = calls(environment, "serve --store"), calls(environment, "--train")
    port = 23000 + int(JOB_ID)
    addresses = f"node2:{port},node2:{port + 1},node3:{port},node3:{port + 1}"
    assert sorted(call[""].split("--rank ")[1].split()[0] for call in servers) == ["0", "1", "2", "3"]
    assert all(
        "--store ../a store --rank" in call[""] and f"--num-servers 4 --address {addresses} --placement partition" in call[""]
        for call in servers
    )
    assert len(ranks) == 4 and {(call["GNNKIT_ROLE"], call["GNNKIT_ADDRESSES"], call["GNNKIT_NUM_SERVERS"]) for call in ranks} == {
        ("client", addresses, "4")
    }
    assert {call["MASTER_ADDR"] for call in ranks} == {"node0"}
    (token,) = {call["GNNKIT_TOKEN"] for call in (*servers, *ranks)}
    assert len(token) == 48 and token not in log and not any(token in call[""] for call in calls(environment, ""))


@pytest.mark.slow
def test_a_storage_server_that_ends_starts_the_job_again(tmp_path: Path) -> None:
    folder = write_files(job("slurm", **SERVED), tmp_path / "job")
    environment = cluster(tmp_path / "slurm", 4, '[ -n "${SLURM_RESTART_COUNT:-}" ] || sleep 100')
    gnnkit = tmp_path / "slurm/bin/gnnkit"
    ends_once = 'serve*) [ -n "${SLURM_RESTART_COUNT:-}" ] || { [[ "$line" == *"--rank 2 "* ]] && exit 5; };'
    gnnkit.write_text(GNNKIT.replace("serve*)", ends_once))
    code, log = submit(folder, environment)
    assert code == 0, log
    assert "a storage server has ended" in log and "(restart 1)" in log
    tokens = {call["GNNKIT_TOKEN"] for call in calls(environment, "serve --store")}
    assert len(tokens) == 2, "each start has a token of its own"


def test_near_the_time_limit_the_job_is_started_again(tmp_path: Path) -> None:
    folder = write_files(job("slurm"), tmp_path / "job")
    environment = cluster(tmp_path / "slurm", 2, 'trap "exit 0" TERM; [ -n "${SLURM_RESTART_COUNT:-}" ] || { sleep 100 & wait; }')
    command = subprocess.Popen(["sbatch", "job.sbatch"], cwd=folder, env={**environment, "MAX_RESTARTS": "0"}, start_new_session=True)
    state = tmp_path / "slurm"
    try:
        assert wait_until(lambda: (state / "calls").exists() and len(calls(environment, "--train")) == 4, DEADLINE_S)
        os.kill(int((state / "job.pid").read_text()), signal.SIGUSR1)
        assert command.wait(DEADLINE_S) == 0
    finally:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
    assert len(calls(environment, "--train")) == 8
    assert "the time limit is near" in (folder / f"tiny-{JOB_ID}.log").read_text()
