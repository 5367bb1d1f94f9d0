"""``gnnkit run``: under torchrun with a rank that is killed, continued by another number of ranks, alone, with servers; and mistakes."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnkit import GraphLoader, TrainContext
from gnnkit.jobs.environment import JobPlace
from gnnkit.jobs.running import run_training
from tests.helpers.command import run
from tests.helpers.ports import free_port
from tests.jobs.setups import NUM_BATCHES, Steps, epochs, planned

DEADLINE_S = 150
RANKS = ("RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX")
SAVE_EVERY, KILLED_AT, STOPPED_AT = 4, 6, 8

# Writes down the seeds of every batch before it trains on them; rank 1 is killed in its seventh step, and both stop after the eighth.
TRAIN = f"""
import json, os, signal
import torch

{inspect.getsource(Steps)}
def train(loader, ctx):
    torch.manual_seed(ctx.rank)
    model, steps = ctx.ddp(torch.nn.Linear(4, 3)), Steps()
    optimizer = torch.optim.Adam(model.parameters())
    ctx.restore(model=model, optimizer=optimizer, steps=steps)
    found = {{"steps": steps.done, "weight": model.module.weight.tolist(), "place": [ctx.local_rank, ctx.world_size, ctx.num_nodes]}}
    with open(ctx.directory / f"rank{{ctx.rank}}-attempt{{ctx.restarts}}.jsonl", "w") as file:
        print(json.dumps(found), file=file, flush=True)
        for epoch in ctx.epochs(1):
            for batch in loader:
                print(json.dumps(batch.input_id.tolist()), file=file, flush=True)
                if ctx.rank == 1 and ctx.restarts == 0 and steps.done == {KILLED_AT}:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = torch.nn.functional.cross_entropy(model(batch.x[: batch.batch_size]), batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps.done += 1
                ctx.log(loss=loss)
                if steps.done % {SAVE_EVERY} == 0:
                    ctx.save(model=model, optimizer=optimizer, steps=steps)
                if steps.done == {STOPPED_AT}:
                    return
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planned(tmp_path_factory.mktemp("planned"))


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "GNNKIT_ROLE", "GNNKIT_ADDRESSES", "MASTER_")) or name in (
            "RANK",
            "WORLD_SIZE",
            "JOB_COMPLETION_INDEX",
        ):
            monkeypatch.delenv(name)


def write(folder: Path, source: str) -> Path:
    file = folder / "train.py"
    file.write_text(source)
    return file


def lines(folder: Path, rank: int, attempt: int) -> tuple[dict[str, Any], list[list[int]]]:
    """What a rank wrote down at its start, and the seeds of its batches."""
    first, *rest = map(json.loads, (folder / f"rank{rank}-attempt{attempt}.jsonl").read_text().splitlines())
    return first, rest


