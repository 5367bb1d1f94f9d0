"""The plan that a job runs, and the store that it runs on: those of the notebook, made fit for other machines."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gnnkit.backends import backend_from_json
from gnnkit.cluster.placing import shares
from gnnkit.cluster.urls.stores import open_url
from gnnkit.errors import PlanError
from gnnkit.export.job import JobStore
from gnnkit.plan import LoaderPlan, Placement, StoreRef
from gnnkit.plan.files import path_from
from gnnkit.storage.catalog import store_path
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.manifest import Manifest, read_manifest, store_fingerprint
from gnnkit.storage.options import BuildOptions, Partitioner
from gnnkit.storage.outline import is_outline
from gnnkit.urls import is_url

PlacementChoice: TypeAlias = Literal["replicate", "partition"]
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


def job_plan(plan: LoaderPlan, nodes: int, storage_nodes: int, interface: str | None, placement: PlacementChoice | None) -> JobPlan:
    """The plan and the store of a job.

    Args:
        plan: The loader's.
        nodes: Nodes with trainers.
        storage_nodes: Nodes with storage servers.
        interface: See ``ExportJob``.
        placement: Whether each node that holds the graph holds all of it or its share; None is the share, where the backend can.

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
    if backend["kind"] == "InProcess" and placement == "partition" and nodes > 1:
        raise PlanError(
            "placement='partition' needs processes that serve parts to other nodes, and InProcess has none",
            "loader.with_backend('colocated').export(...), or placement='replicate'",
        )
    divided = hosts > 1 and backend["kind"] != "InProcess" and placement != "replicate"
    cut = None
    num_parts = manifest.num_parts
    if divided and num_parts < hosts:
        num_parts, options = hosts, _cut_options(manifest, hosts)
        target = store_path(path.parent, manifest.name, options, manifest.source_fingerprint)
        reference = StoreRef(str(target), store_fingerprint(manifest.source_fingerprint, options), plan.store.graph)
        if not _is_there(reference):
            cut = options
    else:
        reference = StoreRef(str(path), manifest.fingerprint, manifest.graph_fingerprint, url)
    held = shares(num_parts, hosts) if divided else Placement((tuple(range(num_parts)),) * hosts)
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


def _is_there(reference: StoreRef) -> bool:
    path = Path(reference.path)
    return (path / MANIFEST_NAME).is_file() and read_manifest(path).fingerprint == reference.fingerprint


def _job_backend(plan: LoaderPlan, storage_nodes: int, interface: str | None) -> dict[str, Any]:
    """The backend's options without what belongs to this machine: addresses, folders."""
    backend = backend_from_json(plan.backend).to_json()
    kind = backend["kind"]
    if kind == "Glt":
        raise PlanError("Glt() samples with graphlearn-torch, which starts its own jobs", "loader.with_backend('colocated').export(...)")
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
