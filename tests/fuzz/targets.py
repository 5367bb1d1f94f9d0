"""Everything that is parsed in one process: files of stores, plans, datasets, jobs and runs, and the messages of the wires."""

from __future__ import annotations

import array
import contextlib
import gzip
import io
import json
import os
import pickle
import random
import shutil
import socket
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnkit import BuildOptions, GraphLoader, LoaderPlan, Store
from gnnkit.cluster.membership import LeaseRequests, Membership, ServerMember, members_of
from gnnkit.cluster.network.codec import PROTOCOL_VERSION, decode, encode
from gnnkit.cluster.network.requests import (
    LEASES,
    PARTS,
    Answerers,
    answer_from_value,
    picks_from_value,
    picks_to_value,
    to_args,
)
from gnnkit.cluster.network.service import Stream
from gnnkit.cluster.network.wire import Broken, Failed, NetworkWire, OutOfTime, Request
from gnnkit.cluster.parts.answers import Answers
from gnnkit.cluster.serving.spec import read_token
from gnnkit.datasets import open_ogb
from gnnkit.datasets.ogb_binary import npz_members, read_saved
from gnnkit.distributed.process_group import read_ip_config
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.export.recording import read_record as read_recording
from gnnkit.export.writer import read_record as read_export
from gnnkit.jobs.context import Checkpoints
from gnnkit.runtime.remote import error_from_json, error_to_json, layout_from_json, layout_to_json
from gnnkit.runtime.wire import Wire, in_memory
from gnnkit.sampling.owners import BadRequest, Expansion, Question, RowsRequest
from gnnkit.storage.build import missing_parts, read_records
from gnnkit.storage.glt_format import read_pickled_tensors, read_plain_pickle, read_tensor
from gnnkit.waiting import Deadline
from tests.datasets.reading import read_everything
from tests.fuzz.mutations import mutated, mutated_json
from tests.fuzz.running import Case, Target
from tests.helpers.command import quietly
from tests.helpers.graphs import random_source, stored
from tests.helpers.ogb_link_trees import write_link_tree
from tests.helpers.ogb_trees import write_tree
from tests.helpers.runs import run_folder
from tests.helpers.stores import checksum, listed_stores
from tests.helpers.wires import asked as said_of_store
from tests.helpers.wires import packed, unpacked
from tests.loader.graphs import plain
from tests.storage.checks import fast_folder

OPTIONS: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 4, "input_nodes": np.arange(20), "seed": 1, "progress": False}


@contextmanager
def folder() -> Iterator[Path]:
    with fast_folder() as name:
        yield Path(name)


