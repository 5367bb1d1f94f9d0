"""Stopping a script with an interrupt, or for good: it ends at once, and the same call made again completes; kernels: ``tests/jupyter``."""

from __future__ import annotations

import gzip
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import interrupted
from tests.helpers.leaks import descendants
from tests.helpers.machine import ROOT, in_time
from tests.helpers.ogb_trees import write_csv, write_tree

pytestmark = pytest.mark.slow

DEADLINE_S = 120.0
# It is a fifth of it on an idle machine.
PROMPT_S = 2.0


class Run:
    """``tests.e2e.interrupted`` as a child process."""

    def __init__(self, phase: str, root: Path, **environment: str) -> None:
        env = {**os.environ, **environment}
        command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.interrupted", phase, str(root)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read_lines, daemon=True), threading.Thread(target=self._read_errors, daemon=True)]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def wait_for(self, condition: Callable[[str], bool]) -> str:
        """The first line that fulfils the condition."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            if line is None:
                self.process.wait(60)
                self._readers[1].join(60)
                raise AssertionError(f"ended with {self.process.returncode}: {''.join(self._errors)[-3000:]}")
            if condition(line):
                return line

    def interrupt(self) -> float:
        """Sends what Ctrl-C sends; seconds until the call had returned."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.unfinished = self.wait_for(lambda line: line.startswith("unfinished"))
        self.wait_for(lambda line: line == "interrupted")
        return time.monotonic() - started

    def result(self) -> str:
        """What the run gave in the end; nothing may be left of it."""
        assert self.wait_for(lambda line: line.startswith("threads")) == "threads []"
        result = self.wait_for(lambda line: line.startswith("done "))
        assert not descendants(self.process.pid)
        assert self.process.wait(60) == 0
        return result

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def starting(phase: str, root: Path, **environment: str) -> Run:
        runs.append(Run(phase, root, **environment))
        return runs[-1]

    yield starting
    for run in runs:
        run.stop()


def begins(stage: str) -> Callable[[str], bool]:
    """A line that says that a stage has got somewhere."""
    return lambda line: line == f"{stage} progress True"


@pytest.fixture(scope="module")
def large_arxiv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree that takes seconds to read."""
    root = tmp_path_factory.mktemp("arxiv")
    num_edges, block = 12_000_000, 120_000
    tree = write_tree("ogbn-arxiv", root, num_nodes=1000)
    write_csv(tree / "raw/num-edge-list.csv.gz", [[num_edges]])
    text = "".join(f"{i * 31 % 1000},{i * 7 % 1000}\n" for i in range(block)).encode()
    # A gzip file may have many members; each is the same text.
    (tree / "raw/edge.csv.gz").write_bytes(gzip.compress(text, 1) * (num_edges // block))
    return root


def stores_in(folder: Path) -> list[str]:
    """What lies in a folder of stores, lock files aside."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture(scope="module")
def arxiv_result(large_arxiv: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What reading the tree gives when nobody interrupts."""
    root = tmp_path_factory.mktemp("plain")
    (root / "ogbn_arxiv").symlink_to(large_arxiv / "ogbn_arxiv")
    return f"done {interrupted.of_ogb(str(root))}"


def test_a_run_that_was_killed_while_it_read_text_is_done_again(
    large_arxiv: Path, arxiv_result: str, tmp_path: Path, start: Callable[..., Run]
) -> None:
    (tmp_path / "ogbn_arxiv").symlink_to(large_arxiv / "ogbn_arxiv")
    run = start("ogb", tmp_path)
    run.wait_for(begins("ingest"))
    run.process.kill()
    assert run.process.wait(60) == -signal.SIGKILL
    assert all(name.endswith(".incomplete") for name in stores_in(tmp_path / "stores"))
    assert start("ogb", tmp_path).result() == arxiv_result
    assert len(stores_in(tmp_path / "stores")) == 1


def test_building_a_store_is_interrupted_twice_and_done_again(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start("build", tmp_path)
    for stage in ("partition", "ingest"):
        run.wait_for(begins(stage))
        assert in_time(run.interrupt(), PROMPT_S)
        assert run.unfinished == "unfinished []"
    result = run.result()
    assert len(stores_in(tmp_path)) == 1
    assert result == f"done {interrupted.build(str(tmp_path))}"


@pytest.mark.core
def test_waiting_for_a_batch_is_interrupted_and_the_next_epoch_is_whole(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start("epoch", tmp_path)
    run.wait_for(lambda line: line == "epoch start False")
    assert in_time(run.interrupt(), PROMPT_S)
    assert run.result() == "done 1 True"


PARTITION = """
import sys, gnnkit

def tell(event):
    if event.stage == "ingest" and event.kind == "progress":
        print("ingesting", flush=True)

gnnkit.partition(gnnkit.datasets.products_like(0.2), 2, out=sys.argv[1] + "/store", events=tell)
"""


def test_an_interrupted_script_ends_in_a_line_and_leaves_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PARTITION, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ingesting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines() == [errors.strip()] and errors.startswith("KeyboardInterrupt: stopped in ingest products-like"), errors
    assert not list(tmp_path.iterdir())
