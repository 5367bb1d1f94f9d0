"""Runs the tests that need a GPU and measures training on it: `make gpu`.

    python tools/measure_gpu.py > gpu.json

Needs no network: it runs under an interpreter that has torch, PyG and what else gnnkit imports. Progress goes to standard error; standard
output is one JSON object: what `python -m tools.bench --rows device --json` writes, with "tests" beside it. Exit status: 0 when tests
have passed and figures were reached, 1 when not, 2 when something is missing or it took too long, 3 when there is no device.
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
    tests = run_tests(options.tests)
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
    except GnnkitError as error:
        say(str(error))
        return UNUSABLE
    print(json.dumps({"tests": tests, **report.to_json(), "took_s": time.monotonic() - begin}, indent=1))
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
    parser.add_argument("--limit-s", type=int, default=480, help="seconds after which everything is ended")
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