def copied(source: Path, place: Path) -> Path:
    """A fresh copy of a folder; files are shared with it, and are replaced rather than written to."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place, copy_function=os.link)
    return place


def put(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


# Stores, plans ----------------------------------------------------------------------------------------------------------------


def typed_store(place: Path) -> Store:
    source = random_source(np.random.default_rng(4), max_nodes=30, max_edges=120, num_node_types=2, num_edge_types=2)
    return stored(source, place, BuildOptions(3, "random", with_edge=True, weight="weight", cache_ratio=0.2))


@contextmanager
def manifest() -> Iterator[Case]:
    """``manifest.json``, changed as JSON with a checksum that fits, or as bytes."""
    with folder() as root:
        text = (typed_store(root / "store").path / "manifest.json").read_bytes()
        value = json.loads(text)
        del value["checksum"]

        def case(rng: random.Random) -> None:
            store = copied(root / "store", root / "copies" / "store")
            if rng.random() < 0.3:
                put(store / "manifest.json", mutated(rng, text))
            else:
                changed = mutated_json(rng, value)
                words = {"checksum": checksum(changed)} if isinstance(changed, dict) else {}
                put(store / "manifest.json", json.dumps({**changed, **words} if words else changed).encode())
            listed_stores(store.parent)
            opened = Store.open(store)
            opened.verify()
            repr(opened), str(opened), str(opened.report())

        yield case


@contextmanager
def arrays() -> Iterator[Case]:
    """The ``.npy`` files of a store; those that are found to be whole are sampled from."""
    with folder() as root:
        names = sorted(typed_store(root / "store").manifest.files)

        def case(rng: random.Random) -> None:
            store = copied(root / "store", root / "copy")
            for name in rng.sample(names, rng.choice((1, 1, 3))):
                content = (root / "store" / name).read_bytes()
                head = content[:128]
                put(store / name, mutated(rng, head) + content[128:] if rng.random() < 0.5 else mutated(rng, content))
            opened = Store.open(store)
            opened.verify()

        yield case


@contextmanager
def npz() -> Iterator[Case]:
    """Arrays in ``.npz`` files, headers above all, stored and deflated."""
    with folder() as root:
        samples = {}
        for name, values in {
            "edges": np.arange(40).reshape(2, 20),
            "x": np.ones((20, 3), np.float32),
            "labels": np.arange(20.0)[:, None],
            "column": np.asfortranarray(np.ones((4, 5))),
        }.items():
            buffer = io.BytesIO()
            np.save(buffer, values)
            samples[name] = buffer.getvalue()

        def case(rng: random.Random) -> None:
            kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            with zipfile.ZipFile(root / "a.npz", "w", kind) as archive:
                for name, content in samples.items():
                    how = rng.random()
                    if how < 0.3:
                        content = mutated(rng, content[:128]) + content[128:]
                    elif how < 0.6:  # a header that is one, of an array that is not there
                        shape = [rng.choice((0, 1, 2, 20, 2**31, 2**62, -1)) for _ in range(rng.randrange(4))]
                        words = {"descr": rng.choice(("<i8", "<f4", "|b1", "|O", "<U9", "|V70000")), "shape": tuple(shape)}
                        head = io.BytesIO()
                        np.lib.format.write_array_header_1_0(head, {**words, "fortran_order": rng.random() < 0.3})
                        content = head.getvalue() + content[128:]
                    archive.writestr(f"{name}.npy", content)
            if rng.random() < 0.3:
                put(root / "a.npz", mutated(rng, (root / "a.npz").read_bytes()))
            for member in npz_members(root / "a.npz").values():
                with contextlib.suppress(GnnkitError):
                    member.load()
                with contextlib.suppress(GnnkitError):
                    if len(member.shape) == 2 and member.shape[0] == 2:
                        list(member.pairs())
                    elif len(member.shape):
                        list(member.rows())

        yield case


def plan_samples(root: Path) -> list[dict[str, Any]]:
    """Plans of loaders of several kinds, on stores below a folder."""
    stored(plain_source(), root / "plain", BuildOptions(2))
    typed = typed_store(root / "typed")
    node_type = next(iter(typed.schema.node_types))
    fan_outs = {edge_type: [2, 1] for edge_type in typed.schema.edge_types}
    given: list[tuple[str, dict[str, Any]]] = [
        ("plain", OPTIONS),
        ("plain", {**OPTIONS, "shuffle": True, "drop_last": True, "disjoint": True}),
        ("typed", {**OPTIONS, "num_neighbors": fan_outs, "input_nodes": (node_type, np.arange(2)), "batch_size": 1}),
    ]
    plans = []
    for name, options in given:
        with GraphLoader.from_store(root / name, **options) as loader:
            plans.append(json.loads(json.dumps(loader.plan.to_json())))
    return plans


def plain_source() -> Any:
    from gnnkit.datasets import PyGSource

    return PyGSource(plain())


@contextmanager
def plan() -> Iterator[Case]:
    """``plan.json``, changed as JSON or as bytes: read, compared with what it is written as, and written again."""
    with folder() as root:
        samples = plan_samples(root)

        def case(rng: random.Random) -> None:
            sample, file = rng.choice(samples), root / "plan.json"
            if rng.random() < 0.2:
                put(file, mutated(rng, json.dumps(sample).encode()))
            else:
                put(file, json.dumps(mutated_json(rng, sample)).encode())
            LoaderPlan.load(file).to_json()

        yield case


@contextmanager
def planned() -> Iterator[Case]:
    """The same, and the first two batches of what could be opened."""
    with folder() as root:
        samples = plan_samples(root)

        def case(rng: random.Random) -> None:
            put(root / "plan.json", json.dumps(mutated_json(rng, rng.choice(samples))).encode())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with GraphLoader.from_plan(root / "plan.json", progress=False) as loader:
                    for _, _ in zip(range(2), loader, strict=False):
                        pass

        yield case


# Datasets -------------------------------------------------------------------------------------------------------------------


@contextmanager
def ogb() -> Iterator[Case]:
    """Files of OGB's trees: as they lie on the disk, and what is in those that are compressed."""
    names = ("ogbn-arxiv", "ogbn-proteins", "ogbn-mag", "ogbn-papers100M", "ogbl-collab", "ogbl-vessel", "ogbl-biokg")
    with folder() as root:
        trees = {}
        for name in names:
            made = write_tree(name, root / name) if name.startswith("ogbn") else write_link_tree(name, root / name)
            trees[name] = (
                made,
                sorted(path.relative_to(root / name) for path in made.rglob("*") if path.is_file() and path.stat().st_size),
            )

        def case(rng: random.Random) -> None:
            name = rng.choice(names)
            tree = copied(root / name, root / "copy")
            path = tree / rng.choice(trees[name][1])
            content = path.read_bytes()
            if path.suffix == ".gz" and rng.random() < 0.8:
                put(path, gzip.compress(mutated(rng, gzip.decompress(content)), 1))
            else:
                put(path, mutated(rng, content))
            source = open_ogb(name, root=tree, download=False)
            read_everything(source)
            for splits in source.link_splits.values():
                for links in splits.values():
                    dict(links)

        yield case


