"""The options of loaders whose batches servers sample: graphlearn-torch's class, which this module needs to be imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.context import get_context
from gnnkit.distributed.seeds import even_bounds
from gnnkit.errors import PlanError
from gnnkit.vendor import glt

if TYPE_CHECKING:

    class _RemoteOptions:
        """The part of graphlearn-torch's class that is used here, for type checkers."""

        def __init__(self, **options: Any) -> None: ...

else:
    _RemoteOptions = glt.attribute("distributed.RemoteDistSamplingWorkerOptions", "RemoteDistSamplingWorkerOptions")


class RemoteDistSamplingWorkerOptions(_RemoteOptions):
    """Graphlearn-torch's options for sampling on servers; it is a class of its own, which knows the servers that gnnkit has joined.

    Args:
        server_rank: The server that samples, or several. None takes this client's share of them, as graphlearn-torch deals them: of 4
            servers and 2 clients the first has 0 and 1, of 2 servers and 5 clients the third has 0.
        num_workers: Servers have workers already; with ``worker_concurrency`` it says how many batches are sampled ahead.
        worker_devices: Taken and not used: servers sample on the CPU.
        worker_concurrency: See ``num_workers``.
        master_addr: Taken and not used: nothing listens there.
        master_port: Likewise.
        num_rpc_threads: Likewise.
        rpc_timeout: Seconds that one wait for a batch may take.
        buffer_size: The most memory for batches under way.
        prefetch_size: Batches that are asked for ahead.
        worker_key: Trainers that give the same one divide the batches of the same seeds among themselves.
        **options: Further options of graphlearn-torch's class.

    Raises:
        PlanError: ``server_rank`` is None, and this process has joined no servers.
        ValueError: As graphlearn-torch's class.
    """

    def __init__(  # noqa: PLR0913
        self,
        server_rank: int | Sequence[int] | None = None,
        num_workers: int = 1,
        worker_devices: Any = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        buffer_size: int | str | None = None,
        prefetch_size: int = 4,
        worker_key: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            server_rank=_own_servers() if server_rank is None else server_rank,
            num_workers=num_workers,
            worker_devices=worker_devices,
            worker_concurrency=worker_concurrency,
            master_addr=master_addr,
            master_port=master_port,
            num_rpc_threads=num_rpc_threads,
            rpc_timeout=rpc_timeout,
            buffer_size=buffer_size,
            prefetch_size=prefetch_size,
            worker_key=worker_key,
            **options,
        )


def _own_servers() -> list[int]:
    """This client's servers, dealt in order: the first clients have one more; too few are dealt again."""
    current = get_context()
    if current is None or not current.is_client():
        raise PlanError("server_rank is None, and this process has joined no servers", "call init_client() first, or name the servers")
    servers, clients, rank = current.num_servers(), current.world_size, current.rank
    if clients >= servers:
        return [rank % servers]
    bounds = even_bounds(servers, clients)
    return list(range(bounds[rank], bounds[rank + 1]))
