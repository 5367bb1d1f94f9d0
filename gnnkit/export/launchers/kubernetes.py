"""Jobs for Kubernetes: a JobSet, or Kubeflow's TrainJob, its objects, the scripts that its pods run, and the pods on trial."""

from __future__ import annotations

import platform
import posixpath
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gnnkit.errors import PlanError
from gnnkit.export.job import PLAN, REQUIREMENTS, TRAIN, ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import (
    JOIN_TIMEOUT_S,
    LAUNCH,
    MASTER_PORT,
    MAX_RESTARTS,
    PREPARE_TIMEOUT_S,
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
    for kind, nodes in ((_STORAGE, trial.storage_nodes), (_NODE, trial.nodes)):
        for node in nodes:
            if kind not in containers:
                raise PlanError(f"{JOB_YAML} has no container for {kind}", "export the job again")
            container = containers[kind]
            variables = _pod_variables(container, node, trial.environment)
            words = [_in_folder(word, node.folder) for word in (*container.get("command", ()), *container.get("args", ()))]
            made.append(trial.command(node, shlex.join(container.get("command", ())) + f" in {JOB_YAML},", words, variables))
    return made


def _containers(file: Path) -> dict[str, dict[str, Any]]:
    """The container of each of the JobSet's jobs, by the job's name."""
    import yaml

    found: dict[str, dict[str, Any]] = {}
    try:
        for document in yaml.safe_load_all(read_text(file)):
            spec = (document or {}).get("spec", {})
            # A JobSet, or the runtime of a TrainJob, whose template is one.
            for job in (spec["template"]["spec"] if "mlPolicy" in spec else spec).get("replicatedJobs", ()):
                (found[job["name"]],) = job["template"]["spec"]["template"]["spec"]["containers"]
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise PlanError(f"{file.name} cannot be used: {error}", "export the job again") from error
    return found


def _pod_variables(container: Mapping[str, Any], node: Node, known: Mapping[str, str]) -> dict[str, str]:
    """A container's variables as a pod would have them; those of this machine, such as folders, stay what they are here."""
    fields = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(node.rank),
        "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']": "0",
        "status.podIP": node.address,
    }
    variables = {}
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
# The JobSet's jobs, their containers, and what those run. Kubeflow Trainer knows the container of ranks by this name.
_NODE, _STORAGE = "node", "storage"
_SCRIPTS = {_NODE: LAUNCH, _STORAGE: SERVE}
# The job's directory in every pod, and the folder of the servers' token.
_HOME, _TOKEN = "/job", "/token"
_WORK_GIB = 20
# Of a node's disk: compiled kernels, temporary files, logs.
_LOCAL_GIB = 4
# A ConfigMap holds 1 MiB; the scripts take a little.
_CONFIG_MAP_BYTES = (1 << 20) - (1 << 16)
# How long a finished job stays, for the logs of its pods.
_KEPT_S = 7 * 24 * 3600
# Of no image: a user that is no other one of the node either, as Pod Security "restricted" and checkov ask for.
_USER = 65532
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}

_Object = dict[str, Any]