@contextmanager
def pickles() -> Iterator[Case]:
    """Files of ``torch.save`` and ``pickle``, read with names that are allowed, and no others."""
    value = {"edge": torch.arange(12).reshape(6, 2), "weight": torch.ones(6), "names": ["a", "b"] * 40, "n": (1, 2.5, None, True)}
    samples: list[tuple[Callable[[Path], Any], bytes]] = []
    for zipped in (True, False):
        for protocol in (2, 4):
            buffer = io.BytesIO()
            torch.save(value, buffer, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
            samples.append((read_saved, buffer.getvalue()))
        buffer = io.BytesIO()
        torch.save(torch.arange(20), buffer, _use_new_zipfile_serialization=zipped)
        samples.append((read_tensor, buffer.getvalue()))
    buffer = io.BytesIO()
    torch.save({"x": np.arange(6), "y": np.float32(1)}, buffer, _use_new_zipfile_serialization=False)
    samples.append((read_saved, buffer.getvalue()))
    many = {f"name {number}": list(range(number % 5)) for number in range(300)}  # more than a byte counts
    samples += [(read_plain_pickle, pickle.dumps(many, protocol)) for protocol in (0, 2, 4)]
    samples.append((lambda path: list(read_pickled_tensors(path)), pickle.dumps(torch.arange(5), pickle.HIGHEST_PROTOCOL) * 2))
    with folder() as root:

        def case(rng: random.Random) -> None:
            read, content = rng.choice(samples)
            put(root / "file", mutated(rng, content))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(root / "file")

        yield case


# Jobs and runs --------------------------------------------------------------------------------------------------------------


def run_records(root: Path) -> tuple[bytes, Callable[[bytes], None]]:
    """``run.json``: what ``gnnkit ps`` and ``logs`` read."""
    own = run_folder(root, {"store": "/data/graph", "serving": {"folder": "/tmp/x"}})
    own.note(children=[{"rank": 0, "pid": 2**22 + 1, "ticks": 5, "log": str(own.log(0))}], pid=2**22 + 2)
    own.log(0).write_text("a line\n" * 100)
    content = (own.path / "run.json").read_bytes()

    def read(changed: bytes) -> None:
        put(own.path / "run.json", changed)
        for words in (["ps", "--processes", "--json"], ["logs", "--lines", "10", "--json"]):
            quietly([*words, "--log-dir", root])

    return content, read


def build_records(root: Path) -> tuple[bytes, Callable[[bytes], None]]:
    """A record of a part that a host has built."""
    from gnnkit import partition
    from gnnkit.storage.staging import parts_path

    partition(plain(), 2, out=root / "store", parts=[0])
    parts = parts_path(root / "store")
    path = next(path for path in sorted((parts / "records").glob("*.json")) if "0" in path.name)
    value = json.loads(path.read_bytes())

    def read(changed: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            again = json.loads(changed)
            if isinstance(again, dict):
                again.pop("checksum", None)
                changed = json.dumps({**again, "checksum": checksum(again)}).encode()
        put(path, changed)
        put(parts / "build.json", changed)
        with contextlib.suppress(GnnkitError):
            missing_parts(root / "store")
        read_records(parts)

    return json.dumps(value).encode(), read


def checkpoints(root: Path) -> tuple[bytes, Callable[[bytes], None]]:
    """A checkpoint whose name fits its content."""
    from gnnkit.jobs.context import digest_of

    model = torch.nn.Linear(3, 2)
    content = Checkpoints(root).write({"model": model}, {"epoch": 1, "position": 3}).read_bytes()

    def read(changed: bytes) -> None:
        for old in root.glob("checkpoint-*"):
            old.unlink()
        put(root / f"checkpoint-00000001-{digest_of(changed)}.pt", changed)
        try:
            Checkpoints(root).restore({"model": torch.nn.Linear(3, 2)}, lambda state: None)
        except RuntimeError as error:  # torch's own, of a state that does not fit the model
            if "state_dict" not in str(error):
                raise

    return content, read


def reader(
    root: Path, name: str, content: bytes, read: Callable[[Path], object], mode: int = 0o600
) -> tuple[bytes, Callable[[bytes], None]]:
    def put_and_read(changed: bytes) -> None:
        put(root / name, changed)
        (root / name).chmod(mode)
        read(root / name)

    return content, put_and_read


@contextmanager
def records() -> Iterator[Case]:
    """Small files of jobs, runs, builds and servers."""
    bench = {
        "runs": {"gnnkit": [{"seeds_per_s": 1e5}]},
        "scale": 0.1,
        "batch_size": 1024,
        "num_threads": 2,
        "num_neighbors": [5],
        "machine": {},
    }
    exported = {"version": 1, "options": {"launcher": "torchrun"}, "files": {"train.py": "0" * 32, "plan.json": "1" * 32}}
    recorded = json.dumps([0, 0, 0, {"x": ["float32", [3, 2], "0" * 32]}]) + "\n"
    with folder() as root, contextlib.ExitStack() as stack:
        for name in ("runs", "build", "checkpoints", "files"):
            (root / name).mkdir()
        files = root / "files"
        samples = [
            run_records(root / "runs"),
            build_records(root / "build"),
            checkpoints(root / "checkpoints"),
            reader(files, "token", b"a token of these tests only\n", read_token),
            reader(files, "export.json", json.dumps(exported).encode(), lambda path: read_export(path.parent)),
            reader(files, "rank-0.jsonl", (recorded * 3).encode(), lambda path: read_recording(path.parent, 0)),
            reader(files, "bench.json", json.dumps(bench).encode(), lambda path: quietly(["plan-capacity", "ogbn-arxiv", "--bench", path])),
            reader(files, "ip_config.txt", b"10.0.0.1 30050\n10.0.0.2\n[fe80::1] 7000 # third\n", lambda path: read_ip_config(path, 2)),
        ]
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")

        def case(rng: random.Random) -> None:
            content, read = rng.choice(samples)
            try:
                value = json.loads(content)
            except ValueError:
                value = None
            if value is not None and rng.random() < 0.7:
                read(json.dumps(mutated_json(rng, value)).encode())
            else:
                read(mutated(rng, content))

        yield case


# Wires ----------------------------------------------------------------------------------------------------------------------


def only_complaints(call: Callable[[], object]) -> None:
    """Calls it; a request may be refused as one that cannot be answered."""
    with contextlib.suppress(BadRequest):
        call()


VALUES: Sequence[Any] = (
    {"ids": np.arange(10), "x": np.ones((3, 2), np.float32), "name": "paper", "none": None, "list": [1, 2.5, True]},
    ({("a", "to", "b"): np.arange(4, dtype=np.uint8)}, float("inf"), b"bytes", {1: 2, "#": 3}),
    np.zeros((0, 5), np.int16),
)


def damaged(rng: random.Random, value: Any) -> Any:
    """A value as it is read from a text and a block that were changed on their way."""
    text, block = packed(value)
    how = rng.random()
    if how < 0.4:
        text = mutated(rng, text)
    elif how < 0.8:
        text = json.dumps(mutated_json(rng, json.loads(text))).encode()
    if block and rng.random() < 0.3:
        block = mutated(rng, block)
    return unpacked(text, block)


@contextmanager
def codec() -> Iterator[Case]:
    """Values of calls: as a text with a block, and as a JSON tree with memory."""

    def case(rng: random.Random) -> None:
        if rng.random() < 0.5:
            damaged(rng, rng.choice(VALUES))
            return
        tree, blocks = encode(rng.choice(VALUES))
        decode(mutated_json(rng, tree), list(map(in_memory, blocks)))

    yield case


@contextmanager
def wire() -> Iterator[Case]:
    """Datagrams of a Unix socket, with descriptors of all kinds; none stays open."""
    messages = [
        {"kind": "sample", "c": 1, "g": 0, "epoch": 0, "steps": [[3, 3, 2]]},
        {"kind": "call", "number": 7, "name": "describe", "args": {}},
        {"kind": "done", "batches": [{"layout": {"fields": [], "nbytes": 0}, "sample_s": 1.5}], "thread": None},
    ]
    others = [os.open(path, os.O_RDWR if path == "/dev/null" else os.O_RDONLY) for path in ("/dev/zero", "/dev/null", "/proc/self/maps")]
    others += [*os.pipe(), os.open("/", os.O_PATH), os.memfd_create("a hole")]
    os.ftruncate(others[-1], 1 << 44)
    before = len(os.listdir("/proc/self/fd"))

    def case(rng: random.Random) -> None:
        text = json.dumps(rng.choice(messages) if rng.random() < 0.2 else mutated_json(rng, rng.choice(messages))).encode()
        text = mutated(rng, text) if rng.random() < 0.3 else text
        own = in_memory(text)
        fds = [rng.choice((own, *others)) for _ in range(rng.choice((0, 0, 1, 2, 5)))]
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = Wire(far)
        try:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            near.sendmsg([rng.choice((b"\0", text, text)) or b"\0"], ancillary)
            message = end.receive()
            if message is not None:
                message.close()
        except EOFError:
            pass
        finally:
            near.close()
            end.close()
            os.close(own)
        assert len(os.listdir("/proc/self/fd")) == before, "descriptors stay open"

    try:
        yield case
    finally:
        for fd in others:
            os.close(fd)


@contextmanager
def errors_and_layouts() -> Iterator[Case]:
    """Errors and layouts of batches, as processes tell each other of them."""
    from gnnkit.sampling.subgraph import BatchLayout, EdgeKey, LayoutBuilder, NodeKey

    builder = LayoutBuilder()
    builder.add(NodeKey("paper", "x"), "bfloat16", (5, 3))
    builder.add(EdgeKey(("a", "to", "b"), "edge_index"), "int64", (2, 7))
    layout = BatchLayout(tuple(builder.fields), builder.nbytes, {"paper": [2, 3]}, {("a", "to", "b"): [7]}, "paper", 2)
    error, told = error_to_json(PlanError("wrong", "do it right")), layout_to_json(layout)

    def case(rng: random.Random) -> None:
        if rng.random() < 0.5:
            changed = mutated_json(rng, error)
            str(error_from_json(changed if isinstance(changed, dict) else {}, "sampling"))
        else:
            layout_from_json(mutated_json(rng, told))

    yield case


@contextmanager
def requests() -> Iterator[Case]:
    """Requests of other hosts, answered from a store's parts."""
    with folder() as root:
        store = typed_store(root / "store")
        graph, answers = store.arrays(), Answerers(store.fingerprint)
        answers.add(Answers(graph, (0, 1, 2)), PARTS)
        counts = [nodes.num_nodes for nodes in store.schema.node_types.values()]
        relations = len(store.schema.edge_types)
        nodes = {0: np.arange(min(counts[0], 5)), 1: np.arange(min(counts[1], 5))}
        none = np.empty(0, np.int64)
        some = np.arange(min(*counts, 4))
        asked: list[tuple[str, dict[str, Any]]] = [
            (
                "expand",
                to_args(
                    Expansion(
                        5, 0, np.full(relations, fan_out, np.int64), nodes, False, weighted, last, wants_position=(True,) * relations
                    ),
                    counts,
                ),
            )
            for fan_out in (2, -1)
            for weighted in (False, True)
            for last in (False, True)
        ]
        asked += [
            ("question", to_args(Question(what, (0,), some, others, none, none, wants_position=what == "induce"), counts))
            for what, others in (("degrees", none), ("has_edges", some), ("induce", some), ("weights", none))
        ]
        rows = (len(graph.nodes) + len(graph.edges)) * [10**6]
        asked += [("rows", to_args(RowsRequest(((0, some), (1, some)), ((0, 0, 4), (1, 1, 4))), rows))]

        def changed(rng: random.Random, value: Any) -> Any:
            """A value whose arrays say something else."""
            if isinstance(value, dict):
                return {name: changed(rng, item) for name, item in value.items() if rng.random() < 0.98}
            if isinstance(value, (list, tuple)):
                return type(value)(changed(rng, item) for item in value)
            if not isinstance(value, np.ndarray) or rng.random() < 0.7:
                return value
            values = value.copy()
            values[rng.randrange(len(values) + 1) :][:1] = rng.choice((-1, 10**6, 2**31 - 1, -(2**31)))
            return values[: rng.randrange(len(values) + 1)] if rng.random() < 0.3 else values

        def case(rng: random.Random) -> None:
            name, args = rng.choice(asked)
            args = said_of_store(store, **args)
            given = damaged(rng, args) if rng.random() < 0.5 else changed(rng, args)
            if not isinstance(given, dict):
                return
            answer = answers(name, given)
            for part in answer.values if isinstance(answer, Stream) else [answer]:
                packed(part)

        yield lambda rng: only_complaints(partial(case, rng))


@contextmanager
def answers_of_others() -> Iterator[Case]:
    """Answers of part services, and servers' lists of each other, as a trainer reads them."""
    from gnnkit.cluster.network_child.receiver import walk_from_value
    from gnnkit.sampling.owners import Picks

    picks = picks_to_value({0: Picks(np.array([2, 1]), np.arange(3), np.arange(3))}, [100], [100])
    layout = {"fields": [], "nbytes": 0, "nodes": [], "edges": [], "input_type": "n", "num_seeds": 0}
    walk = (json.dumps(layout), np.zeros(8, np.uint8))
    values: list[tuple[Any, Callable[[Any], Any]]] = [(picks, picks_from_value), (walk, walk_from_value)]
    values += [({"counts": np.arange(3)}, answer_from_value)]
    member = ServerMember(0, 2, "10.0.0.1:7000", 5, 6, "ab", 2, "/store", 1 << 30)
    membership = Membership(member).to_json()

    head, leases = {"name": "client-1/x", "host": 3, "fingerprint": "ab", "version": PROTOCOL_VERSION}, Answerers("ab")
    leases.add(LeaseRequests(lambda what, name, host: None), LEASES)

    def message(kind: int, value: Any) -> bytes:
        text, block = packed(value)
        return struct.pack("<B3xIQ", kind, len(text), len(block)) + text + block

    rows, empty = np.arange(64, dtype=np.uint8), struct.pack("<B3xIQ", 4, 0, 0)
    streams = [
        message(3, picks),
        message(2, rows) + message(2, rows) + empty,
        2 * (struct.pack("<B3xIQ", 7, 0, 64) + rows.tobytes()) + empty,
        message(5, {"type": "PlanError", "message": "no", "hint": None}),
    ]

    def hear(rng: random.Random) -> None:
        near, far = socket.socketpair()
        wire = NetworkWire(near)
        try:
            far.sendall(mutated(rng, rng.choice(streams)))
            far.shutdown(socket.SHUT_WR)
            with contextlib.suppress(Broken, Failed, OutOfTime):
                list(wire.ask(Request.of("x", {}), Deadline(10.0), rng.choice((None, [64, 64]))))
        finally:
            wire.close()
            far.close()

    def case(rng: random.Random) -> None:
        how = rng.random()
        if how < 0.4:
            value, read = rng.choice(values)
            read(damaged(rng, value))
        elif how < 0.6:
            hear(rng)
        elif how < 0.8:
            members_of(mutated_json(rng, membership))
        else:
            given = mutated_json(rng, head)
            if isinstance(given, dict):
                leases(rng.choice(("here", "bye")), given)

    yield lambda rng: only_complaints(partial(case, rng))


TARGETS = (
    Target("manifest", manifest),
    Target("arrays of a store", arrays),
    Target("npz", npz),
    Target("plan", plan),
    Target("planned batches", planned, 0.2),
    Target("OGB trees", ogb, 0.5),
    Target("pickles", pickles),
    Target("records", records),
    Target("codec", codec),
    Target("wire", wire),
    Target("errors and layouts", errors_and_layouts),
    Target("requests", requests),
    Target("answers of others", answers_of_others),
)
