"""The files that start a job: what shellcheck, sbatch's manual and the schemas of Kubernetes say about them."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource

from gnnkit.errors import PlanError
from gnnkit.export.job import PLAN, README, RECORD, REQUIREMENTS, STAGE, TRAIN, ExportJob, JobStore
from gnnkit.plan import Placement
from tests.export.jobs import LAUNCHERS, SERVED, STORE, job, launcher_files, launcher_instructions, write_files
from tests.export.sbatch_options import components

SCHEMAS = Path(__file__).with_name("schemas")
WHOLE = Placement(((0, 1), (0, 1)))
SMALL = replace(STORE, nbytes=15 * 10**6)
ODD = {
    "nodes": 1,
    "procs_per_node": 1,
    "interface": "ib0.100",
    "backend": "InProcess",
    "sampling_threads": None,
    "gpus_per_node": 1,
    "placement": Placement(((0, 1),)),
    "store": JobStore("tiny", "/data/what's in $HOME", "0123abcd", 2, 10),
}
VARIANTS = {"colocated": {}, "served": SERVED, "odd": ODD, "odd-served": {**ODD, **SERVED, "storage_nodes": 1}}
JOBS = [
    pytest.param(job(launcher, **options), id=f"{launcher}-{name}")
    for launcher in LAUNCHERS
    for name, options in VARIANTS.items()
    if launcher != "skypilot" or "storage_nodes" not in options
]
PODS = ("kubernetes", "trainjob")


@pytest.mark.shellcheck
@pytest.mark.parametrize("written", JOBS)
def test_shellcheck_finds_nothing(written: ExportJob, tmp_path: Path) -> None:
    names = [name for name in launcher_files(written) if not name.endswith(".yaml")]
    write_files(written, tmp_path)
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "--severity=style", *names], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("written", JOBS)
def test_every_script_stops_at_the_first_error_and_waits_for_nothing_without_a_deadline(written: ExportJob) -> None:
    for name, text in launcher_files(written).items():
        if name.endswith(".yaml"):
            continue
        assert text.startswith("#!/usr/bin/env bash\n") and "\nset -euo pipefail\n" in text
        assert max(map(len, text.splitlines())) <= 150
        for loop in re.findall(r"^ *(?:until|while) .*?^ *done|^ *while .*done$", text, re.M | re.S):
            watches = 'kill -0 "$torchrun"' in loop  # and ends with the process that it watches
            assert "SECONDS" in loop or watches, f"{name}: {loop}"
        for line in text.splitlines():
            if "--prepare" in line and not line.lstrip().startswith(("#", "srun")):
                assert line.startswith("run "), line


@pytest.mark.parametrize("written", JOBS)
def test_files_are_few_and_none_of_the_writers(written: ExportJob) -> None:
    files = launcher_files(written)
    others = {PLAN, TRAIN, REQUIREMENTS, README, RECORD, STAGE}
    assert not others & files.keys() and len(others) + len(files) < 10
    assert files == launcher_files(written)
    starts = {"torchrun": "launch.sh", "slurm": "job.sbatch", "kubernetes": "job.yaml", "skypilot": "sky.yaml", "trainjob": "job.yaml"}
    assert starts[written.launcher] in files and ("serve.sh" in files) == bool(written.num_servers)


@pytest.mark.parametrize("written", JOBS)
def test_instructions_name_every_port_and_every_setting_that_the_scripts_read(written: ExportJob) -> None:
    said, files = launcher_instructions(written), launcher_files(written)
    scripts = "\n".join(text for name, text in files.items() if not name.endswith(".yaml"))
    for name in said.settings:
        assert name in scripts, name
    read = set(re.findall(r"^(?:export )?([A-Z_]+)=\"\$\{\1:-", scripts, re.M)) | set(re.findall(r'^: "\$\{([A-Z_]+):\?', scripts, re.M))
    # Kubernetes and Slurm say these themselves.
    by_themselves = {"NODE_RANK", "MASTER_ADDR", "NNODES", "NPROC_PER_NODE", "JOIN_TIMEOUT_S", "STORAGE_RANK", "STORAGE_ADDRS"}
    assert read <= said.settings.keys() | (set() if written.launcher == "torchrun" else by_themselves)
    assert {port.ephemeral for port in said.ports} <= {True, False} and said.ports
    assert any("STORAGE_PORT" in port.who for port in said.ports) == bool(written.num_servers)
    assert any("MASTER_PORT" in port.who for port in said.ports)
    part_service = any("part service" in port.who for port in said.ports)
    assert part_service == (written.backend == "Colocated" and written.nodes > 1)
    for step in (*said.start, said.restart, said.watch):
        assert step.title and not re.search(r"\{[a-z_.]+\}", step.text)


@pytest.mark.parametrize("name", VARIANTS)
def test_sbatch_takes_every_line(name: str) -> None:
    written = job("slurm", **VARIANTS[name])
    found = components(launcher_files(written)["job.sbatch"])
    assert len(found) == (2 if written.num_servers else 1)
    trainers = found[0]
    assert (trainers["nodes"], trainers["ntasks-per-node"]) == (str(written.nodes), str(written.procs_per_node))
    assert ("gpus-per-node" in trainers) == bool(written.gpus_per_node)
    assert int(trainers["cpus-per-task"]) >= 1 + (written.sampling_threads or 0)
    least = {id(trainers): 0 if written.num_servers else written.store_bytes_per_node, id(found[-1]): written.store_bytes_per_node}
    assert all(int(component["mem"].removesuffix("G")) << 30 > least[id(component)] for component in found)
    for component in found:
        assert "requeue" in component and component["time"] == trainers["time"]
    if written.num_servers:
        assert (found[1]["nodes"], found[1]["ntasks-per-node"]) == (str(written.storage_nodes), "1")
        assert "gpus-per-node" not in found[1]


GIB = 2**30


@pytest.mark.parametrize(
    ("options", "cores", "gib"),
    [
        # Eight ranks on a store of 15 MB, with a few small batches: the interpreters are what takes memory.
        (
            {
                "procs_per_node": 8,
                "store": replace(STORE, nbytes=15 * 10**6),
                "batch_bytes": 10**6,
                "sampling_threads": None,
                "num_steps": 1,
            },
            2,
            10,
        ),
        # One rank with the whole of a large store.
        ({"procs_per_node": 1, "store": replace(STORE, nbytes=200 * GIB), "sampling_threads": None, "placement": WHOLE}, 5, 203),
        # The same with batches of a gigabyte.
        ({"procs_per_node": 1, "store": replace(STORE, nbytes=200 * GIB), "batch_bytes": GIB, "placement": WHOLE}, 2, 213),
    ],
)
def test_memory_and_processors_come_from_the_store_and_the_plan(options: dict[str, Any], cores: int, gib: int) -> None:
    written = job("slurm", **options)
    (found,) = components(launcher_files(written)["job.sbatch"])
    assert (int(found["cpus-per-task"]), int(found["mem"].removesuffix("G"))) == (cores, pytest.approx(gib, abs=2))
    for launcher in PODS:
        pod = objects(job(launcher, **options))["JobSet"][0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        limits = pod["containers"][0]["resources"]["limits"]
        memory = f"{found['mem'].removesuffix('G')}Gi"
        assert limits == {"cpu": str(cores * written.procs_per_node), "memory": memory, "ephemeral-storage": "4Gi"}
    asked = yaml.safe_load(launcher_files(job("skypilot", **options))["sky.yaml"])["resources"]
    assert (asked["cpus"], asked["memory"]) == (f"{cores * written.procs_per_node}+", f"{found['mem'].removesuffix('G')}+")
    assert asked["disk_size"] > written.store.nbytes >> 30


@pytest.mark.parametrize("written", JOBS)
def test_gpus_and_their_absence_are_said_aloud(written: ExportJob) -> None:
    files = launcher_files(written)
    if written.launcher != "torchrun":  # which takes what a machine has
        (main,) = (files[name] for name in ("job.sbatch", "job.yaml", "sky.yaml") if name in files)
        assert written.gpu_words in main and ("no GPU" in main) == (not written.gpus_per_node)


@pytest.mark.parametrize("written", JOBS)
def test_the_environment_is_a_line_to_edit_and_images_have_no_compiler(written: ExportJob) -> None:
    for name, text in launcher_files(written).items():
        assert name.endswith(".yaml") or ("source env/bin/activate" in text) == (written.launcher not in PODS)
    said = "\n".join(line for step in launcher_instructions(written).start for line in step.commands)
    assert "build-essential" not in said and "apt-get" not in said


def test_the_parser_of_sbatch_lines_refuses_what_sbatch_would_not_read() -> None:
    good = "#!/bin/bash\n#SBATCH --nodes=2\n"
    assert components(good) == [{"nodes": "2"}]
    for bad in ("#SBATCH --node=2\n", "#SBATCH --nodes=two\n", "#SBATCH --time=soon\n", "#SBATCH--nodes=2\n", "echo\n#SBATCH --requeue\n"):
        with pytest.raises(ValueError):
            components(good + bad)


@cache
def validators() -> dict[str, jsonschema.protocols.Validator]:
    """By kind; unknown fields are errors."""
    core, job_set = (json.loads((SCHEMAS / name).read_text()) for name in ("kubernetes-1.34.json", "jobset-v1alpha2.json"))
    registry = Registry().with_resources([(core["$id"], Resource.from_contents(core)), (job_set["$id"], Resource.from_contents(job_set))])
    groups = {
        "PersistentVolumeClaim": "core.v1",
        "NetworkPolicy": "networking.v1",
    }
    references = {kind: f"{core['$id']}#/$defs/io.k8s.api.{group}.{kind}" for kind, group in groups.items()} | {"JobSet": job_set["$id"]}
    return {kind: jsonschema.Draft202012Validator({"$ref": reference}, registry=registry) for kind, reference in references.items()}


def objects(written: ExportJob) -> dict[str, list[dict[str, Any]]]:
    """The documents of ``job.yaml`` by kind; the JobSet that Kubeflow Trainer makes of a TrainJob and its runtime is among them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for document in yaml.safe_load_all(launcher_files(written)["job.yaml"]):
        found.setdefault(document["kind"], []).append(document)
    for train_job, runtime in zip(found.get("TrainJob", ()), found.get("TrainingRuntime", ()), strict=True):
        assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
        made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": train_job["metadata"]["name"]}}
        found["JobSet"] = [made | {"spec": runtime["spec"]["template"]["spec"]}]
    return found


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("launcher", PODS)
def test_kubernetes_takes_every_object(launcher: str, name: str) -> None:
    for kind, documents in objects(job(launcher, **VARIANTS[name])).items():
        for document in documents:
            if kind not in ("TrainJob", "TrainingRuntime"):
                validators()[kind].validate(document)


