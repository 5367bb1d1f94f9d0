"""What the person says who exports: options of the launcher, hyper-parameters, and whether there are to be GPUs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnnkit import GraphLoader, verify_export
from gnnkit.errors import PlanError
from tests.helpers.command import run, run_captured
from tests.helpers.machine import ROOT
from tests.jobs.setups import planned

DEADLINE_S = 150


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planned(tmp_path_factory.mktemp("planned"))


def test_slurm_takes_a_partition_and_the_like(plan: Path, tmp_path: Path) -> None:
    words = ["export", str(plan), str(tmp_path / "job"), "--launcher", "slurm", "--gpus-per-node", "0"]
    assert run([*words, "--option", "partition=gpu", "--option", "account=physics", "--option", "time=4:00:00"]) == 0
    script = (tmp_path / "job/job.sbatch").read_text()
    for line in ("--partition=gpu", "--account=physics", "--time=4:00:00"):
        assert f"#SBATCH {line}\n" in script
    assert "24:00:00" not in script


@pytest.mark.parametrize(
    ("options", "lines", "not_there"),
    [
        ({"time": "4h"}, ["--time=4:00:00"], ["24:00:00"]),
        ({"time": "1d12h"}, ["--time=36:00:00"], []),
        ({"time": "90m"}, ["--time=1:30:00"], []),
        ({"time": "2-12:30"}, ["--time=2-12:30"], []),
        ({"mem": "64GiB", "cpus-per-task": 6}, ["--mem=64G", "--cpus-per-task=6"], ["--mem=1G", "--mem=2G"]),
        ({"gres": "gpu:a100:1,lscratch:10"}, ["--gres=gpu:a100:1,lscratch:10"], ["--gpus-per-node"]),
        ({"gres": "lscratch:10"}, ["--gres=lscratch:10", "--gpus-per-node=1"], []),
        ({"mail-type": "END,FAIL", "mail-user": "me@example.org"}, ["--mail-type=END,FAIL", "--mail-user=me@example.org"], []),
        ({"extra": {"exclusive": "", "nice": 100}}, ["--exclusive", "--nice=100"], []),
    ],
)
def test_what_slurm_takes(plan: Path, tmp_path: Path, options: dict[str, Any], lines: list[str], not_there: list[str]) -> None:
    with GraphLoader.from_plan(plan, progress=False) as loader:
        loader.export(tmp_path / "job", launcher="slurm", gpus_per_node=1, options=options)
    script = (tmp_path / "job/job.sbatch").read_text()
    assert all(f"#SBATCH {line}\n" in script for line in lines), script
    assert not any(line in script for line in not_there), script
    names = [line.partition("=")[0] for line in script.splitlines() if line.startswith("#SBATCH")]
    assert len(names) == len(set(names)), "one option, once"


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            {"queue": "gpu", "account": "physics", "project": "gnn", "walltime": "1d12h"},
            ["-q gpu", "-A physics", "-P gnn", "-l walltime=36:00:00"],
        ),
        ({"walltime": "3600"}, ["-l walltime=3600"]),
        ({"chunk": {"ncpus": 32, "mem": "64gb", "model": "a100"}}, ["-l select=1:mpiprocs=1:ncpus=32:mem=64gb:ngpus=1:model=a100"]),
        ({"resources": {"place": "scatter:excl", "filesystems": "home:eagle"}}, ["-l place=scatter:excl", "-l filesystems=home:eagle"]),
        ({"extra": {"m": "abe", "V": "", "W": "umask=022"}}, ["-m abe", "-V", "-W umask=022"]),
    ],
)
def test_what_pbs_takes(plan: Path, tmp_path: Path, options: dict[str, Any], lines: list[str]) -> None:
    with GraphLoader.from_plan(plan, progress=False) as loader:
        loader.export(tmp_path / "job", launcher="pbs", gpus_per_node=1, options=options)
    found = [line for line in (tmp_path / "job/job.pbs").read_text().splitlines() if line.startswith("#PBS")]
    assert {f"#PBS {line}" for line in lines} <= set(found), found
    names = [line.partition("=")[0] if " -l " in line else line[:7] for line in found]
    assert len(names) == len(set(names)), "one option, once"


def test_skypilot_takes_resources(plan: Path, tmp_path: Path) -> None:
    with GraphLoader.from_plan(plan, progress=False) as loader:
        resources = {"use_spot": True, "accelerators": "A100:1"}
        loader.export(tmp_path / "job", launcher="skypilot", gpus_per_node=1, options={"resources": resources})
    found = yaml.safe_load((tmp_path / "job/sky.yaml").read_text())["resources"]
    assert found["use_spot"] is True and found["accelerators"] == "A100:1" and found["disk_size"] >= 100


def test_kubernetes_takes_fields_of_pods_from_the_command_line(plan: Path, tmp_path: Path) -> None:
    words = ["export", str(plan), str(tmp_path / "job"), "--launcher", "kubernetes", "--gpus-per-node", "0"]
    pod = "pod={nodeSelector: {gpu: a100}, tolerations: [{operator: Exists}]}"
    labels = ["--option", "labels=kueue.x-k8s.io/queue-name=team", "--option", "labels=tier=3"]
    assert run([*words, "--option", pod, "--option", 'pod={"priorityClassName": "low"}', *labels]) == 0
    job_set = list(yaml.safe_load_all((tmp_path / "job/job.yaml").read_text()))[-1]
    made = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert (made["nodeSelector"], made["priorityClassName"], made["tolerations"]) == ({"gpu": "a100"}, "low", [{"operator": "Exists"}])
    assert {"kueue.x-k8s.io/queue-name": "team", "tier": "3"}.items() <= job_set["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("pod=gpu", "no mapping of what JSON can hold"),
        ("pod={gpu", "no YAML"),
        ("image={a: b}", "of no use"),
        ("node_selector=a=b", "has no option"),
    ],
)
def test_options_of_the_command_line_that_are_of_another_kind(
    plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str, said: str
) -> None:
    code, _, err = run_captured(capfd, ["export", str(plan), str(tmp_path / "job"), "--launcher", "kubernetes", "--option", option])
    assert code == 2 and said in err and not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("launcher", "options", "said"),
    [
        ("slurm", {"partitions": "gpu"}, "Slurm has no option 'partitions'; did you mean 'partition'"),
        ("slurm", {"partition": "a b\n#SBATCH --uid=0"}, "is of no use"),
        ("slurm", {"time": "4 hours"}, "is of no use"),
        ("slurm", {"time": "four"}, "time='4h', '1d12h' or '90m'"),
        ("slurm", {"time": "4:00:00:00"}, "is no time limit that sbatch takes"),
        ("slurm", {"time": {"a": "b"}}, "is of no use"),
        ("slurm", {"mem": "64 GB"}, "is of no use"),
        ("slurm", {"mem": "lots"}, "mem='64G'"),
        ("slurm", {"memory": "64G"}, "mem='64G'"),
        ("slurm", {"nodes": 2}, "nodes= of export"),
        ("slurm", {"extra": {"comment": "a\nb"}}, "is no option of sbatch"),
        ("slurm", {"extra": {"--exclusive": ""}}, "its name without dashes"),
        ("pbs", {"walltime": "4:00:00:00"}, "walltime='4h', '1d12h' or '90m'"),
        ("pbs", {"walltime": "1-12"}, "is no time limit that qsub takes"),
        ("pbs", {"ncpus": 32}, "chunk={'ncpus': 32}"),
        ("pbs", {"chunk": {"mem": "64gb:ngpus=8"}}, "is no resource of a node"),
        ("pbs", {"resources": {"place": "scatter\n#PBS -A other"}}, "is no resource of a job"),
        ("pbs", {"extra": {"name": "x"}}, "is no option of qsub"),
        ("kubernetes", {"nodeSelector": "a"}, "pod={'nodeSelector': ...}"),
        ("kubernetes", {"memory": "64Gi"}, "'limits': {'memory': '64Gi'}"),
        ("kubernetes", {"mem": "64Gi"}, "'limits': {'memory': '64Gi'}"),
        ("skypilot", {"resources": "cpus"}, "resources={field: value}"),
        ("skypilot", {"use_spot": "true"}, "'use_spot': True"),
        ("ray", {"mem": "64G"}, "names the variables"),
    ],
)
def test_options_that_a_launcher_cannot_use(plan: Path, tmp_path: Path, launcher: str, options: dict[str, Any], said: str) -> None:
    with GraphLoader.from_plan(plan, progress=False) as loader, pytest.raises(PlanError) as told:
        loader.export(tmp_path / "job", launcher=launcher, gpus_per_node=0, options=options)
    assert said in str(told.value)


@pytest.mark.slow
def test_hyper_parameters_are_exported_and_verified(plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "job"
    assert run(["export", str(plan), str(folder), "--gpus-per-node", "0", "--set", "lr=0.01"]) == 0
    assert json.loads((folder / "config.json").read_text()) == {"lr": 0.01}
    assert verify_export(folder, num_batches=2, progress=False).equal
    launch = folder / "launch.sh"
    launch.write_text(launch.read_text().replace('RUN_DIR" "$@"', 'RUN_DIR" --set lr=0.02'))
    report = verify_export(folder, num_batches=2, progress=False)
    assert [str(one) for one in report.differences] == ["batch 0 (rank 0, step 0), ctx.config: {'lr': 0.02} instead of {'lr': 0.01}"]
    code, _, err = run_captured(capfd, ["export", str(plan), str(folder), "--set", "1=2"])
    assert code == 2 and "is no name with a value" in err


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "gpus"), [("y", "1 GPU on"), ("", "no GPU: ")])
def test_a_person_is_asked_once_whether_there_are_to_be_gpus(plan: Path, tmp_path: Path, answer: str, gpus: str) -> None:
    source = (
        "import sys; from gnnkit import GraphLoader\nwith GraphLoader.from_plan(sys.argv[1], progress=False) as loader:\n"
        "    for name in 'ab':\n        print(loader.export(sys.argv[2] + name).asks)\n"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", source, str(plan), str(tmp_path / "job")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as asking:
        os.write(ours, f"{answer}\n".encode())
        out, err = asking.communicate(timeout=DEADLINE_S)
    os.close(ours)
    os.close(theirs)
    assert (out + err).count("This machine has no GPU") == 1 and out.count(gpus) == 2, out + err
