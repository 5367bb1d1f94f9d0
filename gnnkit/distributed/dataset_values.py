"""Datasets that are made of values: what a script has given, as the graph that a store is made of."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from numpy.typing import NDArray

from gnnkit.bounds import check_choice
from gnnkit.cluster.hosts import meeting_store
from gnnkit.distributed import graph_client, process_group
from gnnkit.distributed.store_views import LocalFeature, LocalGraph, get_total_ids, look_up
from gnnkit.errors import DatasetError, GnnkitError, PlanError, StartTimeout, StoreError
from gnnkit.runtime.process_status import is_alive, pid_space, start_ticks
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType
from gnnkit.storage.catalog import default_store_dir, find_or_build, make_store_dir
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.staging import PARTS, remove_tree
from gnnkit.storage.store import Store
from gnnkit.user_arrays import to_ids
from gnnkit.waiting import SLICE_S, Deadline

if TYPE_CHECKING:
    from gnnkit.datasets.pyg import PyGSource
    from gnnkit.distributed.dataset import DistDataset


WEIGHT = "edge_weight"
_ROWS = ("x", "edge_attr", "y")

# Features or labels by id. Those of a store's part are read when another store is made of them.
Rows: TypeAlias = torch.Tensor | LocalFeature


class Edges(NamedTuple):
    """Edges of one type.

    Attributes:
        pairs: int64 ``[2, n]``, sources and targets.
        ids: int64 ``[n]``, each edge's number; None is the order.
        weights: float32 ``[n]``, or None.
    """

    pairs: torch.Tensor
    ids: torch.Tensor | None
    weights: torch.Tensor | None


@dataclass
class DatasetValues:
    """The values that a script has given, by type; a homogeneous graph has the one type of each kind.

    Attributes:
        edges: Edges.
        x: Features of nodes, by id.
        edge_attr: Features of edges, by id.
        y: Labels of nodes, by id.
        owned: Of one part of several, ids of the rows of "x", "edge_attr" and "y".
        num_nodes: Numbers of nodes from partition books.
        is_homogeneous: Whether edges were given without types.
    """

    edges: dict[EdgeType, Edges] = field(default_factory=dict)
    x: dict[NodeType, Rows] = field(default_factory=dict)
    edge_attr: dict[EdgeType, Rows] = field(default_factory=dict)
    y: dict[NodeType, Rows] = field(default_factory=dict)
    owned: dict[str, dict[Any, torch.Tensor]] = field(default_factory=dict)
    num_nodes: dict[NodeType, int] = field(default_factory=dict)
    is_homogeneous: bool = True

    @property
    def weight(self) -> str | None:
        """The name of edges' weights in a store of the values; None where no edge has one."""
        return WEIGHT if any(edges.weights is not None for edges in self.edges.values()) else None

    def take_graph(self, graph: Any) -> None:
        """Edges as graphlearn-torch's ``Graph``, by type or alone, or a ``LocalGraph``."""
        self.is_homogeneous = not isinstance(graph, Mapping)
        self.edges = {t: _edges_of(found) for t, found in _by_type(graph, HOMOGENEOUS_EDGE_TYPE).items()}

    def take_edges(self, pairs: Any, ids: Any, weights: Any, layout: Any) -> None:
        """Edges as ``init_graph`` takes them.

        Raises:
            PlanError: They are no edges, or the layout is unknown.
        """
        self.is_homogeneous = not isinstance(pairs, Mapping)
        only = HOMOGENEOUS_EDGE_TYPE
        all_ids, all_weights = _by_type(ids, only), _by_type(weights, only)
        layouts = dict(layout) if isinstance(layout, Mapping) else {}
        self.edges = {}
        for edge_type, found in _by_type(pairs, only).items():
            coo = _pairs_of(found, str(layouts.get(edge_type, layout)).upper())
            own = all_ids.get(edge_type), all_weights.get(edge_type)
            self.edges[edge_type] = Edges(
                coo, None if own[0] is None else as_tensor(own[0]).long(), None if own[1] is None else as_tensor(own[1]).float()
            )

    def take_rows(self, name: str, rows: Any, index: Any = None, owned: Any = None) -> None:
        """Features or labels.

        Args:
            name: "x", "edge_attr" or "y".
            rows: A tensor or a ``Feature``, by type or alone.
            index: From ids to rows, likewise; None: rows are in the order of ids.
            owned: Ids of the rows that one part of several has, likewise; None is all.

        Raises:
            PlanError: Of one part there are neither as many rows as it has ids, nor rows for all ids.
        """
        only: Any = HOMOGENEOUS_EDGE_TYPE if name == "edge_attr" else HOMOGENEOUS_NODE_TYPE
        places, own = _by_type(index, only), _by_type(owned, only)
        self.owned[name] = own
        setattr(self, name, {t: _rows_of(found, places.get(t), own.get(t)) for t, found in _by_type(rows, only).items()})

    def take_books(self, node_pb: Any) -> None:
        """Partition books, which tell how many nodes there are."""
        self.num_nodes = {t: len(book) for t, book in _by_type(node_pb, HOMOGENEOUS_NODE_TYPE).items()}

    def source(self, splits: Mapping[str, Any], parts: Mapping[NodeType, NDArray[Any]] | None = None) -> PyGSource:
        """The graph, for a store to be made of.

        Args:
            splits: ``{"train": ids, ...}``, ids by type where there are several.
            parts: Each node's part by type, where there are several.

        Raises:
            PlanError: Values do not fit each other.
        """
        from torch_geometric.data import Data, HeteroData

        from gnnkit.datasets.pyg import PyGSource  # PyG

        data: Any = Data() if self.is_homogeneous else HeteroData()
        for node_type in dict.fromkeys([end for t in self.edges for end in (t[0], t[2])] + list(self.x) + list(self.y)):
            nodes = data if self.is_homogeneous else data[node_type]
            nodes.num_nodes = self._count(node_type)
            if node_type in self.x:
                nodes["x"] = _read(self.x[node_type])
            if node_type in self.y:
                labels = _read(self.y[node_type])
                # As graphlearn-torch's ``init_node_labels``: a single column is one label for each node.
                nodes["y"] = labels.reshape(-1) if labels.dim() == 2 and labels.shape[1] == 1 else labels
        for edge_type, edges in self.edges.items():
            found = data if self.is_homogeneous else data[edge_type]
            order = _order(edges, edge_type)
            found.edge_index = edges.pairs[:, order]
            if edges.weights is not None:
                found[WEIGHT] = edges.weights[order]
            if edge_type in self.edge_attr:
                found.edge_attr = _read(self.edge_attr[edge_type])
        by_type: dict[NodeType, dict[str, Any]] = {}
        for name, ids in splits.items():
            for node_type, own in _by_type(ids, HOMOGENEOUS_NODE_TYPE).items():
                by_type.setdefault(node_type, {})[name] = to_ids(own, self._count(node_type), f"the split {name!r}")
        return PyGSource(data, by_type, parts)

    def _count(self, node_type: NodeType) -> int:
        ends = [edges.pairs[row] for t, edges in self.edges.items() for row, end in ((0, t[0]), (1, t[2])) if end == node_type]
        told = [int(ids.max()) + 1 for ids in ends if len(ids)] + [
            rows[node_type].size(0) for rows in (self.x, self.y) if node_type in rows
        ]
        return max([self.num_nodes.get(node_type, 0), *told])