def lost(written: Any, read: Any, path: str = "") -> list[str]:
    """Which fields of a document its type does not know, or takes for something else; it may add defaults."""
    if isinstance(written, dict):
        return [line for name in written for line in lost(written[name], (read or {}).get(name), f"{path}/{name}")]
    if isinstance(written, list):
        pairs = zip(written, read or [None] * len(written), strict=True)
        return [line for index, pair in enumerate(pairs) for line in lost(*pair, f"{path}/{index}")]
    return [] if written == read else [f"{path}: {written!r} is read as {read!r}"]


@pytest.mark.parametrize("name", VARIANTS)
def test_kubeflow_trainer_takes_the_job_and_its_runtime(name: str) -> None:
    # Its hundreds of types cost every process that collects these tests a second.
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
    from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime

    written = job("trainjob", **VARIANTS[name])
    found = objects(written)
    for kind, type_ in {"TrainJob": TrainerV1alpha1TrainJob, "TrainingRuntime": TrainerV1alpha1TrainingRuntime}.items():
        (document,) = found[kind]
        assert lost(document, type_.from_dict(document).to_dict()) == []
    runtime = found["TrainingRuntime"][0]["spec"]
    nodes = runtime["template"]["spec"]["replicatedJobs"][0]
    # As its documentation says: these tell which pods train, and how many there are.
    assert nodes["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert nodes["template"]["spec"]["template"]["spec"]["containers"][0]["name"] == nodes["name"] == "node"
    assert runtime["mlPolicy"] == {"numNodes": written.nodes}
    misspelt = {**found["TrainingRuntime"][0], "spec": {**runtime, "mlPolicies": {"numNodes": 1}}}
    assert lost(misspelt, TrainerV1alpha1TrainingRuntime.from_dict(misspelt).to_dict()) == ["/spec/mlPolicies/numNodes: 1 is read as None"]
    odd = {**found["TrainJob"][0], "spec": {"runtimeRef": {"name": 3}}}
    with pytest.raises(ValueError, match="runtimeRef|name"):
        TrainerV1alpha1TrainJob.from_dict(odd)


PATHS = {"../a store": "~/gnnkit/a store", "../../../x/y": "~/gnnkit/x/y", "/data/x": "/data/x", "inside/x": None}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("gpus", [0, 2])
def test_skypilot_takes_the_file_and_the_store_is_where_the_plan_looks_for_it(path: str, gpus: int) -> None:
    schemas = json.loads((SCHEMAS / "skypilot-0.14.json").read_text())
    written = job("skypilot", nodes=3, gpus_per_node=gpus, store=replace(STORE, path=path))
    task = yaml.safe_load(launcher_files(written)["sky.yaml"])
    for name, part in {"task": task, "resources": task["resources"]}.items():
        jsonschema.Draft202012Validator(schemas[name]).validate(part)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schemas[name]).validate({**part, "num_node": 1})
    assert task["num_nodes"] == 3 and ("accelerators" in task["resources"]) == bool(gpus)
    home, mounts = task["envs"]["JOB_DIR"], dict(task["file_mounts"])
    assert mounts.pop(f"~/{home}") == "."
    assert mounts == ({} if PATHS[path] is None else {PATHS[path]: path})
    if path.startswith(".."):
        assert f"~/{posixpath.normpath(posixpath.join(home, path))}" in mounts
    for line in re.findall(r"\{source: .*\}", launcher_files(written)["sky.yaml"]):
        jsonschema.Draft202012Validator(schemas["storage"]).validate(yaml.safe_load(line))


