"""The pods of ``job.yaml`` on trial: the commands of their containers as processes of this machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.proof.run import Command
from gnnkit.export.proof.trial import JobTrial, Node
from gnnkit.files import read_text

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
