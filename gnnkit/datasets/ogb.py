"""OGB's datasets by name: found on disk or downloaded, opened as a graph to store.

A tree is what unpacking OGB's archive gives: ``raw/``, ``split/<name>/`` and ``RELEASE_v<n>.txt``. Trees are only read: they
may lie on a read-only disk, and may have been left there by ``ogb`` or by PyG.

Everything happens inside the root: ``.<folder>.zip.part`` (what has been downloaded), ``.<folder>.incomplete`` (what has been
unpacked), then a rename to ``<folder>``. A killed process leaves the first two, with which the next one goes on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

from gnnkit.arguments import checks_calls
from gnnkit.datasets.derived import UndirectedSource
from gnnkit.datasets.download import PATIENT, DamagedArchive, RetryPolicy, discard, download, free_disk, require_disk, unpack
from gnnkit.errors import DatasetError, near_matches, on_error
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import give_up_lock, open_regular, os_errors, take_lock, user_path
from gnnkit.schema import ArraySpec, EdgeType, EdgeTypeSchema, GraphSchema, NodeType, NodeTypeSchema
from gnnkit.source import GraphSource
from gnnkit.storage.catalog import default_root
from gnnkit.storage.staging import check_memory
from gnnkit.units import format_bytes
from gnnkit.urls import OFFLINE_VARIABLE, is_offline
from gnnkit.vendor import ogb as vendor_ogb
from gnnkit.waiting import Deadline

_KINDS: tuple[Literal["node", "link"], ...] = ("node", "link")


@dataclass(frozen=True, slots=True)
class OgbInfo:
    """One row of OGB's master table.

    Attributes:
        name: "ogbn-products".
        kind: What the dataset is for: "node" or "link" prediction.
        num_tasks: Labels per node; 0 for links.
        num_classes: Classes per label; 0 for links.
        task_type: "multiclass classification", "binary classification", "link prediction" or "KG completion".
        eval_metric: "acc", "rocauc", "hits@50", "mrr", ...
        download_name: Name of the archive and of the folder inside it.
        version: Release of the data that the table describes; the tree holds ``RELEASE_v<version>.txt``.
        url: Where OGB offers the archive.
        add_inverse_edge: Whether each edge of the files stands for itself and its inverse.
        split: Name of the official split.
        node_files: Node arrays beside features and labels ("node_year").
        edge_files: Edge arrays beside features ("edge_reltype").
        is_hetero: Whether nodes and edges are typed.
        is_binary: Whether the raw files are .npz rather than .csv.gz.
    """

    name: str
    kind: Literal["node", "link"]
    num_tasks: int
    num_classes: int
    task_type: str
    eval_metric: str
    download_name: str
    version: int
    url: str
    add_inverse_edge: bool
    split: str
    node_files: tuple[str, ...]
    edge_files: tuple[str, ...]
    is_hetero: bool
    is_binary: bool

    @property
    def folder(self) -> str:
        """The folder that ``ogb`` reads the dataset from: "ogbn_products"."""
        return self.name.replace("-", "_")

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of a node's labels."""
        return () if self.num_tasks == 1 else (self.num_tasks,)

    def metadata(self) -> dict[str, Any]:
        """Returns the dataset's task, metric, split, version and number of classes, JSON-serialisable."""
        labels = {"num_classes": self.num_classes, "num_tasks": self.num_tasks} if self.kind == "node" else {}
        return {
            **labels,
            "task_type": self.task_type,
            "eval_metric": self.eval_metric,
            "split": self.split,
            "version": self.version,
            "add_inverse_edge": self.add_inverse_edge,
        }


def ogb_names() -> list[str]:
    """Every dataset that ``open_ogb`` reads.

    Raises:
        DatasetError: The package ``ogb`` is missing.
    """
    return sorted(name for kind in _KINDS for name in vendor_ogb.master_table(kind))


def ogb_info(name: str) -> OgbInfo:
    """Looks a dataset up.

    Raises:
        DatasetError: There is no dataset of that name, or it is one for predicting whole graphs.
    """
    for kind in _KINDS:
        table = vendor_ogb.master_table(kind)
        if name in table:
            return _parse(name, kind, table[name])
    names = ogb_names()
    if name in vendor_ogb.master_table("graph"):
        raise DatasetError(f"{name!r} is a graph prediction dataset, which gnnkit does not read", f"it reads: {', '.join(names)}")
    close = near_matches(str(name).lower().replace("_", "-"), names)
    raise DatasetError(f"there is no OGB dataset {name!r}{close}", f"known: {', '.join(names)}")