def write_part(values: DatasetValues, splits: Mapping[str, Any], file: Path) -> None:
    """Writes one part's values, and its share of the splits, ``{"train": ids, ...}``."""
    content = {
        "homogeneous": values.is_homogeneous,
        "num_nodes": values.num_nodes,
        "edges": {t: tuple(found) for t, found in values.edges.items()},
        "rows": {name: {t: (values.owned[name][t], _read(rows)) for t, rows in getattr(values, name).items()} for name in _ROWS},
        "splits": {name: _by_type(ids, HOMOGENEOUS_NODE_TYPE) for name, ids in splits.items()},
    }
    torch.save(content, file)


def read_parts(files: Sequence[Path]) -> tuple[DatasetValues, dict[str, Any]]:
    """The values of a whole graph and its splits, of the files of its parts.

    Raises:
        PlanError: The parts do not fit each other.
        DatasetError: A row is missing, or in two parts.
    """
    parts = [torch.load(file, weights_only=True, mmap=True) for file in files]
    if len({part["homogeneous"] for part in parts}) > 1 or any(part["num_nodes"] != parts[0]["num_nodes"] for part in parts):
        raise PlanError("the parts of the dataset have different types or partition books", "every part has the books of all")
    whole = DatasetValues(num_nodes=parts[0]["num_nodes"], is_homogeneous=parts[0]["homogeneous"])
    for edge_type in dict.fromkeys(t for part in parts for t in part["edges"]):
        pieces = [Edges(*part["edges"][edge_type]) for part in parts if edge_type in part["edges"]]
        whole.edges[edge_type] = Edges(torch.cat([piece.pairs for piece in pieces], 1), *(_joined(pieces, n) for n in ("ids", "weights")))
    for name in _ROWS:
        for graph_type in dict.fromkeys(t for part in parts for t in part["rows"][name]):
            rows = [part["rows"][name][graph_type] for part in parts if graph_type in part["rows"][name]]
            count = whole.edges[graph_type].pairs.shape[1] if name == "edge_attr" else whole.num_nodes[graph_type]
            getattr(whole, name)[graph_type] = _whole(rows, count, f"{name} of {graph_type!r}")
    splits: dict[str, dict[NodeType, torch.Tensor]] = {}
    for part in parts:
        for name, by_type in part["splits"].items():
            for node_type, ids in by_type.items():
                before = splits.setdefault(name, {}).get(node_type)
                splits[name][node_type] = ids if before is None else torch.cat([before, ids])
    return whole, splits