@pytest.mark.shellcheck
def test_shellcheck_finds_nothing_in_what_skypilot_runs() -> None:
    task = yaml.safe_load(launcher_files(job("skypilot"))["sky.yaml"])
    for name in ("setup", "run"):
        words = ["shellcheck", "--shell=bash", "--severity=style", "--exclude=SC2154", "-"]  # SkyPilot sets variables
        done = subprocess.run(words, input=task[name], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_skypilot_has_no_storage_nodes() -> None:
    with pytest.raises(PlanError, match="storage servers never end"):
        launcher_files(job("skypilot", **SERVED))


def test_the_schemas_refuse_what_kubernetes_would() -> None:
    written = objects(job("kubernetes"))
    for kind, change in {
        "JobSet": lambda o: o["spec"]["failurePolicy"].update(maxRestart=1),
        "NetworkPolicy": lambda o: o["spec"].update(policyTypes="Ingress"),
    }.items():
        change(written[kind][0])
        with pytest.raises(jsonschema.ValidationError):
            validators()[kind].validate(written[kind][0])
    pod = objects(job("kubernetes"))["JobSet"][0]
    pod["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(jsonschema.ValidationError):
        validators()["JobSet"].validate(pod)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_secret_is_written_or_an_argument(launcher: str) -> None:
    files = launcher_files(job(launcher, **({} if launcher == "skypilot" else SERVED)))
    assert not any(re.search(r"\b[0-9a-f]{32,}\b", text) for text in files.values())
    for text in files.values():
        assert not re.search(r"--token|\$\{?GNNKIT_TOKEN\}?[\" ]*(\\|$)", text, re.M)
        assert "set -x" not in text and not re.search(r"echo.*\$\{?GNNKIT_TOKEN[}\" ]", text)
    if launcher in PODS:
        assert "Secret" not in objects(job(launcher, **SERVED))
    assert STORE.fingerprint not in "".join(files.values())