@pytest.mark.slow
@pytest.mark.core
def test_a_killed_rank_is_restarted_and_the_rest_comes_exactly_also_to_another_number_of_ranks(plan: Path, tmp_path: Path) -> None:
    """With torchrun: killed after the checkpoint of step 4, restarted from there, stopped at the one of step 8, and continued alone."""
    folder, expected = tmp_path / "job", epochs(plan, 2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2", f"--master-port={free_port()}"]
    job = ["-m", "gnnkit", "run", str(plan), "--train", str(write(tmp_path, TRAIN)), "--dir", str(folder), "--device", "cpu"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*torchrun, *job], env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    for rank in range(2):
        dealt = expected[0][rank::2]
        found, first = lines(folder, rank, 0)
        assert found["steps"] == 0 and found["place"] == [rank, 2, 1]
        assert first == dealt[: KILLED_AT + 1]
        found, second = lines(folder, rank, 1)
        assert found["steps"] == SAVE_EVERY, "the step after the checkpoint is trained again"
        assert second == dealt[SAVE_EVERY:STOPPED_AT]
        assert not (folder / f"rank{rank}-attempt2.jsonl").exists()
    weights = [lines(folder, rank, attempt)[0]["weight"] for attempt in (0, 1) for rank in range(2)]
    assert weights[0] == weights[1] != weights[2] == weights[3], "rank 0's weights at first, the checkpoint's then"

    logged: list[Any] = []

    def go_on(loader: GraphLoader, ctx: TrainContext) -> list[list[list[int]]]:
        model, steps = ctx.ddp(torch.nn.Linear(4, 3)), Steps()
        assert ctx.restore(model=model, optimizer=torch.optim.Adam(model.parameters()), steps=steps) and steps.done == STOPPED_AT
        seen = []
        for _ in ctx.epochs(2):
            seen.append([])
            for batch in loader:
                seen[-1].append(batch.input_id.tolist())
                ctx.log(seeds=batch.batch_size)
        return seen

    left = run_training(plan, go_on, JobPlace(), directory=folder, report=logged.append, device="cpu")
    assert left == [expected[0][2 * STOPPED_AT :], expected[1]]
    assert (logged[0].epoch, logged[0].step, logged[-1].epoch, logged[-1].step) == (0, 2 * STOPPED_AT + 1, 1, NUM_BATCHES)


def test_alone_it_needs_no_launcher(
    plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of an epoch too: two processes' worth of runs, one after the other."""
    source = """
import json
def train(loader, ctx):
    assert (ctx.rank, ctx.world_size, ctx.local_world_size, ctx.num_nodes, ctx.is_main, ctx.restarts) == (0, 1, 1, 1, True, 0)
    resumed, seen = ctx.restore(), []
    for epoch in ctx.epochs(1):
        for step, batch in enumerate(loader):
            ctx.log(epochs=epoch)
            seen.append(batch.input_id.tolist())
            if not resumed and step == 4:
                ctx.save()
                break
        else:
            continue
        break
    (ctx.directory / f"{int(resumed)}.json").write_text(json.dumps(seen))
"""
    words = ["run", str(plan), "--train", str(write(tmp_path, source)), "--dir", str(tmp_path / "new" / "job"), "--device", "cpu"]
    assert [run(words), run(words)] == [0, 0], capfd.readouterr().err
    assert "nothing is left" not in caplog.text
    first, second = (json.loads((tmp_path / "new" / "job" / f"{turn}.json").read_text()) for turn in range(2))
    assert len(first) == 5 and first + second == epochs(plan, 1)[0]
    assert re.search(rf"\d\d:\d\d:\d\d  epoch 0.*  batch {NUM_BATCHES}/{NUM_BATCHES}  .* left.*  epochs 0", capfd.readouterr().out)
    write(tmp_path, "def train(loader, ctx):\n    ctx.restore()\n    list(loader)\n    list(ctx.epochs(1))")
    assert run(words) == 0 and "all 1 epochs are done: nothing is left of this training" in caplog.text


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("def fit(loader, ctx): pass", 2, ["has no function 'train'", "it has fit", "def train(loader, ctx)"]),
        ("def train(loader): pass", 2, ["train(loader)", "cannot be called as train(loader, ctx)"]),
        ("def train(loader, ctx:\n    pass", 2, ["train.py, line 1"]),
        ("import no_such_module_here", 2, ["ModuleNotFoundError", "no_such_module_here"]),
        ("def train(loader, ctx):\n    raise KeyError('my own')", 1, ["Traceback", "train.py", "error: KeyError: 'my own'"]),
        ("def train(loader, ctx):\n    ctx.log(loss='low')", 2, ["ctx.log(loss='low')", "no number"]),
        ("def train(loader, ctx):\n    ctx.save(loss=3)", 2, ["ctx.save(loss=...)", "no state_dict()"]),
    ],
)
def test_mistakes_in_the_train_file(
    plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], source: str, code: int, said: list[str]
) -> None:
    words = ["run", str(plan), "--train", str(write(tmp_path, source)), "--dir", str(tmp_path / "job"), "--device", "cpu"]
    assert run(words) == code
    err = capfd.readouterr().err
    assert all(words in err for words in said), err
    assert err.count("error: ") == 1, "once"
    assert "Traceback" not in err or 'train.py", line' in err.splitlines()[1], "it begins with the user's file"


