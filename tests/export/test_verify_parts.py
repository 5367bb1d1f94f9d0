"""What the check of an exported job is made of: records, comparing, the size of a job, and whoever keeps its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from gnnkit.errors import PlanError, StartTimeout, StoreError, WorkerDied
from gnnkit.export.proof.slurm import slurm_variables
from gnnkit.export.proof.trial import Command, TrialSize, fitting, read_job, running
from gnnkit.export.recording import count_recorded, limit_steps, read_record, record
from gnnkit.export.verify import VerifyReport, compare
from gnnkit.jobs.environment import find_place
from gnnkit.loader.inspection import value_digests
from tests.helpers.system import pretend_free_memory, pretend_processors, start_ticks
from tests.helpers.waiting import wait_until

NUM_NODES = 40


def loader(rank: int = 0, world_size: int = 1, **options: object) -> GraphLoader:
    edges = torch.from_numpy(np.random.default_rng(0).integers(0, NUM_NODES, (2, 300)))
    data = Data(x=torch.arange(NUM_NODES * 2.0).view(-1, 2), edge_index=edges)
    return GraphLoader.from_pyg(data, num_neighbors=[3], batch_size=8, rank=rank, world_size=world_size, progress=False, **options)


# Records ----------------------------------------------------------------------------------------------------------------


def recorded(folder: Path, **options: object) -> list[Any]:
    """Two ranks' records of an epoch."""
    found = []
    for rank in range(2):
        with loader(rank, 2, **options) as own:
            record(own, rank, folder)
        found += read_record(folder, rank) or []
    return found


def test_a_record_has_every_batch_of_its_rank(tmp_path: Path) -> None:
    found = recorded(tmp_path, remainder="uneven")
    assert [(batch.rank, batch.step, batch.batch_index) for batch in found] == [(0, 0, 0), (0, 1, 2), (0, 2, 4), (1, 0, 1), (1, 1, 3)]
    with loader(1, 2, remainder="uneven") as own:
        assert [batch.values for batch in found if batch.rank == 1] == [value_digests(batch) for batch in own]
    assert {path.name for path in tmp_path.iterdir()} == {"rank-0.jsonl", "rank-1.jsonl"} and count_recorded(tmp_path) == 5


def test_a_record_can_be_shorter_than_the_epoch(tmp_path: Path) -> None:
    limit_steps(tmp_path, 2)
    assert [batch.batch_index for batch in recorded(tmp_path)] == [0, 2, 1, 3]


