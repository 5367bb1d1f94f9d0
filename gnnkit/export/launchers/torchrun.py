"""A job that a person starts on each node: ``launch.sh``, which runs torchrun, and ``serve.sh`` on storage nodes."""

from __future__ import annotations

from gnnkit.export.job import ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import (
    JOIN_TIMEOUT_S,
    LAUNCH,
    MAKE_TOKEN,
    MASTER_PORT,
    MAX_RESTARTS,
    RANK_THREADS,
    SERVE,
    STORAGE_PORT,
    TOKEN_TEXT,
    between_ranks,
    common_settings,
    render,
    script_commands,
    storage_examples,
    storage_ports,
)
from gnnkit.export.proof.trial import Command, JobTrial


class Torchrun(Launcher):
    """Scripts that a person, or another program, starts on each node; torchrun starts the ranks."""

    title = "torchrun"
    about_trial = f"{LAUNCH} with torchrun"
    about_files = {LAUNCH: "starts the ranks of one node", SERVE: "starts the storage servers of one node"}

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``launch.sh``, and ``serve.sh`` where there are storage nodes."""
        files = {LAUNCH: render(LAUNCH, job, where="machines")}
        if job.num_servers:
            files[SERVE] = render(SERVE, job, where="machines")
        return files

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about starting both on each node."""
        return Instructions(_start(job), _restart(job), _watch(job), _ports(job), _settings(job), _before_copies(job))

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns a start of ``serve.sh`` for each storage node, and one of ``launch.sh`` for each node."""
        return script_commands(trial)


def _before_copies(job: ExportJob) -> tuple[InstructionStep, ...]:
    if not job.num_servers:
        return ()
    text = f"Once, before this directory is copied to the nodes. {TOKEN_TEXT} The file `token` goes to every node with mode 0600."
    return (InstructionStep("Make the token", text, (MAKE_TOKEN,)),)


def _start(job: ExportJob) -> tuple[InstructionStep, ...]:
    steps, storage = [], ""
    if job.num_servers:
        addresses = ",".join(storage_examples(job))
        storage = f" STORAGE_ADDRS={addresses}"
        commands = []
        for node in range(job.storage_nodes):
            commands += [f"# on storage node {node}", f"STORAGE_RANK={node}{storage} ./serve.sh"]
        text = f"Write the addresses of your storage nodes, the first one first. Servers wait {JOIN_TIMEOUT_S} s for each other."
        steps.append(InstructionStep("Start the storage servers", text, tuple(commands)))
    if job.nodes == 1:
        text = "On the machine that is to train."
        return (*steps, InstructionStep("Start the ranks", text, (f"{storage.strip()} ./launch.sh".strip(),)))
    commands = []
    for node in range(job.nodes):
        commands += [f"# on node {node}", f"NODE_RANK={node} MASTER_ADDR=10.0.0.1{storage} ./launch.sh"]
    text = f"In place of 10.0.0.1 write the address of node 0. Nodes wait {JOIN_TIMEOUT_S} s for each other, in whichever order they start."
    return (*steps, InstructionStep("Start the ranks", text, tuple(commands)))


def _restart(job: ExportJob) -> InstructionStep:
    lines = [
        f"* A rank fails or is killed: torchrun starts all ranks again, {MAX_RESTARTS} times in all, and they continue from the last"
        " checkpoint.",
    ]
    if job.nodes > 1:
        lines += [
            f"* Another node than node 0 is gone: the others wait {JOIN_TIMEOUT_S} s for it. Run `launch.sh` there again, or on another"
            " machine with the same `NODE_RANK`; later than that every node has ended with an error, and all are started again.",
            "* Node 0 is gone: every rank ends within a minute with an error. Start all nodes again.",
        ]
    if job.num_servers:
        lines.append(
            "* A storage node was rebooted: run its `serve.sh` again, with the same `STORAGE_RANK`. It takes its place again; ranks that"
            " needed it meanwhile are started again as above."
        )
    return InstructionStep("When something fails", "\n".join(lines))


def _watch(job: ExportJob) -> InstructionStep:
    text = "Rank 0 prints a line now and then. Ctrl-C or SIGTERM ends `launch.sh` with its ranks"
    return InstructionStep("Watch it, end it", text + (", and `serve.sh` with its servers." if job.num_servers else "."), ("gnnkit ps",))


def _ports(job: ExportJob) -> tuple[Port, ...]:
    rows = [
        Port(
            "torchrun's meeting point (MASTER_PORT), on every interface",
            "node 0",
            str(MASTER_PORT),
            ephemeral=False,
            change="`MASTER_PORT=...`",
        )
    ]
    rows.append(Port("store of the ranks", "rank 0", "any free one", ephemeral=True))
    rows += between_ranks(job)
    rows += storage_ports(job, str(STORAGE_PORT), "`STORAGE_PORT=...`")
    return tuple(rows)


def _settings(job: ExportJob) -> dict[str, str]:
    settings = {
        "NODE_RANK": "which node this is, from 0",
        "MASTER_ADDR": "address of node 0, as the other nodes reach it",
        "NNODES": f"nodes; {job.nodes}",
        "NPROC_PER_NODE": f"ranks of each node; {job.procs_per_node}",
        "OMP_NUM_THREADS": RANK_THREADS,
        "MASTER_PORT": f"where nodes meet; {MASTER_PORT}",
        "JOIN_TIMEOUT_S": f"seconds that nodes wait for each other; {JOIN_TIMEOUT_S}",
        "JOB_ID": f"tells this job from others that meet at the same port; {job.name}",
    }
    if job.num_servers:
        settings |= {
            "STORAGE_RANK": "which storage node this is, from 0",
            "STORAGE_ADDRS": "addresses of all storage nodes, with commas between them, the same everywhere",
            "STORAGE_PORT": f"port of the first server of each storage node; {STORAGE_PORT}",
            "GNNKIT_TOKEN_FILE": "file of mode 0600 with the token; `token` in this directory",
            "GNNKIT_TOKEN": "the token itself, in place of the file",
        }
    return settings | common_settings(job)
