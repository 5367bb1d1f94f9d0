"""Runs the tests that need a GPU and measures training on it: `make gpu`.

    python tools/measure_gpu.py > gpu.json

Needs no network: it runs under an interpreter that has torch, PyG and what else gnnkit imports. Progress goes to standard error; standard
output is one JSON object: what `python -m tools.bench --rows device --json` writes, with "survey" (every kind of batch on the device),
"doctor" and "tests" beside it. Exit status: 0 when tests have passed and figures were reached, 1 when not, 2 when something is missing
or it took too long, 3 when there is no device.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MARKER = "pytest.mark.gpu"
FAILED, UNUSABLE, NO_DEVICE = 1, 2, 3
# Of pytest: everything has passed; there was nothing to run.
PASSED, EMPTY = 0, 5


class TookTooLong(Exception):
    """The time is over."""


def say(text: str) -> None:
    """Prints one line at once, beside the result."""
    print(f"gnnkit: {text}", file=sys.stderr, flush=True)


def marked(tests: list[Path]) -> list[str]:
    """The files in which some test needs a GPU; others may import what is not there."""
    files = [path for given in tests for path in ([given] if given.is_file() else sorted(given.rglob("test_*.py")))]
    return [str(path) for path in files if MARKER in path.read_text()]


def run_tests(tests: list[Path]) -> dict[str, Any]:
    """Runs the tests that need a GPU: how many have passed, failed and were skipped, and whether that is good enough."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={found}", "-p", "no:cacheprovider", *marked(tests)]
        code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
        counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
        if found.exists():
            for suite in ET.parse(found).iter("testsuite"):
                counts = {name: before + int(suite.get(name, 0)) for name, before in counts.items()}
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    return {"passed": passed, **counts, "exit_code": code, "ok": code in (PASSED, EMPTY)}


