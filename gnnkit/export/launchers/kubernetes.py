"""A job for Kubernetes: ``job.yaml`` with a JobSet, and the scripts that its pods run.

A JobSet rather than a PyTorchJob: it is Kubernetes' own (SIG Apps), one small controller, and starts *all* pods again when one has failed,
which is what ranks of one process group need. Within a pod torchrun starts failed ranks again, as on machines of one's own.
"""

from __future__ import annotations

from typing import Any

from gnnkit.export.job import PLAN, TRAIN, ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.manifests import CLAIMS, JOB_YAML, image, job_yaml, token_name
from gnnkit.export.launchers.ports import between_ranks, storage_ports
from gnnkit.export.launchers.shell import (
    LAUNCH,
    MASTER_PORT,
    MAX_RESTARTS,
    RANK_THREADS,
    SERVE,
    STORAGE_PORT,
    TOKEN_TEXT,
    common_settings,
    render,
)


def kubernetes_files(job: ExportJob) -> dict[str, str]:
    """``job.yaml``, ``launch.sh``, and ``serve.sh`` where there are storage nodes."""
    files = {JOB_YAML: job_yaml(job), LAUNCH: render(LAUNCH, job)}
    if job.num_servers:
        files[SERVE] = render(SERVE, job)
    return files


def kubernetes_instructions(job: ExportJob) -> Instructions:
    """What the README says about starting on Kubernetes."""
    return Instructions(_start(job), _restart(job), _watch(job), _ports(job), _settings(job))


def _start(job: ExportJob) -> tuple[InstructionStep, ...]:
    from_files = " ".join(f"--from-file={name}" for name in (PLAN, TRAIN, LAUNCH, *((SERVE,) if job.num_servers else ())))
    controller = (
        "The cluster needs the [JobSet](https://jobset.sigs.k8s.io) controller. `kubectl get crd jobsets.jobset.x-k8s.io` says"
        " whether it is there."
    )
    steps = [
        InstructionStep(
            "Make the image",
            f"{controller} Write the name of your registry into these commands, and into `image:` of `{JOB_YAML}`.",
            (f"docker build -t {image(job)} -f- . <<'END'", *_DOCKERFILE, "END", f"docker push {image(job)}"),
        ),
        InstructionStep(
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
        ),
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
    "FROM python:3.11-slim",
    "RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*",
    "COPY requirements.txt .",
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


def _restart(job: ExportJob) -> InstructionStep:
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
        f"* The JobSet has failed: `kubectl delete jobset {job.name}` and `kubectl apply -f {JOB_YAML}` continue from the last checkpoint."
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
