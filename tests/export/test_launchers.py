"""The files that start a job: what shellcheck, sbatch's manual and the schemas of Kubernetes say about them."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gnnkit.errors import PlanError
from gnnkit.export.job import PLAN, README, RECORD, REQUIREMENTS, STAGE, TRAIN, ExportJob
from gnnkit.plan import Placement
from tests.export.jobs import LAUNCHERS, SERVED, STORE, VARIANTS, job, launcher_files, launcher_instructions, write_files
from tests.export.pods import PODS, objects
from tests.export.sbatch_options import components

SCHEMAS = Path(__file__).with_name("schemas")
WHOLE = Placement(((0, 1), (0, 1)))
STARTS = {
    "torchrun": "launch.sh",
    "slurm": "job.sbatch",
    "pbs": "job.pbs",
    "kubernetes": "job.yaml",
    "skypilot": "sky.yaml",
    "trainjob": "job.yaml",
}
SMALL = replace(STORE, nbytes=15 * 10**6)
JOBS = [
    pytest.param(job(launcher, **options), id=f"{launcher}-{name}")
    for launcher in LAUNCHERS
    for name, options in VARIANTS.items()
    if launcher != "skypilot" or "storage_nodes" not in options
]


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
    assert STARTS[written.launcher] in files and ("serve.sh" in files) == bool(written.num_servers)


@pytest.mark.parametrize("written", JOBS)
def test_instructions_name_every_port_and_every_setting_that_the_scripts_read(written: ExportJob) -> None:
    said, files = launcher_instructions(written), launcher_files(written)
    scripts = "\n".join(text for name, text in files.items() if not name.endswith(".yaml"))
    for name in said.settings:
        assert name in scripts, name
    read = set(re.findall(r"^(?:export )?([A-Z_]+)=\"\$\{\1:-", scripts, re.M)) | set(re.findall(r'^: "\$\{([A-Z_]+):\?', scripts, re.M))
    # Kubernetes, Slurm and PBS say these themselves.
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
        main = files[STARTS[written.launcher]]
        assert written.gpu_words in main and ("no GPU" in main) == (not written.gpus_per_node)


@pytest.mark.parametrize("written", JOBS)
def test_the_environment_is_a_line_to_edit_and_images_have_no_compiler(written: ExportJob) -> None:
    for name, text in launcher_files(written).items():
        assert name.endswith((".yaml", ".pbs")) or ("source env/bin/activate" in text) == (written.launcher not in PODS)
    said = "\n".join(line for step in launcher_instructions(written).start for line in step.commands)
    assert "build-essential" not in said and "apt-get" not in said


def test_the_parser_of_sbatch_lines_refuses_what_sbatch_would_not_read() -> None:
    good = "#!/bin/bash\n#SBATCH --nodes=2\n"
    assert components(good) == [{"nodes": "2"}]
    for bad in ("#SBATCH --node=2\n", "#SBATCH --nodes=two\n", "#SBATCH --time=soon\n", "#SBATCH--nodes=2\n", "echo\n#SBATCH --requeue\n"):
        with pytest.raises(ValueError):
            components(good + bad)


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


# Says what it was told as PBS has it: without this script's own variables. Ranks of node 1 end with the status that a test wants.
PBS_TMRSH = """\
#!/bin/bash
host="$1"; shift
env -i PATH="$PATH" "$@" | sed "s/^/$host: /" >>"$CASE/said"
until (($(wc -l <"$CASE/said") == $(wc -l <"$PBS_NODEFILE"))); do sleep 0.1; done
case "$*" in *NODE_RANK=1*) exit "$STATUS" ;; *NODE_RANK=*) ((STATUS == 0)) || sleep 30 ;; *) sleep 30 ;; esac
"""


@pytest.mark.parametrize("status", [0, 2])
@pytest.mark.parametrize("served", [False, True])
def test_pbs_tells_every_node_who_it_is_and_ends_as_ranks_do(served: bool, status: int, tmp_path: Path) -> None:
    folder = write_files(job("pbs", **(SERVED if served else {})), tmp_path / "job")
    names = ["NODE_RANK", "STORAGE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT", "RUN_DIR", "OMP_NUM_THREADS", "STORAGE_ADDRS"]
    script = "#!/bin/bash\necho " + " ".join(f"{name}=${name}" for name in names) + ' "$([ -r "$GNNKIT_TOKEN_FILE" ] && echo token)"\n'
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"][: 4 if served else 2]
    (tmp_path / "bin").mkdir()
    for file, text in (("job/launch.sh", script), ("job/serve.sh", script), ("bin/pbs_tmrsh", PBS_TMRSH)):
        (tmp_path / file).write_text(text)
        (tmp_path / file).chmod(0o755)
    (folder / "plan.json").touch()
    (tmp_path / "hosts").write_text("\n".join(hosts) + "\n")
    told = {"PBS_JOBID": "17.server", "PBS_O_WORKDIR": str(folder), "PBS_NODEFILE": str(tmp_path / "hosts"), "PBS_ARRAY_INDEX": "3"}
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "CASE": str(tmp_path),
        "STATUS": str(status),
        "OMP_NUM_THREADS": "8",
        **told,
    }
    done = subprocess.run(["bash", folder / "job.pbs"], cwd="/", env=environment, capture_output=True, text=True, timeout=25)
    assert done.returncode == status, done.stderr
    same = "NNODES=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=15017 RUN_DIR=run/3 OMP_NUM_THREADS=4 STORAGE_ADDRS="
    same += "127.0.0.3,127.0.0.4 token" if served else " "
    ranks = [f"{host}: NODE_RANK={rank} STORAGE_RANK= {same}" for rank, host in enumerate(hosts[:2])]
    servers = [f"{host}: NODE_RANK= STORAGE_RANK={rank} {same}" for rank, host in enumerate(hosts[2:])]
    assert sorted((tmp_path / "said").read_text().splitlines()) == [line.rstrip("\n") for line in sorted(ranks + servers)]
    assert not list(folder.glob(".token-*")), "the token is gone with its run"
