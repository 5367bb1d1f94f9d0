"""The objects of jobs for Kubernetes, and what its controllers make of them, by the rules of their sources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from referencing import Registry, Resource

from gnnkit.export.job import ExportJob
from tests.export.jobs import launcher_files

PODS = ("kubernetes", "trainjob")
SCHEMAS = Path(__file__).with_name("schemas")


@cache
def validators() -> dict[str, jsonschema.protocols.Validator]:
    """By kind; unknown fields are errors."""
    core, job_set = (json.loads((SCHEMAS / name).read_text()) for name in ("kubernetes-1.34.json", "jobset-v1alpha2.json"))
    registry = Registry().with_resources([(core["$id"], Resource.from_contents(core)), (job_set["$id"], Resource.from_contents(job_set))])
    kinds = {"PersistentVolumeClaim": "core.v1", "NetworkPolicy": "networking.v1", "PodSpec": "core.v1"}
    references = {kind: f"{core['$id']}#/$defs/io.k8s.api.{group}.{kind}" for kind, group in kinds.items()} | {"JobSet": job_set["$id"]}
    return {kind: jsonschema.Draft202012Validator({"$ref": reference}, registry=registry) for kind, reference in references.items()}


def objects(written: ExportJob) -> dict[str, list[dict[str, Any]]]:
    """The documents of ``job.yaml`` by kind; see ``objects_of``."""
    return objects_of(launcher_files(written)["job.yaml"])


def objects_of(text: str) -> dict[str, list[dict[str, Any]]]:
    """The documents of a ``job.yaml`` by kind; the JobSet that Kubeflow Trainer makes of a TrainJob and its runtime is among them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for document in yaml.safe_load_all(text):
        found.setdefault(document["kind"], []).append(document)
    for train_job, runtime in zip(found.get("TrainJob", ()), found.get("TrainingRuntime", ()), strict=True):
        assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
        made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": train_job["metadata"]}
        found["JobSet"] = [made | {"spec": runtime["spec"]["template"]["spec"]}]
    return found


def jobs(job_set: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The Jobs that JobSet's controller makes, by the names of its replicated jobs."""
    name = job_set["metadata"]["name"]
    return {
        one["name"]: {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"{name}-{one['name']}-0"}, **one["template"]}
        for one in job_set["spec"]["replicatedJobs"]
    }


def pods(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The specs of pods by the names of their replicated jobs."""
    return {name: one["spec"]["template"]["spec"] for name, one in jobs(found["JobSet"][0]).items()}


def generated_names(job_set: dict[str, Any]) -> Iterator[str]:
    """What JobSet's webhook holds against DNS-1035: the Service, Jobs, and pods with the suffix that Kubernetes gives them."""
    yield job_set["metadata"]["name"]
    for one in jobs(job_set).values():
        yield one["metadata"]["name"]
        yield f"{one['metadata']['name']}-{one['spec']['completions'] - 1}-abcde"


def action(job_set: dict[str, Any], kind: str, exit_code: int, *, disrupted: bool) -> str:
    """What follows where a pod ends: "Ignore" starts it again, "Count" does so a few times, the rest are actions of JobSet.

    By ``pod_failure_policy.go`` of Kubernetes and ``failure_policy.go`` of JobSet.

    Args:
        job_set: The JobSet.
        kind: Whose pod it is.
        exit_code: Of its container.
        disrupted: Whether it was preempted, evicted or drained.
    """
    spec = jobs(job_set)[kind]["spec"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(spec["podFailurePolicy"]["rules"]):
        codes = rule.get("onExitCodes", {})
        if codes and (codes["containerName"], codes["operator"]) == (kind, "In") and exit_code in codes["values"]:
            said = f"Container {kind} for pod team/{kind}-0-abcde failed with exit code {exit_code}"
        elif disrupted and {"type": "DisruptionTarget", "status": "True"} in rule.get("onPodConditions", ()):
            said = f"Pod team/{kind}-0-abcde has condition DisruptionTarget"
        else:
            continue
        if rule["action"] != "FailJob":
            return str(rule["action"])
        reason, message = "PodFailurePolicy", f"{said} matching {rule['action']} rule at index {index}"
        break
    else:
        if spec["backoffLimit"]:
            return "Count"
    for rule in job_set["spec"]["failurePolicy"]["rules"]:
        patterns = rule["onJobFailureMessagePatterns"]
        if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns):
            return str(rule["action"])
    return "RestartJobSet"


def selected(documents: list[dict[str, Any]], selector: str) -> list[dict[str, Any]]:
    """What ``kubectl -l`` selects: ``name=value``, or ``!name``."""
    name, equals, value = selector.lstrip("!").partition("=")
    labels = [document["metadata"].get("labels", {}) for document in documents]
    return [document for document, has in zip(documents, labels, strict=True) if (has.get(name) == value if equals else (name not in has))]