def _parse(name: str, kind: Literal["node", "link"], row: Mapping[str, str]) -> OgbInfo:
    try:
        return OgbInfo(
            name=name,
            kind=kind,
            num_tasks=int(row["num tasks"]) if kind == "node" else 0,
            num_classes=int(row["num classes"]) if kind == "node" else 0,
            task_type=row["task type"],
            eval_metric=row["eval metric"],
            download_name=row["download_name"],
            version=int(row["version"]),
            url=row["url"],
            add_inverse_edge=row["add_inverse_edge"] == "True",
            split=row["split"],
            node_files=_names(row["additional node files"]),
            edge_files=_names(row["additional edge files"]),
            is_hetero=row["is hetero"] == "True",
            is_binary=row["binary"] == "True",
        )
    except (KeyError, ValueError) as error:
        message = f"the package 'ogb' describes {name!r} in a way that gnnkit does not understand: {error!r}"
        raise DatasetError(message, "pip install -U gnnkit") from error


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("None", "") else tuple(part.strip() for part in text.split(","))


_YEAR = ArraySpec("int64", (1,))
_LABEL = ArraySpec("int64")
_RELATION = {"edge_reltype": ArraySpec("int64", (1,))}


def _x(columns: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(dtype, (columns,))


@dataclass(frozen=True)
class PublishedGraph:
    """A dataset's graph as OGB describes it.

    Attributes:
        schema: Types, sizes and arrays.
        splits: ``{node type: {split: number of ids}}``; official links are not counted.
    """

    schema: GraphSchema
    splits: Mapping[NodeType, Mapping[str, int]]


def _nodes(num_nodes: int, num_edges: int, arrays: dict[str, ArraySpec], edge_arrays: dict[str, ArraySpec], *splits: int) -> PublishedGraph:
    schema = GraphSchema.homogeneous(num_nodes, num_edges, arrays, edge_arrays)
    counts = dict(zip(("train", "valid", "test"), splits, strict=False))
    return PublishedGraph(schema, {next(iter(schema.node_types)): counts} if counts else {})


def _mag() -> PublishedGraph:
    paper = {"x": _x(128), "y": _LABEL, "node_year": _YEAR}
    sizes: dict[NodeType, tuple[int, dict[str, ArraySpec]]] = {
        "author": (1_134_649, {}), "field_of_study": (59_965, {}), "institution": (8_740, {}), "paper": (736_389, paper),
    }  # fmt: skip
    edges: dict[EdgeType, int] = {
        ("author", "affiliated_with", "institution"): 1_043_998,
        ("author", "writes", "paper"): 7_145_660,
        ("paper", "cites", "paper"): 5_416_271,
        ("paper", "has_topic", "field_of_study"): 7_505_078,
    }
    nodes = {name: NodeTypeSchema(count, arrays) for name, (count, arrays) in sizes.items()}
    schema = GraphSchema(nodes, {edge_type: EdgeTypeSchema(count, _RELATION) for edge_type, count in edges.items()})
    return PublishedGraph(schema, {"paper": {"train": 629_571, "valid": 64_879, "test": 41_939}})


_PUBLISHED = {
    "ogbn-products": _nodes(2_449_029, 2 * 61_859_140, {"x": _x(100), "y": _LABEL}, {}, 196_615, 39_323, 2_213_091),
    "ogbn-proteins": _nodes(
        132_534, 2 * 39_561_252, {"y": ArraySpec("int64", (112,)), "node_species": _YEAR}, {"edge_attr": _x(8)}, 86_619, 21_236, 24_679
    ),
    "ogbn-arxiv": _nodes(169_343, 1_166_243, {"x": _x(128), "y": _LABEL, "node_year": _YEAR}, {}, 90_941, 29_799, 48_603),
    "ogbn-papers100M": _nodes(111_059_956, 1_615_685_872, {"x": _x(128), "y": _LABEL, "node_year": _YEAR}, {}, 1_207_179, 125_265, 214_338),
    "ogbn-mag": _mag(),
    "ogbl-ppa": _nodes(576_289, 2 * 21_231_931, {"x": _x(58, "int64")}, {}),
    "ogbl-collab": _nodes(235_868, 2 * 1_179_052, {"x": _x(128)}, {"edge_weight": _YEAR, "edge_year": _YEAR}),
    "ogbl-ddi": _nodes(4_267, 2 * 1_067_911, {}, {}),
    "ogbl-citation2": _nodes(2_927_963, 30_387_995, {"x": _x(128), "node_year": _YEAR}, {}),
    "ogbl-wikikg2": _nodes(2_500_604, 16_109_182, {}, _RELATION),
}


def published_names() -> list[str]:
    """The datasets whose sizes are known here."""
    return sorted(_PUBLISHED)


def published_graph(name: str) -> PublishedGraph:
    """Returns the sizes that OGB publishes of a dataset; nothing is downloaded.

    Raises:
        DatasetError: Its sizes are not known here.
    """
    if name not in _PUBLISHED:
        ogb_info(name)  # an unknown name has near matches
        raise DatasetError(
            f"the sizes of {name!r} are not known here", f"known: {', '.join(published_names())}; of any other graph, give a store"
        )
    return _PUBLISHED[name]


logger = logging.getLogger(__name__)

# A line that must be shown wherever the tree's data is; written beside generated trees.
NOTICE_FILE = "NOTICE.gnnkit"
_NOTICE_BYTES = 500
_HASHED_BYTES = 4096
# Places at which a file without a checksum is looked at.
_SPREAD = 64


@dataclass(frozen=True, slots=True)
class OgbTree:
    """A dataset's folder.

    Attributes:
        path: The folder itself.
        raw: Its raw files.
        split: The files of the official split.
    """

    path: Path
    raw: Path
    split: Path

    @property
    def notice(self) -> str | None:
        """The first line of the notice file, or None where there is none."""
        with suppress(FileNotFoundError), open(open_regular(self.path / NOTICE_FILE), encoding="utf-8", errors="replace") as file:
            return file.read(_NOTICE_BYTES).strip().partition("\n")[0].strip() or None
        return None


def find_tree(info: OgbInfo, root: Path) -> OgbTree | None:
    """The dataset's tree under ``root`` (or ``root`` itself, where it is that tree), or None.

    Raises:
        DatasetError: This user may not look there.
    """
    for path in _candidates(info, root):
        raw = path / "raw"
        with os_errors(f"{path} cannot be read", None, "name another folder: root=...", DatasetError):
            is_there = any((raw / name).exists() for name in _key_files(info))
        if is_there:
            inner = raw / "split" / info.split
            # PyG's OGB_MAG moves the splits into raw/.
            return OgbTree(path, raw, inner if inner.is_dir() else path / "split" / info.split)
    return None


def check_release(info: OgbInfo, tree: OgbTree, events: EventSink) -> None:
    """Compares the tree's release marker with the release that the installed ``ogb`` describes, and never asks.

    Raises:
        DatasetError: The tree is of another release: the same name would mean other data.
    """
    if (tree.path / f"RELEASE_v{info.version}.txt").exists():
        return
    others = sorted(path.name for path in tree.path.glob("RELEASE_v*.txt"))
    if others:
        raise DatasetError(
            f"{tree.path} holds {info.name} of release {', '.join(others)}; the current one is RELEASE_v{info.version}.txt",
            f"move {tree.path} away and download again, or pass another root=",
        )
    text = f"{tree.path} has no RELEASE_v{info.version}.txt: gnnkit cannot tell whether it is the current release of {info.name}"
    logger.warning(text)
    Stage(events, "ingest", label=info.name).message(text)


def content_digest(base: Path, files: Iterable[Path], facts: Mapping[str, object]) -> str:
    """A hex digest of files' content in constant time per file.

    A .gz file is known by its size, first and last bytes, the last of which hold the checksum and length of what is
    inside (RFC 1952); an .npz or a zipped .pt by its central directory, which holds a checksum for every member; a .pt of
    torch before 1.6, which holds none, by bytes from all over it.

    Args:
        base: Folder to which file names are relative.
        files: The files, in any order.
        facts: What else decides how the files are read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key, value in sorted(facts.items()):
        digest.update(f"{key}={value!r}\n".encode())
    for path in sorted(set(files)):
        digest.update(f"{path.relative_to(base).as_posix()}\n".encode())
        try:
            for part in _identity(path):
                digest.update(part)
        except (OSError, zipfile.BadZipFile) as error:
            raise DatasetError(f"cannot read {path}: {error}", "restore the file, or move the folder away and download again") from error
    return digest.hexdigest()


def _identity(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{size}\n".encode()
    with open(open_regular(path), "rb") as file:
        yield file.read(_HASHED_BYTES)
        file.seek(max(0, size - _HASHED_BYTES))
        yield file.read(_HASHED_BYTES)
        if path.suffix == ".pt":
            for place in range(1, _SPREAD):
                file.seek(size * place // _SPREAD)
                yield file.read(_HASHED_BYTES)
    if path.suffix == ".npz" or (path.suffix == ".pt" and zipfile.is_zipfile(path)):
        with open(open_regular(path), "rb") as file, zipfile.ZipFile(file) as archive:
            for item in archive.infolist():
                yield f"{item.filename} {item.file_size} {item.CRC}\n".encode()


def _candidates(info: OgbInfo, root: Path) -> list[Path]:
    names = [info.folder, f"{info.folder}_pyg", info.download_name]  # ogb's, PyG's, and the archive's own
    paths = [root / name for name in names]
    if root.name in names and (root / "raw").is_dir():
        paths.insert(0, root)
    return paths


def _key_files(info: OgbInfo) -> list[str]:
    if info.is_binary:
        return ["edge_index_dict.npz" if info.is_hetero else "data.npz"]
    # PyG's OGB_MAG keeps relations/ without the list of their names.
    return ["triplet-type-list.csv.gz", f"relations{os.sep}"] if info.is_hetero else ["edge.csv.gz"]


AUTO_LIMIT_BYTES = 2_000_000_000
# Where OGB's archives are mirrored: stands for everything before "nodeproppred/products.zip".
MIRROR_VARIABLE = "GNNKIT_OGB_URL"
_OFFICIAL_BASE = "/ogb/data/"
# A store's size over its archive's. Text of proteins' edge features, 8 numbers in [0, 1], shrinks like no other.
_STORE_PER_ARCHIVE = {"ogbn-proteins": 14.0}
_STORE_PER_ARCHIVE_ELSE = 1.3
_UNPACKED_PER_ARCHIVE = 1.1
# Reading a tree: blocks of text, arrays made of them, and the libraries.
_MEMORY_BYTES = 400 << 20
_LOCK_POLL_S = 0.25
_WRITABLE_HINT = "pass root= with a folder you may write to"


def fetch(
    info: OgbInfo, root: Path, allowed: Literal["auto"] | bool, events: EventSink = ignore_events, *, patience: RetryPolicy = PATIENT
) -> None:
    """Downloads and unpacks a dataset into ``<root>/<folder>``.

    An archive that lies in the root under its own name (``products.zip``) is used in place of a download, and kept.

    Args:
        info: The dataset.
        root: Folder that will hold the dataset's folder.
        allowed: Whether to download, as ``open_ogb``'s ``download``.
        events: Where progress goes.
        patience: How long to wait for the server, and for another process that gets the dataset.

    Raises:
        DatasetError: It is not there and may not or cannot be downloaded, or what came is damaged.
        MemoryLimitError: There is too little memory to read it afterwards.
    """
    _Fetch(info, root, allowed, events, patience).run()


class _Fetch:
    def __init__(self, info: OgbInfo, root: Path, allowed: Literal["auto"] | bool, events: EventSink, patience: RetryPolicy) -> None:
        self._info, self._root, self._allowed, self._events, self._patience = info, root, allowed, events, patience
        self._url = archive_url(info)
        self._by_hand = root / self._url.rpartition("/")[2]
        self._part = root / f".{info.folder}.zip.part"
        self._incomplete = root / f".{info.folder}.incomplete"
        self._hint = (
            f"by hand: download {self._url} and put it at {self._by_hand}, or unpack it and name its folder {root / info.folder}; "
            f"or pass root= with the folder that holds {info.folder}/"
        )

    def run(self) -> None:
        self._refuse_unless_allowed()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatasetError(f"cannot make the folder {self._root}: {error.strerror}", _WRITABLE_HINT) from error
        with self._locked():
            # Another process may have been faster.
            if find_tree(self._info, self._root) is not None:
                return
            if self._by_hand.exists():
                self._unpack(self._by_hand)
                return
            self._download()
            try:
                self._unpack(self._part)
            except DamagedArchive as error:
                discard(self._part)
                raise DatasetError(f"{self._url}: what was downloaded cannot be used: {error.message}", self._hint) from error
            # Only now: an interrupt or a full disk leaves it, complete, for the next call.
            discard(self._part)

    def _refuse_unless_allowed(self) -> None:
        if self._by_hand.exists():
            return
        offline = is_offline()
        if offline or self._allowed is False:
            why = f"{OFFLINE_VARIABLE} is set" if offline else "download=False"
            raise DatasetError(f"{self._info.name} is not in {self._root}, and nothing may be downloaded ({why})", self._hint)
        check_memory(_MEMORY_BYTES, f"reading {self._info.name}")

    def _download(self) -> None:
        with Stage(self._events, "download", label=self._info.name, unit="B") as stage:
            on_size = partial(self._check_size, stage)
            download(self._url, self._part, stage=stage, on_size=on_size, hint=self._hint, patience=self._patience)

    def _check_size(self, stage: Stage, total: int | None, have: int) -> None:
        """Shows what is about to happen, and refuses what was not asked for or cannot end well."""
        name = self._info.name
        if self._allowed == "auto" and (total is None or total > AUTO_LIMIT_BYTES):
            size = "of unknown size" if total is None else f"of {format_bytes(total)}"
            raise DatasetError(
                f"{name} is a download {size}; without being asked, gnnkit downloads up to {format_bytes(AUTO_LIMIT_BYTES)}",
                f"GraphLoader.from_ogb({name!r}, root={str(self._root)!r}, download=True, ...)  # your other arguments as they are",
            )
        if total is None:
            stage.message(f"{name}: {self._url} to {self._root / self._info.folder}, of unknown size")
            return
        needs = {
            "to download": total - have,
            "unpacked": int(total * _UNPACKED_PER_ARCHIVE),
            "for its store": int(total * _STORE_PER_ARCHIVE.get(name, _STORE_PER_ARCHIVE_ELSE)),
        }
        stage.message(
            f"{name}: {format_bytes(total)} from {self._url} to {self._root / self._info.folder}; "
            f"{format_bytes(sum(needs.values()))} of disk needed, {format_bytes(free_disk(self._root))} free"
        )
        require_disk(self._root, needs, name)

    def _unpack(self, archive: Path) -> None:
        shutil.rmtree(self._incomplete, ignore_errors=True)
        with on_error(lambda: shutil.rmtree(self._incomplete, ignore_errors=True)):
            with Stage(self._events, "download", label=f"{self._info.name}, unpacking", unit="B") as stage:
                unpack(archive, self._incomplete, stage=stage)
            self._move_into_place(archive)

    def _move_into_place(self, archive: Path) -> None:
        inside = [path for path in (self._incomplete / self._info.download_name, self._incomplete) if (path / "raw").is_dir()]
        if not inside:
            found = sorted(path.name for path in self._incomplete.iterdir())[:5]
            raise DamagedArchive(f"{archive} does not hold {self._info.download_name}/raw; it holds {found}")
        target = self._root / self._info.folder
        try:
            # Replaces an empty folder, and no other.
            inside[0].rename(target)
        except OSError as error:
            raise DatasetError(f"cannot put the dataset at {target}: {error.strerror}", f"move {target} away and try again") from error
        shutil.rmtree(self._incomplete, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process at a time; the system takes the lock from a process that dies."""
        path = self._root / f".{self._info.folder}.lock"
        held, seen, deadline = None, self._progress(), Deadline(self._patience.lock_s)
        try:
            for tries in count():
                try:
                    held = take_lock(path)
                except OSError as error:
                    raise DatasetError(f"cannot write in {self._root}: {error.strerror}", _WRITABLE_HINT) from error
                if held is not None:
                    break
                if not tries:
                    text = f"waiting for another process that downloads {self._info.name}"
                    Stage(self._events, "download", label=self._info.name).message(text)
                if (now := self._progress()) != seen:
                    seen, deadline = now, Deadline(self._patience.lock_s)
                elif deadline.has_passed:
                    stalled = f"has not got on with {self._info.name} for {self._patience.lock_s:.0f} s"
                    message = f"another process holds {path} and {stalled}"
                    raise DatasetError(message, "end that process and try again")
                time.sleep(_LOCK_POLL_S)
            yield
        finally:
            if held is not None:
                give_up_lock(path, held)

    def _progress(self) -> int:
        """A number that changes while the process that holds the lock gets on."""
        files = [self._part, *(self._incomplete.rglob("*") if self._incomplete.exists() else ())]
        total = 0
        for path in files:
            with suppress(FileNotFoundError):
                total += 1 + path.stat().st_size
        return total


def archive_url(info: OgbInfo) -> str:
    """Returns the address of the dataset's archive: OGB's own server, or the mirror that ``GNNKIT_OGB_URL`` names.

    Raises:
        DatasetError: The variable holds no http or https address.
    """
    mirror = os.environ.get(MIRROR_VARIABLE, "").strip()
    if not mirror:
        return info.url
    if not mirror.startswith(("http://", "https://")):
        raise DatasetError(
            f"{MIRROR_VARIABLE} is {mirror!r}, which is no http:// or https:// address", f"{MIRROR_VARIABLE}=https://host/ogb/data"
        )
    return f"{mirror.rstrip('/')}/{info.url.partition(_OFFICIAL_BASE)[2]}"


@checks_calls()
def open_ogb(
    name: str,
    *,
    root: str | Path | None = None,
    download: Literal["auto"] | bool = "auto",
    undirected: bool = False,
    events: EventSink = ignore_events,
) -> GraphSource:
    """Opens an OGB node or link dataset, and downloads it first if it is not there and may be.

    Ids, edge order and splits are OGB's own: edge ``e`` of the source is column ``e`` of ``NodePropPredDataset``'s
    ``edge_index``. Arrays carry the names that ``PygNodePropPredDataset`` gives them: "x", "y", "edge_attr", "node_year",
    "node_species", "edge_reltype", "edge_weight", "edge_year". Labels are int64 ``[n]``, -1 where a node has none; ``[n, 112]`` for
    ogbn-proteins.

    Of link datasets, ``link_splits`` is what ``LinkPropPredDataset.get_edge_split()`` gives, by edge type: "edge_label_index" are "edge",
    "source_node" and "target_node", or "head" and "tail"; "edge_label" is "weight" or "relation"; "edge_label_time" is "year";
    "neg_edge_index" is "edge_neg"; "src_neg_index" is "head_neg"; "dst_neg_index" is "tail_neg" or "target_node_neg". Those of ogbl-biokg
    are sorted by edge type, in the order of its files within each.

    Args:
        name: "ogbn-products", "ogbn-arxiv", "ogbn-proteins", "ogbn-mag", "ogbn-papers100M", "ogbl-collab", "ogbl-ppa",
            "ogbl-citation2", "ogbl-ddi", "ogbl-wikikg2", "ogbl-biokg" or "ogbl-vessel".
        root: Folder that holds (or will hold) the dataset's folder: ``<root>/ogbn_products`` as ``ogb`` and PyG leave it. It
            may be read-only where the dataset is there. None is ``$GNNKIT_HOME`` or the user's cache.
        download: Whether a missing dataset may be downloaded: "auto" up to 2 GB, True whatever its size, False never. With
            ``GNNKIT_OFFLINE=1`` in the environment nothing is ever downloaded.
        undirected: Adds the edges that PyG's ``ToUndirected`` would add.
        events: Where progress and notices go.

    Raises:
        DatasetError: The name is unknown, the dataset is missing and may not or cannot be downloaded, or it is damaged.
    """
    if download not in ("auto", True, False):
        raise DatasetError(f"download must be 'auto', True or False, got {download!r}")
    info = ogb_info(name)
    tree = _tree(info, default_root() if root is None else user_path(root), download, events)
    check_release(info, tree, events)
    from gnnkit.datasets.ogb_source import open_binary_layout, open_csv_layout  # circular

    source: GraphSource = open_binary_layout(info, tree) if info.is_binary else open_csv_layout(info, tree)
    return UndirectedSource(source, events=events) if undirected else source


@checks_calls()
def evaluator(name: str) -> Any:
    """OGB's own ``Evaluator(name)`` of ``ogb.nodeproppred`` or ``ogb.linkproppred``, imported without its side effects.

    For nodes, ``eval`` takes ``{"y_true": [n, num_tasks], "y_pred": [n, num_tasks]}``: labels of one task need ``.view(-1, 1)``. For links
    it takes ``{"y_pred_pos": [n], "y_pred_neg": [m]}``, or ``[n, k]`` of them where the metric is "mrr".

    Raises:
        DatasetError: The name is unknown, or the package ``ogb`` cannot be imported.
    """
    info = ogb_info(name)
    return vendor_ogb.evaluator(info.name, info.kind)


def _tree(info: OgbInfo, root: Path, download: Literal["auto"] | bool, events: EventSink) -> OgbTree:
    tree = find_tree(info, root)
    if tree is not None:
        return tree
    for path in _candidates(info, root):
        if path.is_dir() and any(path.iterdir()):
            message = f"{path} should hold {info.name}, but raw/{_key_files(info)[0]} is not in it"
            raise DatasetError(message, f"restore the file, or move {path} away and try again")
    fetch(info, root, download, events)
    tree = find_tree(info, root)
    if tree is None:
        raise DatasetError(f"the archive of {info.name} was unpacked into {root / info.folder}, but does not hold the dataset's files")
    return tree