def _objects(job: ExportJob) -> list[_Object]:
    """Every object of a job but those that start its pods, and the Secret and the ConfigMap, which hold what is not in the file."""
    stores = [] if job.store.is_fetched else [_claim(job, "store", in_gib(job.store.nbytes * 5 // 4))]
    return [*stores, _claim(job, "work", _WORK_GIB), _network_policy(job)]


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
# Cores and memory are estimates from the store and the batches. The options image, labels, pod, storage_pod and claim of an
# export change what is here.
# It asks for {job.gpu_words}.
"""


def image(job: ExportJob) -> str:
    """The image's name, as it is written."""
    return str(job.options.get("image", f"registry.example.com/{job.name}:{job.gnnkit}"))


def token_name(job: ExportJob) -> str:
    """The Secret that holds the token of storage servers, under ``token``."""
    return f"{job.name}-token"


def labels_of(job: ExportJob) -> dict[str, str]:
    """Returns the labels of all objects of a job."""
    return {"app.kubernetes.io/name": "gnnkit", "app.kubernetes.io/part-of": job.name}


def _claim(job: ExportJob, what: str, gib: int) -> _Object:
    key, value = CLAIMS.split("=")
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{job.name}-{what}", "labels": {key: value, **labels_of(job)}},
        "spec": patched({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": f"{gib}Gi"}}}, job.options.get("claim")),
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


def job_set(job: ExportJob) -> _Object:
    """Returns the JobSet that runs a job's ranks and storage servers."""
    jobs = [_indexed_job(_NODE, job.nodes, _rank_pod(job), job, retries=0, disrupted="FailJob")]
    if job.num_servers:
        # A server that is started again takes its place again; ranks that needed it meanwhile start again.
        jobs.append(_indexed_job(_STORAGE, job.storage_nodes, _storage_pod(job), job, retries=MAX_RESTARTS, disrupted="Ignore"))
    # Both fail their job for the same reason; the words are those of Kubernetes' job controller.
    rules = [
        {"name": name, "action": action, "onJobFailureReasons": ["PodFailurePolicy"], "onJobFailureMessagePatterns": [pattern]}
        for name, action, pattern in (
            ("cannotRun", "FailJobSet", " exit code 2 "),
            ("disrupted", "RestartJobSetAndIgnoreMaxRestarts", " condition DisruptionTarget "),
        )
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, "labels": {**labels_of(job), **job.options.get("labels", {})}},
        "spec": {
            # A headless Service of the JobSet's name; also of pods that are not ready, because they wait for each other.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            # Servers never end by themselves: those that run when the ranks are done are ended with the JobSet.
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [_NODE]},
            # Ranks of a new start must not find servers of the one before.
            "failurePolicy": {"maxRestarts": MAX_RESTARTS, "restartStrategy": "BlockingRecreate", "rules": rules},
            "ttlSecondsAfterFinished": _KEPT_S,
            "replicatedJobs": jobs,
        },
    }


def _indexed_job(name: str, pods: int, pod: _Object, job: ExportJob, *, retries: int, disrupted: str) -> _Object:
    """One of the JobSet's jobs.

    Args:
        name: Its name, and its container's.
        pods: How many pods it has.
        pod: The spec of each.
        job: The job.
        retries: How often a pod is started again before the job has failed, which the JobSet sees and starts all of them again.
        disrupted: What follows where a pod was preempted or evicted: "Ignore" starts it again and does not count.
    """
    rules = [
        # gnnkit's word for: another start would be the same.
        {"action": "FailJob", "onExitCodes": {"containerName": name, "operator": "In", "values": [2]}},
        {"action": disrupted, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    spec = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": retries,
        "podFailurePolicy": {"rules": rules},
        "template": {"metadata": {"labels": labels_of(job)}, "spec": {"restartPolicy": "Never", **pod}},
    }
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def _rank_pod(job: ExportJob) -> _Object:
    env: list[_Object] = [
        {"name": "NODE_RANK", "valueFrom": _field("metadata.annotations['batch.kubernetes.io/job-completion-index']")},
        {"name": "GNNKIT_RESTARTS", "valueFrom": _field("metadata.annotations['jobset.sigs.k8s.io/restart-attempt']")},
        {"name": "MASTER_ADDR", "value": _host(job, _NODE, 0)},
        {"name": "MASTER_PORT", "value": str(MASTER_PORT)},
        # The pod sees all processors of its node, and may use as many as it asks for.
        {"name": "OMP_NUM_THREADS", "value": str(rank_cores(job))},
    ]
    limits: _Object = {"cpu": str(rank_cores(job) * job.procs_per_node), "memory": f"{trainer_gib(job)}Gi"}
    if job.gpus_per_node:
        limits["nvidia.com/gpu"] = job.gpus_per_node
    ports = [{"name": "rendezvous", "containerPort": MASTER_PORT}]
    return _pod(job, _NODE, env, limits, {"ports": ports}, trainer_shm_gib(job))


def _storage_pod(job: ExportJob) -> _Object:
    env: list[_Object] = [{"name": "STORAGE_RANK", "valueFrom": _field("metadata.annotations['batch.kubernetes.io/job-completion-index']")}]
    limits: _Object = {"cpu": str(storage_cores(job)), "memory": f"{storage_gib(job)}Gi"}
    listens = {"tcpSocket": {"port": "server-0"}, "periodSeconds": 10, "timeoutSeconds": 5}
    own = {
        "ports": [{"name": f"server-{index}", "containerPort": STORAGE_PORT + index} for index in range(job.servers_per_node)],
        # It compiles kernels, looks at the store and waits for its name before it listens.
        "startupProbe": {**listens, "failureThreshold": (PREPARE_TIMEOUT_S + JOIN_TIMEOUT_S) // 10},
        "readinessProbe": listens,
        # A server that has died is started again in its pod first, which may take a while with a large store.
        "livenessProbe": {**listens, "failureThreshold": 30},
    }
    return _pod(job, _STORAGE, env, limits, own, storage_shm_gib(job))


def _host(job: ExportJob, kind: str, index: int) -> str:
    """The name of a pod on the network, as the JobSet's Service gives it."""
    return f"{job.name}-{kind}-0-{index}.{job.name}"


def _pod(job: ExportJob, kind: str, env: list[_Object], limits: _Object, own: _Object, shm_gib: int) -> _Object:
    """A pod of one container.

    Args:
        job: The job.
        kind: Which of the JobSet's jobs it belongs to.
        env: The container's own variables.
        limits: What it may use, and asks for: gnnkit's "auto" takes as many threads as the pod may use cores.
        own: Other fields of the container.
        shm_gib: GiB of shared memory.
    """
    holds_graph = kind == (_STORAGE if job.num_servers else _NODE)
    fetched = in_gib(job.store_bytes_per_node * 5 // 4) if holds_graph and job.store.is_fetched else 0
    local = f"{_LOCAL_GIB + fetched}Gi"
    limits = {**limits, "ephemeral-storage": local}
    volumes: list[_Object] = [
        {"name": "cache", "emptyDir": {"sizeLimit": local}},
        {"name": "tmp", "emptyDir": {"sizeLimit": local}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_gib}Gi"}},
        {"name": "files", "configMap": {"name": f"{job.name}-files"}},
    ]
    mounts: list[_Object] = [
        {"name": name, "mountPath": path} for name, path in (("cache", "/cache"), ("tmp", "/tmp"), ("shm", "/dev/shm"))
    ]
    staged = _staged_files(job)
    if kind == _NODE or staged:
        volumes.append({"name": "work", "persistentVolumeClaim": {"claimName": f"{job.name}-work"}})
        mounts += [{"name": "work", "mountPath": _HOME}] if kind == _NODE else [_mount("work", f"{_HOME}/{name}", name) for name in staged]
    read = [PLAN, SERVE] if kind == _STORAGE else [name for name in _files(job) if name != SERVE]
    mounts += [_mount("files", f"{_HOME}/{name}", name) for name in read if name not in staged]
    if holds_graph and not job.store.is_fetched:
        volumes.append({"name": "store", "persistentVolumeClaim": {"claimName": f"{job.name}-store", "readOnly": True}})
        mounts.append(_mount("store", posixpath.normpath(posixpath.join(_HOME, job.store.path))))
    env = [
        *({"name": name, "value": "/cache"} for name in ("HOME", "GNNKIT_HOME")),
        # The image's list of users has none of this number, and Python would ask it: torch.compile does.
        {"name": "USER", "value": "gnnkit"},
        {"name": "POD_IP", "valueFrom": _field("status.podIP")},
        *env,
    ]
    if job.num_servers:
        volumes.append({"name": "token", "secret": {"secretName": token_name(job), "defaultMode": 0o440}})
        mounts.append(_mount("token", _TOKEN))
        env += [
            {"name": "STORAGE_ADDRS", "value": ",".join(_host(job, _STORAGE, node) for node in range(job.storage_nodes))},
            {"name": "STORAGE_PORT", "value": str(STORAGE_PORT)},
            {"name": "GNNKIT_TOKEN_FILE", "value": f"{_TOKEN}/token"},
        ]
    container = {
        "name": kind,
        "image": image(job),
        # A tag may have been pushed anew.
        "imagePullPolicy": "IfNotPresent" if "@" in image(job) else "Always",
        "command": ["bash", f"{_HOME}/{_SCRIPTS[kind]}"],
        "env": env,
        **own,
        "resources": {"requests": dict(limits), "limits": limits},
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels_of(job)},
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _POD_SECURITY,
        "topologySpreadConstraints": [spread],
        "containers": [container],
        "volumes": volumes,
    }
    made: _Object = patched(pod, job.options.get("storage_pod" if kind == _STORAGE else "pod"))
    return made


def patched(value: Any, patch: Any) -> Any:
    """A value with a patch merged into it, as ``kubectl patch`` does: objects by field, lists of named items by name; None removes.

    Args:
        value: What JSON can hold.
        patch: The patch; None changes nothing.
    """
    if isinstance(value, Mapping) and isinstance(patch, Mapping):
        merged = {**value, **{key: patched(value.get(key), part) for key, part in patch.items()}}
        return {key: part for key, part in merged.items() if key not in patch or patch[key] is not None}
    if (
        isinstance(value, list)
        and isinstance(patch, list)
        and all(isinstance(item, Mapping) and "name" in item for item in (*value, *patch))
    ):
        given = {item["name"]: item for item in patch}
        return [patched(item, given.pop(item["name"], None)) for item in value] + list(given.values())
    return value if patch is None else patch


def _files(job: ExportJob) -> list[str]:
    """The files of the directory that pods read."""
    return [PLAN, TRAIN, *([CONFIG] if job.config else []), LAUNCH, *([SERVE] if job.num_servers else [])]


def _staged_files(job: ExportJob) -> tuple[str, ...]:
    """Those that are too large for a ConfigMap, and lie on the claim for checkpoints.

    Raises:
        PlanError: What is edited between starts is too large itself.
    """
    nbytes = sum(job.file_bytes.values())
    if nbytes <= _CONFIG_MAP_BYTES:
        return ()
    if nbytes - job.file_bytes[PLAN] > _CONFIG_MAP_BYTES:
        raise PlanError(
            f"pods read {TRAIN} and {CONFIG} from a ConfigMap, which holds 1 MiB, and they have {nbytes - job.file_bytes[PLAN]} bytes",
            "put what is large into a package of the image, or into a file of the store's claim",
        )
    return (PLAN,)


def _field(path: str) -> _Object:
    return {"fieldRef": {"fieldPath": path}}


def _mount(volume: str, path: str, name: str | None = None) -> _Object:
    """A volume, or one file of it, which the pod only reads."""
    return {"name": volume, "mountPath": path, **({} if name is None else {"subPath": name}), "readOnly": True}


class Kubernetes(Launcher):
    """A JobSet whose pods run torchrun, or storage servers, and its objects."""

    title = "Kubernetes"
    # What starts the ranks, and the custom resource that the cluster must know.
    kind: ClassVar[str] = "JobSet"
    options = {
        "image": "the image's name, with tag or digest",
        "labels": "labels of what starts the job, such as kueue.x-k8s.io/queue-name",
        "pod": "fields of pods with ranks: nodeSelector, priorityClassName, tolerations, ...",
        "storage_pod": "those of pods with storage servers",
        "claim": "fields of the claims: storageClassName, ...",
    }
    mappings = frozenset({"labels", "pod", "storage_pod", "claim"})
    needs: ClassVar[str] = (
        "The cluster needs the [JobSet](https://jobset.sigs.k8s.io) controller, 0.10 or newer. `kubectl get crd jobsets.jobset.x-k8s.io`"
        " says whether it is there."
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
        return Instructions(start, restart, _watch(job, self.kind), _ports(job), _settings(job), checkpoints=work)

    def starters(self, job: ExportJob) -> list[dict[str, Any]]:
        """Returns the objects that start the ranks."""
        return [job_set(job)]

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns the commands of the containers in ``job.yaml``, for each node."""
        return container_commands(trial)


def _claims_step(job: ExportJob) -> InstructionStep:
    """Returns the step that makes the claims, and fills them."""
    text = (
        f"`{job.name}-work` holds checkpoints and what `train.py` writes. All pods share it (`ReadWriteMany`) and run as user and group"
        f" {_USER}: name a storage class that can do that where your default one cannot (`claim` of the export's options)."
    )
    commands, staged = [f"kubectl apply -f {JOB_YAML} -l {CLAIMS}"], [(name, f"{_HOME}/{name}") for name in _staged_files(job)]
    if staged:
        text += f" `{PLAN}` is larger than a ConfigMap may be (1 MiB), so it goes there, too: again after each export."
    if job.store.is_fetched:
        text += (
            f" Pods fetch the store from {job.store.path}: let their service account read there, or add the variables that fsspec reads"
            " from a Secret of yours."
        )
    else:
        text += f" `{job.name}-store` holds the store, with `manifest.json` at its top."
        staged.insert(0, (f"{job.store.path}/.", "/store"))
    if staged:
        text += " A pod that mounts the claims takes the files:"
        commands += [
            f"kubectl run {job.name}-stage --image={image(job)} --overrides={shlex.quote(_stage_overrides(job))}",
            f"kubectl wait --for=condition=Ready --timeout=300s pod/{job.name}-stage",
            *(f"kubectl cp {source} {job.name}-stage:{target}" for source, target in staged),
            f"kubectl delete pod {job.name}-stage",
        ]
    return InstructionStep("Make the claim" if job.store.is_fetched else "Make and fill the claims", text, tuple(commands))


def _start(job: ExportJob, needs: str) -> tuple[InstructionStep, ...]:
    from_files = " ".join(f"--from-file={name}" for name in _files(job) if name not in _staged_files(job))
    steps = [
        InstructionStep("See to the image", f"{needs} The image that was named has to hold what `{REQUIREMENTS}` lists.")
        if "@" in image(job)
        else InstructionStep(
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
        steps.append(
            InstructionStep("Make the token", f"{TOKEN_TEXT} `{JOB_YAML}` names the Secret, which pods mount as a file.", (command,))
        )
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

    mounted = {} if job.store.is_fetched else {"store": "/store"}
    if _staged_files(job):
        mounted["work"] = _HOME
    pod = job.options.get("storage_pod" if job.num_servers else "pod", {})
    amount = {"cpu": "1", "memory": "1Gi"}
    container = {
        "name": "stage",
        "image": image(job),
        "command": ["sleep", "86400"],
        "resources": {"requests": amount, "limits": amount},
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounted.items()],
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": _POD_SECURITY,
        "containers": [container],
        "volumes": [{"name": name, "persistentVolumeClaim": {"claimName": f"{job.name}-{name}"}} for name in mounted],
    }
    # Where nodes, registries and users are concerned, it is one of the job's pods.
    own = {name: value for name, value in pod.items() if name not in ("containers", "initContainers", "volumes")}
    return json.dumps({"spec": patched(spec, own)}, separators=(",", ":"))


def _restart(job: ExportJob, kind: str) -> InstructionStep:
    lines = [
        f"* A rank fails or is killed: torchrun starts all ranks again in the pods that are there, {MAX_RESTARTS} times in all, and they"
        " continue from the last checkpoint.",
        f"* A pod with ranks fails: the JobSet starts all pods again, {MAX_RESTARTS} times (`failurePolicy`).",
        "* A pod with ranks is preempted, evicted or drained: likewise, and that does not count.",
        "* A pod ends with exit code 2, which is gnnkit's for a mistake that another start would not mend: the job has failed at once.",
    ]
    if job.num_servers:
        lines.append(
            f"* A storage pod is gone: its job starts it again, {MAX_RESTARTS} times, one that was preempted or evicted always. Ranks that"
            " needed it meanwhile are started again as above."
        )
    lines.append(
        f"* The {kind} has failed: `kubectl delete {kind.lower()} {job.name}` and `kubectl apply -f {JOB_YAML}` continue from the last"
        " checkpoint."
    )
    return InstructionStep("When something fails", "\n".join(lines))


def _watch(job: ExportJob, kind: str) -> InstructionStep:
    servers, secret = (", storage servers with it", f" secret/{token_name(job)}") if job.num_servers else ("", "")
    text = (
        f"A {kind} that is done or has failed ends what still runs of it{servers}. It stays for {_KEPT_S // 86400} days, for the logs of"
        f" its pods, and is removed then. The third command ends the job{servers}, the last one removes what else there is but the claims."
        " After a change of `train.py` or `config.json`, remove the ConfigMap and make it anew."
    )
    commands = (
        f"kubectl get pods -l app.kubernetes.io/part-of={job.name}",
        f"kubectl logs -f -l jobset.sigs.k8s.io/jobset-name={job.name} --prefix --max-log-requests={job.nodes + job.storage_nodes}",
        f"kubectl delete -f {JOB_YAML} -l '!{CLAIMS.split('=')[0]}'",
        f"kubectl delete configmap/{job.name}-files{secret}",
    )
    return InstructionStep("Watch it, end it", text, commands)


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
        "The cluster needs [Kubeflow Trainer](https://www.kubeflow.org/docs/components/trainer) 2.1 or newer, which has the JobSet"
        f" controller with it. `kubectl get crd trainjobs.{_GROUP}` says whether it is there."
    )
    about_files = {**Kubernetes.about_files, JOB_YAML: "the job for Kubeflow Trainer"}

    def starters(self, job: ExportJob) -> list[dict[str, Any]]:
        """Returns the TrainingRuntime, which is this job's own and needs no administrator, and the TrainJob that refers to it."""
        made = job_set(job)
        spec = made["spec"]
        spec["replicatedJobs"][0]["template"] = {"metadata": {"labels": _TRAINER_STEP}, **spec["replicatedJobs"][0]["template"]}
        meta = made["metadata"]
        # A policy without a framework: launch.sh gives torchrun its arguments itself.
        runtime = {"mlPolicy": {"numNodes": job.nodes}, "template": {"spec": spec}}
        return [
            {
                "apiVersion": f"{_GROUP}/v1alpha1",
                "kind": "TrainingRuntime",
                "metadata": {**meta, "labels": labels_of(job)},
                "spec": runtime,
            },
            {
                "apiVersion": f"{_GROUP}/v1alpha1",
                "kind": "TrainJob",
                "metadata": meta,
                "spec": {"runtimeRef": {"apiGroup": _GROUP, "kind": "TrainingRuntime", "name": job.name}},
            },
        ]
