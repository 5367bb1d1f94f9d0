"""Jobs for Kubernetes and Kubeflow Trainer: what their schemas, their controllers, Pod Security and checkov say about them."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from tests.distributed.ranks import TORCHRUN_VARIABLES
from tests.export.jobs import SERVED, STORE, VARIANTS, job, launcher_files, launcher_instructions, write_files
from tests.export.pods import PODS, action, generated_names, jobs, objects, objects_of, pods, selected, validators
from tests.helpers.machine import checkov
from tests.helpers.ports import free_port

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
FETCHED = {"store": replace(STORE, path="s3://bucket/tiny"), "backend": "Colocated"}
LARGE = {"file_bytes": {"plan.json": 2 << 20, "train.py": 3000}}
ALL = {**VARIANTS, "fetched": FETCHED, "large": LARGE, "large-served": {**LARGE, **SERVED}}
DEADLINE_S = 200


@pytest.fixture
def loader(store: Path) -> Iterator[GraphLoader]:
    with GraphLoader.from_store(store, num_neighbors=[3], batch_size=16, backend="inprocess", progress=False) as made:
        yield made


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("launcher", PODS)
def test_kubernetes_takes_every_object(launcher: str, name: str) -> None:
    found = objects(job(launcher, **ALL[name]))
    assert {"JobSet", "NetworkPolicy", "PersistentVolumeClaim"} <= found.keys() <= {*validators(), "TrainJob", "TrainingRuntime"}
    for kind, documents in found.items():
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


@pytest.mark.packages("kubeflow_trainer_api")
@pytest.mark.parametrize("name", ALL)
def test_kubeflow_trainer_takes_the_job_and_its_runtime(name: str) -> None:
    # Its hundreds of types cost every process that collects these tests a second.
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
    from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime

    written = job("trainjob", **ALL[name])
    found = objects(written)
    for kind, type_ in {"TrainJob": TrainerV1alpha1TrainJob, "TrainingRuntime": TrainerV1alpha1TrainingRuntime}.items():
        (document,) = found[kind]
        assert lost(document, type_.from_dict(document).to_dict()) == []
    runtime = found["TrainingRuntime"][0]["spec"]
    nodes, *servers = runtime["template"]["spec"]["replicatedJobs"]
    # As its documentation says: these tell which pods train, and how many there are. Containers "node" get the resources of a TrainJob.
    assert nodes["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert nodes["template"]["spec"]["template"]["spec"]["containers"][0]["name"] == nodes["name"] == "node"
    assert [one["template"]["spec"]["template"]["spec"]["containers"][0]["name"] for one in servers] == ["storage"] * bool(
        written.num_servers
    )
    assert all("metadata" not in one["template"] and one["replicas"] == 1 for one in servers)
    assert runtime["mlPolicy"] == {"numNodes": written.nodes}
    misspelt = {**found["TrainingRuntime"][0], "spec": {**runtime, "mlPolicies": {"numNodes": 1}}}
    assert lost(misspelt, TrainerV1alpha1TrainingRuntime.from_dict(misspelt).to_dict()) == ["/spec/mlPolicies/numNodes: 1 is read as None"]
    odd = {**found["TrainJob"][0], "spec": {"runtimeRef": {"name": 3}}}
    with pytest.raises(ValueError, match="runtimeRef|name"):
        TrainerV1alpha1TrainJob.from_dict(odd)


def test_the_schemas_refuse_what_kubernetes_would() -> None:
    written = objects(job("kubernetes"))
    for kind, change in {
        "JobSet": lambda o: o["spec"]["failurePolicy"].update(maxRestart=1),
        "NetworkPolicy": lambda o: o["spec"].update(policyTypes="Ingress"),
    }.items():
        change(written[kind][0])
        with pytest.raises(jsonschema.ValidationError):
            validators()[kind].validate(written[kind][0])
    for misspelt in ("volumeMount", "livenessprobe"):
        found = objects(job("kubernetes"))
        pods(found)["node"]["containers"][0][misspelt] = []
        with pytest.raises(jsonschema.ValidationError):
            validators()["JobSet"].validate(found["JobSet"][0])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("launcher", PODS)
def test_objects_fit_each_other(launcher: str, name: str) -> None:
    written = job(launcher, **ALL[name])
    found, readme = objects(written), launcher_instructions(written)
    job_set, claims = found["JobSet"][0], {claim["metadata"]["name"] for claim in found["PersistentVolumeClaim"]}
    made, specs = jobs(job_set), pods(found)
    sizes = {"node": written.nodes, **({"storage": written.storage_nodes} if written.num_servers else {})}
    assert {kind: one["spec"]["completions"] for kind, one in made.items()} == sizes
    assert all(one["spec"]["parallelism"] == one["spec"]["completions"] for one in made.values())
    config_map = set(re.findall(r"--from-file=([a-z.]+\b)", " ".join(line for step in readme.start for line in step.commands)))
    holder = "storage" if written.num_servers else "node"
    for kind, pod in specs.items():
        labels = made[kind]["spec"]["template"]["metadata"]["labels"]
        assert found["NetworkPolicy"][0]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        (container,), volumes = pod["containers"], {volume["name"]: volume for volume in pod["volumes"]}
        assert container["name"] == kind
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
        assert {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v} <= claims
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        limits = container["resources"]["limits"]
        assert limits == container["resources"]["requests"] and {"cpu", "memory", "ephemeral-storage"} <= limits.keys()
        assert volumes["cache"]["emptyDir"]["sizeLimit"] == limits["ephemeral-storage"]
        assert (int(limits["ephemeral-storage"].removesuffix("Gi")) > 4) == (written.store.is_fetched and kind == holder)
        mounted = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert {mount["subPath"] for mount in mounted.values() if mount["name"] == "files"} <= config_map
        assert container["command"][-1] in mounted and (mounted["/job"]["name"] if kind == "node" else "work") == "work"
        if "plan.json" not in config_map:  # it lies on the claim, where ranks have it in their folder
            assert ("/job/plan.json" in mounted) == (kind == "storage") and "kubectl cp plan.json" in "".join(readme.start[1].commands)
        else:
            assert mounted["/job/plan.json"]["name"] == "files"
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert "GNNKIT_TOKEN" not in env and ("token" in volumes) == bool(written.num_servers)
        if written.num_servers:
            assert mounted[str(Path(env["GNNKIT_TOKEN_FILE"]).parent)]["name"] == "token"
            hosts = [f"tiny-storage-0-{index}.tiny" for index in range(written.storage_nodes)]
            assert env["STORAGE_ADDRS"].split(",") == hosts and volumes["token"]["secret"]["secretName"] in "".join(
                line for step in readme.start for line in step.commands
            )
    assert job_set["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    stores = [mount["mountPath"] for mount in specs[holder]["containers"][0]["volumeMounts"] if mount["name"] == "store"]
    path = written.store.path
    assert stores == ([] if written.store.is_fetched else [path if path.startswith("/") else "/a store"])
    assert specs["node"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0) == written.gpus_per_node


@pytest.mark.parametrize("folder", ["2024-run", "2024", "_", "Größe 7", "a" * 90, "9" + "a-" * 40])
def test_jobset_takes_the_names_that_any_folder_gives(loader: GraphLoader, tmp_path: Path, folder: str) -> None:
    loader.export(tmp_path / folder, "kubernetes", nodes=1000, gpus_per_node=0)
    found = objects_of((tmp_path / folder / "job.yaml").read_text())
    names = [*generated_names(found["JobSet"][0]), *(document["metadata"]["name"] for document in found["PersistentVolumeClaim"])]
    assert all(DNS_1035.fullmatch(name) for name in names), names


def test_jobset_takes_the_names_of_many_storage_pods() -> None:
    written = job("kubernetes", **{**SERVED, "storage_nodes": 1000, "name": "a" * 40})
    assert all(DNS_1035.fullmatch(name) for name in generated_names(objects(written)["JobSet"][0]))


@pytest.mark.parametrize("launcher", PODS)
def test_storage_servers_end_with_the_ranks_and_with_the_job(launcher: str) -> None:
    written = job(launcher, **SERVED)
    text = launcher_files(written)["job.yaml"]
    documents = list(yaml.safe_load_all(text))
    spec = objects_of(text)["JobSet"][0]["spec"]
    # JobSet's controller ends the jobs that still run once those are done, and all of them where it is removed.
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["node"]}
    assert spec["ttlSecondsAfterFinished"] > 24 * 3600
    owners = {"JobSet", "TrainJob", "TrainingRuntime"}
    assert {document["kind"] for document in documents} <= {"PersistentVolumeClaim", "NetworkPolicy", *owners}
    watch = launcher_instructions(written).watch.commands
    (end,) = [shlex.split(line) for line in watch if line.startswith("kubectl delete -f job.yaml")]
    ended = {document["kind"] for document in selected(documents, end[-1])}
    assert ended == {document["kind"] for document in documents} - {"PersistentVolumeClaim"}
    assert "kubectl delete configmap/tiny-files secret/tiny-token" in watch
    (claims,) = [
        shlex.split(line) for step in launcher_instructions(written).start for line in step.commands if f"-l {end[-1][1:]}=" in line
    ]
    assert {document["kind"] for document in selected(documents, claims[-1])} == {"PersistentVolumeClaim"}


@pytest.mark.parametrize("launcher", PODS)
@pytest.mark.parametrize(
    ("kind", "exit_code", "disrupted", "follows"),
    [
        ("node", 1, False, "RestartJobSet"),
        ("node", 137, False, "RestartJobSet"),
        ("node", 2, False, "FailJobSet"),
        ("node", 22, False, "RestartJobSet"),
        ("node", 143, True, "RestartJobSetAndIgnoreMaxRestarts"),
        ("storage", 1, False, "Count"),
        ("storage", 2, False, "FailJobSet"),
        ("storage", 143, True, "Ignore"),
    ],
)
def test_a_preemption_is_no_failure_and_exit_code_2_is_the_last(
    launcher: str, kind: str, exit_code: int, disrupted: bool, follows: str
) -> None:
    job_set = objects(job(launcher, **SERVED))["JobSet"][0]
    assert action(job_set, kind, exit_code, disrupted=disrupted) == follows
    assert job_set["spec"]["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
    # Kubernetes takes a failure policy for pods that are not restarted in place alone.
    assert all(pod["restartPolicy"] == "Never" for pod in pods({"JobSet": [job_set]}).values())


@pytest.mark.parametrize("name", ALL)
def test_pods_are_restricted(name: str) -> None:
    """Pod Security Standards, "restricted"; also what is staged with."""
    written = job("kubernetes", **ALL[name])
    specs = list(pods(objects(written)).values()) + [staging(written)]
    for pod in specs:
        validators()["PodSpec"].validate(pod)
        assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} <= {
            "configMap",
            "emptyDir",
            "persistentVolumeClaim",
            "secret",
        }
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"} and pod["automountServiceAccountToken"] is False
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] >= 10_000 and security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert all("hostPort" not in port for port in container.get("ports", ()))


def staging(written: Any) -> dict[str, Any]:
    """The pod that takes files to the claims, as README's ``kubectl run`` makes it."""
    lines = [line for step in launcher_instructions(written).start for line in step.commands if line.startswith("kubectl run")]
    if not lines:
        return next(iter(pods(objects(written)).values()))
    (words,) = map(shlex.split, lines)
    spec: dict[str, Any] = json.loads(words[-1].removeprefix("--overrides="))["spec"]
    return spec