def _joined(pieces: Sequence[Edges], name: str) -> torch.Tensor | None:
    found = [getattr(piece, name) for piece in pieces]
    given = [values for values in found if values is not None]
    if given and len(given) < len(found):
        raise PlanError(f"some parts of the dataset give {name} of edges, and others do not", "give them in every part")
    return torch.cat(given) if given else None


def _whole(pieces: Sequence[tuple[torch.Tensor, torch.Tensor]], count: int, what: str) -> torch.Tensor:
    kinds = {(rows.dtype, rows.shape[1:]) for _, rows in pieces}
    if len(kinds) > 1:
        raise PlanError(f"the parts of {what} have rows of {' and '.join(f'{d} {list(shape)}' for d, shape in sorted(kinds, key=str))}")
    ids = torch.cat([own for own, _ in pieces])
    times = torch.bincount(ids, minlength=count)
    if len(times) > count or not bool((times == 1).all()):
        wrong = count if len(times) > count else int((times != 1).nonzero()[0])
        said = "nothing" if wrong < count and times[wrong] == 0 else "more than one row"
        raise DatasetError(f"{what}: {said} for id {wrong} of {count}", "partition books give each id to one part, which has its row")
    _, first = pieces[0]
    whole = first.new_empty((count, *first.shape[1:]))
    for own, rows in pieces:
        whole[own] = rows
    return whole


def as_tensor(value: Any) -> torch.Tensor:
    """A tensor or an array as a tensor on the CPU.

    Raises:
        PlanError: It is neither.
    """
    try:
        return torch.as_tensor(value).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(f"a dataset's values are tensors or arrays, got a {type(value).__name__}") from error


def map_types(value: Any, function: Callable[[Any], Any]) -> Any:
    """``function`` of a value, or of each of a dict by type."""
    return {t: function(found) for t, found in value.items()} if isinstance(value, Mapping) else function(value)


def _by_type(value: Any, only: Any) -> dict[Any, Any]:
    if value is None:
        return {}
    return {t: found for t, found in value.items() if found is not None} if isinstance(value, Mapping) else {only: value}


def _edges_of(graph: Any) -> Edges:
    if isinstance(graph, LocalGraph):
        indptr, indices, ids = graph.export_topology()
        owners = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
        return Edges(torch.stack([indices, owners] if graph.layout == "CSC" else [owners, indices]), ids, graph.edge_weights)
    topology = getattr(graph, "topo", graph)
    if not hasattr(topology, "to_coo"):
        raise PlanError(f"graph_partition holds a {type(graph).__name__}", "give graphlearn-torch's Graph, or call init_graph(edge_index)")
    row, col, ids, weights = topology.to_coo()
    return Edges(torch.stack([row, col]).long(), None if ids is None else ids.long(), weights)


def _pairs_of(found: Any, layout: str) -> torch.Tensor:
    check_choice("layout", layout, Literal["COO", "CSR", "CSC"])
    row, col = as_tensor(found[0]).long(), as_tensor(found[1]).long()
    if layout == "CSR":
        row = torch.repeat_interleave(torch.arange(len(row) - 1), row.diff())
    elif layout == "CSC":
        col = torch.repeat_interleave(torch.arange(len(col) - 1), col.diff())
    if row.ndim != 1 or row.shape != col.shape:
        raise PlanError(f"edge_index must be rows and columns of as many edges, got {list(row.shape)} and {list(col.shape)}")
    return torch.stack([row, col])


def _rows_of(found: Any, index: Any, owned: torch.Tensor | None) -> Rows:
    """Rows in the order of ids, or of the ids ``owned``."""
    if isinstance(found, LocalFeature):
        return found if owned is None else found.cpu_get(owned)
    if hasattr(found, "feature_tensor"):
        found, index = found.feature_tensor, found.id2index
    rows = as_tensor(found)
    if owned is not None:
        if index is None and len(rows) == len(owned):
            return rows
        places = owned if index is None else as_tensor(index[owned])
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < len(rows):
            raise PlanError(f"a part that owns {len(owned)} ids is given {len(rows)} rows", "give each of its ids a row, in their order")
        return rows[places]
    if index is None:
        return rows
    count = len(index) if hasattr(index, "__len__") else len(rows)
    return rows[as_tensor(index[torch.arange(count)])]


