"""Stopping a run at any place with an interrupt, or for good: it ends at once, and the same call made again completes."""

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

import psutil
import pytest

from tests.e2e import interrupted
from tests.helpers.http_files import FileServer, file_server
from tests.helpers.machine import ROOT
from tests.helpers.ogb_trees import archive, write_csv, write_tree

DEADLINE_S = 90.0
# On a busy machine; it is a tenth of it on an idle one.
PROMPT_S = 4.0


class Run:
    """``tests.e2e.interrupted`` as a child process."""

    def __init__(self, phase: str, root: Path, **environment: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
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
                self.process.wait(10)
                self._readers[1].join(10)
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
        assert not psutil.Process(self.process.pid).children()
        assert self.process.wait(20) == 0
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


def test_reading_text_is_interrupted_and_done_again(large_arxiv: Path, arxiv_result: str, start: Callable[..., Run]) -> None:
    run = start("ogb", large_arxiv)
    run.wait_for(begins("ingest"))
    assert run.interrupt() < PROMPT_S
    assert stores_in(large_arxiv / "stores") == []
    run.wait_for(begins("ingest"))
    assert run.interrupt() < PROMPT_S  # and once more
    assert run.result() == arxiv_result
    assert len(stores_in(large_arxiv / "stores")) == 1


def test_a_run_that_was_killed_while_it_read_text_is_done_again(
    large_arxiv: Path, arxiv_result: str, tmp_path: Path, start: Callable[..., Run]
) -> None:
    (tmp_path / "ogbn_arxiv").symlink_to(large_arxiv / "ogbn_arxiv")
    run = start("ogb", tmp_path)
    run.wait_for(begins("ingest"))
    run.process.kill()
    assert run.process.wait(10) == -signal.SIGKILL
    assert all(name.endswith(".incomplete") for name in stores_in(tmp_path / "stores"))
    assert start("ogb", tmp_path).result() == arxiv_result
    assert len(stores_in(tmp_path / "stores")) == 1


def test_building_a_store_is_interrupted_twice_and_done_again(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start("build", tmp_path)
    for stage in ("partition", "ingest"):
        run.wait_for(begins(stage))
        assert run.interrupt() < PROMPT_S
        assert run.unfinished == "unfinished []"
    result = run.result()
    assert len(stores_in(tmp_path)) == 1
    assert result == f"done {interrupted.build(str(tmp_path))}"


@pytest.mark.slow
def test_compiling_kernels_is_interrupted_and_done_again(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start("compile", tmp_path, GNNKIT_HOME=str(tmp_path))
    run.wait_for(begins("compile"))
    assert run.interrupt() < PROMPT_S
    assert run.result() == f"done {interrupted.compile_kernels('')}"  # with kernels that nobody interrupted


def test_waiting_for_a_batch_is_interrupted_and_the_next_epoch_is_whole(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start("epoch", tmp_path)
    run.wait_for(lambda line: line == "epoch start False")
    assert run.interrupt() < PROMPT_S
    assert run.result() == "done 1 True"


@pytest.fixture
def slow_server(tmp_path: Path) -> Iterator[FileServer]:
    with file_server() as server:
        server.files["/nodeproppred/arxiv.zip"] = archive(write_tree("ogbn-arxiv", tmp_path / "original"), "arxiv")
        yield server


def test_a_download_is_interrupted_twice_and_goes_on(slow_server: FileServer, tmp_path: Path, start: Callable[..., Run]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    slow_server.stall_after = 20_000
    run = start("ogb", root, GNNKIT_OGB_URL=slow_server.url, GNNKIT_OFFLINE="")
    run.wait_for(begins("download"))
    slow_server.silent = True
    assert run.interrupt() < PROMPT_S  # in the middle
    run.wait_for(lambda line: line == "download start False")
    assert run.interrupt() < PROMPT_S  # before the first answer
    slow_server.silent = False
    slow_server.released.set()
    run.result()
    assert slow_server.requests[-1] is not None, "what had come was asked for again"
    assert {path.name for path in root.iterdir()} - {".ogbn_arxiv.lock"} == {"ogbn_arxiv", "stores"}
