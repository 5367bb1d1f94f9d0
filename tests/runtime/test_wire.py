"""Messages and descriptors between two ends."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.errors import BatchTimeout, GnnkitError, PlanError, SamplingError, StartTimeout, StoreError
from gnnkit.runtime.remote import RemoteTraceback, error_from_json, error_to_json, layout_from_json, layout_to_json
from gnnkit.runtime.wire import Wire, from_memory, in_memory
from gnnkit.sampling.subgraph import BatchLayout, EdgeKey, LayoutBuilder, NodeKey

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
)


def pair() -> tuple[Wire, Wire]:
    ours, theirs = Wire.pair()
    return ours, Wire(theirs)


def held() -> set[str]:
    """The sockets and the memory that this process has descriptors of; what a test before has left to be collected may go meanwhile."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith(("socket:", "/memfd:")):
                found.add(name)
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(JSON, max_size=5))
def test_messages_arrive_as_they_were_sent(values: list[Any]) -> None:
    left, right = pair()
    for value in values:
        left.send("thing", value=value)
    for value in values:
        message = right.receive()
        assert message is not None and (message.kind, message.body["value"]) == ("thing", value)
    assert right.receive() is None
    left.close()
    right.close()


@pytest.mark.parametrize("size", [10, 32_700, 40_000, 5_000_000])
def test_messages_of_any_size_and_their_descriptors(size: int) -> None:
    before = held()
    left, right = pair()
    fd = in_memory(b"abc")
    left.send("thing", (fd, fd), text="x" * size)
    os.close(fd)
    message = right.receive()
    assert message is not None and len(message.body["text"]) == size
    assert not any(os.get_inheritable(each) for each in message.fds)
    assert [from_memory(each) for each in message.fds] == [b"abc", b"abc"]
    left.close()
    right.close()
    assert held() <= before


def test_a_side_that_does_not_read_blocks_nobody() -> None:
    before = held()
    left, right = pair()
    for number in range(3000):
        left.send("thing", number=number, padding="y" * 500)
    assert not left.flush() and not left.send_all(0.05)
    found: list[int] = []

    def read() -> None:
        while len(found) < 3000:
            message = right.receive()
            if message is None:
                right.wait(1.0)
            else:
                found.append(message.body["number"])

    thread = threading.Thread(target=read)
    thread.start()
    assert left.send_all(10.0)
    thread.join(60)
    assert found == list(range(3000))
    fd = in_memory(b"")
    for _ in range(1000):  # the pair's buffer is full of descriptors that nobody will ever take
        left.send("thing", (fd,), padding="y" * 500)
    os.close(fd)
    left.close()
    right.close()
    assert held() <= before


def test_everything_sent_arrives_before_the_end() -> None:
    left, right = pair()
    left.send("last", word="bye")
    left.close()
    message = right.receive()
    assert message is not None and message.body["word"] == "bye"
    for _ in range(2):
        with pytest.raises(EOFError):
            right.receive()
    right.send("into the void", word="hello")
    right.close()
    with pytest.raises(EOFError):
        right.receive()
    left.close()
    assert left.fileno() == -1


def test_an_end_that_another_thread_has_closed_is_not_waited_for() -> None:
    left, right = pair()
    for number in range(3000):
        left.send("thing", number=number, padding="y" * 500)
    assert not left.flush()
    left.close()
    assert left.wait(60.0) and left.send_all(60.0)
    with pytest.raises(EOFError, match="is closed"):
        left.receive()
    right.close()


def test_a_descriptor_that_does_not_fit_the_limit_is_an_error() -> None:
    """A batch without its memory would pass for one that lies in its slot."""
    left, right = pair()
    fd = in_memory(b"abc")
    left.send("done", (fd,))
    os.close(fd)
    lowest = os.dup(left.fileno())  # the first number beyond the limit below
    os.close(lowest)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
        with pytest.raises(PlanError, match="no file descriptor left"):
            right.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    left.send("next")
    message = right.receive()
    assert message is not None and message.kind == "next"
    left.close()
    right.close()


def test_an_end_is_not_inherited() -> None:
    ours, theirs = Wire.pair()
    assert not os.get_inheritable(ours.fileno()) and not theirs.get_inheritable()
    ours.close()
    theirs.close()


# Errors and layouts -----------------------------------------------------------------------------------------------------------


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("error", [StoreError("damaged", "verify it"), BatchTimeout("late")])
def test_our_own_errors_stay_what_they_are(error: GnnkitError) -> None:
    copy = error_from_json(error_to_json(raised(error)), "sampling")
    assert type(copy) is type(error) and (copy.message, copy.hint) == (error.message, error.hint)
    assert isinstance(copy.__cause__, RemoteTraceback) and "in raised" in str(copy.__cause__)


class StrangeError(Exception):
    """Known to nobody else."""


@pytest.mark.parametrize("error", [StrangeError("very"), KeyError("x"), MemoryError(), KeyboardInterrupt()])
def test_other_errors_are_wrapped(error: BaseException) -> None:
    value = error_to_json(raised(error))
    assert type(error_from_json(value, "sampling a batch")) is SamplingError
    copy = error_from_json(value, "starting", StartTimeout)
    assert type(copy) is StartTimeout and copy.message.startswith(f"starting failed: {type(error).__name__}")
    assert type(error).__name__ in str(copy.__cause__)


def test_layouts_come_back() -> None:
    builder = LayoutBuilder()
    builder.add(NodeKey("päper", "x"), "bfloat16", (5, 3))
    builder.add(EdgeKey(("a", "to", "b"), "edge_index"), "int64", (2, 7))
    layout = BatchLayout(tuple(builder.fields), builder.nbytes, {"päper": [2, 3]}, {("a", "to", "b"): [7]}, "päper", 2)
    assert layout_from_json(json.loads(json.dumps(layout_to_json(layout)))) == layout


def test_last_words_of_a_side_that_has_not_read_everything() -> None:
    left, right = pair()
    left.send("unread")
    right.send("failed", why="no locks today")
    right.close()
    message = left.receive()
    assert message is not None and message.body["why"] == "no locks today"
    with pytest.raises(EOFError):
        left.receive()
    left.close()
