"""METIS through pymetis, in a process of its own where it takes long.

pymetis keeps Python's lock for as long as METIS computes, which is minutes on a large graph: no thread of this process would run, and no
interrupt would come through. A process can be ended at any time. It is handed its arrays by descriptor.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, WorkerDied

# METIS cuts a graph with fewer entries than this sooner than a process starts.
HERE_ENTRIES = 200_000
_PR_SET_PDEATHSIG = 1
_LAST_WORDS = 2000


class SharedInts:
    """Numbers in memory that has no name, and that another process can be handed.

    Args:
        count: How many.

    Attributes:
        fd: The descriptor of the memory; closed with this object.
        values: int64 ``[count]``, zeros at first; outlives this object.
    """

    def __init__(self, count: int) -> None:
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("gnnkit-metis", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                self.fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.fd).atexit = False
        os.ftruncate(self.fd, 8 * max(count, 1))
        self.values = _mapped(self.fd)[:count]


@dataclass(frozen=True)
class MetisGraph:
    """A graph as METIS wants it: symmetric, without loops and parallel edges.

    Attributes:
        indptr: int64 ``[num_vertices + 1]``.
        indices: int64 ``[at least num_entries]``, vertices.
        weights: int64 ``[at least num_entries]``, of the edges.
        num_entries: Twice the number of edges.
        vertex_weights: int64 ``[num_vertices]``; None: all are the same.
    """

    indptr: SharedInts
    indices: SharedInts
    weights: SharedInts
    num_entries: int
    vertex_weights: SharedInts | None = None


def import_pymetis() -> Any:
    """Returns the module.

    Raises:
        PlanError: pymetis is not installed.
    """
    try:
        import pymetis
    except ImportError as exc:
        raise PlanError("partition='metis' needs pymetis, which is not installed", 'pip install pymetis, or take partition="ldg"') from exc
    return pymetis


def part_graph(graph: MetisGraph, num_parts: int, seed: int) -> NDArray[np.int32]:
    """Cuts a graph by multilevel k-way partitioning.

    Args:
        graph: The graph.
        num_parts: Parts to cut it into, at least 2.
        seed: Of METIS's own random numbers.

    Returns:
        int32 ``[num_vertices]``, each vertex's part.

    Raises:
        WorkerDied: The process that computes it has ended.
    """
    num_vertices = len(graph.indptr.values) - 1
    parts = SharedInts(num_vertices)
    blocks = (graph.indptr, graph.indices, graph.weights, graph.vertex_weights, parts)
    if graph.num_entries < HERE_ENTRIES or not sys.executable:
        _cut([None if block is None else block.values for block in blocks], graph.num_entries, num_vertices, num_parts, seed)
    else:
        _cut_apart([-1 if block is None else block.fd for block in blocks], graph.num_entries, num_vertices, num_parts, seed)
    return parts.values.astype(np.int32)


def _cut(blocks: Sequence[NDArray[np.int64] | None], num_entries: int, num_vertices: int, num_parts: int, seed: int) -> None:
    pymetis = import_pymetis()
    indptr, indices, weights, vertex_weights, parts = blocks
    assert indptr is not None and indices is not None and weights is not None and parts is not None
    indptr, indices = indptr[: num_vertices + 1], indices[:num_entries]
    options = pymetis.Options(seed=seed & 0x7FFFFFFF)
    keywords: dict[str, Any] = {"eweights": weights[:num_entries], "recursive": False, "options": options}
    if vertex_weights is not None:
        keywords["vweights"] = vertex_weights[:num_vertices]
    if hasattr(pymetis, "CSRAdjacency"):
        keywords["adjacency"] = pymetis.CSRAdjacency(indptr, indices)
    else:  # before 2025.2
        keywords["xadj"], keywords["adjncy"] = indptr, indices
    parts[:num_vertices] = pymetis.part_graph(num_parts, **keywords)[1]


def _cut_apart(fds: Sequence[int], *numbers: int) -> None:
    """Has a process of its own cut; an interrupt ends that.

    Args:
        fds: Descriptors of the arrays, -1 for what is not there.
        *numbers: The other arguments of ``_cut``.
    """
    path = [os.getcwd() if entry == "" else entry for entry in sys.path]
    with subprocess.Popen(
        [sys.executable, "-m", __name__, *map(str, (os.getpid(), *fds, *numbers))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"},
        pass_fds=[fd for fd in fds if fd >= 0],
        start_new_session=True,  # an interrupt is this process's affair
    ) as process:
        try:
            said = process.communicate()[1]
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status := process.returncode:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise WorkerDied(
            f"the process (pid {process.pid}) that METIS ran in {how}\n{said[-_LAST_WORDS:]}".rstrip(),
            'METIS needs several times the memory of the graph; take partition="ldg"',
        )


def _mapped(fd: int) -> NDArray[np.int64]:
    return np.frombuffer(mmap.mmap(fd, 0), np.int64)


def _main() -> None:
    """Cuts the graph that the command line names, and ends with the process that waits for it."""
    parent, *fds = map(int, sys.argv[1:7])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # with the thread that waits, which ends with its process
    if os.getppid() == parent:
        _cut([None if fd < 0 else _mapped(fd) for fd in fds], *map(int, sys.argv[7:]))


if __name__ == "__main__":
    _main()
