"""Jobs for Kubernetes: a JobSet, or Kubeflow's TrainJob, its objects, the scripts that its pods run, and the pods on trial."""

from __future__ import annotations

import platform
import posixpath
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gnnkit.errors import PlanError
from gnnkit.export.job import PLAN, TRAIN, ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import (
    LAUNCH,
    MASTER_PORT,
    MAX_RESTARTS,
    RANK_THREADS,
    SERVE,
    STORAGE_PORT,
    TOKEN_TEXT,
    between_ranks,
    common_settings,
    in_gib,
    rank_cores,
    render,
    storage_cores,
    storage_gib,
    storage_ports,
    storage_shm_gib,
    trainer_gib,
    trainer_shm_gib,
)
from gnnkit.export.proof.trial import Command, JobTrial, Node
from gnnkit.files import read_text
from gnnkit.plan.config import CONFIG

JOB_YAML = "job.yaml"


def container_commands(trial: JobTrial) -> list[Command]:
    """Returns the commands of the containers in a job's ``job.yaml``, as they run for each of its nodes.

    Raises:
        PlanError: The file cannot be used.
    """
    containers = _containers(trial.nodes[0].folder / JOB_YAML)
    made = []
    for serves, nodes in ((True, trial.storage_nodes), (False, trial.nodes)):
        for node in nodes:
            if serves not in containers:
                raise PlanError(f"{JOB_YAML} has no container for {'storage servers' if serves else 'ranks'}", "export the job again")
            container = containers[serves]
            pod = f"{trial.job.name}-storage-{node.rank}" if serves else f"{trial.job.name}-node-0-{node.rank}"
            variables = _pod_variables(container, node, pod, trial.environment)
            words = [_in_folder(word, node.folder) for word in (*container.get("command", ()), *container.get("args", ()))]
            made.append(trial.command(node, shlex.join(container.get("command", ())) + f" in {JOB_YAML},", words, variables))
    return made


def _containers(file: Path) -> dict[bool, dict[str, Any]]:
    """The containers of objects that have pods: ``True`` is that of storage servers, ``False`` that of ranks."""
    import yaml

    found: dict[bool, dict[str, Any]] = {}
    try:
        for document in yaml.safe_load_all(read_text(file)):
            spec = (document or {}).get("spec", {})
            # A JobSet, or the runtime of a TrainJob, whose template is one; else a StatefulSet, or nothing with pods.
            job_set = spec["template"]["spec"] if "mlPolicy" in spec else spec
            serves = "replicatedJobs" not in job_set
            pods = spec if serves else job_set["replicatedJobs"][0]["template"]["spec"]
            if "template" in pods:
                (found[serves],) = pods["template"]["spec"]["containers"]
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise PlanError(f"{file.name} cannot be used: {error}", "export the job again") from error
    return found


def _pod_variables(container: Mapping[str, Any], node: Node, pod: str, known: Mapping[str, str]) -> dict[str, str]:
    """A container's variables as a pod would have them; those of this machine, such as folders, stay what they are here."""
    fields = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(node.rank),
        "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']": "0",
        "metadata.name": pod,
        "status.podIP": node.address,
    }
    variables = {"HOSTNAME": pod}
    for entry in container.get("env", ()):
        name, source = entry["name"], entry.get("valueFrom", {})
        if "fieldRef" in source:
            variables[name] = fields.get(source["fieldRef"]["fieldPath"], "")
        elif name not in known and "value" in entry and not str(entry["value"]).startswith("/"):
            variables[name] = str(entry["value"])
    return variables


def _in_folder(word: str, folder: Path) -> str:
    """A path in a pod's home as it is here."""
    here = folder / Path(word).name
    return str(here) if word.startswith("/") and here.exists() else word


# Label of the claims alone: `kubectl apply -l` makes them before everything else.
CLAIMS = "app.kubernetes.io/component=claim"
# Kubeflow Trainer knows the container of ranks by its name.
_CONTAINERS = {LAUNCH: "node", SERVE: "serve"}
# The job's directory in every pod.
_HOME = "/job"
_WORK_GIB = 20

_Object = dict[str, Any]


