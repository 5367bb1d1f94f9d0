"""A job for Kubeflow Trainer v2: ``job.yaml`` with a TrainJob, and a TrainingRuntime that wraps the JobSet."""

from __future__ import annotations

from typing import Any

from gnnkit.export.job import ExportJob
from gnnkit.export.launchers.kubernetes import Kubernetes, job_set, labels_of
from gnnkit.export.launchers.pods import JOB_YAML

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
