"""The calls that a server answers: by name, from its store and with its workers. Nothing else can be called, and no code travels."""

from __future__ import annotations

import inspect
import itertools
import logging
import queue
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.serving.sampling_api import Reply, SamplingApi
from gnnkit.cluster.serving.store_api import StoreApi
from gnnkit.errors import DatasetError, GnnkitError, PlanError, SamplingError, near_matches
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.cluster.serving.pool import ServedWorkers

logger = logging.getLogger(__name__)

_READS = (
    "ablp_input",
    "describe",
    "edge_book",
    "edge_index",
    "edge_size",
    "feature_shape",
    "node_book",
    "node_ids",
    "node_partition_ids",
    "node_rows",
)
_SAMPLING = ("create", "destroy", "fetch", "give_up", "init_backend", "register", "start_epoch")
_MOST_PORTS = 1024


class ServerApi:
    """Answers the calls of a server's clients. Used by the server's main thread only; what takes long is read in a thread of its own.

    Args:
        store: The store, with the parts open that this server holds.
        rank: The server.
        num_servers: Servers in all.
        pool: Its workers; None answers no calls about sampling.
        later: Runs a function in the main thread, soon; called from any thread.
        holders: The parts of every server, in the order of ranks; None: each holds all of them.
        ends_with_clients: Whether the server ends when its clients have left.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        num_servers: int,
        pool: ServedWorkers | None,
        later: Callable[[Callable[[], None]], None],
        holders: Sequence[Sequence[int]] | None = None,
        *,
        ends_with_clients: bool = False,
    ) -> None:
        reads = StoreApi(store, rank, num_servers, holders)
        of_host: dict[str, Callable[..., Any]] = {"device_count": device_count, "free_ports": free_ports, "ids_in_file": ids_in_file}
        self._reads = {**of_host, **{name: getattr(reads, name) for name in _READS}}
        self._sampling = None if pool is None else SamplingApi(store, pool, ends_with_clients=ends_with_clients)
        self._later = later
        self._tickets = itertools.count()
        self._pending: defaultdict[str, set[int]] = defaultdict(set)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None

    def call(self, client: str, name: str, args: Mapping[str, Any], reply: Reply) -> None:
        """Answers a call.

        Args:
            client: Who calls.
            name: What.
            args: Its arguments by name.
            reply: Called once with the answer or an error, now or later, in the main thread; never after ``left(client)``.
        """
        ticket = next(self._tickets)
        self._pending[client].add(ticket)

        def answer(value: Any) -> None:
            if ticket in self._pending.get(client, ()):
                self._pending[client].discard(ticket)
                reply(value)

        try:
            if name in self._reads:
                self._read(_bound(self._reads[name], name, args), answer)
            elif name in _SAMPLING:
                if self._sampling is None:
                    raise PlanError(f"{name} needs a server with workers", "gnnkit.serve starts some")
                _bound(partial(getattr(self._sampling, name), client, answer), name, args)()
            else:
                known = [*self._reads, *_SAMPLING]
                raise PlanError(f"a server answers no call {name!r}{near_matches(str(name), known)}", "code is never sent to a server")
        except Exception as error:
            answer(_own(error, name))

    def left(self, client: str) -> None:
        """A client has gone: what it had registered is given up, and nothing is answered any more."""
        self._pending.pop(client, None)
        if self._sampling is not None:
            self._sampling.left(client)

    def close(self) -> None:
        """Ends everything."""
        self._pending.clear()
        if self._sampling is not None:
            self._sampling.close()
        self._work.put(None)

    def _read(self, question: Callable[[], Any], answer: Reply) -> None:
        def work() -> None:
            try:
                found = question()
            except Exception as error:
                found = _own(error, "a call")
            self._later(lambda: answer(found))

        if self._reader is None:
            self._reader = threading.Thread(target=self._run_reader, name="gnnkit-api", daemon=True)
            self._reader.start()
        self._work.put(work)

    def _run_reader(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment, on this server's host.

    Raises:
        PlanError: The number is unusable.
    """
    if not 1 <= count <= _MOST_PORTS:
        raise PlanError(f"the number of ports must be between 1 and {_MOST_PORTS}, got {count}")
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))  # all are bound before the first is let go, so that they differ
        return [int(probe.getsockname()[1]) for probe in probes]


def device_count() -> int:
    """CUDA devices of this server's host; 1 where it has none, because it samples on its CPU all the same."""
    import torch  # heavy, and no other call needs it

    return max(1, torch.cuda.device_count())


def ids_in_file(path: str) -> NDArray[np.int64]:
    """int64 ``[n]``: the ids in a file that ``torch.save`` wrote on this server's host; nothing in it is run.

    Raises:
        DatasetError: There is no such file, or it holds something else.
    """
    from gnnkit.storage.glt_format.read import read_ids  # imports torch

    file = Path(path)
    if not file.is_file():
        raise DatasetError(
            f"there is no file {str(file)!r} on this server's host, where it is looked for from {str(Path.cwd())!r}",
            "a path of seeds is one of the server's host, of a tensor that torch.save wrote; ids need no file",
        )
    return read_ids(file)


def _bound(function: Callable[..., Any], name: str, args: Any) -> Callable[[], Any]:
    """The function with its arguments, once it is known that they are those."""
    try:
        bound = inspect.signature(function).bind(**args)
    except TypeError as error:
        raise PlanError(f"the call {name!r} has other arguments: {error}", "run the same gnnkit on servers and clients") from error
    return lambda: function(*bound.args, **bound.kwargs)


def _own(error: Exception, name: str) -> GnnkitError:
    if isinstance(error, GnnkitError):
        return error
    logger.info("%s failed", name, exc_info=True)
    own = SamplingError(f"{name} failed: {type(error).__name__}: {error}")
    own.__cause__ = error
    return own