def _read(rows: Rows) -> torch.Tensor:
    """All rows.

    Raises:
        PlanError: They are those of one part of several.
    """
    return rows.cpu_get(torch.arange(rows.size(0))) if isinstance(rows, LocalFeature) else rows


def _order(edges: Edges, edge_type: EdgeType) -> torch.Tensor:
    """Returns the permutation that puts edges in the order of their ids."""
    count = edges.pairs.shape[1]
    if edges.ids is None:
        return torch.arange(count)
    order = edges.ids.argsort()
    if len(edges.ids) != count or not edges.ids[order].equal(torch.arange(count)):
        raise PlanError(
            f"the ids of the {count} edges {edge_type} are not the numbers from 0 to {count - 1}",
            "all parts of a dataset of values together hold a whole graph; a part gives the ids of its edges",
        )
    return order


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

    group = graph_client.get_context()
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
        store = meeting_store(address, port, rank, world_size, timedelta(seconds=_JOIN_S))
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
        self.tell(f"rank/{self.rank}", {**record, "pid": os.getpid(), "ticks": start_ticks(os.getpid()), "space": pid_space()})
        deadline = Deadline(_JOIN_S)
        self._others = [self.hear(f"rank/{rank}", f"rank {rank}", deadline) for rank in range(self._world_size)]
        return self._others

    def tell(self, key: str, value: Any = None) -> None:
        """Says something, a value of JSON's, that the others may wait for."""
        self._store.set(key, json.dumps(value))

    def fail(self, error: GnnkitError) -> None:
        """Tells the others that there is nothing to wait for."""
        with suppress(RuntimeError):  # rank 0 is gone, and the others know it
            self.tell("failed", {"rank": self.rank, "message": error.message, "hint": error.hint or ""})

    def leave(self) -> None:
        """Says good-bye; rank 0 stays until all have, since it keeps the store."""
        with suppress(RuntimeError):
            left, deadline = self._store.add("left", 1), Deadline(_LEAVE_S)
            while self.rank == 0 and left < self._world_size and not deadline.has_passed and not self._gone():
                time.sleep(deadline.within(SLICE_S / 2))
                left = self._store.add("left", 0)

    def hear(self, key: str, who: str, deadline: Deadline) -> Any:
        """Waits for what another process tells under a key.

        Raises:
            DatasetError: Another process has failed, or has ended.
            StartTimeout: It was not told in time.
        """
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
            return json.loads(self._store.get(key))
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
        PlanError: The parts do not fit each other, or one has no owner.
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
            make_store_dir(default_store_dir())
            folder = Path(tempfile.mkdtemp(prefix="values-", suffix=PARTS, dir=default_store_dir()))
            meeting.tell("folder", str(folder))
        where = Path(meeting.hear("folder", "rank 0", Deadline(_JOIN_S)))
        if writers[dataset.partition_idx] == meeting.rank:
            _write(dataset, where)
            meeting.tell(f"written/{dataset.partition_idx}")
        if folder is not None:
            for part, rank in enumerate(writers):
                meeting.hear(f"written/{part}", f"rank {rank}", Deadline(_BUILD_S))
            meeting.tell("store", str(_built(dataset, folder).path))
    finally:
        if folder is not None:
            remove_tree(folder)
    path = Path(meeting.hear("store", "rank 0", Deadline(_BUILD_S)))
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
    options = BuildOptions(dataset.num_partitions, "given", edge_dir=dataset.edge_dir, with_edge=True, weight=values.weight)
    books = dataset.node_pb if isinstance(dataset.node_pb, Mapping) else {HOMOGENEOUS_NODE_TYPE: dataset.node_pb}
    parts = {node_type: look_up(book, torch.arange(get_total_ids(book))).numpy() for node_type, book in books.items() if book is not None}
    return find_or_build(values.source(splits, parts), options, default_store_dir())


def _writers(records: list[dict[str, Any]], num_parts: int) -> list[int]:
    """The rank that writes each part: the first that has it.

    Raises:
        PlanError: The ranks do not mean the same dataset, or a part has no owner.
    """
    for name in ("num_parts", "edge_dir"):
        if len({record[name] for record in records}) > 1:
            raise PlanError(
                f"the ranks' datasets have {name} {[record[name] for record in records]}", "give all ranks parts of one dataset"
            )
    parts = [record["part"] for record in records]
    if missing := sorted(set(range(num_parts)) - set(parts)):
        raise PlanError(
            f"the ranks came with the parts {parts} of {num_parts}, and no rank has part {missing[0]}",
            "each rank gives its own: DistDataset(num_partitions, partition_idx, ...)",
        )
    return [parts.index(part) for part in range(num_parts)]
