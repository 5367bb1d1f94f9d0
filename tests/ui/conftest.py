from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnkit.ui import options
from tests.ui.kernels import Kernel


@pytest.fixture(autouse=True)
def default_options(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Options that a test sets are gone after it."""
    monkeypatch.delenv(options.PROGRESS_VARIABLE, raising=False)
    with options.set_options():
        yield


@pytest.fixture(scope="module")
def jupyter_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keeps Jupyter and IPython away from the user's home."""
    home = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            (home / name.lower()).mkdir()
            patch.setenv(name, str(home / name.lower()))
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        for name in ("VSCODE_PID", "VSCODE_CWD"):
            patch.delenv(name, raising=False)
        yield home


@pytest.fixture(scope="module")
def running_kernel(jupyter_home: Path) -> Iterator[Kernel]:
    """One real kernel for a module: starting it takes longer than most of what is done in it."""
    kernel = Kernel()
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel(running_kernel: Kernel, request: pytest.FixtureRequest) -> Kernel:
    """The kernel with an empty namespace and no messages so far, after a cell of the module's: ``SETUP``, where it has one."""
    running_kernel.reset()
    running_kernel.run(getattr(request.module, "SETUP", ""))
    return running_kernel