def _objects(job: ExportJob) -> list[_Object]:
    """Every object of a job but those that start its ranks, and the Secret and the ConfigMap, which hold what is not in the file."""
    stores = [] if job.store.is_fetched else [_claim(job, "store", in_gib(job.store.nbytes * 5 // 4))]
    objects = [*stores, _claim(job, "work", _WORK_GIB), _network_policy(job)]
    objects.append(_service(job, job.name, {"jobset.sigs.k8s.io/jobset-name": job.name}, {"rendezvous": MASTER_PORT}))
    if job.num_servers:
        ports = {f"server-{index}": STORAGE_PORT + index for index in range(job.servers_per_node)}
        objects += [_service(job, _storage(job), {"app.kubernetes.io/component": "storage", **labels_of(job)}, ports), _stateful_set(job)]
    return objects


def _written(objects: list[_Object]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes what occurs twice twice: references are for machines."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump_all(objects, Dumper=Plain, sort_keys=False, width=120)


_HEAD = """\
# {job.name}: a {kind} of {job.nodes} pods with {job.procs_per_node} ranks each.
# README.md says what has to be there before: kubectl apply -f job.yaml
# What you may want to change: image, storageClassName, and cpu and memory, which are estimates from the store and the batches.
# It asks for {job.gpu_words}.
"""


def image(job: ExportJob) -> str:
    """The image's name, as it is written."""
    return str(job.options.get("image", f"registry.example.com/{job.name}:{job.gnnkit}"))


def token_name(job: ExportJob) -> str:
    """The Secret that holds the token of storage servers, under ``token``."""
    return f"{job.name}-token"


def _storage(job: ExportJob) -> str:
    return f"{job.name}-storage"


def labels_of(job: ExportJob) -> dict[str, str]:
    """Returns the labels of all objects of a job."""
    return {"app.kubernetes.io/name": "gnnkit", "app.kubernetes.io/part-of": job.name}


def _claim(job: ExportJob, what: str, gib: int) -> _Object:
    key, value = CLAIMS.split("=")
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{job.name}-{what}", "labels": {key: value, **labels_of(job)}},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": f"{gib}Gi"}}},
    }


def _network_policy(job: ExportJob) -> _Object:
    """Only the job's own pods reach each other: torchrun's meeting point asks for no password."""
    own = {"matchLabels": labels_of(job)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": job.name, "labels": labels_of(job)},
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]},
    }


def _service(job: ExportJob, name: str, selector: dict[str, str], ports: dict[str, int]) -> _Object:
    """A headless one, for the names of pods; also of those that are not ready, because they wait for each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels_of(job)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": [{"name": key, "port": port, "targetPort": port} for key, port in ports.items()],
        },
    }


def job_set(job: ExportJob) -> _Object:
    """Returns the JobSet that starts a job's ranks."""
    pods = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        # A pod that fails is the JobSet's to see, which starts all of them again.
        "backoffLimit": 0,
        "template": {"metadata": {"labels": labels_of(job)}, "spec": {"restartPolicy": "Never", **_rank_pod(job)}},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, "labels": labels_of(job)},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "failurePolicy": {"maxRestarts": MAX_RESTARTS},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": pods}}],
        },
    }


def _rank_pod(job: ExportJob) -> _Object:
    env: list[_Object] = [
        {"name": "NODE_RANK", "valueFrom": _field("metadata.annotations['batch.kubernetes.io/job-completion-index']")},
        {"name": "GNNKIT_RESTARTS", "valueFrom": _field("metadata.annotations['jobset.sigs.k8s.io/restart-attempt']")},
        {"name": "POD_IP", "valueFrom": _field("status.podIP")},
        {"name": "MASTER_ADDR", "value": f"{job.name}-node-0-0.{job.name}"},
        {"name": "MASTER_PORT", "value": str(MASTER_PORT)},
        # The pod sees all processors of its node, and may use as many as it asks for.
        {"name": "OMP_NUM_THREADS", "value": str(rank_cores(job))},
        *_storage_env(job),
    ]
    limits: _Object = {"cpu": str(rank_cores(job) * job.procs_per_node), "memory": f"{trainer_gib(job)}Gi"}
    if job.gpus_per_node:
        limits["nvidia.com/gpu"] = job.gpus_per_node
    volumes: list[_Object] = [{"name": "work", "persistentVolumeClaim": {"claimName": f"{job.name}-work"}}]
    mounts: list[_Object] = [{"name": "work", "mountPath": _HOME}, *_file_mounts(*_rank_files(job))]
    if not job.num_servers:
        volumes += _store_volumes(job)
        mounts += _store_mounts(job)
    ports = [{"name": "rendezvous", "containerPort": MASTER_PORT}]
    return _pod(job, LAUNCH, env, limits, ports, volumes, mounts, trainer_shm_gib(job))


