"""Files that others wrote, and folders that others own: nothing is waited for, read without bounds, or followed out of a store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gnnkit import GraphLoader, Store
from gnnkit.errors import GnnkitError, PlanError, StoreError
from gnnkit.files import private_folder, read_bounded
from tests.backends.setups import environment
from tests.helpers.graphs import built, homogeneous_source, random_edges
from tests.helpers.machine import slowness
from tests.helpers.stores import listed_stores
from tests.storage.checks import fast_folder

# Reading a file of a few kilobytes takes no time; a pipe is waited for without end.
AT_ONCE_S = 10.0
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files can be given to another user by root alone")
ANOTHER_USER = 54321


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    rng = np.random.default_rng(5)
    source = homogeneous_source(random_edges(rng, 40, 40, 200), 40, x=rng.standard_normal((40, 4)).astype(np.float32))
    with fast_folder() as folder:
        built(source, Path(folder) / "store", 2)
        yield Path(folder) / "store"


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "stores" / "store")
    return tmp_path / "stores" / "store"


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


ATTACKS: list[Callable[[Path], None]] = [pipe, device, sparse, folder]


def at_once(call: Callable[[], object], error: type[GnnkitError] = StoreError, match: str = ".") -> None:
    """An error comes, in no time and with no memory to speak of.

    The call is made in this process: a hang would be ended by the test's own timeout.
    """
    import resource

    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(error, match=match):
        call()
    assert time.monotonic() - began < AT_ONCE_S * slowness()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # in KiB


@pytest.mark.timeout(120)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_manifest_that_is_no_file_is_an_error_at_once(store: Path, attack: Callable[[Path], None]) -> None:
    attack(store / "manifest.json")
    at_once(lambda: Store.open(store), match=r"manifest\.json cannot be read: it (is|has)|leads out of")
    assert [info["path"] for info in listed_stores(store.parent)] in ([], [str(store)])  # whatever it says of it, it says it at once


@pytest.mark.timeout(120)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ["part0/edges/*/indices.npy", "part1/nodes/*/x.npy"])
def test_an_array_that_is_no_file_is_an_error_at_once(store: Path, attack: Callable[[Path], None], name: str) -> None:
    (array,) = store.glob(name)
    attack(array)
    at_once(lambda: Store.open(store).arrays())


def test_an_array_that_is_linked_out_of_the_store_is_not_followed(store: Path, tmp_path: Path) -> None:
    """Neither the file itself nor a folder on the way, also where what is there would fit."""
    (array,) = store.glob("part0/nodes/*/x.npy")
    elsewhere = tmp_path / "secret.npy"
    array.rename(elsewhere)
    array.symlink_to(elsewhere)
    at_once(lambda: Store.open(store).arrays(), match="leads out of")
    array.unlink()
    elsewhere.rename(array)
    (store / "part0").rename(tmp_path / "part0")
    (store / "part0").symlink_to(tmp_path / "part0")
    at_once(lambda: Store.open(store).arrays(), match="leads out of")


def test_links_to_a_store_and_inside_it_are_followed(store: Path, tmp_path: Path) -> None:
    (array,) = store.glob("part0/nodes/*/x.npy")
    array.rename(store / "x.npy")
    array.symlink_to(os.path.relpath(store / "x.npy", array.parent))
    (tmp_path / "link").symlink_to(store)
    Store.open(tmp_path / "link").verify()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_plan_that_is_no_file_is_an_error_at_once(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    attack(tmp_path / "plan.json")
    at_once(lambda: GraphLoader.from_plan(tmp_path / "plan.json"), PlanError, "cannot read the plan")


def test_a_file_that_grows_while_it_is_read_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert read_bounded(path, 100) == bytes(100)
    with pytest.raises(OSError, match="100 bytes, and 99 are allowed"):
        read_bounded(path, 99)


# Folders of other users ---------------------------------------------------------------------------------------------------


@as_root
def test_a_folder_below_the_temporary_one_is_not_taken_from_another_user(tmp_path: Path) -> None:
    """Somebody made /tmp/gnnkit-<uid> first: he could replace all that is put into it, compiled kernels and sockets too."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    trap = shared / f"gnnkit-{os.getuid()}"
    trap.mkdir()
    for name in ("runs", "kernels"):
        (trap / name).mkdir()
    os.chown(trap, ANOTHER_USER, ANOTHER_USER)
    blocked = tmp_path / "home"
    blocked.write_text("no folder can be made below a file")
    script = (
        "import sys\nfrom gnnkit.errors import PlanError\nfrom gnnkit.kernels.folder import kernel_cache_root\n"
        "from gnnkit.runtime.runs import runs_root\n"
        "print(kernel_cache_root())\n"
        "try:\n    print(runs_root())\nexcept PlanError as error:\n    print(error)\n"
    )
    home = {"HOME": str(blocked), "GNNKIT_HOME": str(blocked / "gnnkit"), "TMPDIR": str(shared), "XDG_RUNTIME_DIR": ""}
    state = {"XDG_CACHE_HOME": str(blocked), "XDG_STATE_HOME": str(blocked), "XDG_DATA_HOME": str(blocked)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(**home, **state), capture_output=True, text=True, timeout=120, check=True
    )
    kernels, runs = done.stdout.splitlines()[:2]
    assert not kernels.startswith(str(trap)) and "another user" in runs, done.stdout


@as_root
@pytest.mark.parametrize(("owner", "mode"), [(ANOTHER_USER, 0o700), (0, 0o777), (0, 0o770)])
def test_every_folder_on_the_way_counts(tmp_path: Path, owner: int, mode: int) -> None:
    middle = tmp_path / "middle"
    private_folder(middle / "own")
    os.chown(middle, owner, owner)
    middle.chmod(mode)
    with pytest.raises(PermissionError, match=r"belongs to another user|can write to"):
        private_folder(middle / "own")


def test_a_private_folder_is_the_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [place.stat().st_mode & 0o777 for place in (made, made.parent)] == [0o700, 0o700]
    assert private_folder(made) == made and Path(tempfile.gettempdir()).exists()
