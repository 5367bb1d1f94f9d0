"""Datasets of values in several parts: the processes that hold them meet, and make one store of all parts."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnnkit.distributed import context, process_group
from gnnkit.distributed.dataset_values import WEIGHT, read_parts, write_part
from gnnkit.distributed.store_views import get_total_ids, look_up
from gnnkit.errors import DatasetError, GnnkitError, PlanError, StartTimeout, StoreError
from gnnkit.runtime.process_status import is_alive, pid_space, start_ticks
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE
from gnnkit.storage.catalog import default_store_dir, find_or_build
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.staging import PARTS, remove_tree
from gnnkit.storage.store import Store
from gnnkit.waiting import SLICE_S, Deadline

if TYPE_CHECKING:
    from gnnkit.distributed.dataset import DistDataset

# For all processes to come, and for one of them to make the store.
_JOIN_S, _BUILD_S = 600.0, 3600.0
# For the last words of a meeting.
_LEAVE_S = 30.0
_WHY = "the ranks meet where a process group is, or at worker_options' master_addr and master_port after init_worker_group"
# Meetings of this process by way of the process group, whose store outlives them.
_meetings = itertools.count()


@contextmanager
def trainers(dataset: DistDataset, worker_options: Any) -> Iterator[Meeting]:
    """The meeting of the processes that train: at the process group's store, else where the options say.

    Args:
        dataset: The dataset, for the error.
        worker_options: A loader's options, or None.

    Raises:
        PlanError: Nothing says where they meet.
    """
    import torch.distributed as dist

    group = context.get_context()
    address, port = getattr(worker_options, "master_addr", None), getattr(worker_options, "master_port", None)
    if process_group.is_initialized():
        store = dist.PrefixStore(f"gnnkit/parts/{next(_meetings)}", dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]
        yield Meeting(store, dist.get_rank(), dist.get_world_size())
    elif group is not None and group.is_worker() and address is not None and port:
        with meeting_at(str(address), int(port), group.rank, group.world_size) as meeting:
            yield meeting
    else:
        raise PlanError(
            f"the dataset is part {dataset.partition_idx} of {dataset.num_partitions} as values, and the other parts are elsewhere",
            f"{_WHY}; or make a store with gnnkit.partition(data, num_parts), and open each part with DistDataset.from_store",
        )


@contextmanager
def meeting_at(address: str, port: int, rank: int, world_size: int) -> Iterator[Meeting]:
    """A meeting at an address, where rank 0 listens until all have left.

    Raises:
        PlanError: Rank 0 cannot listen there.
        StartTimeout: Rank 0 was not reached in time.
    """
    try:
        store = process_group.meeting_store(address, port, rank, world_size, timedelta(seconds=_JOIN_S))
    except PlanError:
        raise
    except RuntimeError as error:  # torch has no error of its own for a deadline
        raise StartTimeout(f"rank {rank} of {world_size} did not reach rank 0 at {address}:{port} within {_JOIN_S:g} s", _WHY) from error
    yield Meeting(store, rank, world_size)


class Meeting:
    """The processes that hold the parts of one dataset, and what they tell each other.

    Args:
        store: A key-value store of torch's that all of them reach.
        rank: This process among them.
        world_size: Their number.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store, self.rank, self._world_size = store, rank, world_size
        self._others: list[dict[str, Any]] = []

    def introduce(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Tells the others about this process, and returns what all have told, in the order of ranks."""
        own = {**record, "pid": os.getpid(), "ticks": start_ticks(os.getpid()), "space": pid_space()}
        self._store.set(f"rank/{self.rank}", json.dumps(own))
        deadline = Deadline(_JOIN_S)
        self._others = [json.loads(self._wait(f"rank/{rank}", deadline, f"rank {rank}")) for rank in range(self._world_size)]
        return self._others

    def tell(self, key: str, value: str = "") -> None:
        """Says something that the others may wait for."""
        self._store.set(key, json.dumps({"value": value}))

    def fail(self, error: GnnkitError) -> None:
        """Tells the others that there is nothing to wait for."""
        with suppress(RuntimeError):  # rank 0 is gone, and the others know it
            self._store.set("failed", json.dumps({"rank": self.rank, "message": error.message, "hint": error.hint or ""}))

    def hear(self, key: str, who: str, timeout_s: float) -> str:
        """Waits until somebody has said something.

        Raises:
            DatasetError: Another process has failed, or has ended.
            StartTimeout: Nobody said it in time.
        """
        return str(json.loads(self._wait(key, Deadline(timeout_s), who))["value"])

    def leave(self) -> None:
        """Says good-bye; rank 0 stays until all have, since it keeps the store."""
        with suppress(RuntimeError):
            left, deadline = self._store.add("left", 1), Deadline(_LEAVE_S)
            while self.rank == 0 and left < self._world_size and not deadline.has_passed and not self._gone():
                time.sleep(deadline.within(SLICE_S / 2))
                left = self._store.add("left", 0)

    def _wait(self, key: str, deadline: Deadline, who: str) -> bytes:
        try:
            while not self._store.check([key]):
                if self._store.check(["failed"]):
                    failed = json.loads(self._store.get("failed"))
                    raise DatasetError(f"rank {failed['rank']} could not go on: {failed['message']}", failed["hint"])
                if gone := self._gone():
                    raise DatasetError(f"rank {gone[0]} ended before the parts of the dataset were put together", "its own error says why")
                if deadline.has_passed:
                    raise StartTimeout(f"rank {self.rank} heard nothing from {who} within {deadline.timeout_s:g} s", _WHY)
                time.sleep(deadline.within(SLICE_S / 2))
            return bytes(self._store.get(key))
        except RuntimeError as error:  # the connection to rank 0 is lost
            raise DatasetError("rank 0 ended before the parts of the dataset were put together", "its own error says why") from error

    def _gone(self) -> list[int]:
        """Ranks of this host whose process has ended."""
        here = pid_space()
        return [rank for rank, other in enumerate(self._others) if other["space"] == here and here["boot"] and not is_alive(other)]


def store_of_parts(dataset: DistDataset, meeting: Meeting) -> Store:
    """The store of all parts: rank 0 makes it of what every rank puts into a folder, unless there is one of the same graph.

    Args:
        dataset: This process's part.
        meeting: The processes that hold the parts; several may hold the same one.

    Raises:
        PlanError: The parts do not fit each other, or one is nobody's.
        DatasetError: They hold a node or an edge twice or not at all, or another process has failed.
        StoreError: The store cannot be made, or not be seen from here.
        StartTimeout: Not all came in time.
    """
    try:
        store = _put_together(dataset, meeting)
    except GnnkitError as error:
        meeting.fail(error)
        meeting.leave()
        raise
    meeting.leave()
    return store


def _put_together(dataset: DistDataset, meeting: Meeting) -> Store:
    own = {"part": dataset.partition_idx, "num_parts": dataset.num_partitions, "edge_dir": dataset.edge_dir}
    writers = _writers(meeting.introduce(own), dataset.num_partitions)
    folder: Path | None = None
    try:
        if meeting.rank == 0:
            default_store_dir().mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="values-", suffix=PARTS, dir=default_store_dir()))
            meeting.tell("folder", str(folder))
        where = Path(meeting.hear("folder", "rank 0", _JOIN_S))
        if writers[dataset.partition_idx] == meeting.rank:
            _write(dataset, where)
            meeting.tell(f"written/{dataset.partition_idx}")
        if folder is not None:
            for part, rank in enumerate(writers):
                meeting.hear(f"written/{part}", f"rank {rank}", _BUILD_S)
            meeting.tell("store", str(_built(dataset, folder).path))
    finally:
        if folder is not None:
            remove_tree(folder)
    path = Path(meeting.hear("store", "rank 0", _BUILD_S))
    try:
        return Store.open(path)
    except StoreError as error:
        raise StoreError(f"rank 0 has made a store at {path}, and here {error.message}", _SHARED) from error


_SHARED = "set GNNKIT_HOME to a folder that all hosts of the ranks see"


def _write(dataset: DistDataset, folder: Path) -> None:
    file = folder / f"{dataset.partition_idx}.pt"
    try:
        write_part(dataset.values, dataset.own_split, file)
    except (OSError, RuntimeError) as error:  # torch's writer has RuntimeError for a full disk or a missing folder
        raise StoreError(f"the dataset's part cannot be written to {file}: {str(error).splitlines()[0]}", _SHARED) from error


def _built(dataset: DistDataset, folder: Path) -> Store:
    values, splits = read_parts([folder / f"{part}.pt" for part in range(dataset.num_partitions)])
    weighted = any(edges.weights is not None for edges in values.edges.values())
    weight = WEIGHT if weighted else None
    options = BuildOptions(dataset.num_partitions, "given", edge_dir=dataset.edge_dir, with_edge=True, weight=weight)
    books = dataset.node_pb if isinstance(dataset.node_pb, Mapping) else {HOMOGENEOUS_NODE_TYPE: dataset.node_pb}
    parts = {node_type: look_up(book, torch.arange(get_total_ids(book))).numpy() for node_type, book in books.items() if book is not None}
    return find_or_build(values.source(splits, parts), options, default_store_dir())


def _writers(records: list[dict[str, Any]], num_parts: int) -> list[int]:
    """The rank that writes each part: the first that has it.

    Raises:
        PlanError: The ranks do not mean the same dataset, or a part is nobody's.
    """
    for name in ("num_parts", "edge_dir"):
        if len({record[name] for record in records}) > 1:
            raise PlanError(
                f"the ranks' datasets have {name} {[record[name] for record in records]}", "give all ranks parts of one dataset"
            )
    parts = [record["part"] for record in records]
    missing = sorted(set(range(num_parts)) - set(parts))
    if missing:
        raise PlanError(
            f"the ranks came with the parts {parts} of {num_parts}, and part {missing[0]} is nobody's",
            "each rank gives its own: DistDataset(num_partitions, partition_idx, ...)",
        )
    return [parts.index(part) for part in range(num_parts)]
