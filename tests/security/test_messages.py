"""Messages and files that are almost right, of somebody with the token or of an author: each of these took memory or a process."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnnkit import GraphStoreServers, LoaderPlan, Store, serve
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.runtime.ring import SharedBlock
from gnnkit.runtime.wire import Wire, from_memory
from gnnkit.unpickling import PickleRefused, RestrictedUnpickler
from tests.cluster.hosts.setups import OPTIONS, expected
from tests.cluster.serving.clients import joined
from tests.cluster.serving.setups import ANSWER_S, Trainer, hear, refusal, worker_pids
from tests.helpers.batches import digests


@pytest.fixture(scope="module")
def servers(store: Store) -> Iterator[GraphStoreServers]:
    with serve(store, 1, progress=False) as handle:
        handle.wait(ANSWER_S)
        yield handle


@pytest.fixture(scope="module")
def plan(store: Store) -> LoaderPlan:
    from gnnkit import GraphLoader

    with GraphLoader.from_store(store.path, progress=False, **OPTIONS) as loader:
        return loader.plan


SAMPLE: dict[str, Any] = {"c": 1, "g": 0, "epoch": 0, "steps": [[0, 0, 0]]}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("sample", {**SAMPLE, "steps": [[0, 0, 10**6]]}),
    ("sample", {**SAMPLE, "steps": [[0, 0, 0], [1, 1, -1]]}),
    ("sample", {**SAMPLE, "steps": [["first", 0, 0]]}),
    ("sample", {**SAMPLE, "steps": [[0, 0]]}),
    ("sample", {**SAMPLE, "steps": []}),
    ("sample", {**SAMPLE, "steps": 3}),
    ("sample", {**SAMPLE, "g": None}),
    ("sample", {**SAMPLE, "steps": [[0, 2**70, 0]]}),
    ("cancel", {"c": 1, "g": "x"}),
    ("now", {"c": 1, "number": [], "epoch": 0, "batch": 0}),
    ("ring", {"c": 1, "slot_bytes": 0}),
    ("open", {"c": {}, "trial": None}),
]


@pytest.mark.parametrize(("kind", "body"), WRONG, ids=[f"{kind} {number}" for number, (kind, _) in enumerate(WRONG)])
def test_a_worker_is_told_of_what_is_none(
    servers: GraphStoreServers, store: Store, plan: LoaderPlan, kind: str, body: dict[str, Any]
) -> None:
    """He who says it gets an error and is let go; the same worker samples for the others. A slot outside the ring was written to."""
    before = worker_pids(servers)
    block = SharedBlock.create("gnnkit-ring", 1 << 20)
    with Trainer(servers) as trainer:
        trainer.open(1, plan)
        trainer.worker.send("ring", (block.fd,), c=1, slot_bytes=1 << 16)
        trainer.worker.send(kind, (block.fd,) if kind == "ring" else (), **body)
        error = refusal(hear(trainer.worker, "failed"), "failed")
        assert isinstance(error, GnnkitError), error
        with pytest.raises(EOFError):
            hear(trainer.worker, "nothing more")
        trainer.worker.close()
    with joined(servers.address, store) as loader:
        assert digests(loader) == expected(store)[0]
    assert worker_pids(servers) == before


def test_a_ring_without_room_for_its_slots_is_not_written_to(servers: GraphStoreServers, plan: LoaderPlan) -> None:
    before = worker_pids(servers)
    block = SharedBlock.create("gnnkit-ring", 1)
    with Trainer(servers) as trainer:
        trainer.open(1, plan)
        trainer.worker.send("ring", (block.fd,), c=1, slot_bytes=1 << 40)
        trainer.worker.send("sample", **SAMPLE)
        error = refusal(hear(trainer.worker, "failed"), "failed")
        assert "there is no slot 0" in str(error)
        trainer.worker.close()
    assert worker_pids(servers) == before


def of(path: str) -> int:
    return os.open(path, os.O_RDONLY)


def hole() -> int:
    fd = os.memfd_create("hole")
    os.ftruncate(fd, 1 << 44)
    return fd


@pytest.mark.parametrize("make", [lambda: of("/dev/zero"), lambda: of("/"), hole, lambda: os.eventfd(0)])
def test_memory_of_a_message_is_memory(make: Any) -> None:
    """A device was read without end, and a hole of 16 TB was asked for; what comes is closed, whatever it is."""
    fd = make()
    with pytest.raises(OSError, match=r"is no memory of a message"):
        from_memory(os.dup(fd))
    before = len(os.listdir("/proc/self/fd"))
    near, far = Wire.pair()
    end = Wire(far)
    near.send("x" * 40_000, (fd,))  # its text travels in memory too
    message = end.receive()
    assert message is not None and len(message.fds) == 1
    message.close()
    message.close()
    near._end.sendmsg([b"\0"], [(1, 1, (fd).to_bytes(4, "little"))])
    with pytest.raises(PlanError, match="is no message"):
        end.receive()
    near.close()
    end.close()
    os.close(fd)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("text", [b"[1]", b"{}", b'{"kind": ["x"]}', b"[" * 20_000, b"\xff", b"1"])
def test_what_is_no_message_is_one_error(text: bytes) -> None:
    near, far = Wire.pair()
    end = Wire(far)
    near._end.send(text)
    with pytest.raises(PlanError, match="is no message"):
        end.receive()
    near.close()
    end.close()


PUT = b"r\xff\xff\xff\x7f."
BOMBS = [b"\x80\x02]" + PUT, b"(lp2000000000\n.", b"\x80\x02X\x03\0\0\0abc" + PUT, b"\x80\x04\x95\x02" + bytes(7) + b"N" + PUT]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_numbers_nothing_beyond_its_own_size(bomb: bytes, tmp_path: Path) -> None:
    """Python makes a table for all numbers up to the largest, and fills it: 34 GB for these few bytes."""
    (tmp_path / "file").write_bytes(bomb)
    with (tmp_path / "file").open("rb") as file:
        for source in (io.BytesIO(bomb), file):
            with pytest.raises(PickleRefused, match="under the number"):
                RestrictedUnpickler(source, {})


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_many_values_are_read(protocol: int, tmp_path: Path) -> None:
    value = {"names": ["a", "b"] * 3000, "many": [f"name {n}\n" for n in range(5000)], "bytes": PUT * 2000, "n": [2**70, -1.5, None]}
    names = {"_codecs.encode": lambda text, encoding: text.encode(encoding)}
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps(value, protocol) * 2)
    with path.open("rb") as file:
        assert RestrictedUnpickler(file, names).load() == value == RestrictedUnpickler(file, names).load()
