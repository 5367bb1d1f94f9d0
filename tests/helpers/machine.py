"""What this machine offers to the tests that need more than Python: one entry per marker."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# ``PYTHONPATH`` of every process that tests start: with these tests, and with what has torch and PyG imported in half the time.
QUICK = str(ROOT / "tests/helpers/quick")
SEARCH_PATH = os.pathsep.join([QUICK, str(ROOT)])
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Requirement:
    """Why a marked test cannot run here, and what would change that.

    Attributes:
        missing: Returns the reason, or None where the tests can run.
        enable: What to do to have them run.
        optional: Whether a machine without it is complete: there they are left out by name, also where everything must run.
    """

    missing: Callable[[], str | None]
    enable: str
    optional: bool = False


def glt_python() -> Path | None:
    """The interpreter of the second environment, in which graphlearn-torch's native library loads; None where there is none."""
    path = Path(os.environ.get("GNNKIT_GLT_PYTHON") or ROOT / ".envs/glt/bin/python")
    return path if path.exists() else None


def newer_python() -> Path | None:
    """The interpreter of the environment on a Python that graphlearn-torch has no wheels for; None where there is none."""
    path = Path(os.environ.get("GNNKIT_NEWER_PYTHON") or ROOT / ".envs/newer/bin/python")
    return path if path.exists() else None


def checkov() -> Path:
    """checkov in an environment of its own: its dependencies are exact, and others than those of the tests."""
    return Path(os.environ.get("GNNKIT_CHECKOV") or ROOT / ".envs/checkov/bin/checkov")


def chromium() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, CHROMIUM_NAMES) if path), None)


@cache
def has_gpu() -> bool:
    """Whether torch can use a GPU; torch is asked only where a driver is present."""
    if not Path("/dev/nvidiactl").exists():
        return False
    import torch

    return torch.cuda.is_available()


# Prints how much longer than it computed a process took that computes for a tenth of a second.
_CONTROL = """
import time
started, used = time.monotonic(), time.process_time()
while time.process_time() - used < 0.1:
    sum(range(1000))
print((time.monotonic() - started) / (time.process_time() - used))
"""
# Processors that are alone differ by as much.
_SPREAD = 2.0


def slowness() -> float:
    """How many times longer something may take here than was promised for an idle machine; at least 2.

    A control process that only computes is timed, for what else runs at this moment; the load average stands for the last minute.
    """
    control = subprocess.run([sys.executable, "-I", "-S", "-c", _CONTROL], capture_output=True, text=True, timeout=60, check=True)
    return _SPREAD * max(1.0, float(control.stdout), os.getloadavg()[0] / len(processors()))


def processors() -> set[int]:
    """Those that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def in_time(took_s: float, promised_s: float) -> bool:
    """Whether a promise was kept: in the time promised, or in what that comes to on a machine as busy as this one is now."""
    return took_s < promised_s or took_s < promised_s * slowness()


def _missing_gpu() -> str | None:
    return None if has_gpu() else "needs an NVIDIA GPU that torch can use"


# An interpreter, and in a second line why graphlearn-torch does not load there: found out once, for parallel processes of the same run.
GLT_VARIABLE = "GNNKIT_TESTS_GLT"


@cache
def _missing_glt() -> str | None:
    python = glt_python()
    if python is None:
        return "needs graphlearn-torch's native library: there is no second environment in .envs/glt"
    told, _, reason = os.environ.get(GLT_VARIABLE, "").partition("\n")
    if told == str(python):
        return reason or None
    code = "import torch, ctypes, importlib.util as u, glob\n"
    code += "root = u.find_spec('graphlearn_torch').submodule_search_locations[0]\n"
    code += "ctypes.CDLL(glob.glob(root + '/py_graphlearn_torch*.so')[0])"
    probe = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    if probe.returncode:
        reason = f"{python} does not load graphlearn-torch: {probe.stderr.strip().splitlines()[-1]}"
    os.environ[GLT_VARIABLE] = f"{python}\n{reason}"
    return reason or None


def _missing_newer() -> str | None:
    return None if newer_python() else "needs gnnkit on Python 3.12 or newer: there is no environment in .envs/newer"


def _missing_browser() -> str | None:
    if not chromium():
        return f"needs a Chromium (one of {', '.join(CHROMIUM_NAMES)})"
    absent = [name for name in ("jupyterlab", "notebook", "playwright") if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(absent)}" if absent else None


@cache
def _missing_netns() -> str | None:
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "needs `ip` (iproute2) and `unshare` (util-linux)"
    if os.geteuid():
        return "hosts are entered from outside their namespaces, which only root may do"
    probe = subprocess.run(["unshare", "-n", "ip", "link"], capture_output=True, text=True)
    return f"network namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else None


@cache
def _missing_cgroup() -> str | None:
    from tools.bench.memory_groups import missing_memory_group

    return missing_memory_group()


@cache
def _missing_users() -> str | None:
    if os.geteuid():
        return "only root may make users"
    absent = [name for name in ("useradd", "userdel", "setpriv", "unshare") if not shutil.which(name)]
    if absent:
        return f"needs {', '.join(absent)}"
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    return f"mount namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else None


def missing_packages(names: Sequence[str]) -> str | None:
    """Returns why tests that need these packages are skipped here, and what would change that; None where all of them are there."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(absent)}; to enable: make test-all, which installs the group `test-all`" if absent else None


def needs(*names: str) -> None:
    """Skips the module of tests that calls it, before its imports, where one of these packages is missing."""
    if reason := missing_packages(names):
        pytest.skip(reason, allow_module_level=True)


def _missing_slurm() -> str | None:
    absent = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(name)]
    return f"needs Slurm: {', '.join(absent)}" if absent else _missing_netns()


def _missing_checkov() -> str | None:
    return None if checkov().exists() else "needs checkov: there is none in .envs/checkov"


def _missing_shellcheck() -> str | None:
    return None if shutil.which("shellcheck") else "needs shellcheck"


REQUIREMENTS = {
    "gpu": Requirement(_missing_gpu, "run on a machine with an NVIDIA GPU and a CUDA build of torch", optional=True),
    "glt": Requirement(_missing_glt, "make the second environment: make glt-env (Linux x86-64, Python 3.11)"),
    "newer": Requirement(_missing_newer, "install Python 3.12 or 3.13, with pyenv for example, and: make newer-env", optional=True),
    "browser": Requirement(_missing_browser, "apt-get install chromium, and: make test-all (which then installs the group `browser`)"),
    "cgroup": Requirement(_missing_cgroup, "run as root on Linux, with a memory controller that may be written to"),
    "netns": Requirement(_missing_netns, "run as root; apt-get install iproute2"),
    "slurm": Requirement(_missing_slurm, "run as root; apt-get install slurm-wlm munge iproute2"),
    "users": Requirement(_missing_users, "run as root; apt-get install passwd util-linux"),
    "checkov": Requirement(_missing_checkov, "make its environment: make checkov-env"),
    "shellcheck": Requirement(_missing_shellcheck, "apt-get install shellcheck"),
}
