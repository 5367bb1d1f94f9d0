"""The rules that ``tests/conftest.py`` imposes do catch what they are there for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT, has_gpu

pytestmark = pytest.mark.slow

LEAKS = {
    "process": "global child\n    child = subprocess.Popen(['sleep', '8'])",
    "listening port": "global listener\n    listener = socket.create_server(('127.0.0.1', 0))",
    "thread": "threading.Thread(target=time.sleep, args=(8,)).start()",
    "shared memory": "open(os.environ['GNNKIT_LEAK_SHARED_MEMORY'] + '/gnnkit-test', 'w').close()",
}


def run_pytest(folder: Path, source: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_inner.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "tests.conftest"]
    # Of other plugins only those that the options need: importing them all takes longer than the tests.
    command += ["-p", "xdist.plugin", "-p", "pytest_timeout"]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "GNNKIT_REQUIRE"))}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    command += ["-p", "no:cacheprovider", str(folder), *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


@pytest.mark.core
def test_a_leak_fails_the_test(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    source = "import os, socket, subprocess, threading, time\n"
    source += "".join(f"def test_{kind.replace(' ', '_')}():\n    {leak}\n" for kind, leak in LEAKS.items())
    done = run_pytest(tmp_path, source, GNNKIT_LEAK_GRACE_S="1", GNNKIT_LEAK_SHARED_MEMORY=str(shared))
    assert done.returncode == 1
    said = done.stdout.replace("E   ", "")
    for kind in LEAKS:
        assert f"ERROR at teardown of test_{kind.replace(' ', '_')} " in said, said
        assert f"left behind by this test:\n  {kind} " in said, said


def test_what_ends_in_time_is_no_leak(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "import threading, time\ndef test_it():\n    threading.Thread(target=time.sleep, args=(0.5,)).start()\n")
    assert done.returncode == 0, done.stdout


SKIPPED = "import pytest\ndef test_this():\n    pytest.skip('no such thing here')\ndef test_other():\n    pass\n"
OF_GPU = "import pytest\n@pytest.mark.gpu\ndef test_gpu():\n    pass\n"


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["serial", "parallel"])
def test_skips_are_listed_by_name_and_reason(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run_pytest(tmp_path, SKIPPED, *arguments)
    assert done.returncode == 0
    listed = done.stdout[done.stdout.index("1 test skipped") :]
    assert "no such thing here" in listed
    assert "test_inner.py::test_this" in listed
    assert "1 passed, 1 skipped" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["serial", "parallel"])
def test_where_everything_must_run_a_skip_fails_and_gpu_tests_are_left_out_by_name(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run_pytest(tmp_path, SKIPPED + ("" if has_gpu() else OF_GPU), *arguments, GNNKIT_REQUIRE_ALL="1")
    assert done.returncode == 1
    assert "every one is a failure" in done.stdout
    if not has_gpu():
        assert "1 test left out" in done.stdout
        assert "test_inner.py::test_gpu" in done.stdout


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU, so nothing is left out")
def test_what_is_left_out_is_no_failure(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, OF_GPU + "def test_cpu():\n    pass\n", GNNKIT_REQUIRE_ALL="1")
    assert done.returncode == 0, done.stdout


def test_a_marker_says_how_to_enable_its_tests(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.glt\ndef test_glt():\n    raise AssertionError('must not run')\n"
    done = run_pytest(tmp_path, source, GNNKIT_GLT_PYTHON="/nonexistent/python")
    assert done.returncode == 0, done.stdout
    assert "to enable: make the second environment: make glt-env" in done.stdout


def test_a_warning_is_an_error_with_or_without_the_option(tmp_path: Path) -> None:
    source = "import warnings\ndef test_it():\n    warnings.warn('old', DeprecationWarning)\n"
    assert run_pytest(tmp_path, source).returncode == 1
    known = "import warnings\ndef test_it():\n    warnings.warn('`torch.jit.script` is deprecated. x', DeprecationWarning)\n"
    assert run_pytest(tmp_path, known, "-W", "error").returncode == 0
