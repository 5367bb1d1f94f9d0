"""Jobs for Kubernetes: a JobSet, or Kubeflow's TrainJob, its objects, the scripts that its pods run, and the pods on trial."""

from __future__ import annotations

import json
import platform
import posixpath
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gnnkit.errors import PlanError
from gnnkit.export.job import PLAN, TRAIN, ExportJob, Instructions
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import ABOUT, LAUNCH, SERVE, instructions_of, render, scripts
from gnnkit.export.proof.trial import Command, JobTrial, Node
from gnnkit.files import read_text
from gnnkit.plan.config import CONFIG

JOB_YAML = "job.yaml"


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


# Kubeflow Trainer knows the container of ranks by this name.
_NODE, _STORAGE = "node", "storage"
# The job's directory in every pod.
_HOME = "/job"
# A ConfigMap holds 1 MiB; the scripts take a little.
_CONFIG_MAP_BYTES = (1 << 20) - (1 << 16)
# How long a finished job stays, for the logs of its pods.
_KEPT_S = 7 * 24 * 3600
_USER = 65532

_HEAD = """\
# {job.name}: a {kind} of {job.nodes} pods with {job.procs_per_node} ranks each.
# README.md says what has to be there before: kubectl apply -f job.yaml
# Cores and memory are estimates from the store and the batches. The options image, labels, pod, storage_pod and claim of an
# export change what is here.
# It asks for {job.gpu_words}.
"""


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


def _facts(job: ExportJob) -> dict[str, Any]:
    """The image's name, and the files of the directory that pods read, for every template."""
    return {
        "image": str(job.options.get("image", f"registry.example.com/{job.name}:{job.gnnkit}")),
        "files": [PLAN, TRAIN, *job.modules, *([CONFIG] if job.config else []), LAUNCH, *([SERVE] if job.num_servers else [])],
        "staged": _staged_files(job),
        "user": _USER,
        "kept_s": _KEPT_S,
    }


def _staged_files(job: ExportJob) -> tuple[str, ...]:
    """The files that are too large for a ConfigMap, and lie on the claim for checkpoints.

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
    elsewhere: ClassVar[Mapping[str, str]] = {
        **{
            name: f"pod={{'{name}': ...}}"
            for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "serviceAccountName", "imagePullSecrets")
        },
        **dict.fromkeys(
            ("memory", "mem", "cpu", "cpus", "resources"),
            "pod={'containers': [{'name': 'node', 'resources': {'requests': {'memory': '64Gi'}, 'limits': {'memory': '64Gi'}}}]}",
        ),
        "storageClassName": "claim={'storageClassName': ...}",
        "queue": "labels={'kueue.x-k8s.io/queue-name': ...}",
        "namespace": "kubectl config set-context --current --namespace=..., before the commands of README.md",
    }
    needs: ClassVar[str] = (
        "The cluster needs the [JobSet](https://jobset.sigs.k8s.io) controller, 0.10 or newer. `kubectl get crd jobsets.jobset.x-k8s.io`"
        " says whether it is there."
    )
    about_trial = f"the commands of {JOB_YAML}'s containers as processes, with their variables: there is no cluster here"
    about_files: ClassVar[Mapping[str, str]] = {**ABOUT, JOB_YAML: "the job for Kubernetes"}
    brings_files = True

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``job.yaml``, ``launch.sh``, and ``serve.sh`` where there are storage nodes."""
        import yaml

        # Copies of each other, so that what occurs twice is written twice: references are for machines.
        objects = json.loads(json.dumps(self.objects(job)))
        text = _HEAD.format(job=job, kind=self.kind) + yaml.safe_dump_all(objects, sort_keys=False, width=120)
        return {JOB_YAML: text, **scripts(job, "pods")}

    def objects(self, job: ExportJob) -> list[dict[str, Any]]:
        """Returns all objects but the Secret and the ConfigMap, which hold what is not in the file; what starts the job comes last."""
        import yaml

        store_path = posixpath.normpath(posixpath.join(_HOME, job.store.path))
        text = render(JOB_YAML, job, store_path=store_path, **_facts(job))
        *others, job_set = objects = list(yaml.safe_load_all(text))
        for one in others:
            if one["kind"] == "PersistentVolumeClaim":
                one["spec"] = patched(one["spec"], job.options.get("claim"))
        for one in job_set["spec"]["replicatedJobs"]:
            template = one["template"]["spec"]["template"]
            template["spec"] = patched(template["spec"], job.options.get("storage_pod" if one["name"] == _STORAGE else "pod"))
        job_set["metadata"]["labels"] |= job.options.get("labels", {})
        return objects

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about the image, the claims and ``kubectl``."""
        python, overrides = ".".join(platform.python_version_tuple()[:2]), shlex.quote(_stage_overrides(job))
        return instructions_of("kubernetes.md", job, kind=self.kind, needs=self.needs, python=python, overrides=overrides, **_facts(job))

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns the commands of the containers in ``job.yaml``, as they run for each of the job's nodes.

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


def _stage_overrides(job: ExportJob) -> str:
    import yaml

    mounted = {} if job.store.is_fetched else {"store": "/store"}
    if _staged_files(job):
        mounted["work"] = _HOME
    pod = job.options.get("storage_pod" if job.num_servers else "pod", {})
    # Where nodes, registries and users are concerned, it is one of the job's pods.
    own = {name: value for name, value in pod.items() if name not in ("containers", "initContainers", "volumes")}
    spec = yaml.safe_load(render("stage.yaml", job, mounted=mounted, **_facts(job)))
    return json.dumps({"spec": patched(spec, own)}, separators=(",", ":"))


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

    def objects(self, job: ExportJob) -> list[dict[str, Any]]:
        """Returns those of a JobSet, but in its place a TrainingRuntime, which needs no administrator, and the TrainJob of that."""
        *others, job_set = super().objects(job)
        spec, meta = job_set["spec"], job_set["metadata"]
        spec["replicatedJobs"][0]["template"] = {"metadata": {"labels": _TRAINER_STEP}, **spec["replicatedJobs"][0]["template"]}
        own_labels = others[-1]["metadata"]["labels"]  # without those of the export, which are the TrainJob's
        version = f"{_GROUP}/v1alpha1"
        # A policy without a framework: launch.sh gives torchrun its arguments itself.
        runtime = {"mlPolicy": {"numNodes": job.nodes}, "template": {"spec": spec}}
        reference = {"runtimeRef": {"apiGroup": _GROUP, "kind": "TrainingRuntime", "name": job.name}}
        return [
            *others,
            {"apiVersion": version, "kind": "TrainingRuntime", "metadata": {**meta, "labels": own_labels}, "spec": runtime},
            {"apiVersion": version, "kind": "TrainJob", "metadata": meta, "spec": reference},
        ]
