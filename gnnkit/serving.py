"""``gnnkit.serve``: servers that hold a stored graph and sample it for trainers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from gnnkit.arguments import checks_calls
from gnnkit.cluster.hosts import PlacementOption
from gnnkit.cluster.network_child.client import read_pem
from gnnkit.cluster.serving.fleet import ServerFleet, processes_of
from gnnkit.cluster.serving.spec import ServerSpec, split_place
from gnnkit.errors import GnnkitError, LoaderClosed, PlanError
from gnnkit.events import EventSink
from gnnkit.files import user_path
from gnnkit.rendering import Shown
from gnnkit.storage.manifest import read_manifest
from gnnkit.storage.store import Store
from gnnkit.ui.progress import make_sink
from gnnkit.urls import is_url

if TYPE_CHECKING:
    from gnnkit.ui.cards import Card


@checks_calls()
def serve(  # noqa: PLR0913 - every one is a word of the user's
    store: Store | str | Path,
    num_servers: int = 2,
    *,
    workers_per_server: int = 1,
    threads_per_worker: int = 1,
    rank: int | None = None,
    address: str | Path | Sequence[str] | None = None,
    interface: str | None = None,
    placement: PlacementOption = "auto",
    token: str | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    max_restarts: int = 0,
    stop_with_last_client: bool | int = False,
    join_timeout_s: float = 600.0,
    start_timeout_s: float = 120.0,
    log_dir: str | Path | None = None,
    progress: bool | str = "auto",
) -> GraphStoreServers:
    """Starts servers in the background and returns at once; ``GraphStore(address=...)`` joins them. ``docs/servers.md`` describes them.

    They run until ``stop()``, the end of a ``with`` block or the end of this process, however that comes; clients come and go meanwhile.

    Args:
        store: A store, its folder, or its URL, from where all of it is fetched first.
        num_servers: Servers of the run, those that are started elsewhere included.
        workers_per_server: Sampling processes of each.
        threads_per_worker: Sampling threads in each of those.
        rank: The one server to start here; None starts all of them.
        address: Where they are found. None: at Unix sockets, in a folder of their own, for trainers of this host; ``"unix:/folder"``: in
            this one; ``"10.0.0.1:7000"``: on the network, where server 0 listens and the others meet it; or the addresses of all, by rank.
        interface: Name or address of the interface to listen on; None: the one that the meeting point is reached by.
        placement: Which host holds which parts: "auto", "replicate", "features", "partition" or ``{host: parts}``.
        token: What clients have to know; None: ``$GNNKIT_TOKEN`` or the file ``$GNNKIT_TOKEN_FILE`` for servers on the network, else one is
            made and written to ``handle.token_file``.
        tls_cert: File of a certificate, PEM: connections are encrypted.
        tls_key: File of its key, PEM.
        max_restarts: How often, in all, servers here that die are started again; likewise the workers of each.
        stop_with_last_client: Whether servers end once a client has come and none is left; a number: once so many have come.
        join_timeout_s: Seconds that servers on several hosts wait for each other.
        start_timeout_s: Seconds that starting a process may take.
        log_dir: Folder for logs; None: ``$GNNKIT_HOME``, the user's runtime or state folder, or the temporary one.
        progress: How ``wait()`` shows progress; False shows nothing.

    Raises:
        StoreError: There is no store, or it is of a newer format.
        PlanError: A value is unusable, or there is no folder for logs.
    """
    given: Any = store
    if not isinstance(given, (Store, str, os.PathLike)):
        hint = "store = gnnkit.partition(graph, num_parts, out='stores/graph'), then gnnkit.serve(store)"
        raise PlanError(f"serve() was given a {type(given).__name__}, and servers hold a store", hint)
    if is_url(store):
        from gnnkit.cluster.urls.stores import open_url  # optional

        with make_sink(progress) as events:
            store = open_url(str(store), None, events)
    path = store.path if isinstance(store, Store) else user_path(store)
    folder, addresses = split_place(address)
    spec = ServerSpec(
        str(path),
        read_manifest(path).fingerprint,
        num_servers,
        workers_per_server,
        threads_per_worker,
        rank,
        folder,
        addresses,
        interface,
        placement,
        token,
        _read_tls(tls_cert, tls_key),
        max_restarts,
        stop_with_last_client,
        join_timeout_s,
        start_timeout_s,
        None if log_dir is None else str(log_dir),
    )
    return GraphStoreServers(spec, progress)


@checks_calls()
class GraphStoreServers(Shown, ServerFleet):
    """Servers that this process has started; made by ``gnnkit.serve``.

    Args:
        spec: What they are.
        progress: See ``serve``.

    Example:
        >>> import gnnkit
        >>> store = gnnkit.partition(gnnkit.datasets.products_like(0.0005), 1, out="store", overwrite=True)
        >>> with gnnkit.serve(store, 1, progress=False) as servers:
        ...     servers.wait()
        ...     servers.ready
        True
    """

    def __init__(self, spec: ServerSpec, progress: bool | str = "auto") -> None:
        make_sink(progress)  # refuses a word that is none before anything is started
        self._progress = progress
        super().__init__(spec)

    @property
    def ready(self) -> bool:
        """Whether all servers and workers are there."""
        return self.state == "ready"

    @property
    def store(self) -> str:
        """The store's folder."""
        return self.spec.store

    def wait(self, timeout_s: float | None = None, events: EventSink | None = None) -> None:
        """Waits until they are ready.

        Args:
            timeout_s: Most seconds to wait; None: as long as they may take to start, or to find each other.
            events: Receives progress; None shows it as ``serve`` was told.

        Raises:
            StartTimeout: They are not, in time; or a process cannot be started.
            StoreError: The store is damaged, or a part of it is not here.
            WorkerDied: A server has ended, and is not started again.
            LoaderClosed: They were stopped.
        """
        if events is not None:
            super().wait(timeout_s, events)
        else:
            with make_sink(self._progress) as sink:
                super().wait(timeout_s, sink)

    def note_foreground(self) -> None:
        """Writes into the run's record that this process is there for nothing else, so that it is stopped with its servers."""
        self._run_folder.note(foreground=True)

    def __enter__(self) -> GraphStoreServers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _repr_html_(self) -> str:
        return self._card().to_html()

    def _card(self) -> Card:
        from gnnkit.ui.runs import servers_card  # heavy

        status, token_file = self.status(), None if self.token_file is None else str(self.token_file)
        try:
            store_bytes = read_manifest(Path(self.spec.store)).nbytes
        except GnnkitError:  # it was removed
            store_bytes = None
        processes = [] if status["state"] == "stopped" else list(processes_of(status))
        return servers_card(status, self.spec.num_servers, token_file, store_bytes, processes)


class _EndRequested(BaseException):
    """This process was asked to end."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turns SIGINT and SIGTERM into ``_EndRequested``, once: the second one changes nothing."""
    before: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise _EndRequested("this process was asked to end")

    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_in_foreground(servers: GraphStoreServers, say: Callable[[str], None] = lambda line: None) -> None:
    """Stays until servers have ended by themselves, or this process gets SIGINT or SIGTERM, and ends them; returns in both cases.

    Args:
        servers: What ``serve`` has given.
        say: Shows a line to the user: where the servers are, and where their token is.

    Raises:
        GnnkitError: They could not be started, or the last of them has died.
    """
    servers.note_foreground()
    with _ended_by_signals():
        try:
            say(f"address: {servers.address}")
            if servers.token_file is not None:
                say(f"token file: {servers.token_file}")
            servers.wait()
            say("ready")
            servers.join()
        except (_EndRequested, LoaderClosed):  # the latter: their last client has left
            pass
        finally:
            servers.stop()


def _read_tls(cert: str | Path | None, key: str | Path | None) -> tuple[str, str] | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise PlanError("of tls_cert and tls_key only one is given", "give both: the certificate's file and its key's")
    return read_pem(str(cert), "tls_cert"), read_pem(str(key), "tls_key")