def survey(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the bench has no rows for, the most wanted first; what fails says why, and the rest goes on.

    Seeds a second, and seconds of a thread that rows take a batch: of threads into ordinary and into page-locked memory, which is copied
    to the device; then of each kind of batch sampled on the device.
    """
    import gnnkit
    from gnnkit import samplers
    from gnnkit.storage.build import build_store
    from gnnkit.storage.layout import BuildOptions
    from tools.bench.kinds import Timed, Weighted

    source = gnnkit.datasets.products_like(options.scale)
    weighted, there, long = BuildOptions(weight="weight"), gnnkit.OnDevice(options.device), [15, 10, 5]
    clusters = samplers.Clusters(200, clusters_per_batch=4, partition="contiguous")
    plain: dict[str, Any] = {"num_neighbors": long, "batch_size": 1024}
    short = {**plain, "num_neighbors": [10, 5]}
    cases: dict[str, tuple[Any, BuildOptions, dict[str, Any]]] = {
        "threads": (source, BuildOptions(), plain),
        "threads, page-locked, to the device": (source, BuildOptions(), {**plain, "device": options.device}),
        "on the device": (source, BuildOptions(), {**plain, "backend": there}),
        "labor": (source, BuildOptions(), {"sampler": samplers.Labor(long), "batch_size": 1024, "backend": there}),
        "weighted": (Weighted(source), weighted, {**short, "weight": "weight", "backend": there}),
        "temporal": (Timed(source), BuildOptions(time_attr="time"), {**short, "time_attr": "time", "backend": there}),
        "disjoint": (source, BuildOptions(), {**short, "disjoint": True, "backend": there}),
        "all neighbours": (source, BuildOptions(), {**plain, "num_neighbors": [-1, 10], "backend": there}),
        "clusters": (source, BuildOptions(), {"sampler": clusters, "backend": there}),
        "saint": (source, BuildOptions(), {"sampler": samplers.Saint("walks", walk_length=2), "batch_size": 1024, "backend": there}),
        "walks": (source, BuildOptions(), {"sampler": samplers.Walks(20), "batch_size": 1024, "backend": there}),
    }
    found: dict[str, Any] = {}
    for name, (of, build, given) in cases.items():
        say(f"measuring {name}")
        try:
            folder = options.work_dir / f"survey-{options.scale:g}-{of.name}"
            store = folder if folder.is_dir() else build_store(of, folder, build).path
            found[name] = _speed(store, given, options.seconds)
        except Exception as error:  # what the device cannot do yet is an answer
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found


def _speed(store: Path, given: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Iterates for so long after as long a time that is not counted; as ``survey``, with what a profile of the loader says."""
    from gnnkit import GraphLoader

    with GraphLoader.from_store(store, input_nodes="train", progress=False, **given) as loader:
        for _ in range(2):
            batches = seeds = 0
            sample_s = gather_s = 0.0
            begin = time.perf_counter()
            while (took := time.perf_counter() - begin) < seconds:
                for _batch in loader:
                    if time.perf_counter() - begin >= seconds:
                        break
                stats = loader.stats()
                batches, seeds = batches + stats.batches, seeds + stats.seeds
                sample_s, gather_s = sample_s + stats.sample_s, gather_s + stats.gather_s
        figures = {"seeds_per_s": seeds / took, "sample_s": sample_s / batches, "gather_s": gather_s / batches}
        return {**figures, "profile": str(loader.profile(seconds))}


def doctor() -> str:
    """What ``gnnkit doctor`` says here."""
    return subprocess.run(
        [sys.executable, "-m", "gnnkit", "doctor", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=240
    ).stdout


def measure(options: argparse.Namespace) -> int:
    """Does what this script is for; the exit status."""
    try:
        from gnnkit.backends.devices import resolve_device
        from gnnkit.errors import GnnkitError, PlanError
        from gnnkit.runtime.limits import auto_threads
        from gnnkit.ui.progress import make_sink
        from tools.bench.options import BenchOptions
        from tools.bench.report import run_bench
    except ImportError as error:
        say(f"{sys.executable} has no module {error.name!r}; make gpu takes it from a folder of wheels, WHEELS, or another PYTHON")
        return UNUSABLE
    try:
        resolve_device(options.device)
    except PlanError as error:
        say(f"nothing to measure: {error.message}")
        return NO_DEVICE
    begin = time.monotonic()
    surveyed = survey(options) if options.seconds else {}
    bench = BenchOptions(
        scale=options.scale,
        rows=("device",),
        work_dir=options.work_dir,
        num_threads=auto_threads(),
        repeats=1,
        device=options.device,
        timeout_s=options.limit_s,
    )
    try:
        with make_sink("auto") as events:
            report = run_bench(bench, events)
        checked = doctor() if options.seconds else ""
        tests = run_tests(options.tests)
    except GnnkitError as error:
        say(str(error))
        return UNUSABLE
    print(
        json.dumps(
            {"survey": surveyed, "doctor": checked, "tests": tests, **report.to_json(), "took_s": time.monotonic() - begin}, indent=1
        )
    )
    for name, why in report.failed.items():
        say(f"{name} failed: {why}")
    return 0 if tests["ok"] and report.ok else FAILED


def main() -> int:
    """Parses the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="the device; cpu tries this script without one")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the graph; 1 is OGBN-Products' size")
    parser.add_argument("--work-dir", type=Path, default=Path(".bench"), help="where the graph is kept between runs")
    parser.add_argument("--tests", type=Path, nargs="*", default=[ROOT / "tests"], help="files or folders of tests")
    parser.add_argument("--limit-s", type=int, default=720, help="seconds after which everything is ended")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each kind of batch of the survey is timed; 0 leaves it out")
    options = parser.parse_args()

    def end(number: int, frame: object) -> None:
        raise TookTooLong

    signal.signal(signal.SIGALRM, end)
    signal.alarm(options.limit_s)
    try:
        return measure(options)
    except TookTooLong:
        say(f"not done after {options.limit_s} s")
        return UNUSABLE
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(main())
