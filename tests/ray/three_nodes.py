"""A Ray cluster of three nodes, each in a network namespace and a memory group of its own, that builds a store; one node may be killed.

``python -m tests.ray.three_nodes SCALE PARTITION [--gib 3] [--kill] [--out FOLDER]`` builds ``papers_like(SCALE)`` on this machine and on
such a cluster, compares the stores, and says what both took.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gnnkit
from gnnkit import Store
from tests.helpers.namespaces import network
from tests.helpers.waiting import wait_until
from tests.ray.clusters import PATIENCE_S, STILL_S, started_cluster
from tools.bench.memory_groups import memory_group

NUM_NODES = 3
_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")


@dataclass(frozen=True)
class Built:
    """A store that three nodes have built.

    Attributes:
        manifest: The store's manifest, with checksums of all files.
        shares: What the build said of the shares of the source that nodes have read.
        peaks: The most bytes that each node has held, page cache included.
        was_killed: Whether the kernel has ended a process for want of memory.
        processor_s: Processor seconds of everything from the first task on, the cluster's own included.
        clock_s: Seconds by the clock.
    """

    manifest: dict[str, Any]
    shares: str
    peaks: list[int | None]
    was_killed: bool
    processor_s: float
    clock_s: float


def build_on_three_nodes(scale: float, partition: str, out: Path, memory_bytes: int, *, kill: bool) -> Built:
    """Builds ``papers_like`` on three nodes of one processor each.

    Args:
        scale: Its scale.
        partition: How nodes are assigned to parts.
        out: The store's folder.
        memory_bytes: Memory of each node, with all that Ray itself takes, and on the first node the driver and whoever asks for the build.
        kill: Whether the last node is killed once half of the edges are divided.
    """
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(network(NUM_NODES))
        groups = [stack.enter_context(memory_group(memory_bytes)) for _ in hosts]
        accounts = stack.enter_context(_account())
        enter = [[*accounts.enter, *group.enter, *host.enter] for host, group in zip(hosts, groups, strict=True)]
        # Groups can be removed once all that was in them is gone, and not only dead.
        stack.callback(lambda: [wait_until(partial(_is_empty, folder)) for folder in (*(g.folder for g in groups), accounts.folder)])
        cluster = stack.enter_context(started_cluster(1, enter[0], hosts[0].address))
        nodes = [cluster.start_node(1, enter[k], hosts[k].address) for k in range(1, NUM_NODES)]
        is_small = scale < 0.01
        before, begun, shares = accounts.seconds(), time.monotonic(), ""
        words = [sys.executable, "-m", "tests.ray.three_nodes", str(scale), partition, "--out", str(out), "--join", cluster.address]
        has_ended = False
        while not has_ended:
            builder = subprocess.Popen([*enter[0], *words], env=cluster.environment, stdout=subprocess.PIPE, text=True)
            stack.callback(_end, builder)
            assert builder.stdout is not None
            # Ray does not always start what it has to repeat: then the same call goes on with the parts that are missing (how-to/ray.md).
            stood_still = threading.Event()
            watchdog = threading.Timer(STILL_S, lambda: (stood_still.set(), builder.kill()))  # noqa: B023  # it ends with this turn
            if is_small and kill:
                watchdog.start()
            for line in builder.stdout:
                event = json.loads(line)
                if kill and event["stage"] == "ingest" and event["done"] > event["total"] / 2:
                    cluster.kill_node(nodes[-1])
                    kill = False
                shares = event["text"] if event["stage"] == "partition" else shares
            watchdog.cancel()
            if watchdog.ident is not None:
                watchdog.join()
            status, has_ended = builder.wait(PATIENCE_S), not stood_still.is_set()
        assert status == 0 and not kill
        took = accounts.seconds() - before, time.monotonic() - begun
        peaks, was_killed = [group.peak_bytes for group in groups], any(group.was_killed for group in groups)
    return Built(Store.open(out).manifest.to_json(), shares, peaks, was_killed, *took)


def _is_empty(group: Path | None) -> bool:
    return group is None or not (group / "cgroup.procs").read_text()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@dataclass(frozen=True)
class _Account:
    """A control group that counts processor seconds; none where the system has no such groups."""

    folder: Path | None

    @property
    def enter(self) -> list[str]:
        return [] if self.folder is None else ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.folder)]

    def seconds(self) -> float:
        return 0.0 if self.folder is None else int((self.folder / "cpuacct.usage").read_text()) / 1e9


@contextlib.contextmanager
def _account() -> Any:
    if not _ACCOUNTS.is_dir():
        yield _Account(None)
        return
    folder = Path(tempfile.mkdtemp(prefix="gnnkit-", dir=_ACCOUNTS))
    try:
        yield _Account(folder)
    finally:
        folder.rmdir()


def _build(scale: float, partition: str, out: Path, address: str) -> None:
    """Builds the store, as a process of the first node, and writes its progress to standard output."""

    def say(event: Any) -> None:
        sys.stdout.write(json.dumps(asdict(event)) + "\n")
        sys.stdout.flush()

    source = gnnkit.datasets.papers_like(scale)
    gnnkit.partition(source, NUM_NODES, partition, out, engine=gnnkit.Ray(address=address), events=say)


def main() -> None:
    """Builds on this machine and on three nodes, and says what both took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", type=float)
    parser.add_argument("partition")
    parser.add_argument("--gib", type=float, default=3.0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--join", default=None)
    given = parser.parse_args()
    if given.join is not None:
        _build(given.scale, given.partition, given.out, given.join)
        return
    folder = Path(tempfile.mkdtemp(prefix="three-nodes-", dir=given.out))
    try:
        with _account() as account:
            begun = time.monotonic()
            words = ["-c", "import sys, gnnkit; source = gnnkit.datasets.papers_like(float(sys.argv[1]));"
                     f"gnnkit.partition(source, {NUM_NODES}, sys.argv[2], sys.argv[3])"]  # fmt: skip
            subprocess.run([*account.enter, sys.executable, *words, str(given.scale), given.partition, str(folder / "one")], check=True)
            one = account.seconds(), time.monotonic() - begun
        sys.stdout.write(f"one machine: {one[0]:.1f} s of processor, {one[1]:.0f} s by the clock\n")
        sys.stdout.flush()
        wanted = Store.open(folder / "one").manifest.to_json()
        shutil.rmtree(folder / "one")
        built = build_on_three_nodes(given.scale, given.partition, folder / "three", int(given.gib * 2**30), kill=given.kill)
        peaks = ", ".join("?" if peak is None else f"{peak / 2**30:.2f}" for peak in built.peaks)
        sys.stdout.write(
            f"three nodes: {built.processor_s:.1f} s of processor ({built.processor_s / max(one[0], 1e-9):.2f}x), {built.clock_s:.0f} s by "
            f"the clock; {built.shares}; at most {peaks} GiB; a process was ended for memory: {built.was_killed}; "
            f"the same store: {built.manifest == wanted}\n"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
