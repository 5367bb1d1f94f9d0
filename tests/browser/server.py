"""A Jupyter server of our own: JupyterLab and Notebook 7 on one port of the loopback interface, with folders that go with it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.helpers.waiting import wait_until

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
SETTINGS = {
    # JupyterLab would ask whether to show news, and look for newer versions of itself.
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # Two who save at once are asked which version to keep.
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}


class JupyterServer:
    """Serves ``folder / "notebooks"`` to who has the token.

    Args:
        folder: Where everything goes that Jupyter and IPython keep; must exist.

    Attributes:
        url: With a slash at the end.
        token: What requests must carry.
        notebooks: The folder that is served.

    Raises:
        AssertionError: The server ended, or is not ready after START_TIMEOUT_S.
    """

    def __init__(self, folder: Path) -> None:
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        self.token = secrets.token_hex(16)
        for name, values in SETTINGS.items():
            path = folder / "config/lab/user-settings" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(values))
        self._log = folder / "server.log"
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
        command += [f"--ServerApp.root_dir={self.notebooks}", "--LabApp.expose_app_in_browser=True"]
        command += ["--JupyterNotebookApp.expose_app_in_browser=True"]
        command += ["--allow-root"] if os.geteuid() == 0 else []
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.notebooks,  # and so the kernels'
                env=_environment(folder, self.token),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        info = folder / f"runtime/jpserver-{self._process.pid}.json"
        self.url = ""
        try:
            assert wait_until(lambda: self._process.poll() is not None or self._is_ready(info), START_TIMEOUT_S), self.log_tail()
            assert self._process.poll() is None, self.log_tail()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> JupyterServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One call of the server's REST interface; returns the decoded answer, None where it is empty."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def start_kernel(self) -> str:
        """Starts a kernel; returns its id."""
        return str(self.request("POST", "kernels", {"name": "python3"})["id"])

    def kill_kernel(self, kernel: str) -> None:
        """Kills a kernel as the system would that runs out of memory, and has the server forget it instead of starting it anew."""
        (process,) = (p for p in psutil.Process(self._process.pid).children() if kernel in " ".join(p.cmdline()))
        process.kill()
        self.request("DELETE", f"kernels/{kernel}")

    def attach(self, notebook: str, kernel: str) -> None:
        """Opening the notebook from now on connects it to this kernel."""
        self.request("POST", "sessions", {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"id": kernel}})

    def log_tail(self) -> str:
        """The last lines that the server wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    def stop(self) -> None:
        """Ends the server and its kernels."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _is_ready(self, info: Path) -> bool:
        # The file appears before it is written, and before the server answers.
        try:
            self.url = json.loads(info.read_text())["url"]
            self.request("GET", "status")
        except (OSError, ValueError):
            return False
        return True


def _environment(folder: Path, token: str) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "VSCODE_", "COLUMNS"))}
    for name in ("config", "data", "runtime", "ipython"):
        (folder / name).mkdir(exist_ok=True)
    return {
        **variables,
        "JUPYTER_TOKEN": token,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
