"""What every test gets: no leak goes unnoticed, and no test is skipped silently.

Tests that need more than Python carry a marker of ``tests.helpers.machine.REQUIREMENTS``, or ``packages`` with the names of the packages
that only ``make test-all`` installs. Where the machine cannot run them they are skipped, and the last lines of the report name each of
them, the reason and the way to have it run. With ``GNNKIT_REQUIRE_ALL=1`` every skip fails the run; only tests for what a complete machine
may lack, such as a GPU, are left out there, by name. What a level leaves out (``-m``) is counted for each file.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.leaks import holdings, leaks_since, sampling_threads
from tests.helpers.machine import QUICK, REQUIREMENTS, ROOT, SEARCH_PATH, glt_python, missing_packages
from tests.helpers.quick import sitecustomize as _sitecustomize  # noqa: F401  # before anybody imports torch

# Threads of torch that wait for each other keep their processors busy: where four processes share two of them, a minute of training took
# ten. Set before anybody imports torch, for everything that tests start too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Tests start thousands of processes: each module is compiled once, not in each of them, whatever the environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if sys.__stdin__ is None:  # closed by what started this; kernels ask for its encoding
    sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
REQUIRE_ALL = os.environ.get("GNNKIT_REQUIRE_ALL") == "1"
# Other packages' warnings, which we cannot mend; every other warning is an error.
FOREIGN_WARNINGS = (
    # torch 2.13 about torch_geometric's and ogb's use of it, at their import.
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning",
)
PASSED = "gnnkit/passed"
_left_out: list[str] = []
_other_levels: Counter[str] = Counter()
_skipped_modules: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--rest``."""
    parser.addoption("--rest", action="store_true", help="leave out the tests that have passed in the last run of a level (`-m`)")


def pytest_configure(config: pytest.Config) -> None:
    """Adds the foreign warnings behind any ``-W error`` of the command line, so that they stay the exception to it."""
    options = config.known_args_namespace
    options.pythonwarnings = [*(options.pythonwarnings or []), *FOREIGN_WARNINGS]
    gc.disable()  # see ``pytest_collection_finish``
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has ignored interrupts for whom it starts in the background
    for number in (signal.SIGCHLD, signal.SIGQUIT, signal.SIGTERM):  # what starts tests may ignore them, and every child would
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)  # tests that become other users read what is made here
    if getattr(config.option, "numprocesses", None):  # looked for here, and in none of the parallel processes, which start after this
        REQUIREMENTS["glt"].missing()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run; leaves out what a complete machine may lack where everything else must run."""
    kept: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        wanted = [requirement for name, requirement in REQUIREMENTS.items() if name in marks]
        if REQUIRE_ALL and any(requirement.optional and requirement.missing() for requirement in wanted):
            _left_out.append(item.nodeid)
            continue
        kept.append(item)
        for requirement in wanted:
            if reason := requirement.missing():
                item.add_marker(pytest.mark.skip(reason=f"{reason}; to enable: {requirement.enable}"))
        if reason := missing_packages([name for mark in item.iter_markers("packages") for name in mark.args]):
            item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("--rest"):
        passed = set(config.cache.get(PASSED, []) if config.cache is not None else [])
        kept = [item for item in kept if item.nodeid not in passed]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[*set(items).difference(kept)])
    processes: dict[str, Any] = getattr(config, "workerinput", {})
    items[:] = _slow_ones_first(kept, int(processes.get("workercount", 1)))


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts what the level leaves out, which is done after ``pytest_collection_modifyitems`` of this file."""
    _other_levels.update(item.nodeid.partition("::")[0] for item in items if item.config.option.markexpr and item.nodeid not in _left_out)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Takes note of modules that skip themselves, of which parallel processes tell nobody."""
    if report.skipped:
        _skipped_modules[report.nodeid] = _reason(report)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what lives as long as the process does: modules and thousands of tests.

    Tests that wait for something to be collected look for garbage again and again, and each look took a third of a second.
    """
    assert not sampling_threads(), "a module of tests makes a loader when it is imported: make it in a test or a fixture"
    gc.freeze()
    gc.enable()