def test_servers_have_probes_that_leave_them_time_to_start() -> None:
    node, storage = (pods(objects(job("kubernetes", **SERVED)))[kind]["containers"][0] for kind in ("node", "storage"))
    probes = {name: storage[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["tcpSocket"]["port"] for probe in probes.values()} <= {port["name"] for port in storage["ports"]}
    # Until it listens a script may take PREPARE_TIMEOUT_S for the store, and JOIN_TIMEOUT_S for its name.
    script = launcher_files(job("kubernetes", **SERVED))["serve.sh"]
    may_take = sum(int(re.findall(rf"{name}:-(\d+)", script)[0]) for name in ("PREPARE_TIMEOUT_S", "JOIN_TIMEOUT_S"))
    assert probes["startupProbe"]["failureThreshold"] * probes["startupProbe"]["periodSeconds"] >= may_take
    assert not node.keys() & probes.keys()


def test_a_large_plan_lies_on_the_claim_and_a_large_program_is_refused() -> None:
    said = launcher_instructions(job("kubernetes", **LARGE)).start
    (step,) = [step for step in said if "kubectl cp plan.json tiny-stage:/job/plan.json" in step.commands]
    assert "larger than a ConfigMap may be" in step.text
    mounts = {
        mount["mountPath"]: mount["name"] for mount in staging(job("kubernetes", **{**LARGE, **FETCHED}))["containers"][0]["volumeMounts"]
    }
    assert mounts == {"/job": "work"}
    with pytest.raises(PlanError, match=r"ConfigMap, which holds 1 MiB, and they have 1500000 bytes"):
        launcher_files(job("kubernetes", file_bytes={"plan.json": 10, "train.py": 1_500_000}))


def test_seeds_of_a_large_plan_are_counted(store: Path, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 100, 1_500_000)  # compressed, and yet too much
    with GraphLoader.from_store(store, num_neighbors=[3], batch_size=16, input_nodes=ids, backend="inprocess", progress=False) as loader:
        loader.export(tmp_path / "job", "kubernetes", gpus_per_node=0)
    assert (tmp_path / "job/plan.json").stat().st_size > 1 << 20
    readme = (tmp_path / "job/README.md").read_text()
    assert "--from-file=plan.json" not in readme and "kubectl cp plan.json job-stage:/job/plan.json" in readme


@pytest.mark.parametrize("launcher", PODS)
def test_options_are_merged_into_what_is_written(loader: GraphLoader, tmp_path: Path, launcher: str) -> None:
    queue = {"kueue.x-k8s.io/queue-name": "team"}
    pod = {
        "nodeSelector": {"gpu": "a100"},
        "priorityClassName": "low",
        "securityContext": {"runAsUser": None, "fsGroup": 7},
        "containers": [{"name": "node", "env": [{"name": "RUN_DIR", "value": "two words"}, {"name": "HOME", "value": "/tmp"}]}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    digest = "registry/team/image@sha256:" + "0" * 64
    options = {"image": digest, "labels": queue, "pod": pod, "claim": {"storageClassName": "nfs"}}
    loader.export(tmp_path / "job", launcher, gpus_per_node=0, options=options, config={"lr": 0.1})
    text = (tmp_path / "job/job.yaml").read_text()
    found = objects_of(text)
    validators()["JobSet"].validate(found["JobSet"][0])
    made, before = pods(found)["node"], pods(objects(job("kubernetes")))["node"]
    assert made["nodeSelector"] == pod["nodeSelector"] and made["priorityClassName"] == "low"
    unchanged = {name: value for name, value in before["securityContext"].items() if name != "runAsUser"}
    assert made["securityContext"] == {**unchanged, "fsGroup": 7}
    (container,) = made["containers"]
    assert container["image"] == digest and container["imagePullPolicy"] == "IfNotPresent"
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["RUN_DIR"], env["HOME"]) == ("two words", "/tmp") and {"MASTER_ADDR", "NODE_RANK"} <= env.keys()
    assert {volume["name"] for volume in made["volumes"]} == {volume["name"] for volume in before["volumes"]} | {"scratch"}
    starter = found["JobSet" if launcher == "kubernetes" else "TrainJob"][0]
    assert queue.items() <= starter["metadata"]["labels"].items() and text.count("queue-name") == 1
    assert {claim["spec"]["storageClassName"] for claim in found["PersistentVolumeClaim"]} == {"nfs"}
    assert "/job/config.json" in [mount["mountPath"] for mount in container["volumeMounts"]]
    readme = (tmp_path / "job/README.md").read_text()
    assert "--from-file=config.json" in readme and "docker build" not in readme
    (line,) = [line for line in readme.splitlines() if line.startswith("kubectl run")]
    staged = json.loads(shlex.split(line)[-1].removeprefix("--overrides="))["spec"]
    assert staged["nodeSelector"] == pod["nodeSelector"] and [one["name"] for one in staged["containers"]] == ["stage"]


@pytest.mark.checkov
@pytest.mark.slow(seconds=20)
def test_checkov_finds_nothing(tmp_path: Path) -> None:
    """It knows what JobSet makes, and not JobSet; ``kubectl -n`` chooses the namespace, and an option the digest."""
    digest = {"options": {"image": "registry/team/image@sha256:" + "0" * 64}}
    for launcher in PODS:
        for name, options in ALL.items():
            written = job(launcher, **{**options, **digest})
            found = objects(written)
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stage"}, "spec": staging(written)}
            documents = [*jobs(found["JobSet"][0]).values(), *found["NetworkPolicy"], *found["PersistentVolumeClaim"], pod]
            for document in documents:
                document["metadata"]["namespace"] = "team"
            (tmp_path / f"{launcher}-{name}.yaml").write_text(yaml.safe_dump_all(documents))
    bad = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "spec": {"containers": [{"name": "bad", "image": "bad"}]}}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(bad))
    words = [checkov(), "--directory", tmp_path, "--framework", "kubernetes", "--skip-download", "--output", "json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path)
    said = json.loads(done.stdout)["results"]
    failed = {f"{one['file_path']}: {one['resource']}: {one['check_id']}: {one['check_name']}" for one in said["failed_checks"]}
    # A pod that sleeps, with no port, has nothing to probe.
    expected = {one for one in failed if one.startswith("/bad.yaml") or re.search(r"Pod\.team\.stage: CKV_K8S_[89]:", one)}
    assert len(said["passed_checks"]) > 500 and any(one.startswith("/bad.yaml") for one in expected) and failed == expected


# What the scripts do in pods --------------------------------------------------------------------------------------------

STAND_IN = """\
#!/bin/sh
echo "$0 $* $(stat -c %a "$GNNKIT_TOKEN_FILE") $(cat "$GNNKIT_TOKEN_FILE") $GNNKIT_TOKEN_FILE" >>"$CALLS"
"""


@pytest.mark.parametrize("script", ["launch.sh", "serve.sh"])
def test_the_token_of_a_secret_becomes_a_file_that_gnnkit_takes(tmp_path: Path, script: str) -> None:
    folder, commands = write_files(job("kubernetes", **SERVED), tmp_path / "job"), tmp_path / "bin"
    commands.mkdir()
    for name in ("gnnkit", "torchrun"):
        (commands / name).write_text(STAND_IN)
        (commands / name).chmod(0o755)
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o444)
    told = {"GNNKIT_TOKEN_FILE": str(secret), "CALLS": str(tmp_path / "calls"), "PATH": f"{commands}:{os.environ['PATH']}"}
    told |= {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "NNODES": "1", "STORAGE_RANK": "0"}
    told |= {"STORAGE_ADDRS": "127.0.0.1", "POD_IP": "127.0.0.1", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", str(folder / script)], env={**os.environ, **told}, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (tmp_path / "calls").exists(), done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) >= 2
    try:
        assert all(call.split()[-3:-1] == ["600", "0123456789abcdef"] for call in calls), calls
    finally:
        for path in {Path(call.split()[-1]) for call in calls} - {secret}:
            assert stat.S_ISREG(path.stat().st_mode)
            path.unlink()


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize(("error", "code"), [("gnnkit.errors.PlanError('no')", 2), ("ValueError('no')", 1)])
def test_a_pod_says_whether_another_start_can_help(loader: GraphLoader, tmp_path: Path, error: str, code: int) -> None:
    (tmp_path / "train.py").write_text(f"import gnnkit.errors\n\ndef train(loader, ctx):\n    raise {error}\n")
    loader.export(tmp_path / "job", "kubernetes", procs_per_node=2, gpus_per_node=0, train=tmp_path / "train.py")
    told = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MAX_RESTARTS": "0" if code == 1 else "50", "OMP_NUM_THREADS": "1"}
    told |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MASTER_PORT": str(free_port())}
    environment = {name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES} | told
    done = subprocess.run(["bash", str(tmp_path / "job/launch.sh")], env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == code, done.stderr