def test_a_rank_that_breaks_off_leaves_no_record(tmp_path: Path) -> None:
    class Broken(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield from super().__iter__()
            raise RuntimeError("no more")

    with loader() as own:
        batches = Broken(own)
        broken = type("Loader", (), {"pipeline": own.pipeline, "__iter__": lambda self: iter(batches)})()
        with pytest.raises(RuntimeError, match="no more"):
            record(broken, 3, tmp_path)
    assert read_record(tmp_path, 3) is None and count_recorded(tmp_path) == 5
    (tmp_path / "rank-4.jsonl").write_text("[1, 2]\n")
    with pytest.raises(StoreError, match=r"rank-4\.jsonl"):
        read_record(tmp_path, 4)


def test_every_attribute_has_a_digest_of_its_own() -> None:
    data = HeteroData()
    data["a"].x = torch.zeros(2, 1)
    data["a", "to", "b"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    data["b"].num_sampled_nodes = [1, 2]
    before = value_digests(data)
    assert before.keys() == {"a.x", "a__to__b.edge_index", "b.num_sampled_nodes"}
    assert before["a.x"].kind == "torch.float32 [2, 1]" and before["b.num_sampled_nodes"].kind == "list"
    data["a"].x[1] = 1
    after = value_digests(data)
    assert [name for name in before if before[name] != after[name]] == ["a.x"]


# Comparing --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def epoch(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return recorded(tmp_path_factory.mktemp("records"))


def said(wanted: list[Any], found: list[Any]) -> list[str]:
    return [str(difference) for difference in compare(wanted, found)]


def changed(batch: Any, **values: object) -> Any:
    kept = {name: value for name, value in {**batch.values, **values}.items() if value is not None}
    return replace(batch, values=kept)  # type: ignore[arg-type]


def test_equal_epochs_have_no_difference(epoch: list[Any]) -> None:
    assert compare(epoch, list(reversed(epoch))) == ()
    assert len(epoch) == 6 and sum(len(batch.values) for batch in epoch) > 6 * 5


def test_the_tensor_and_the_batch_are_named(epoch: list[Any]) -> None:
    third = epoch[4]
    x = third.values["x"]
    other = [*epoch[:4], changed(third, x=x._replace(digest="0" * 32)), epoch[5]]
    assert said(epoch, other) == [f"batch 3 (rank 1, step 1), x: {x.kind.removeprefix('torch.')} of other values"]
    other[4] = changed(third, x=x._replace(kind="torch.float64 [1, 2]"))
    assert said(epoch, other) == [f"batch 3 (rank 1, step 1), x: float64 [1, 2] instead of {x.kind.removeprefix('torch.')}"]
    other[4] = changed(third, x=None, extra=x)
    assert said(epoch, other) == [
        "batch 3 (rank 1, step 1), x: is missing",
        "batch 3 (rank 1, step 1), extra: is in the job's batches only",
    ]


def test_batches_that_are_missing_exchanged_or_too_many(epoch: list[Any]) -> None:
    assert said(epoch, epoch[:-1]) == ["batch 0 (rank 1, step 2): did not come"]  # it pads the last step
    assert said(epoch[:-1], epoch) == ["batch 0 (rank 1, step 2): more than the epoch has"]
    exchanged = [replace(epoch[0], values=epoch[1].values), replace(epoch[1], values=epoch[0].values), *epoch[2:]]
    assert said(epoch, exchanged) == [
        "batch 0 (rank 0, step 0): batch 2 came in its place",
        "batch 2 (rank 0, step 1): batch 0 came in its place",
    ]


def report(**changes: object) -> VerifyReport:
    values = {"name": "job", "launcher": "launch.sh", "nodes": 2, "procs_per_node": 2, "batches": 6, "epoch_batches": 8, "values": 30}
    words: dict[str, object] = {**values, "notes": ("a note",), "differences": (), "elapsed_s": 12.0, **changes}
    return VerifyReport(**words)  # type: ignore[arg-type]


def test_the_report_says_what_was_found(epoch: list[Any]) -> None:
    fine = report()
    assert fine.equal and fine.ranks == 4
    assert "6 of an epoch's 8" in str(fine) and "equal, to the last bit" in str(fine) and "a note" in str(fine)
    bad = report(differences=compare(epoch, epoch[:-1]))
    assert not bad.equal and "first difference: batch 0 (rank 1, step 2): did not come" in str(bad)
    assert "1 batch differs" in repr(bad) and "did not come" in bad._repr_mimebundle_()["text/html"]


# The size of a job ------------------------------------------------------------------------------------------------------

JOB = TrialSize("torchrun", 4, 8, 0, 1, name="job", placement="partition", gpus_per_proc=0, cut_from=None)


def sized(monkeypatch: pytest.MonkeyPatch, job: TrialSize, cpus: int, memory: int) -> tuple[str, list[str]]:
    pretend_processors(monkeypatch, cpus)
    pretend_free_memory(monkeypatch, memory)
    small, notes = fitting(job)
    return small.size, notes


def test_a_job_that_does_not_fit_runs_smaller_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sized(monkeypatch, JOB, 16, 1 << 40) == ("4 x 8 ranks", [])
    assert sized(monkeypatch, JOB, 2, 1 << 40) == ("2 x 2 ranks", ["2 x 2 ranks in place of 4 x 8 ranks: this machine has 2 processors"])
    size, (note,) = sized(monkeypatch, JOB, 16, 4 << 30)
    assert size == "2 x 2 ranks" and "free memory" in note and "processor" not in note
    served = replace(JOB, storage_nodes=3, servers_per_node=4)
    assert sized(monkeypatch, served, 1, 1 << 40)[0] == "2 x 2 ranks and 2 x 2 storage servers"
    assert sized(monkeypatch, replace(JOB, nodes=1, procs_per_node=3), 1, 1 << 40) == ("1 x 3 ranks", [])


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"procs_per_node": True}, {"launcher": 5}, {"servers_per_node": None}])
def test_a_damaged_record_is_an_error(tmp_path: Path, wrong: dict[str, object]) -> None:
    options = {"launcher": "slurm", "nodes": 2, "procs_per_node": 1, "storage_nodes": 0, "servers_per_node": 1, "gpus_per_proc": 0}
    text = {"version": 1, "gnnkit": "1", "options": {**options, "placement": "replicate"}, "files": {}}
    (tmp_path / "export.json").write_text(json.dumps(text))
    assert read_job(tmp_path).size == "2 x 1 ranks"
    text["options"] = {**options, **wrong}
    (tmp_path / "export.json").write_text(json.dumps(text))
    with pytest.raises(PlanError, match=f"export.json says {next(iter(wrong))}"):
        read_job(tmp_path)


