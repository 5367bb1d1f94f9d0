"""A job for PBS: ``job.pbs``, which starts ``launch.sh`` on each node with ranks, and ``serve.sh`` on each storage node."""

from __future__ import annotations

import re

from gnnkit.export.job import ExportJob, Instructions
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import ABOUT, OPTION, checked, instructions_of, render, scripts, time_limit
from gnnkit.export.proof.trial import Command, JobTrial

JOB = "job.pbs"
_LETTER, _NAME, _VALUE = re.compile("[A-Za-z]"), re.compile("[A-Za-z][A-Za-z0-9_-]*"), re.compile("[A-Za-z0-9][A-Za-z0-9_.,/@-]*")
# As qsub takes times: seconds, minutes:seconds, hours:minutes:seconds.
_TIME = re.compile("[0-9]+(:[0-9]{1,2}){0,2}")
_LETTERS = {"queue": "q", "account": "A", "project": "P"}
# In place of pbs_tmrsh, on one node of a trial: what is meant for it is started, ranks of others are done, and their servers stay.
_STAND_IN = """\
#!/bin/sh
shift
case " $* " in *" $GNNKIT_TRIAL "*) exec "$@" ;; esac
case "$GNNKIT_TRIAL $*" in NODE_RANK=*" NODE_RANK="*) exit 0 ;; esac
exec sleep infinity
"""


class Pbs(Launcher):
    """A batch script for PBS Professional and OpenPBS; torchrun starts the ranks of each node."""

    title = "PBS"
    about_trial = f"{JOB} on each node, with a stand-in for pbs_tmrsh: there is no PBS here"
    options = {
        "queue": "the queue",
        "account": "who pays",
        "project": "the project",
        "walltime": "the time limit, 24:00:00 or 4h",
        "chunk": "resources of a node with ranks, {'ncpus': 32, 'mem': '64gb'}",
        "resources": "resources of the job, {'place': 'scatter:excl'}",
        "extra": "other options of qsub, {'m': 'abe'}",
    }
    mappings = frozenset({"chunk", "resources", "extra"})
    elsewhere = {
        "select": "nodes= of export(), and chunk={'ncpus': 32, 'mem': '64gb'}",
        "nodes": "it is nodes= of export()",
        "ngpus": "it is gpus_per_node= of export()",
        "ncpus": "chunk={'ncpus': 32}",
        "mem": "chunk={'mem': '64gb'}",
        "place": "resources={'place': 'scatter:excl'}",
        "partition": "queue='gpu'",
        "time": "walltime='4h'",
    }
    about_files = {**ABOUT, JOB: "the job for PBS"}

    def written(self, name: str, value: str) -> str:
        """Returns times as ``qsub`` reads them.

        Raises:
            PlanError: One is neither such nor what stands for it.
        """
        return time_limit(name, value, _TIME, "qsub") if name == "walltime" else value

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``job.pbs``, ``launch.sh``, and ``serve.sh`` where there are storage nodes.

        Raises:
            PlanError: A name or a value in one of the mappings is none.
        """
        given = job.options
        chunk = checked("chunk", given.get("chunk", {}), _NAME, _VALUE, "resource of a node")
        resources = {"place": "scatter", "walltime": given.get("walltime", "24:00:00")}
        resources |= checked("resources", given.get("resources", {}), _NAME, OPTION, "resource of a job")
        letters = {letter: given[name] for name, letter in _LETTERS.items() if name in given}
        letters |= checked("extra", given.get("extra", {}), _LETTER, OPTION, "option of qsub, which are letters")
        return {JOB: render(JOB, job, chunk=chunk, resources=resources, letters=letters), **scripts(job, "machines")}

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about ``qsub``."""
        return instructions_of("pbs.md", job)

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns ``job.pbs`` for each node, where a stand-in for ``pbs_tmrsh`` starts what is meant for that node."""
        stand_in, hosts = trial.folder / "bin/pbs_tmrsh", trial.folder / "hosts"
        stand_in.write_text(_STAND_IN)
        stand_in.chmod(0o755)
        hosts.write_text("".join(f"{node.address}\n" for node in (*trial.nodes, *trial.storage_nodes)))
        starts = [(node, "STORAGE_RANK") for node in trial.storage_nodes] + [(node, "NODE_RANK") for node in trial.nodes]
        told = {"PBS_JOBID": "1.trial", "PBS_NODEFILE": str(hosts)}
        own = [{"PBS_O_WORKDIR": str(node.folder), "GNNKIT_TRIAL": f"{rank}={node.rank}"} for node, rank in starts]
        return [trial.command(node, JOB, ["bash", JOB], told | each) for (node, _), each in zip(starts, own, strict=True)]