def _rank_files(job: ExportJob) -> tuple[str, ...]:
    return (PLAN, TRAIN, LAUNCH, *((CONFIG,) if job.config else ()))


def _stateful_set(job: ExportJob) -> _Object:
    labels = {"app.kubernetes.io/component": "storage", **labels_of(job)}
    env: list[_Object] = [{"name": "POD_IP", "valueFrom": _field("status.podIP")}, *_storage_env(job)]
    pod = _pod(
        job,
        SERVE,
        env,
        {"cpu": str(storage_cores(job)), "memory": f"{storage_gib(job)}Gi"},
        [{"name": f"server-{index}", "containerPort": STORAGE_PORT + index} for index in range(job.servers_per_node)],
        _store_volumes(job),
        [*_store_mounts(job), *_file_mounts(PLAN, SERVE)],
        storage_shm_gib(job),
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": _storage(job), "labels": labels},
        "spec": {
            "serviceName": _storage(job),
            "replicas": job.storage_nodes,
            # Servers wait for each other, so that none may wait for another one's pod.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _storage_env(job: ExportJob) -> list[_Object]:
    if not job.num_servers:
        return []
    hosts = [f"{_storage(job)}-{node}.{_storage(job)}" for node in range(job.storage_nodes)]
    return [
        {"name": "STORAGE_ADDRS", "value": ",".join(hosts)},
        {"name": "STORAGE_PORT", "value": str(STORAGE_PORT)},
        {"name": "GNNKIT_TOKEN", "valueFrom": {"secretKeyRef": {"name": token_name(job), "key": "token"}}},
    ]


def _pod(
    job: ExportJob,
    script: str,
    env: list[_Object],
    limits: _Object,
    ports: list[_Object],
    volumes: list[_Object],
    mounts: list[_Object],
    shm_gib: int,
) -> _Object:
    """A pod of one container that runs a script of the job."""
    container = {
        "name": _CONTAINERS[script],
        "image": image(job),
        "command": ["bash", f"{_HOME}/{script}"],
        "env": [*({"name": name, "value": "/cache"} for name in ("GNNKIT_HOME", "XDG_CACHE_HOME")), *env],
        "ports": ports,
        # The same numbers twice: gnnkit's "auto" takes as many threads as the pod may use cores.
        "resources": {"requests": dict(limits), "limits": limits},
        "volumeMounts": [*mounts, {"name": "cache", "mountPath": "/cache"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels_of(job)},
    }
    files = {"name": "files", "configMap": {"name": f"{job.name}-files"}}
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_gib}Gi"}}
    selector = job.options.get("node_selector")
    return {
        **({"nodeSelector": dict(selector)} if selector else {}),
        "automountServiceAccountToken": False,
        "topologySpreadConstraints": [spread],
        "containers": [container],
        "volumes": [files, *volumes, {"name": "cache", "emptyDir": {}}, shm],
    }


def _field(path: str) -> _Object:
    return {"fieldRef": {"fieldPath": path}}


def _file_mounts(*names: str) -> list[_Object]:
    return [{"name": "files", "mountPath": f"{_HOME}/{name}", "subPath": name, "readOnly": True} for name in names]


def _store_volumes(job: ExportJob) -> list[_Object]:
    """Returns the volume of the store; none where pods fetch it."""
    claim = {"claimName": f"{job.name}-store", "readOnly": True}
    return [] if job.store.is_fetched else [{"name": "store", "persistentVolumeClaim": claim}]


def _store_mounts(job: ExportJob) -> list[_Object]:
    """Returns the volume mount of the store, at the place to which the plan's relative path leads from the job's directory."""
    place = posixpath.normpath(posixpath.join(_HOME, job.store.path))
    return [] if job.store.is_fetched else [{"name": "store", "mountPath": place, "readOnly": True}]


class Kubernetes(Launcher):
    """A JobSet whose pods run torchrun, and its objects."""

    title = "Kubernetes"
    # What starts the ranks, and the custom resource that the cluster must know.
    kind: ClassVar[str] = "JobSet"
    options = {"image": "the image's name, with tag or digest", "node_selector": "labels that nodes must have"}
    needs: ClassVar[str] = (
        "The cluster needs the [JobSet](https://jobset.sigs.k8s.io) controller. `kubectl get crd jobsets.jobset.x-k8s.io` says whether it"
        " is there."
    )
    about_trial = f"the commands of {JOB_YAML}'s containers as processes, with their variables: there is no cluster here"
    about_files = {
        LAUNCH: "starts the ranks of one node",
        SERVE: "starts the storage servers of one node",
        JOB_YAML: "the job for Kubernetes",
    }
    brings_files = True

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``job.yaml``, ``launch.sh``, and ``serve.sh`` where there are storage nodes."""
        text = _HEAD.format(job=job, kind=self.kind) + _written([*_objects(job), *self.starters(job)])
        files = {JOB_YAML: text, LAUNCH: render(LAUNCH, job, where="pods")}
        if job.num_servers:
            files[SERVE] = render(SERVE, job, where="pods")
        return files

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about the image, the claims and ``kubectl``."""
        work = f"the claim `{job.name}-work`"
        start, restart = _start(job, self.needs), _restart(job, self.kind)
        return Instructions(start, restart, _watch(job), _ports(job), _settings(job), checkpoints=work)

    def starters(self, job: ExportJob) -> list[dict[str, Any]]:
        """Returns the objects that start the ranks."""
        return [job_set(job)]

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns the commands of the containers in ``job.yaml``, for each node."""
        return container_commands(trial)


def _claims_step(job: ExportJob) -> InstructionStep:
    """Returns the step that makes the claims, and fills the store's."""
    if job.store.is_fetched:
        return InstructionStep(
            "Make the claim",
            f"`{job.name}-work` holds checkpoints and what `train.py` writes. It is shared by all pods (`ReadWriteMany`): name a storage"
            " class that can do that where your default one cannot."
            f" Pods fetch the store from {job.store.path}: let their service account read there, or add the variables that fsspec reads"
            " from a Secret of yours.",
            (f"kubectl apply -f {JOB_YAML} -l {CLAIMS}",),
        )
    return InstructionStep(
        "Fill the store's claim",
        f"The claim `{job.name}-store` holds the store, with `manifest.json` at its top; `{job.name}-work` holds checkpoints and"
        " what `train.py` writes. Both are shared by all pods (`ReadWriteMany`): name a storage class that can do that where your"
        " default one cannot. A pod that mounts the claim takes the files:",
        (
            f"kubectl apply -f {JOB_YAML} -l {CLAIMS}",
            f"kubectl run {job.name}-stage --image={image(job)} --overrides='{_stage_overrides(job)}'",
            f"kubectl wait --for=condition=Ready --timeout=300s pod/{job.name}-stage",
            f"kubectl cp {job.store.path}/. {job.name}-stage:/store",
            f"kubectl delete pod {job.name}-stage",
        ),
    )


def _start(job: ExportJob, needs: str) -> tuple[InstructionStep, ...]:
    from_files = " ".join(f"--from-file={name}" for name in (*_rank_files(job), *((SERVE,) if job.num_servers else ())))
    steps = [
        InstructionStep(
            "Make the image",
            f"{needs} Write the name of your registry into these commands, and into `image:` of `{JOB_YAML}`.",
            (f"docker build -t {image(job)} -f- . <<'END'", *_DOCKERFILE, "END", f"docker push {image(job)}"),
        ),
        _claims_step(job),
    ]
    if job.num_servers:
        command = (
            f"od -An -N24 -tx1 /dev/urandom | tr -d ' \\n' | kubectl create secret generic {token_name(job)} --from-file=token=/dev/stdin"
        )
        steps.append(InstructionStep("Make the token", f"{TOKEN_TEXT} `{JOB_YAML}` names the Secret that holds it.", (command,)))
    steps.append(
        InstructionStep(
            "Start it",
            "Pods read this directory's files from a ConfigMap.",
            (f"kubectl create configmap {job.name}-files {from_files}", f"kubectl apply -f {JOB_YAML}"),
        )
    )
    return tuple(steps)


_DOCKERFILE = (
    f"FROM python:{'.'.join(platform.python_version_tuple()[:2])}-slim",
    "COPY requirements.txt gnnkit-*.whl ./",
    "RUN pip install --no-cache-dir -r requirements.txt",
)


def _stage_overrides(job: ExportJob) -> str:
    import json

    spec: dict[str, Any] = {
        "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": f"{job.name}-store"}}],
        "containers": [
            {
                "name": "stage",
                "image": image(job),
                "command": ["sleep", "86400"],
                "volumeMounts": [{"name": "store", "mountPath": "/store"}],
            }
        ],
    }
    return json.dumps({"spec": spec}, separators=(",", ":"))