def test_the_stand_in_tells_tasks_what_slurm_tells_them() -> None:
    nodes = [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]
    place = find_place({**slurm_variables(3, 1, 1, 4, 2, nodes), "SLURM_JOB_ID": "1"})
    assert (place.rank, place.local_rank, place.node_rank, place.world_size, place.local_world_size, place.num_nodes) == (3, 1, 1, 4, 2, 2)
    assert place.master_addr == "10.0.0.1"


# Processes --------------------------------------------------------------------------------------------------------------


def command(folder: Path, script: str, number: int = 0, *, serves: bool = False) -> Command:
    return Command(f"script {number}", ["bash", "-c", script], dict(os.environ), folder, folder / f"{number}.log", None, serves)


def is_running(file: Path) -> bool:
    """Whether the process that has written its pid into a file still runs."""
    return file.exists() and bool(pid := file.read_text().strip()) and start_ticks(int(pid)) is not None


# One process that left its session and ignores being asked, and one that lost its parent.
STUBBORN = "(trap '' TERM; exec setsid bash -c 'echo $$ > a; exec sleep 600') & (setsid bash -c 'echo $$ > b; exec sleep 600' &); sleep 600"


def test_nothing_outlives_the_block(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), running([command(tmp_path, STUBBORN)], 0, tmp_path, tmp_path):
        assert wait_until(lambda: is_running(tmp_path / "a") and is_running(tmp_path / "b"), 60)
        _ = 1 / 0
    assert not is_running(tmp_path / "a") and not is_running(tmp_path / "b")


def test_nothing_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    folder, code = (
        tmp_path / "scratch",
        (
            "import os, sys, time; from pathlib import Path; from gnnkit.export.proof.trial import Command, running\n"
            "folder = Path(sys.argv[1]); folder.mkdir()\n"
            "c = Command('script', ['bash', '-c', sys.argv[2]], dict(os.environ), folder.parent, folder / 'log', None)\n"
            "with running([c], 0, folder, folder):\n"
            "    print('runs', flush=True); time.sleep(600)\n"
        ),
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(folder), STUBBORN], stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"runs\n"
    assert wait_until(lambda: is_running(tmp_path / "a") and is_running(tmp_path / "b"), 60)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert wait_until(lambda: not is_running(tmp_path / "a") and not is_running(tmp_path / "b") and not folder.exists(), 60)


def finished(run: object) -> None:
    assert wait_until(lambda: run.look(0.1), 60)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_command_that_fails_is_named_with_its_last_lines(tmp_path: Path) -> None:
    wrong = command(tmp_path, "echo one; echo 'launch: unknown option' >&2; exit 7", 1)
    with pytest.raises(WorkerDied) as error, running([command(tmp_path, "sleep 600"), wrong], 0, tmp_path, tmp_path) as run:
        finished(run)
    assert str(error.value) == "script 1 ended with exit status 7; its last lines:\n    one\n    launch: unknown option"
    killed, missing = command(tmp_path, "kill -9 $$", 2), replace(command(tmp_path, ""), words=["./launch.sh"])
    for one, kind, text in (
        (killed, WorkerDied, "script 2 was killed by SIGKILL, and wrote nothing"),
        (missing, StartTimeout, "launch.sh"),
    ):
        with pytest.raises(kind, match=text), running([one], 0, tmp_path, tmp_path) as run:
            finished(run)


def test_servers_run_until_the_rest_has_ended(tmp_path: Path) -> None:
    serve = "trap 'echo asked > asked; exit 0' TERM; echo > ready; while :; do sleep 0.1; done"
    wait = "until [ -e ready ]; do sleep 0.05; done"
    with running([command(tmp_path, serve, serves=True), command(tmp_path, wait, 1)], 0, tmp_path, tmp_path) as run:
        finished(run)
    assert (tmp_path / "asked").exists(), "a server is asked to end, and has the time for it"
    commands = [command(tmp_path, "true", serves=True), command(tmp_path, "sleep 600", 1)]
    with pytest.raises(WorkerDied, match="script 0 ended with exit status 0"), running(commands, 0, tmp_path, tmp_path) as run:
        finished(run)
