"""What this machine offers to the tests that need more than Python: one entry per marker."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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


def _missing_gpu() -> str | None:
    return None if has_gpu() else "needs an NVIDIA GPU that torch can use"


@cache
def _missing_glt() -> str | None:
    python = glt_python()
    if python is None:
        return "needs graphlearn-torch's native library: there is no second environment in .envs/glt"
    code = "import torch, ctypes, importlib.util as u, glob\n"
    code += "root = u.find_spec('graphlearn_torch').submodule_search_locations[0]\n"
    code += "ctypes.CDLL(glob.glob(root + '/py_graphlearn_torch*.so')[0])"
    probe = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return f"{python} does not load graphlearn-torch: {probe.stderr.strip().splitlines()[-1]}" if probe.returncode else None


def _missing_newer() -> str | None:
    return None if newer_python() else "needs gnnkit on Python 3.12 or newer: there is no environment in .envs/newer"


def _missing_browser() -> str | None:
    return None if chromium() else f"needs a Chromium (one of {', '.join(CHROMIUM_NAMES)})"


@cache
def _missing_netns() -> str | None:
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "needs `ip` (iproute2) and `unshare` (util-linux)"
    probe = subprocess.run(["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-n", "ip", "link"], capture_output=True, text=True)
    return f"network namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else None


@cache
def _missing_cgroup() -> str | None:
    from tests.helpers.memory_groups import missing_memory_group

    return missing_memory_group()


REQUIREMENTS = {
    "gpu": Requirement(_missing_gpu, "run on a machine with an NVIDIA GPU and a CUDA build of torch", optional=True),
    "glt": Requirement(_missing_glt, "make the second environment: make glt-env (Linux x86-64, Python 3.11)"),
    "newer": Requirement(_missing_newer, "install Python 3.12 or 3.13, with pyenv for example, and: make newer-env", optional=True),
    "browser": Requirement(_missing_browser, "install Chromium: apt-get install chromium"),
    "cgroup": Requirement(_missing_cgroup, "run as root on Linux, with a memory controller that may be written to"),
    "netns": Requirement(_missing_netns, "run as root, or allow user namespaces; apt-get install iproute2"),
}
