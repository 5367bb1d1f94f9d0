"""Loaders whose graph is on servers: the store is theirs, and what the user says about it is compared with it, not opened or built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from gnnkit.backends.base import Backend
from gnnkit.backends.graph_store import GraphStore
from gnnkit.errors import PlanError, StoreError
from gnnkit.events import EventSink
from gnnkit.files import user_path
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.storage.layout import MANIFEST_NAME, BuildOptions
from gnnkit.storage.manifest import canonical_options, is_outline, read_manifest
from gnnkit.storage.store import Store

# A server that is there answers at once.
_STATUS_S = 10.0


def is_served(backend: Backend) -> bool:
    """Whether servers sample: those of this process, of this host or of others. Placing the graph is their affair."""
    return isinstance(backend, GraphStore)


def joins_servers(backend: Backend) -> TypeGuard[GraphStore]:
    """Whether servers that were joined sample, from a store of theirs."""
    return isinstance(backend, GraphStore) and not backend.starts_servers


def served_store(options: GraphStore, events: EventSink) -> Store:
    """Opens the store of the servers that this process joins: where they are on this host all of it, else its outline.

    Args:
        options: A backend that ``joins_servers``.
        events: Receives the stage "start", with the servers that are missing.

    Raises:
        StartTimeout: The servers were not there in time.
        PlanError: They refuse this process.
        StoreError: They have different stores, or their store cannot be opened.
    """
    if options.folder is not None:
        from gnnkit.cluster.network.requests import Requests  # network
        from gnnkit.cluster.serving.connection import join_folder  # servers

        servers = join_folder(options.folder, "trainer", options.join_timeout_s, events)
        try:
            status = servers.call(0, Requests.status.name, {}, _STATUS_S)
        finally:
            servers.close()
        return Store.open(status["store"]["path"])
    from gnnkit.backends.server_pool import servers_of  # servers
    from gnnkit.cluster.network_child.client import look  # network

    return Store.open(look(servers_of(options), events).outline, ())


def check_same_path(store: Store, path: str | Path | None) -> None:
    """Compares the servers' store with the one in a folder of this host; one that is not here is nothing to compare with.

    Raises:
        StoreError: It is another one, or damaged.
    """
    if path is None:
        return
    folder = user_path(path)
    if not (folder / MANIFEST_NAME).exists():
        return
    fingerprint = read_manifest(folder).fingerprint
    if fingerprint != store.fingerprint:
        raise StoreError(
            f"the servers' store is another one than {str(folder)!r}: its fingerprint is {store.fingerprint}, that of the folder's "
            f"is {fingerprint}",
            "leave the path out, or join servers of that store",
        )


def check_same_dataset(store: Store, name: str, undirected: bool, build: BuildOptions, given: Mapping[str, Any]) -> None:
    """Compares the servers' store with a dataset and the options of a build that a user has given.

    Args:
        store: The servers' store.
        name: The dataset.
        undirected: Whether it was to be made undirected.
        build: The options.
        given: Names and values that the user has written, which are compared; others are as the servers have them.

    Raises:
        StoreError: It is of another dataset, or was built otherwise.
    """
    if store.name != name or bool(store.metadata.get("undirected")) != undirected:
        theirs = f"{store.name}{', undirected' if store.metadata.get('undirected') else ''}"
        raise StoreError(
            f"the servers' store is of {theirs}, and {name}{', undirected' if undirected else ''} is wanted",
            "join servers of that dataset, or leave the address out",
        )
    wanted = canonical_options(replace(build, num_parts=store.num_parts if given.get("num_parts") is None else build.num_parts))
    for word in given:
        if not hasattr(wanted, word) or given[word] is None:
            continue
        theirs, ours = getattr(store.options, word), getattr(wanted, word)
        if theirs != ours:
            raise StoreError(
                f"the servers' store was built with {word}={theirs!r}, and {word}={ours!r} is wanted",
                f"leave {word} out to take what the servers have",
            )


def check_same_source(store: Store, fingerprint: str) -> None:
    """Compares the servers' store with a source's fingerprint.

    Raises:
        StoreError: It was built from another one.
    """
    if store.manifest.source_fingerprint != fingerprint:
        raise StoreError(
            f"the servers' store was built from another graph: the fingerprint of its source is {store.manifest.source_fingerprint}, "
            f"of this one {fingerprint}",
            "join servers of a store of this graph",
        )


def check_is_here(backend: Backend, graph: GraphHandle) -> None:
    """Refuses to sample here what is only on servers.

    Raises:
        PlanError: The graph is an outline, and the backend needs its arrays.
    """
    if graph.store is not None and is_outline(Path(graph.store.path)) and not joins_servers(backend):
        raise PlanError(
            f"backend={type(backend).__name__}(...) needs the graph, which is on its servers",
            "backend=GraphStore(address=...) samples there",
        )