def test_mistakes_in_the_command(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    good = str(write(tmp_path, "def train(loader, ctx): pass"))
    for words, said in (
        (["run", str(plan)], "--train train.py"),
        (["run", str(plan), "--train", str(tmp_path / "none.py")], "there is no file"),
        (["run", str(tmp_path / "none.json"), "--train", good], "cannot read the plan"),
    ):
        assert run(words) == 2
        assert said in capfd.readouterr().err
    assert run(["run", str(plan), "--train", good, "--dir", str(tmp_path / "job"), "--device", "tpu"]) == 2
    assert "unknown device 'tpu'" in capfd.readouterr().err
    monkeypatch.setenv("RANK", "0")
    assert run(["run", str(plan), "--train", good]) == 2
    assert "RANK=0 is in the environment, but WORLD_SIZE is not" in capfd.readouterr().err


def test_prepare_checks_the_store_and_runs_nothing(plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(plan), "--train", str(write(tmp_path, "raise SystemExit('it ran')")), "--prepare"]
    assert run(words) == 0
    assert "all parts" in capfd.readouterr().out
    moved = json.loads(plan.read_text())
    moved["store"]["path"] = str(tmp_path / "nowhere")
    (tmp_path / "plan.json").write_text(json.dumps(moved))
    assert run(["run", str(tmp_path / "plan.json"), "--prepare"]) == 2
    assert "nowhere" in capfd.readouterr().err


def test_prepare_looks_for_the_parts_of_its_node(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two nodes with a part each; this one lacks part 1."""
    import shutil

    shutil.copytree(plan.parent / "store", tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "part1")
    split = json.loads(plan.read_text())
    split["store"]["path"], split["placement"], split["backend"] = "store", [[0], [1]], {"kind": "Colocated"}
    (tmp_path / "plan.json").write_text(json.dumps(split))
    for nodes, rank, code, word in ((2, 0, 0, "parts 0 of"), (2, 1, 2, "part1"), (3, 0, 2, "2 hosts, and the job has 3 nodes")):
        monkeypatch.setenv("NNODES", str(nodes))
        monkeypatch.setenv("NODE_RANK", str(rank))
        assert run(["run", str(tmp_path / "plan.json"), "--prepare"]) == code
        said = capfd.readouterr()
        assert word in " ".join((said.out + said.err).split())


@pytest.mark.slow
def test_a_server_serves_and_a_trainer_joins_it(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command on both: GNNKIT_ROLE says which is which, and the server ends with exit status 0 when the trainer has left."""
    roles = {"GNNKIT_ADDRESSES": f"unix:{tmp_path / 'servers'}", "GNNKIT_NUM_SERVERS": "1", "GNNKIT_NUM_CLIENTS": "1"}
    job = [sys.executable, "-W", "ignore", "-m", "gnnkit", "run", str(plan), "--train", str(write(tmp_path, "raise SystemExit(3)"))]
    environment = {**os.environ, **roles, "GNNKIT_ROLE": "server", "GNNKIT_SERVER_ID": "0"}
    server = subprocess.Popen(job, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for name, value in {**roles, "GNNKIT_ROLE": "client"}.items():
            monkeypatch.setenv(name, value)

        def train(loader: GraphLoader, ctx: TrainContext) -> list[list[int]]:
            assert loader.plan.backend["kind"] == "GraphStore"
            return [batch.input_id.tolist() for batch in loader]

        seen = run_training(plan, train, JobPlace(), directory=tmp_path / "job", report=print, device="cpu")
        out, err = server.communicate(timeout=DEADLINE_S)
        assert server.returncode == 0, out + err
    finally:
        server.kill()
        server.communicate()
    for name in (*roles, "GNNKIT_ROLE"):
        monkeypatch.delenv(name)
    assert seen == epochs(plan, 1)[0]


def test_the_folder_of_a_job_is_answered_with_the_command_for_its_plan(plan: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(plan.parent)]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "is a folder" in said and f"gnnkit run {plan.parent}/plan.json --train {plan.parent}/train.py" in said
