"""Where things are written: paths with ``~``, users without a home folder or a passwd entry, homes that cannot be written.

And how the interpreter is called: without docstrings, without compiling.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import gnnkit
from gnnkit.errors import PlanError
from tests.helpers.machine import SEARCH_PATH
from tests.loader.graphs import NUM_NODES, make, plain, seeds

pytestmark = pytest.mark.slow

# As in a container of an arbitrary user: one without an entry in /etc/passwd, who may read everything and write to $TMPDIR alone.
_STRANGER = [
    "setpriv",
    "--reuid=23457",
    "--regid=23457",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
]
_READ_ONLY = ["unshare", "--mount", "sh", "-ec", 'mount --bind "$TMPDIR" "$TMPDIR"; mount -o remount,bind,ro /; exec "$@"', "sh"]
_TRAIN = """
if __name__ == "__main__":
    import gnnkit
    from tests.loader.graphs import NUM_NODES, plain, seeds
    backend = {backend}
    with gnnkit.GraphLoader.from_pyg(plain(), num_neighbors=[2], batch_size=50, shuffle=False, input_nodes=None, backend=backend) as loader:
        assert sorted(seeds(loader)) == list(range(NUM_NODES))
    print("all seeds")
"""


def run(
    code: str, *flags: str, stranger: bool = False, cwd: Path | str | None = None, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter of its own; a variable that is None is taken away."""
    environment = {**os.environ, "PYTHONPATH": SEARCH_PATH, "GNNKIT_PROGRESS": "off", **variables}
    environment = {name: value for name, value in environment.items() if value is not None}
    command = [sys.executable, "-W", "always", *flags, "-c", code]
    prefix = [*_READ_ONLY, *_STRANGER] if stranger and os.getuid() == 0 else []
    return subprocess.run([*prefix, *command], env=environment, capture_output=True, text=True, timeout=240, cwd=cwd)


_NO_PLACE = {"GNNKIT_HOME": None, "XDG_CACHE_HOME": None, "XDG_STATE_HOME": None, "XDG_RUNTIME_DIR": None}


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What $TMPDIR names, one for all tests: compiled kernels are kept there."""
    folder = tmp_path_factory.mktemp("temporary")
    for above in [*folder.parents][:2]:  # pytest's own folders are the first user's alone
        above.chmod(0o755)
    folder.chmod(0o1777)
    return folder


@pytest.mark.parametrize("home", [None, "", "relative/home", "/nonexistent", "unwritable"])
def test_users_without_a_home_folder(home: str | None, temporary: Path, tmp_path: Path) -> None:
    """The commands, threads and a store for servers; a warning says once where data goes."""
    code = _TRAIN.format(backend="'auto'" if home in ("", "relative/home") else "gnnkit.GraphStore(num_servers=1)") + (
        "    from gnnkit.cli import main\n"
        "    import sys\n"
        "    for words in (['ps'], ['stores', 'ls'], ['stores', 'prune'], ['logs']):\n"
        "        sys.argv = ['gnnkit', *words]\n"
        "        try:\n"
        "            main()\n"
        "        except SystemExit as end:\n"
        "            assert not end.code or words == ['logs'], (words, end.code)\n"
    )
    place = {**_NO_PLACE, "HOME": str(tmp_path) if home == "unwritable" else home, "TMPDIR": str(temporary)}
    tmp_path.chmod(0o555)
    found = run(code, stranger=True, cwd="/", **place)
    assert "all seeds" in found.stdout and found.returncode == 0, found.stderr[-3000:]
    if os.getuid() == 0:  # an ordinary user has a home folder, whatever HOME says
        assert found.stderr.count("set GNNKIT_HOME to a folder that does") == 1, found.stderr[-3000:]
        (kept,) = temporary.glob("gnnkit-23457")
        assert kept.stat().st_mode & 0o077 == 0


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GNNKIT_HOME", "~/gk")
    monkeypatch.chdir(here)
    store = gnnkit.partition(plain(), 2, out="~/store")
    assert store.path == home / "store"
    with gnnkit.GraphLoader.from_store(
        "~/store", num_neighbors=[2], batch_size=50, input_nodes=None, backend=gnnkit.Colocated(num_workers=1, log_dir="~/logs")
    ) as loader:
        loader.plan.save("~/plan.json")
        found = sorted(seeds(loader))
    with gnnkit.GraphLoader.from_plan("~/plan.json") as again:
        assert sorted(seeds(again)) == found
    with make(backend=gnnkit.Colocated(num_workers=1)) as loader:
        list(loader)
    assert sorted(path.name for path in home.iterdir() if path.name != ".cache") == ["gk", "logs", "plan.json", "store"]
    assert list(here.iterdir()) == []
    with pytest.raises(PlanError, match="home folder"):
        gnnkit.partition(plain(), 2, out="~nobody-of-this-name/store")


@pytest.mark.parametrize(
    "variables", [{"RANK": "", "WORLD_SIZE": ""}, {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}]
)
def test_empty_variables_of_a_launcher_count_as_unset(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with make() as loader:
        assert (loader.plan.batching.rank, loader.plan.batching.world_size) == (0, 1)


@pytest.mark.parametrize("forbidden", ["memfd_create", "SOCK_SEQPACKET"])
def test_a_sandbox_that_forbids_what_processes_need(forbidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As gVisor and seccomp profiles do; threads go on working."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def make_pair(family: int, kind: int, *more: int) -> tuple[socket.socket, socket.socket]:
        if kind & socket.SOCK_SEQPACKET == socket.SOCK_SEQPACKET:
            refuse()
        return real_pair(family, kind, *more)

    real_pair = socket.socketpair
    if forbidden == "memfd_create":
        monkeypatch.setattr(os, "memfd_create", refuse)
    else:
        monkeypatch.setattr(socket, "socketpair", make_pair)
    for backend in (gnnkit.Colocated(num_workers=1), gnnkit.GraphStore(num_servers=1)):
        with pytest.raises(PlanError, match=forbidden) as caught, make(backend=backend) as loader:
            list(loader)
        assert caught.value.hint and "InProcess()" in caught.value.hint
    with make(backend=gnnkit.InProcess()) as loader:
        assert sorted(seeds(loader)) == list(range(NUM_NODES))


def test_without_docstrings(tmp_path: Path) -> None:
    code = (
        _TRAIN.format(backend="None or 'auto'")
        + "    help(gnnkit.GraphLoader.from_pyg)\n    [getattr(gnnkit, name) for name in gnnkit.__all__]\n"
    )
    found = run(code, "-OO", GNNKIT_HOME=str(tmp_path))
    assert found.returncode == 0 and "all seeds" in found.stdout and "num_neighbors" in found.stdout, found.stderr[-3000:]


def test_without_compiling(tmp_path: Path) -> None:
    found = run("from gnnkit import GraphLoader", GNNKIT_HOME=str(tmp_path), NUMBA_DISABLE_JIT="1")
    assert found.returncode == 1 and "gnnkit.errors.PlanError: NUMBA_DISABLE_JIT" in found.stderr, found.stderr[-3000:]
