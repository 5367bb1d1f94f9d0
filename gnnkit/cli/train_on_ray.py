"""``gnnkit run --ray-workers``: all ranks of a job on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import typer

from gnnkit.cli.output import ERROR, WARNING, show_error, show_line
from gnnkit.errors import GnnkitError, TrainingFailed
from gnnkit.export.recording import recorder
from gnnkit.jobs.launching.engine import RunHandle
from gnnkit.jobs.launching.job import LaunchSpec, PlanInputs, fair_threads
from gnnkit.jobs.launching.packing import pack_code
from gnnkit.jobs.running import load_train
from gnnkit.ray.options import Ray
from gnnkit.ui.progress import make_sink

# For a place on a busy cluster.
_RAY_TIMEOUT_S = 1800.0


def train_on_ray(
    plan: Path, train: Path | None, record: str | None, config: Mapping[str, Any], num_workers: int, cpus_per_worker: int, **options: Any
) -> None:
    """Trains a plan's ranks on a Ray cluster; ``gnnkit run`` describes the arguments.

    Raises:
        typer.Exit: It has failed, and the error was shown.
    """
    engine = Ray(num_workers, cpus_per_worker=cpus_per_worker)
    try:
        function = recorder(Path(record)) if record else load_train(train or Path())
        if not record:  # other processes cannot import it
            cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        spec = LaunchSpec(
            title="train",
            code=pack_code(function, None, None, config),
            num_procs=num_workers,
            threads=fair_threads(num_workers),
            start_timeout_s=_RAY_TIMEOUT_S,
            **options,
        )
        with RunHandle(engine.start(spec, PlanInputs(plan), make_sink("auto"))) as handle:
            handle.results()
    except GnnkitError as error:
        if error.__cause__ is not None:
            show_line(str(error.__cause__).strip())
        show_error(error.message, error.hint)
        raise typer.Exit(WARNING if isinstance(error, TrainingFailed) else ERROR) from None
