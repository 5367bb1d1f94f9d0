"""``job.sbatch`` on Debian's Slurm, with a ``gnnkit`` that writes down what it was told, and with the real one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.ranks import TORCHRUN_VARIABLES
from tests.export.jobs import SERVED, job, write_files
from tests.export.slurm_cluster import SlurmCluster, slurm_cluster
from tests.export.test_launchers_real import KILL, ONE_PER_HOST, TRAINER, batches, check_batches, export
from tests.export.test_launchers_real import store as store
from tests.helpers.machine import ROOT
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow(seconds=20), pytest.mark.slurm, pytest.mark.timeout(900)]
# Writes down what it was told; then it serves until it is ended, or does what the test has put into `rank`, once all ranks are there: where
# one fails, srun ends the others at once.
GNNKIT = """\
#!/usr/bin/env bash
line="$*"
calls="$(dirname "$0")"
printf '%s\\t%s\\n' "$line" "$(env | grep -E '^(SLURM_|MASTER_|GNNKIT_)' | grep -v ' ' | tr '\\n' ' ')" >>"$calls/calls"
case "$line" in
*--prepare) ;;
serve*) trap 'exit 0' TERM; for ((i = 0; i < 1200; i++)); do sleep 0.1; done; exit 9 ;;
*)
    start="$calls/start-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
    touch "$start-$SLURM_PROCID"
    until (($(compgen -G "$start-*" | wc -l) == SLURM_NTASKS)); do sleep 0.1; done
    . "$calls/rank"
    ;;
