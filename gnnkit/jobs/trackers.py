"""Trackers, to which ``ctx.track`` sends the numbers of ``ctx.log``: objects with the methods of ``Tracker``, those here by their names."""

from __future__ import annotations

import csv
import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gnnkit.errors import PlanError, near_matches


class Tracker(Protocol):
    """A place that keeps the numbers of a training. Rank 0 alone writes to it."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Takes the numbers of a step.

        Args:
            numbers: What ``ctx.log`` was given.
            step: Steps of this rank since the beginning of the training, those before a restart included.
        """

    def close(self) -> None:
        """Is called once, when the train function has ended, well or not."""


class Csv:
    """``metrics.csv`` in the job's folder: a line for each number, since steps may log different ones."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        self._file = (directory / "metrics.csv").open("a", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        if self._file.tell() == 0:
            self._rows.writerow(["step", "name", "value"])

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Writes a line for each number."""
        self._rows.writerows([step, name, value] for name, value in numbers.items())
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Event files in ``tensorboard`` of the job's folder: ``tensorboard --logdir run``."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory / "tensorboard"))
        self._writer.add_text("config", str(dict(config)))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds a scalar for each number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, with its files in the job's folder; variables such as ``WANDB_PROJECT`` and ``WANDB_MODE`` apply."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        import wandb

        run_id = _kept_id(directory, "wandb-id", partial(secrets.token_hex, 4))
        self._run = wandb.init(dir=str(directory), config=dict(config), id=run_id, resume="allow")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Logs the numbers of the step."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class Mlflow:
    """A run of MLflow at ``MLFLOW_TRACKING_URI``, or else in ``mlflow.db`` of the job's folder."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        import mlflow

        self._client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{directory / 'mlflow.db'}")
        self._run = _kept_id(directory, "mlflow-id", partial(self._new, config))

    def _new(self, config: Mapping[str, Any]) -> str:
        run: str = self._client.create_run("0").info.run_id
        for name, value in config.items():
            self._client.log_param(run, name, value)
        return run

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Logs each number as a metric."""
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run)


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "csv": Csv,
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
}


def make_tracker(name: str, directory: Path, config: Mapping[str, Any]) -> Tracker:
    """Returns the tracker of a name.

    Args:
        name: A key of ``TRACKERS``.
        directory: The job's folder.
        config: The job's hyper-parameters.

    Raises:
        PlanError: There is none of that name, or its package is not installed.
    """
    if name not in TRACKERS:
        names = list(TRACKERS)
        raise PlanError(
            f"there is no tracker {name!r}{near_matches(str(name), names)}",
            f"one of {names}, or an object with log(numbers, step) and close()",
        )
    try:
        return TRACKERS[name](directory, config)
    except ImportError as error:
        raise PlanError(f"ctx.track({name!r}): {error}", f"pip install {name}") from error


def _kept_id(directory: Path, name: str, make: Callable[[], str]) -> str:
    """An id that a job that is started again finds in its folder, so that it goes on in the same run."""
    file = directory / name
    if not file.exists():
        file.write_text(make())
    return file.read_text()