def _restart(job: ExportJob, kind: str) -> InstructionStep:
    lines = [
        f"* A rank fails or is killed: torchrun starts all ranks again in the pods that are there, {MAX_RESTARTS} times in all, and they"
        " continue from the last checkpoint.",
        "* A pod or a node is gone, also the first one: the JobSet starts all pods with ranks again,"
        f" {MAX_RESTARTS} times (`failurePolicy`).",
    ]
    if job.num_servers:
        lines.append(
            "* A storage pod is gone: the StatefulSet starts it again, and it takes its place again. Ranks that needed it meanwhile are"
            " started again as above."
        )
    lines.append(
        f"* The {kind} has failed: `kubectl delete {kind.lower()} {job.name}` and `kubectl apply -f {JOB_YAML}` continue from the last"
        " checkpoint."
    )
    return InstructionStep("When something fails", "\n".join(lines))


def _watch(job: ExportJob) -> InstructionStep:
    end = f"kubectl delete -f {JOB_YAML} -l '!{CLAIMS.split('=')[0]}'"
    text = "The last command ends the job, and keeps its claims. Delete the ConfigMap and make it anew after a change of `train.py`."
    return InstructionStep(
        "Watch it, end it",
        text,
        (
            f"kubectl get pods -l app.kubernetes.io/part-of={job.name}",
            f"kubectl logs -f -l jobset.sigs.k8s.io/jobset-name={job.name} --prefix",
            end,
        ),
    )


