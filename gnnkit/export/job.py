"""The description of one exported job, and the plan and the store that it runs on: those of the notebook, made fit for other machines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnkit.backends import backend_from_json
from gnnkit.cluster.hosts import shares
from gnnkit.cluster.urls.stores import open_url
from gnnkit.errors import PlanError
from gnnkit.plan import LoaderPlan, Placement, PlacementWord, StoreRef
from gnnkit.plan.config import CONFIG
from gnnkit.plan.files import path_from
from gnnkit.storage.catalog import store_path
from gnnkit.storage.layout import MANIFEST_NAME, BuildOptions, Partitioner, is_held
from gnnkit.storage.manifest import Manifest, is_outline, read_manifest, store_fingerprint
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
        structure_nbytes: Bytes of all but features.
    """

    name: str
    path: str
    fingerprint: str
    num_parts: int
    nbytes: int
    cut_from: str | None = None
    structure_nbytes: int = 0

    @property
    def is_fetched(self) -> bool:
        """Whether nodes fetch it from a URL by themselves."""
        return is_url(self.path)


# The numbers of a job's size, and the least that each may be.
SIZES = {"nodes": 1, "procs_per_node": 1, "storage_nodes": 0, "servers_per_node": 1}


@dataclass(frozen=True)
class SizedJob:
    """The launcher and the size of a job.

    Attributes:
        launcher: The launcher's name; see ``gnnkit.export.launchers``.
        nodes: Nodes with trainers.
        procs_per_node: Trainers (ranks) on each.
        storage_nodes: Nodes with storage servers, beside those with trainers; 0 unless the backend is ``GraphStore``.
        servers_per_node: Storage servers on each of those.
    """

    launcher: str = "torchrun"
    nodes: int = 1
    procs_per_node: int = 1
    storage_nodes: int = 0
    servers_per_node: int = 1

    def sizes(self) -> dict[str, Any]:
        """The launcher and the numbers, by their names."""
        return {name: getattr(self, name) for name in ("launcher", *SIZES)}

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.procs_per_node

    @property
    def num_servers(self) -> int:
        """Storage servers of all nodes."""
        return self.storage_nodes * self.servers_per_node


@dataclass(frozen=True, kw_only=True)
class ExportJob(SizedJob):
    """One job, for one launcher.

    Attributes:
        name: The directory's name in lower case letters, digits and hyphens, a letter first, at most 40 of them.
        interface: Interface that nodes talk to each other on, or None: the one that leads to the first node.
        backend: "InProcess", "OnDevice", "Colocated" or "GraphStore", as in the plan. The plan of a ``GraphStore`` holds no address:
            ``gnnkit run`` takes it from ``$GNNKIT_ADDRESSES``, which the launch files set, and starts servers of its own without it.
        workers_per_server: Sampling processes of each storage server.
        threads_per_worker: Sampling threads of each of those.
        sampling_threads: Threads that sample for one rank on its own node, 0 with servers; None: as many as there are cores for.
        gpus_per_node: GPUs to ask for on each node with trainers, at least one for each rank; or 0.
        placement: Which of the nodes that hold the graph (with servers the storage nodes, else the trainers') holds which parts.
        store: The store.
        batch_bytes: Bytes of a batch, at most on average.
        num_steps: Batches of an epoch that a rank gets, at least 1.
        num_nodes: Nodes of the graph, of all types.
        file_bytes: Bytes of the plan's file, of the train function's, of a sampler's and of that of hyper-parameters, by their names.
        gnnkit: gnnkit's version.
        options: Options of the launcher.
        config: Hyper-parameters; the directory has a file of them where there are any.
    """

    name: str
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
    file_bytes: Mapping[str, int]
    gnnkit: str
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def modules(self) -> list[str]:
        """The files of a sampler that no package brings."""
        return [name for name in self.file_bytes if name not in (PLAN, TRAIN, CONFIG)]

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
        everywhere = self.store.structure_nbytes if self.placement.whole_structure else 0
        return everywhere - (everywhere - self.store.nbytes) * most // self.store.num_parts


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


# What a store is cut with that has none of its own to keep.
_METHOD: Partitioner = "contiguous"


@dataclass(frozen=True)
class JobPlan:
    """The plan of a job, its store, and the placement of the store's parts.

    Attributes:
        plan: The plan, its store's path absolute.
        path: The store that there is.
        manifest: Its manifest.
        placement: Which of the nodes that hold the graph holds which parts.
        cut: The options with which its store has yet to be cut from that one; None where it is there.
        num_parts: Parts of its store.
    """

    plan: LoaderPlan
    path: Path
    manifest: Manifest
    placement: Placement
    cut: BuildOptions | None
    num_parts: int

    def job_store(self, directory: Path) -> JobStore:
        """The store, as it is seen from the job's directory."""
        assert self.plan.store is not None
        return JobStore(
            self.manifest.name,
            written_path(directory, self.plan.store.written),
            self.plan.store.fingerprint,
            self.num_parts,
            self.manifest.nbytes,
            None if self.cut is None else written_path(directory, str(self.path)),
            sum(entry.size for name, entry in self.manifest.files.items() if is_held(name, (), True)),
        )

    def text(self, directory: Path) -> str:
        """The plan file's text."""
        assert self.plan.store is not None
        value = self.plan.to_json()
        value["store"] = replace(self.plan.store, path=written_path(directory, self.plan.store.written), url=None).to_json()
        return json.dumps(value, indent=1) + "\n"


