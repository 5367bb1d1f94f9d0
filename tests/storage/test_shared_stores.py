"""Stores in folders that this user may read and not write, and how many processes use one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import gnnkit
from gnnkit import GraphLoader, Store
from gnnkit.datasets import products_like
from gnnkit.runtime.limits import copy_budget
from gnnkit.storage.catalog import default_store_dirs, find_or_build
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.users import StoreUse
from tests.helpers.command import run as gnnkit_command
from tests.helpers.system import pretend_free_memory, without_rights

HOLD = """
import sys; from pathlib import Path; from gnnkit.storage.users import StoreUse
use = StoreUse(Path(sys.argv[1])); print(use.count(), flush=True); input()
"""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in a folder of data that is read only from now on."""
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path / "class"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "class/stores").mkdir(parents=True)
    return gnnkit.partition(products_like(0.0005), 1)


def test_a_store_that_may_only_be_read_is_opened_where_it_lies(shared: Store, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "cache").chmod(0o777)
    (tmp_path / "class/stores").chmod(0o555)
    with without_rights(tmp_path / "class"):
        own, *folders = default_store_dirs()
    (tmp_path / "class/stores").chmod(0o755)
    assert own == tmp_path / "cache/gnnkit/stores" and folders == [tmp_path / "class/stores"]
    source, build = products_like(0.0005), shared.options
    assert find_or_build(source, build, own, shared=folders).path == shared.path
    cut = find_or_build(source, replace(build, num_parts=2), own, shared=folders)
    assert cut.path.parent == own and cut.manifest.num_parts == 2, "new ones are this user's"


def test_a_store_that_may_only_be_read_is_not_removed(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "cache").chmod(0o777)
    (tmp_path / "class/stores").chmod(0o555)
    monkeypatch.setenv("COLUMNS", "300")
    assert gnnkit_command(["stores", "rm", "another"]) == 2  # and what it imports is there, which nobody may not read
    with without_rights(tmp_path / "class"):
        assert gnnkit_command(["stores", "rm", shared.path.name]) == 2
    said = capfd.readouterr().err
    assert f"{shared.path.name} lies in {tmp_path / 'class/stores'}, which you may read and not write" in said and "-> who owns" in said
    (tmp_path / "class/stores").chmod(0o755)
    assert Store.open(shared.path).fingerprint == shared.fingerprint
    assert gnnkit_command(["stores", "rm", shared.path.name]) == 0 and not shared.path.exists()


def test_a_copy_is_made_while_there_is_room_for_one_of_each_process(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = shared.path / MANIFEST_NAME
    use = StoreUse(manifest)
    assert use.count() == 1
    command = [sys.executable, "-c", HOLD, str(manifest)]
    others = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for other in others:
        assert other.stdout is not None and int(other.stdout.readline()) > 1
    assert use.count() == 3
    pretend_free_memory(monkeypatch, 12 * 10**9)
    assert (copy_budget(1), copy_budget(3)) == (3 * 10**9, 10**9)
    with GraphLoader.from_store(shared, num_neighbors=[2], progress=False) as loader:
        graph = loader.pipeline.graph
        size = graph.copy_nbytes(None)
        assert size and graph.num_users == 3 and "shared by 3 processes" in str(loader)
        pretend_free_memory(monkeypatch, 4 * 2 * size)
        assert graph.copy_nbytes(None) == 0 and graph.copy_nbytes(size) == size, "what a user says counts"
        for other in others:
            other.communicate("\n", timeout=60)
        assert graph.num_users == 1 and graph.copy_nbytes(None) == size
