"""The Kubernetes objects of a job, as ``job.yaml``: written by PyYAML, a document each."""

from __future__ import annotations

import posixpath
from typing import Any

from gnnkit.export.job import PLAN, TRAIN, ExportJob
from gnnkit.export.launchers.needs import SHM_GIB, in_gib, rank_cores, storage_cores, storage_gib, trainer_gib
from gnnkit.export.launchers.shell import (
    LAUNCH,
    MASTER_PORT,
    MAX_RESTARTS,
    SERVE,
    STORAGE_PORT,
)

JOB_YAML = "job.yaml"
# Label of the claims alone: `kubectl apply -l` makes them before everything else.
CLAIMS = "app.kubernetes.io/component=claim"
# The job's directory in every pod.
_HOME = "/job"
_WORK_GIB = 20

_Object = dict[str, Any]


def job_yaml(job: ExportJob) -> str:
    """Every object of a job, the Secret and the ConfigMap aside, which hold what is not in the file."""
    objects = [_claim(job, "store", in_gib(job.store.nbytes * 5 // 4)), _claim(job, "work", _WORK_GIB), _network_policy(job)]
    objects.append(_service(job, job.name, {"jobset.sigs.k8s.io/jobset-name": job.name}, {"rendezvous": MASTER_PORT}))
    if job.num_servers:
        ports = {f"server-{index}": STORAGE_PORT + index for index in range(job.servers_per_node)}
        objects += [_service(job, _storage(job), {"app.kubernetes.io/component": "storage", **_labels(job)}, ports), _stateful_set(job)]
    objects.append(_job_set(job))
    return _HEAD.format(job=job) + _written(objects)


def _written(objects: list[_Object]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes what occurs twice twice: references are for machines."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump_all(objects, Dumper=Plain, sort_keys=False, width=120)


_HEAD = """\
# {job.name}: a JobSet of {job.nodes} pods with {job.procs_per_node} ranks each.
# README.md says what has to be there before: kubectl apply -f job.yaml
# What you may want to change: image, storageClassName, and cpu and memory, which are estimates.
"""


def image(job: ExportJob) -> str:
    """The image's name, as it is written."""
    return f"registry.example.com/{job.name}:{job.gnnkit}"


def token_name(job: ExportJob) -> str:
    """The Secret that holds the token of storage servers, under ``token``."""
    return f"{job.name}-token"


def _storage(job: ExportJob) -> str:
    return f"{job.name}-storage"


def _labels(job: ExportJob) -> dict[str, str]:
    return {"app.kubernetes.io/name": "gnnkit", "app.kubernetes.io/part-of": job.name}


def _claim(job: ExportJob, what: str, gib: int) -> _Object:
    key, value = CLAIMS.split("=")
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{job.name}-{what}", "labels": {key: value, **_labels(job)}},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": f"{gib}Gi"}}},
    }


def _network_policy(job: ExportJob) -> _Object:
    """Only the job's own pods reach each other: torchrun's meeting point asks nobody for a password."""
    own = {"matchLabels": _labels(job)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": job.name, "labels": _labels(job)},
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]},
    }


def _service(job: ExportJob, name: str, selector: dict[str, str], ports: dict[str, int]) -> _Object:
    """A headless one, for the names of pods; also of those that are not ready, because they wait for each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": _labels(job)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": [{"name": key, "port": port, "targetPort": port} for key, port in ports.items()],
        },
    }


def _job_set(job: ExportJob) -> _Object:
    pods = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        # A pod that fails is the JobSet's to see, which starts all of them again.
        "backoffLimit": 0,
        "template": {"metadata": {"labels": _labels(job)}, "spec": {"restartPolicy": "Never", **_rank_pod(job)}},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, "labels": _labels(job)},
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
    if job.gpus_per_proc:
        limits["nvidia.com/gpu"] = job.procs_per_node * job.gpus_per_proc
    volumes: list[_Object] = [{"name": "work", "persistentVolumeClaim": {"claimName": f"{job.name}-work"}}]
    mounts: list[_Object] = [{"name": "work", "mountPath": _HOME}, *_file_mounts(PLAN, TRAIN, LAUNCH)]
    if not job.num_servers:
        volumes.append(_store_volume(job))
        mounts.append(_store_mount(job))
    ports = [{"name": "rendezvous", "containerPort": MASTER_PORT}]
    return _pod(job, LAUNCH, env, limits, ports, volumes, mounts, SHM_GIB * job.procs_per_node)


def _stateful_set(job: ExportJob) -> _Object:
    labels = {"app.kubernetes.io/component": "storage", **_labels(job)}
    env: list[_Object] = [{"name": "POD_IP", "valueFrom": _field("status.podIP")}, *_storage_env(job)]
    pod = _pod(
        job,
        SERVE,
        env,
        {"cpu": str(storage_cores(job)), "memory": f"{storage_gib(job)}Gi"},
        [{"name": f"server-{index}", "containerPort": STORAGE_PORT + index} for index in range(job.servers_per_node)],
        [_store_volume(job)],
        [_store_mount(job), *_file_mounts(PLAN, SERVE)],
        SHM_GIB * job.servers_per_node,
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
        "name": script.removesuffix(".sh"),
        "image": image(job),
        "command": ["bash", f"{_HOME}/{script}"],
        "env": [{"name": "GNNKIT_HOME", "value": "/cache"}, *env],
        "ports": ports,
        # The same numbers twice: gnnkit's "auto" takes as many threads as the pod may use cores.
        "resources": {"requests": dict(limits), "limits": limits},
        "volumeMounts": [*mounts, {"name": "cache", "mountPath": "/cache"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _labels(job)},
    }
    files = {"name": "files", "configMap": {"name": f"{job.name}-files"}}
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_gib}Gi"}}
    return {
        "automountServiceAccountToken": False,
        "topologySpreadConstraints": [spread],
        "containers": [container],
        "volumes": [files, *volumes, {"name": "cache", "emptyDir": {}}, shm],
    }


def _field(path: str) -> _Object:
    return {"fieldRef": {"fieldPath": path}}


def _file_mounts(*names: str) -> list[_Object]:
    return [{"name": "files", "mountPath": f"{_HOME}/{name}", "subPath": name, "readOnly": True} for name in names]


def _store_volume(job: ExportJob) -> _Object:
    return {"name": "store", "persistentVolumeClaim": {"claimName": f"{job.name}-store", "readOnly": True}}


def _store_mount(job: ExportJob) -> _Object:
    """Where the plan's relative path leads to from the job's directory."""
    return {"name": "store", "mountPath": posixpath.normpath(posixpath.join(_HOME, job.store.path)), "readOnly": True}