esac
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def written(tmp_path: Path, rank: str = "true", gnnkit: str = GNNKIT, **options: object) -> Path:
    """A job's folder, whose environment has a ``gnnkit`` of which each rank runs ``rank``."""
    folder = write_files(job("slurm", **options), tmp_path / "job")
    script = folder / "job.sbatch"
    script.write_text(script.read_text().replace("--mem=", "--mem=1G #"))
    for name, text in (
        ("plan.json", "{}"),
        ("env/bin/activate", f"PATH={folder}/env/bin:$PATH"),
        ("env/bin/rank", rank),
        ("env/bin/gnnkit", gnnkit),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def calls(folder: Path, word: str) -> list[dict[str, str]]:
    """The environments of the calls of ``gnnkit`` whose arguments hold a word; under "" the arguments."""
    found = []
    for line in (folder / "env/bin/calls").read_text().splitlines():
        arguments, _, variables = line.partition("\t")
        if word in arguments:
            found.append({"": arguments, **dict(item.split("=", 1) for item in variables.split())})
    return found


def log_of(folder: Path, number: str) -> str:
    return (folder / f"tiny-{number}.log").read_text()


def ended(slurm: SlurmCluster, folder: Path, *options: str, **variables: str) -> tuple[str, str, str]:
    """Runs the job of a folder to its end; its state and exit code, its log and its number."""
    number = slurm.submit(folder, *options, "job.sbatch", **variables)
    facts = slurm.wait(number)
    return f"{facts['JobState']} {facts['ExitCode']}", log_of(folder, number), number


def test_ranks_of_every_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = written(tmp_path)
    state, log, number = ended(slurm, folder)
    assert state == "COMPLETED 0:0", log
    prepared, ranks = calls(folder, "--prepare"), calls(folder, "--train train.py --dir run")
    assert sorted((call["SLURM_NODEID"], call["SLURM_PROCID"]) for call in prepared) == [("0", "0"), ("1", "1")]
    places = sorted((call["SLURM_PROCID"], call["SLURM_NODEID"], call["SLURM_LOCALID"]) for call in ranks)
    assert places == [("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"), ("3", "1", "1")]
    assert {call["MASTER_PORT"] for call in ranks} == {str(15000 + int(number) % 8000)}
    assert all("GNNKIT_ROLE" not in call and "SLURM_RESTART_COUNT" not in call for call in ranks)


@pytest.mark.parametrize("options", [("--export=NONE",), ("--nodes=1", "--ntasks-per-node=3")], ids=["no environment", "another size"])
def test_options_of_the_command_line_count_more_than_what_is_written(slurm: SlurmCluster, tmp_path: Path, options: tuple[str, ...]) -> None:
    folder = written(tmp_path)
    state, log, number = ended(slurm, folder, *options)
    assert state == "COMPLETED 0:0", log
    nodes = [call["SLURM_NODEID"] for call in calls(folder, "--train")]
    assert sorted(nodes) == (["0"] * 3 if "--nodes=1" in options else ["0", "0", "1", "1"])


def test_it_runs_in_the_folder_that_chdir_names_with_the_words_behind_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = written(tmp_path)
    number = slurm.submit(tmp_path, f"--chdir={folder}", str(folder / "job.sbatch"), "--set", "lr=0.1", RUN_DIR="/elsewhere")
    assert slurm.wait(number)["ExitCode"] == "0:0", log_of(folder, number)
    assert {call[""] for call in calls(folder, "--train")} == {"run plan.json --train train.py --dir /elsewhere --set lr=0.1"}
    number = slurm.submit(tmp_path, f"--output={tmp_path}/tiny-%j.log", str(folder / "job.sbatch"))
    assert slurm.wait(number)["ExitCode"] == "2:0"
    assert "there is no plan.json" in log_of(tmp_path, number)


def test_tasks_of_an_array_have_a_folder_each(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = written(tmp_path)
    number = slurm.submit(folder, "--array=0-1", "job.sbatch")
    for task in range(2):
        assert slurm.wait(f"{number}_{task}")["ExitCode"] == "0:0"
    assert {call[""].split("--dir ")[1] for call in calls(folder, "--train")} == {"run/0", "run/1"}


def test_a_rank_that_fails_starts_the_job_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = written(tmp_path, '[ -n "${SLURM_RESTART_COUNT:-}" ] || { [ "$SLURM_PROCID" = 3 ] && exit 7; sleep 100; }')
    state, log, _ = ended(slurm, folder)
    assert state == "COMPLETED 0:0", log
    assert "a step has failed; asking Slurm to start the job again (restart 1)" in log
    counts = [call.get("SLURM_RESTART_COUNT", "0") for call in calls(folder, "--train")]
    assert sorted(counts) == ["0"] * 4 + ["1"] * 4


@pytest.mark.parametrize(
    ("rank", "state", "said", "count"),
    [
        ("exit 7", "FAILED 7:0", "the job was started again 1 times", 8),
        ('[ "$SLURM_PROCID" = 3 ] && kill -KILL $$; sleep 100', "FAILED 137:0", "the job was started again 1 times", 8),
        ('[ "$SLURM_PROCID" = 3 ] && exit 2; sleep 100', "FAILED 2:0", "the job cannot run as it is", 4),
    ],
    ids=["fails", "is killed", "is a mistake"],
)
def test_one_that_always_fails_ends_the_job(slurm: SlurmCluster, tmp_path: Path, rank: str, state: str, said: str, count: int) -> None:
    folder = written(tmp_path, rank)
    found, log, _ = ended(slurm, folder, MAX_RESTARTS="1")
    assert found == state, log
    assert said in log
    assert len(calls(folder, "--train")) == count


def test_storage_servers_are_a_component_of_their_own(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = written(tmp_path, "sleep 1", **{**SERVED, "nodes": 1})
    state, log, number = ended(slurm, folder)
    assert state == "COMPLETED 0:0", log
    servers, ranks = calls(folder, "serve --store"), calls(folder, "--train")
    port = 23000 + int(number) % 8000
    addresses = ",".join(f"{node.address}:{port + index}" for node in slurm.nodes[1:] for index in range(2))
    assert sorted(call[""].split("--rank ")[1].split()[0] for call in servers) == ["0", "1", "2", "3"]
    assert all(f"--num-servers 4 --address {addresses} --placement partition" in call[""] for call in servers)
    assert len(ranks) == 2 and {(call["GNNKIT_ROLE"], call["GNNKIT_ADDRESSES"], call["GNNKIT_NUM_SERVERS"]) for call in ranks} == {
        ("client", addresses, "4")
    }
    (token,) = {call["GNNKIT_TOKEN"] for call in (*servers, *ranks)}
    assert len(token) == 48 and token not in log and not any(token in call[""] for call in calls(folder, ""))


def test_a_storage_server_that_ends_starts_the_job_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    ends_once = 'serve*) [ -n "${SLURM_RESTART_COUNT:-}" ] || { [[ "$line" == *"--rank 2 "* ]] && exit 5; };'
    gnnkit = GNNKIT.replace("serve*)", ends_once)
    folder = written(tmp_path, '[ -n "${SLURM_RESTART_COUNT:-}" ] || sleep 100', gnnkit, **{**SERVED, "nodes": 1})
    state, log, _ = ended(slurm, folder)
    assert state == "COMPLETED 0:0", log
    assert "a storage server has ended" in log and "(restart 1)" in log
    tokens = {call["GNNKIT_TOKEN"] for call in calls(folder, "serve --store")}
    assert len(tokens) == 2, "each start has a token of its own"


_WAITS = "import signal; signal.sigtimedwait([signal.SIGTERM], 100)"
_SAVES = f"import pathlib; save = lambda *_: pathlib.Path('run/checkpoint-1.pt').touch(); {_WAITS}".replace(
    "signal; ", "signal; signal.signal(signal.SIGUSR1, save); "
)


@pytest.mark.parametrize("saves", [True, False], ids=["with a checkpoint", "without one"])
def test_near_the_time_limit_a_job_that_gets_on_is_started_again(slurm: SlurmCluster, tmp_path: Path, saves: bool) -> None:
    rank = f'[ -n "${{SLURM_RESTART_COUNT:-}}" ] || exec {sys.executable} -c "{_SAVES if saves else _WAITS}"'
    folder = written(tmp_path, rank)
    number = slurm.submit(folder, "job.sbatch", MAX_RESTARTS="0")
    assert wait_until(lambda: (folder / "env/bin/calls").exists() and len(calls(folder, "--train")) == 4)
    slurm.run("scancel", "--batch", "--signal=USR1", number)
    facts = slurm.wait(number)
    assert (facts["ExitCode"], len(calls(folder, "--train"))) == (("0:0", 8) if saves else ("1:0", 4)), log_of(folder, number)
    assert "the time limit is near" in log_of(folder, number)


# Real ranks: node names are at 127.0.1.1 on their own nodes.


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES and not name.startswith("SLURM_")}
    return {"PATH": f"{ROOT / '.venv/bin'}:{clean['PATH']}", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT)}


def test_a_job_whose_rank_was_killed_goes_on(slurm: SlurmCluster, store: object, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    export(store, folder, TRAINER + KILL, launcher="slurm", procs_per_node=1, placement=ONE_PER_HOST)  # type: ignore[arg-type]
    state, log, _ = ended(slurm, folder, "--mem=1G", **environment())
    assert state == "COMPLETED 0:0", log
    assert {line[3] for line in batches(folder, 0)} == {"0", "1"}
    check_batches(store, folder, 2, 1)  # type: ignore[arg-type]