def written_path(directory: Path, target: str) -> str:
    """A path as the files of a directory write it."""
    return path_from(directory, target).replace(os.sep, "/")


def job_plan(plan: LoaderPlan, nodes: int, storage_nodes: int, interface: str | None, placement: PlacementWord | None) -> JobPlan:
    """The plan and the store of a job.

    Args:
        plan: The loader's.
        nodes: Nodes with trainers.
        storage_nodes: Nodes with storage servers.
        interface: See ``ExportJob``.
        placement: What each node that holds the graph has of it; None is its share, where the backend can.

    Raises:
        PlanError: The graph is only in memory or only on servers, or the backend cannot do what is wanted.
        StoreError: The store is missing or damaged.
    """
    if plan.store is None:
        raise PlanError(
            "the graph is only in this process's memory, and nodes of a cluster could not open it",
            "store = gnnkit.partition(data, num_parts, out='stores/graph'), then export GraphLoader.from_store(store.path, ...)",
        )
    url = plan.store.url
    if is_url(plan.store.path):  # a plan that was read from a file
        url = plan.store.path
        path = open_url(url, planned=plan.store).path
    else:
        path = Path(plan.store.path)
    if is_outline(path):
        raise PlanError(
            "the store is on the servers that this loader joins, not on this machine", "export a loader made with from_store(path)"
        )
    backend = _job_backend(plan, storage_nodes, interface)
    manifest = read_manifest(path)
    hosts = storage_nodes or nodes
    is_alone = backend["kind"] in ("InProcess", "OnDevice")  # every rank has the whole graph
    if is_alone and placement in ("features", "partition") and nodes > 1:
        raise PlanError(
            f"placement={placement!r} needs processes that serve parts to other nodes, and {backend['kind']} has none",
            "loader.with_backend('colocated').export(...), or placement='replicate'",
        )
    divided = hosts > 1 and not is_alone and placement != "replicate"
    cut = None
    num_parts = manifest.num_parts
    if divided and num_parts < hosts:
        num_parts, options = hosts, _cut_options(manifest, hosts)
        target = store_path(path.parent, manifest.name, options, manifest.source_fingerprint)
        reference = StoreRef(str(target), store_fingerprint(manifest.source_fingerprint, options), plan.store.graph)
        if not (target / MANIFEST_NAME).is_file() or read_manifest(target).fingerprint != reference.fingerprint:
            cut = options
    else:
        reference = StoreRef(str(path), manifest.fingerprint, manifest.graph_fingerprint, url)
    held = shares(num_parts, hosts, whole_structure=placement == "features") if divided else Placement((tuple(range(num_parts)),) * hosts)
    made = replace(
        plan,
        store=reference,
        batching=replace(plan.batching, rank=0, world_size=1),
        backend=backend,
        runtime=replace(plan.runtime, pin_device=None),
        placement=held if divided and not storage_nodes else None,
    )
    return JobPlan(made, path, manifest, held, cut, num_parts)


def _cut_options(manifest: Manifest, num_parts: int) -> BuildOptions:
    """The options of a store in more parts, as ``gnnkit partition`` takes them from its command line and the store."""
    before, default = manifest.options, BuildOptions()
    method = before.partition if before.num_parts > 1 else _METHOD
    return replace(before, num_parts=num_parts, partition=method, num_neighbors=default.num_neighbors, seed=default.seed)


def _job_backend(plan: LoaderPlan, storage_nodes: int, interface: str | None) -> dict[str, Any]:
    """The backend's options without what belongs to this machine: addresses, folders."""
    backend = backend_from_json(plan.backend).to_json()
    kind = backend["kind"]
    if kind == "Glt":
        raise PlanError("Glt() samples with graphlearn-torch, which starts its own jobs", "loader.with_backend('colocated').export(...)")
    if kind == "OnDevice":  # each rank's own
        backend["device"] = backend["device"].partition(":")[0]
    if storage_nodes and kind != "GraphStore":
        raise PlanError(f"storage_nodes={storage_nodes}, but {kind} has no servers", "loader.with_backend('graph_store').export(...)")
    if kind == "GraphStore":
        if not storage_nodes:
            raise PlanError("GraphStore() needs nodes for its servers", "storage_nodes=1, or loader.with_backend('colocated').export(...)")
        if backend["tls_ca"] is not None:
            raise PlanError("an exported job has no certificates for its servers", "export a loader without tls_ca")
        backend["address"] = None
    if kind == "Colocated":
        backend |= {"hosts": None, "interface": interface or backend["interface"]}
    if "log_dir" in backend:
        backend["log_dir"] = None
    return backend