def _slow_ones_first(items: list[pytest.Item], num_processes: int) -> list[pytest.Item]:
    """In the order in which parallel processes have the slow modules between them and done first, the longest tests before all others, so
    that none is left with one in the end.

    Each process begins with a stretch of the list, of equal length; who has done his takes from the ends of the others'. There
    the quick tests are, which are not worth much when what their module shares is made once more.
    """
    if num_processes == 1:
        return items
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)

    def seconds(item: pytest.Item) -> float:
        mark = item.get_closest_marker("slow")
        return 0.0 if mark is None or item.get_closest_marker("skip") else mark.kwargs.get("seconds", 3.0)

    def weight(tests: list[pytest.Item]) -> float:
        return sum(map(seconds, tests))

    stretches: list[list[pytest.Item]] = [[] for _ in range(num_processes)]
    for tests in sorted(filter(weight, modules.values()), key=lambda tests: (max(map(seconds, tests)), weight(tests)), reverse=True):
        min(stretches, key=weight).extend(tests)
    quick = [item for tests in modules.values() if not weight(tests) for item in tests]
    for number, stretch in enumerate(stretches, 1):
        room = max(0, len(items) * number // num_processes - sum(map(len, stretches[:number])))
        stretch += quick[:room]
        del quick[:room]
    return [item for stretch in stretches for item in stretch] + quick


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands the names of tests that were left out to the process that reports; fails the run if a skip is not allowed."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output |= {"left_out": _left_out, "other_levels": dict(_other_levels), "skipped_modules": _skipped_modules}
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    cache = getattr(session.config, "cache", None)
    if reporter is not None and cache is not None:  # read by tools/retry_failed.py
        failed = [report for kind in ("failed", "error") for report in reporter.stats.get(kind, [])]
        is_skip_fatal = REQUIRE_ALL and _has_skips(reporter)  # which trying again does not mend
        found = {} if is_skip_fatal else {report.nodeid: _first_line(report) for report in reversed(failed)}
        cache.set("gnnkit/failures", found)
        if session.config.option.markexpr:
            cache.set(PASSED, [report.nodeid for report in reporter.stats.get("passed", []) if report.nodeid not in found])
    if REQUIRE_ALL and reporter is not None and _has_skips(reporter) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _has_skips(reporter: Any) -> bool:
    return bool(_skipped_modules or reporter.stats.get("skipped"))


def _reason(report: Any) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _first_line(report: Any) -> str:
    """Returns the first line of a failure's message, and the step of the test where it is not the test itself."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(report.longrepr if crash is None else crash.message).strip().splitlines()
    return ("" if report.when == "call" else f"{report.when}: ") + (lines[0] if lines else "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over what a parallel process left out (each of them collects everything)."""
    output = getattr(node, "workeroutput", {})
    _left_out.extend(name for name in output.get("left_out", []) if name not in _left_out)
    _other_levels.update({name: count for name, count in output.get("other_levels", {}).items() if name not in _other_levels})
    _skipped_modules.update(output.get("skipped_modules", {}))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Lists what did not run: by name, with reason and remedy."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        if report.nodeid not in _skipped_modules:
            by_reason[_reason(report)].append(report.nodeid)
    for name, reason in _skipped_modules.items():
        by_reason[reason].append(f"{name} (all of its tests)")
    if by_reason:
        verdict = "GNNKIT_REQUIRE_ALL=1: every one is a failure" if REQUIRE_ALL else "everything else ran"
        terminalreporter.section(
            f"{_count(sum(map(len, by_reason.values())))} skipped ({verdict})", red=REQUIRE_ALL, yellow=not REQUIRE_ALL
        )
        for reason, names in sorted(by_reason.items()):
            terminalreporter.write_line(reason)
            for name in names:
                terminalreporter.write_line(f"    {name}")
    if _left_out:
        terminalreporter.section(f"{_count(len(_left_out))} left out (needing what is not here, such as a GPU)")
        for name in _left_out:
            terminalreporter.write_line(f"    {name}")
    if _other_levels:
        terminalreporter.section(f"{_count(sum(_other_levels.values()))} of other levels: `make test-all` runs all")
        for name, count in sorted(_other_levels.items()):
            terminalreporter.write_line(f"    {name}: {count}")


def _count(number: int) -> str:
    return f"{number} test{'s' if number > 1 else ''}"


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves a process, shared memory, a listening port or a thread behind."""
    before = holdings()
    yield
    left = leaks_since(before)
    if left:
        pytest.fail("left behind by this test:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def glt_interpreter() -> Path:
    """The interpreter of the second environment; use together with the marker ``glt``."""
    path = glt_python()
    assert path is not None, "the marker `glt` is missing on this test"
    return path


@pytest.fixture(scope="session", autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps tests away from the user's data sets, stores and options; compiled kernels are the one thing they share."""
    home = tmp_path_factory.mktemp("gnnkit-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNNKIT_HOME", str(home))
        patch.delenv("GNNKIT_PROGRESS", raising=False)
        patch.setenv("PYTHONPATH", os.pathsep.join([SEARCH_PATH, *filter(None, [os.environ.get("PYTHONPATH")])]))
        # Ranks and sampling processes look for modules where this process does.
        patch.setattr(sys, "path", [*sys.path, QUICK])
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of gnnkit's of this test's own, empty."""
    (folder := tmp_path / "home").mkdir()
    monkeypatch.setenv("GNNKIT_HOME", str(folder))
    return folder


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """One thread of torch: tests run side by side, and threads that wait for each other by spinning would take each other's time."""
    import torch

    before, state = torch.get_num_threads(), torch.random.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.random.set_rng_state(state)
