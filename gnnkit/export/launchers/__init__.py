"""The launchers of exported jobs, and everything that a package needs to add one: ``docs/launchers.md``."""

from __future__ import annotations

from gnnkit.export.job import ExportJob as ExportJob
from gnnkit.export.job import Instructions as Instructions
from gnnkit.export.job import InstructionStep as InstructionStep
from gnnkit.export.job import Port as Port
from gnnkit.export.launchers.base import Launcher as Launcher
from gnnkit.export.launchers.kubernetes import Kubernetes as Kubernetes
from gnnkit.export.launchers.slurm import Slurm as Slurm
from gnnkit.export.launchers.torchrun import Torchrun as Torchrun
from gnnkit.export.proof.trial import Command as Command
from gnnkit.export.proof.trial import JobTrial as JobTrial
from gnnkit.export.proof.trial import Node as Node
