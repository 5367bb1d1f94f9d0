"""A class on one machine, with real users and real kernels: a teacher who keeps dataset and store, and students who may only read them."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from gnnkit.datasets import products_like, sample_root, write_ogb_layout
from tests.e2e.users import Users
from tests.helpers.machine import ROOT
from tests.helpers.ports import free_port
from tests.helpers.stores import listed_stores

pytestmark = [pytest.mark.users, pytest.mark.slow(120), pytest.mark.timeout(900)]
TIMEOUT_S = 240.0
TEACHER, STUDENTS = "gnnteacher", [f"gnnstudent{number}" for number in range(1, 6)]
# How much memory is free is said by the test: three and a half copies of the graph fit a quarter of it.
OPEN = """
import json, psutil
from gnnkit import GraphLoader

real = psutil.virtual_memory
psutil.virtual_memory = lambda: real()._replace(available={free})
loader = GraphLoader.from_ogb("ogbn-products", num_neighbors=[5, 5], batch_size=512, progress=False)
seen = [int(batch.n_id.sum()) for batch in loader]
is_copied = loader.pipeline.graph.memory(None).wait(60)
print(json.dumps([str(loader.store.path), seen, is_copied]))
"""
JOIN = """
from gnnkit import GraphStore

backend = GraphStore(address={address!r}, token={token!r})
served = GraphLoader.from_store(num_neighbors=[5, 5], batch_size=512, progress=False, backend=backend)
print(json.dumps([int(batch.n_id.sum()) for batch in served]))
served.close()
"""


class Kernel:
    """A kernel of a user's notebook."""

    def __init__(self, users: Users, name: str, environment: dict[str, str]) -> None:
        place = users.home(name) / "kernel.json"
        write_connection_file(str(place), transport="ipc", ip=str(users.home(name) / "ipc"))
        shutil.chown(place, name)
        self._log = (users.home(name) / "kernel.log").open("w")
        command = ["python", "-m", "ipykernel_launcher", "-f", str(place)]
        self._process = users.popen(name, command, environment, stdout=self._log, stderr=subprocess.STDOUT)
        self._client = BlockingKernelClient(connection_file=str(place))
        self._client.load_connection_file()
        self._client.start_channels(hb=False)  # five kernels that start at once may be late in answering

    def run(self, code: str) -> str:
        """Runs a cell; what it has printed."""
        said: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            said.append(content.get("text", "") if message["msg_type"] == "stream" else "\n".join(content.get("traceback", ())))

        self._client.wait_for_ready(timeout=TIMEOUT_S)
        reply = self._client.execute_interactive(code, timeout=TIMEOUT_S, output_hook=hear)
        assert reply["content"]["status"] == "ok", "".join(said)
        return "".join(said)

    def close(self) -> None:
        """Ends it."""
        self._client.stop_channels()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(TIMEOUT_S)
        self._log.close()


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    private = [str(folder) for folder in (ROOT, *ROOT.parents) if not folder.stat().st_mode & stat.S_IXOTH]
    if private:
        pytest.skip(f"other users may not enter {private[-1]}; to enable: a checkout that they can read")
    folder = Path(tempfile.mkdtemp(prefix="gnnkit-class-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "homes").mkdir(mode=0o755)
    made = Users(folder)
    try:
        for name in (TEACHER, *STUDENTS):
            made.add(name)
            made.give_kernels(name)
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def material(users: Users) -> dict[str, str]:
    """What the teacher has prepared, as the environment of all: the dataset, and its store."""
    folder = users.folder / "class"
    folder.mkdir()
    write_ogb_layout(products_like(0.02), folder, compresslevel=0)
    subprocess.run(["chown", "-R", f"{TEACHER}:{TEACHER}", str(folder)], check=True, timeout=60)
    environment = {"GNNKIT_HOME": str(folder), "GNNKIT_OFFLINE": "1"}
    command = 'mkdir -m 755 "$GNNKIT_HOME/stores"; umask 022; exec "$0" -m gnnkit partition ogbn-products 1'
    users.run(TEACHER, ["sh", "-c", command, "python"], environment)
    return environment


@pytest.fixture
def kernels(users: Users, material: dict[str, str]) -> Iterator[list[Kernel]]:
    started: list[Kernel] = []
    try:
        started += [Kernel(users, name, material) for name in STUDENTS]
        yield started
    finally:
        for kernel in started:
            kernel.close()


def mapped_by(name: str) -> set[str]:
    """The files that the processes of a user have mapped."""
    uid, found = pwd.getpwnam(name).pw_uid, set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if place.stat().st_uid == uid:
                found |= {line.split(maxsplit=5)[5] for line in (place / "maps").read_text().splitlines() if "/" in line}
        except OSError:  # it has ended meanwhile
            continue
    return found


def test_five_students_share_what_the_teacher_has_built(users: Users, material: dict[str, str], kernels: list[Kernel]) -> None:
    (listed,) = listed_stores(Path(material["GNNKIT_HOME"]) / "stores")
    code = OPEN.format(free=14 * listed["nbytes"])
    paths, seen, is_copied = zip(*(json.loads(kernel.run(code)) for kernel in kernels), strict=True)
    assert set(paths) == {listed["path"]}, "read where it lies"
    assert seen[0] and all(sums == seen[0] for sums in seen)
    assert is_copied == (True, True, True, False, False), "copies only while there is room for all"
    for name in STUDENTS:
        assert any(path.startswith(listed["path"]) for path in mapped_by(name)), "pages of one file"
        assert not list(users.home(name).glob(".cache/gnnkit/stores/*")), "nothing is built again"
    card = kernels[-1].run("print(loader)")
    assert "pages shared by 5 processes" in card and "too much memory" in card
    assert "ogbn-products" in users.run(STUDENTS[0], ["python", "-m", "gnnkit", "stores", "ls"], material)

    token, address = secrets.token_hex(16), f"127.0.0.1:{free_port()}"
    serve = ["python", "-m", "gnnkit", "serve", "--store", listed["path"], "--num-servers", "1", "--address", address]
    with (users.folder / "serve.log").open("w") as log:
        served = users.popen(TEACHER, serve, {**material, "GNNKIT_TOKEN": token}, stdout=log, stderr=subprocess.STDOUT)
        try:
            assert json.loads(kernels[0].run(JOIN.format(address=address, token=token))) == seen[0]
            with pytest.raises(AssertionError, match="token"):
                kernels[1].run(JOIN.format(address=address, token="another" * 3))
        finally:
            served.terminate()
            served.wait(TIMEOUT_S)


def test_a_folder_of_stores_that_students_may_not_read_is_named(users: Users, material: dict[str, str]) -> None:
    closed = users.folder / "closed"
    shutil.copytree(sample_root() / "ogbn_products", closed / "ogbn_products")
    (closed / "stores").mkdir(mode=0o700)
    code = "from gnnkit import GraphLoader; GraphLoader.from_ogb('ogbn-products', num_neighbors=[2], progress=False)"
    said = users.run(STUDENTS[0], ["python", "-c", code], {**material, "GNNKIT_HOME": str(closed)})
    assert f"{closed}/stores cannot be read by this user" in said and f"chmod -R a+rX {closed}/stores" in said
    assert os.listdir(users.home(STUDENTS[0]) / ".cache/gnnkit/stores")
