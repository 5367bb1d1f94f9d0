"""From a loader to a cluster's job: the method of ``GraphLoader`` that writes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.errors import PlanError
from gnnkit.plan import LoaderPlan

if TYPE_CHECKING:
    from gnnkit.export.exporter import Exported


class LoaderExporting:
    """Writes a loader as the files of a job.

    Attributes:
        plan: The loader's plan.
    """

    plan: LoaderPlan
    _transform: Callable[[Any], Any] | None

    def export(  # noqa: PLR0913
        self,
        directory: str | Path,
        launcher: Literal["torchrun", "slurm", "kubernetes"] = "torchrun",
        nodes: int = 1,
        procs_per_node: int = 1,
        storage_nodes: int = 0,
        servers_per_node: int = 1,
        interface: str | None = None,
        train: Callable[..., Any] | str | Path | None = None,
        *,
        placement: Literal["replicate", "partition"] | None = None,
        gpus_per_proc: int | None = None,
        overwrite: bool = False,
        verify: bool = False,
    ) -> Exported:
        """Writes this loader and a train function as a job for several GPUs or nodes, whose batches are the same.

        The directory holds the plan, ``train.py``, what starts it, pinned requirements and a README with the exact commands. It appears
        whole or not at all. See ``docs/exporting.md``.

        Args:
            directory: The directory; an earlier export in it is replaced, and what else lies in it stays.
            launcher: What starts the job.
            nodes: Nodes with trainers.
            procs_per_node: Trainers (ranks) on each.
            storage_nodes: Nodes with storage servers, for ``GraphStore``.
            servers_per_node: Storage servers on each of those.
            interface: Name or address of the interface that nodes talk to each other on; None: the one that leads to the first node.
            train: ``train(loader, ctx)``, as ``gnnkit.launch`` takes it: it is written as source, with the imports, functions, classes
                and constants that it uses. Or the path of a Python file that defines it. None: GraphSAGE with DDP and checkpoints.
            placement: "partition" has each node that holds the graph hold its share of the parts, "replicate" all of it; None is
                "partition" where the backend can ask other nodes. A store with too few parts is cut anew by the script ``stage.sh``.
            gpus_per_proc: GPUs to ask for per rank, 0 or 1; None: 1 if this machine has one.
            overwrite: Writes over exported files that somebody has changed.
            verify: Then runs the job on this machine and compares its batches with those of the plan.

        Raises:
            PlanError: A value is unusable; the graph is only in memory; the function uses something that cannot be brought along; the
                directory is something else, or files of it were changed.
            StoreError: The store is missing or damaged.
        """
        from gnnkit.export.exporter import JobOptions, export_plan

        if self._transform is not None:
            raise PlanError(
                f"transform={self._transform!r} is not part of the plan, and a job's batches would be without it",
                "call it in train: for batch in loader: batch = transform(batch)",
            )
        options = JobOptions(launcher, nodes, procs_per_node, storage_nodes, servers_per_node, interface, placement, gpus_per_proc)
        return export_plan(self.plan, directory, options, train=train, overwrite=overwrite, verify=verify)
