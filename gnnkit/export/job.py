"""The description of one exported job: everything that its launch files and its README are written from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gnnkit.plan import Placement
from gnnkit.urls import is_url

# The files that every exported directory has, beside what its launcher adds; ``STAGE`` only where the store must be cut anew.
PLAN, TRAIN, REQUIREMENTS, README, RECORD, STAGE = "plan.json", "train.py", "requirements.txt", "README.md", "export.json", "stage.sh"


@dataclass(frozen=True)
class JobStore:
    """The store that a job reads, as its plan names it.

    Attributes:
        name: The dataset's name.
        path: Where it lies, relative to the job's directory, with ``/``; or its URL, from where every node fetches its parts.
        fingerprint: Its fingerprint; where it has yet to be cut, the one that it will have.
        num_parts: Its parts.
        nbytes: Bytes of all of its parts together.
        cut_from: The store that it has yet to be cut from, relative to the job's directory; None where it is there.
    """

    name: str
    path: str
    fingerprint: str
    num_parts: int
    nbytes: int
    cut_from: str | None = None

    @property
    def is_fetched(self) -> bool:
        """Whether nodes fetch it from a URL by themselves."""
        return is_url(self.path)


@dataclass(frozen=True)
class SizedJob:
    """The launcher and the size of a job.

    Attributes:
        name: Name of the job.
        launcher: The launcher's name; see ``gnnkit.export.launchers``.
        nodes: Nodes with trainers.
        procs_per_node: Trainers (ranks) on each.
        storage_nodes: Nodes with storage servers, beside those with trainers; 0 unless the backend is ``GraphStore``.
        servers_per_node: Storage servers on each of those.
    """

    name: str
    launcher: str
    nodes: int
    procs_per_node: int
    storage_nodes: int
    servers_per_node: int

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.procs_per_node

    @property
    def num_servers(self) -> int:
        """Storage servers of all nodes."""
        return self.storage_nodes * self.servers_per_node


@dataclass(frozen=True)
class ExportJob(SizedJob):
    """One job, for one launcher; its name is the directory's in lower case letters, digits and hyphens, at most 40 of them.

    Attributes:
        interface: Interface that nodes talk to each other on, or None: the one that leads to the first node.
        backend: "InProcess", "Colocated" or "GraphStore", as in the plan. The plan of a ``GraphStore`` holds no address: ``gnnkit run``
            takes it from ``$GNNKIT_ADDRESSES``, which the launch files set, and starts servers of its own without it.
        workers_per_server: Sampling processes of each storage server.
        threads_per_worker: Sampling threads of each of those.
        sampling_threads: Threads that sample for one rank on its own node, 0 with servers; None: as many as there are cores for.
        gpus_per_node: GPUs to ask for on each node with trainers, at least one for each rank; or 0.
        placement: Which of the nodes that hold the graph (with servers the storage nodes, else the trainers') holds which parts.
        store: The store.
        batch_bytes: Bytes of a batch, at most on average.
        num_steps: Batches of an epoch that a rank gets, at least 1.
        num_nodes: Nodes of the graph, of all types.
        gnnkit: gnnkit's version.
    """

    interface: str | None
    backend: str
    workers_per_server: int
    threads_per_worker: int
    sampling_threads: int | None
    gpus_per_node: int
    placement: Placement
    store: JobStore
    batch_bytes: int
    num_steps: int
    num_nodes: int
    gnnkit: str

    @property
    def placement_word(self) -> Literal["replicate", "partition"]:
        """The value for ``gnnkit serve --placement``."""
        return "replicate" if self.placement.is_replicated else "partition"

    @property
    def gpu_words(self) -> str:
        """The GPUs that are asked for, in a sentence."""
        if self.gpus_per_node:
            return f"{self.gpus_per_node} GPU{'s' if self.gpus_per_node > 1 else ''} on each node with ranks"
        return f"no GPU: ranks train on processors; export with gpus_per_node={self.procs_per_node} asks for one for each rank"

    @property
    def store_bytes_per_node(self) -> int:
        """About how much of the store the fullest of the nodes holds that hold the graph."""
        most = max(len(parts) for parts in self.placement.hosts)
        return -(-self.store.nbytes * most // self.store.num_parts)


@dataclass(frozen=True)
class InstructionStep:
    """One thing that a person does, for the README.

    Attributes:
        title: A few words, as a heading: "Start it".
        text: What has to be known, as Markdown; may be empty.
        commands: The exact commands, a line each; a line that starts with ``#`` says where the next ones run.
    """

    title: str
    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Port:
    """One row of the README's table of ports.

    Attributes:
        who: What listens: "rendezvous (MASTER_PORT)".
        where: On which node or pod.
        number: The port, e.g. "29500", or "any free one".
        ephemeral: Whether the system picks it anew for each run.
        change: How it is changed, e.g. "`MASTER_PORT=...`"; empty where there is nothing to change.
    """

    who: str
    where: str
    number: str
    ephemeral: bool
    change: str = ""


@dataclass(frozen=True)
class Instructions:
    """A launcher's text for the README.

    Attributes:
        start: The steps from staged files to a running job, in order.
        restart: The consequences of a failed rank, node or server: what starts again by itself, and what a person does.
        watch: How to look at it and to end it.
        ports: Every port that the job listens on.
        settings: Variables that override what was written, ``{name: meaning}``.
        before_copies: What is done before the directory is copied to the nodes.
        checkpoints: The place of checkpoints, as Markdown; ``run/`` of the job's directory, unless a launcher has another.
    """

    start: tuple[InstructionStep, ...]
    restart: InstructionStep
    watch: InstructionStep
    ports: tuple[Port, ...]
    settings: dict[str, str]
    before_copies: tuple[InstructionStep, ...] = ()
    checkpoints: str = "`run/`"
