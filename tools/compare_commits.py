"""Compares two checkouts of gnnkit with each other: what a batch costs, how long a start takes, how much memory it needs.

    python tools/compare_commits.py ../before . --scale 1 --pairs 7

Both sample the same batches of the same store, in turn, each time in new processes: one pair is one run of each, and the first of a pair
takes turns. A figure is the geometric mean of the pairs' ratios (second checkout to first), with the bound that it is below with a
confidence of 95 % (Student's t of the logarithms). ``hosts`` needs network namespaces. docs/development/measurements.md says which
ratios a change must keep. Only what both have is taken from gnnkit: its public interface, and the bench's network namespaces.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Of each measured value: what the table calls it, and the ratio that a change must keep.
FIGURES = {
    "processor_s": ("processor seconds a batch", 1.03),
    "seeds_per_s": ("seeds/s", None),
    "start_s": ("start to the first batch", 1.05),
    "start_processor_s": ("... in processor seconds", 1.05),
    "memory_bytes": ("memory", 1.05),
}
BACKENDS = ("InProcess", "Colocated", "GraphStore", "hosts")
# The copy of the graph in the background is complete by then, also where the system has to find memory for it.
WARM_BATCHES, WARM_S = 12, 6.0
DEADLINE_S = 300.0


def measure(backend: str, options: argparse.Namespace) -> dict[str, float]:
    """Runs one loader in this process.

    Args:
        backend: One of ``BACKENDS``.
        options: The command line: the store, what a batch is, and how many are measured after those of ``WARM_S`` seconds, and
            ``WARM_BATCHES`` at least, that are not.

    Returns:
        A value for each of ``FIGURES``; of all hosts together.
    """
    import gnnkit

    made: dict[str, Any] = {
        "InProcess": gnnkit.InProcess(num_threads=2),
        "Colocated": gnnkit.Colocated(2),
        "GraphStore": gnnkit.GraphStore(num_servers=2),
        "hosts": gnnkit.Colocated(1),
    }
    shared, num_batches = backend == "hosts", options.batches
    if shared:
        import torch.distributed as dist

        dist.init_process_group("gloo")
    given: dict[str, Any] = {"placement": "partition"} if shared else {}
    given |= {"num_neighbors": options.num_neighbors, "batch_size": options.batch_size, "input_nodes": "train", "shuffle": True}
    given |= {"drop_last": True, "seed": 7}
    with gnnkit.GraphLoader.from_store(str(options.store), backend=made[backend], progress=False, **given) as loader:
        batches = endless(loader)
        next(batches)
        start_s, start_processor_s = time.monotonic() - options.began, processor_seconds()
        settled, warm = time.monotonic() + WARM_S, 0  # the graph is copied meanwhile, and small batches find their way to be sampled
        while warm < WARM_BATCHES or time.monotonic() < settled:
            next(batches)
            warm += 1
        if shared:
            dist.barrier()
        before, begin = processor_seconds(), time.perf_counter()
        for _ in range(num_batches):
            next(batches)
        own = [processor_seconds() - before, num_batches * options.batch_size / (time.perf_counter() - begin), float(memory_bytes())]
        if shared:
            import torch

            total = torch.tensor(own, dtype=torch.float64)
            dist.all_reduce(total)
            own = total.tolist()
            num_batches *= dist.get_world_size()
        batches.close()
    if shared:
        dist.destroy_process_group()
    values = own[0] / num_batches, own[1], start_s, start_processor_s, own[2]
    return dict(zip(FIGURES, values, strict=True))


def endless(loader: Any) -> Any:
    """Yields batches of one epoch after the other."""
    while True:
        yield from loader


def family() -> list[Any]:
    """This process and its children, theirs included."""
    import psutil

    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def processor_seconds() -> float:
    """Processor time of ``family`` until now, in seconds."""
    return float(sum(sum(process.cpu_times()[:2]) for process in family()))


def memory_bytes() -> int:
    """Memory of ``family`` in bytes: proportional set sizes (see proc_pid_smaps(5)), pages of the store's files included."""
    found = 0
    for process in family():
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                found += int(line.split()[1]) * 1024
    return found


def run(checkout: Path, backend: str, options: argparse.Namespace) -> dict[str, float]:
    """Measures one checkout in a new process.

    Raises:
        RuntimeError: It failed.
    """
    own = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--measure",
        backend,
        "--batches",
        str(options.batches),
        "--batch-size",
        str(options.batch_size),
        "--num-neighbors",
        *map(str, options.num_neighbors),
        "--store",
        str(options.store),
    ]
    command = [*own, "--began", repr(time.monotonic())]
    if backend == "hosts":
        command = [sys.executable, "-m", "tools.bench.namespaces", "--hosts", "2", *command]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(
        command, env=environment, cwd=checkout, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
    )
    if done.returncode:
        raise RuntimeError(f"{backend} of {checkout} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name: found[name] for name in FIGURES}


def ratio_and_bound(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Geometric mean of second to first, and what it is below with a confidence of 95 %."""
    from scipy.special import stdtrit

    logs = [math.log(after / before) for before, after in pairs]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), math.inf
    return math.exp(mean), math.exp(mean + stdtrit(len(logs) - 1, 0.95) * statistics.stdev(logs) / math.sqrt(len(logs)))


def table(pairs: dict[str, list[tuple[dict[str, float], dict[str, float]]]]) -> str:
    """The result in Markdown."""
    lines = ["| backend | " + " | ".join(title for title, _ in FIGURES.values()) + " |", "|---" * (len(FIGURES) + 1) + "|"]
    for backend, found in pairs.items():
        cells = []
        for name in FIGURES:
            ratio, bound = ratio_and_bound([(before[name], after[name]) for before, after in found])
            cells.append(f"{ratio:.3f}x (below {bound:.3f}x)" if name != "seeds_per_s" else f"{ratio:.3f}x")
        lines.append(f"| {backend} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Does what this script is for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, help="the checkout before, and the one after")
    parser.add_argument("--store", type=Path, help="a store that is there; made by the checkout before otherwise")
    parser.add_argument("--scale", type=float, default=1.0, help="of products_like, for a store that is made")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--num-neighbors", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--measure", choices=BACKENDS, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options)))
        return
    before, after = options.checkouts
    options.store = (options.store or Path(".bench", f"compare-{options.scale:g}")).resolve()
    if not options.store.is_dir():
        make = f"import gnnkit; gnnkit.partition(gnnkit.datasets.products_like({options.scale}), 2, out={str(options.store)!r})"
        subprocess.run([sys.executable, "-c", make], env={**os.environ, "PYTHONPATH": str(before.resolve())}, cwd=before, check=True)
    pairs: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {}
    for backend in options.backends.split(","):
        for checkout in (before, after):  # what is compiled or read once is there afterwards
            run(checkout, backend, options)
        for number in range(options.pairs):
            order = (before, after) if number % 2 == 0 else (after, before)
            found = {checkout: run(checkout, backend, options) for checkout in order}
            pairs.setdefault(backend, []).append((found[before], found[after]))
            print(backend, number, json.dumps([found[before], found[after]]), file=sys.stderr, flush=True)
    print(table(pairs))


if __name__ == "__main__":
    main()