def _ports(job: ExportJob) -> tuple[Port, ...]:
    change = f"`MASTER_PORT` in `{JOB_YAML}`"
    rows = [
        Port(
            "torchrun's meeting point (MASTER_PORT), on every interface",
            f"pod {job.name}-node-0-0",
            str(MASTER_PORT),
            ephemeral=False,
            change=change,
        )
    ]
    rows.append(Port("store of the ranks", f"pod {job.name}-node-0-0", "any free one", ephemeral=True))
    rows += between_ranks(job)
    rows += storage_ports(job, str(STORAGE_PORT), f"`STORAGE_PORT` in `{JOB_YAML}`", "every storage pod")
    return tuple(rows)


def _settings(job: ExportJob) -> dict[str, str]:
    settings = common_settings(job) | {"MASTER_PORT": f"where nodes meet; {MASTER_PORT}", "OMP_NUM_THREADS": RANK_THREADS}
    if job.num_servers:
        settings["STORAGE_PORT"] = f"port of the first server of each storage pod; {STORAGE_PORT}"
    return {name: f"{meaning} (under `env` of `{JOB_YAML}`)" for name, meaning in settings.items()}


_GROUP = "trainer.kubeflow.org"
# Tells Trainer which of a runtime's jobs has the nodes that train; their container has to be called "node".
_TRAINER_STEP = {f"{_GROUP}/trainjob-ancestor-step": "trainer"}


class TrainJob(Kubernetes):
    """A TrainJob of Kubeflow Trainer v2, whose controller makes the JobSet; for the rest as ``Kubernetes``."""

    title = "Kubeflow Trainer"
    kind = "TrainJob"
    needs = (
        "The cluster needs [Kubeflow Trainer](https://www.kubeflow.org/docs/components/trainer) 2, which has the JobSet controller with it."
        f" `kubectl get crd trainjobs.{_GROUP}` says whether it is there."
    )
    about_files = {**Kubernetes.about_files, JOB_YAML: "the job for Kubeflow Trainer"}

    def starters(self, job: ExportJob) -> list[dict[str, Any]]:
        """Returns the TrainingRuntime, which is this job's own and needs no administrator, and the TrainJob that refers to it."""
        spec = job_set(job)["spec"]
        spec["replicatedJobs"][0]["template"] = {"metadata": {"labels": _TRAINER_STEP}, **spec["replicatedJobs"][0]["template"]}
        meta = {"name": job.name, "labels": labels_of(job)}
        # A policy without a framework: launch.sh gives torchrun its arguments itself.
        runtime = {"mlPolicy": {"numNodes": job.nodes}, "template": {"spec": spec}}
        return [
            {"apiVersion": f"{_GROUP}/v1alpha1", "kind": "TrainingRuntime", "metadata": meta, "spec": runtime},
            {
                "apiVersion": f"{_GROUP}/v1alpha1",
                "kind": "TrainJob",
                "metadata": meta,
                "spec": {"runtimeRef": {"apiGroup": _GROUP, "kind": "TrainingRuntime", "name": job.name}},
            },
        ]
