"""Stores at an https-like URL: parts of one's own, checksums, cuts, kills, interrupts, and what stays without a network."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnnkit import GraphLoader, LoaderPlan, Store, partition
from gnnkit.errors import PlanError, StoreError
from gnnkit.plan import Placement
from tests.helpers.batches import digest
from tests.helpers.command import run, run_captured
from tests.helpers.http_files import FileServer
from tests.helpers.stores import said
from tests.helpers.waiting import wait_until

OPTIONS = {"num_neighbors": [4, 3], "batch_size": 128, "seed": 7, "progress": False}


def batches(loader: GraphLoader) -> str:
    """The digest of an epoch."""
    with loader:
        return digest(list(loader))


def in_stores(home: Path) -> list[str]:
    """What lies in the folder of stores and would be opened or listed, without what is not finished."""
    return sorted(path.name for path in (home / "stores").glob("*") if not path.name.endswith(".incomplete") and path.name[0] != ".")


def test_a_url_gives_the_same_batches_as_the_folder_and_a_plan_that_names_it(
    store: Store, server: FileServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/store"
    wanted = batches(GraphLoader.from_store(store.path, **OPTIONS))
    loader = GraphLoader.from_store(url, **OPTIONS)
    assert loader.store is not None and loader.store.url == url
    assert pickle.loads(pickle.dumps(loader.store)).url == url
    loader.plan.save(tmp_path / "plan.json")
    sibling = loader.for_split("train", shuffle=True)
    assert sibling.plan.store is not None and sibling.plan.store.url == url
    sibling.close()
    assert batches(loader) == wanted
    assert json.loads((tmp_path / "plan.json").read_text())["store"]["path"] == url
    assert LoaderPlan.load(tmp_path / "plan.json").store is not None
    server.asked.clear()
    assert batches(GraphLoader.from_plan(tmp_path / "plan.json", progress=False)) == wanted
    assert server.asked == [], "the plan's store is here, and nobody is asked"
    monkeypatch.setenv("GNNKIT_OFFLINE", "1")
    assert batches(GraphLoader.from_store(url, **OPTIONS)) == wanted
    assert server.asked == []
    with pytest.raises(StoreError, match="GNNKIT_OFFLINE is set"):
        Store.open(f"{url}-of-others")


def test_only_the_parts_that_are_opened_are_fetched_and_each_once(store: Store, server: FileServer, home: Path) -> None:
    url = f"{server.url}/store"
    assert Store.open(url, [1]).local_parts == (1,)
    assert not [path for path in server.asked if "/part0/" in path]
    server.asked.clear()
    whole = Store.open(url)
    assert {path.split("/")[2] for path in server.asked} == {"manifest.json", "part0"}
    whole.verify()
    assert {name: (whole.path / name).read_bytes() for name in whole.manifest.files} == {
        name: (store.path / name).read_bytes() for name in store.manifest.files
    }
    assert whole.manifest == store.manifest
    assert partition(url, 2).path == whole.path, "it is the store that a build here would have made"


def test_a_node_of_a_job_fetches_its_share_before_it_starts(
    store: Store, server: FileServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with GraphLoader.from_store(store.path, **OPTIONS, backend="colocated") as loader:
        assert loader.plan.store is not None
        reference = replace(loader.plan.store, url=f"{server.url}/store")
        replace(loader.plan, store=reference, placement=Placement(((0,), (1,)))).save(tmp_path / "plan.json")
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NODE_RANK", "1")
    code, out, _ = run_captured(capfd, ["run", tmp_path / "plan.json", "--prepare"])
    assert code == 0 and f"parts 1 of {home}" in out
    assert not [path for path in server.asked if "/part0/" in path]


def test_what_is_not_as_the_manifest_says_is_refused_and_fetched_again_alone(server: FileServer, home: Path) -> None:
    url, name = f"{server.url}/store", "/store/part1/nodes/node/x.npy"
    right = server.files[name]
    server.files[name] = right[:-1] + bytes([right[-1] ^ 1])
    with pytest.raises(StoreError, match=r"/store/part1/nodes/node/x.npy: its CRC-32 is .*, the manifest says"):
        Store.open(url)
    assert in_stores(home) == []
    server.files[name] = right
    server.asked.clear()
    Store.open(url).verify()
    fetched = {path for path in server.asked if path.endswith(".npy")}
    assert name in fetched and "/store/part0/nodes/node/x.npy" not in fetched


def test_cuts_are_mended_and_a_missing_file_is_an_error_that_names_it(server: FileServer, home: Path) -> None:
    url, name = f"{server.url}/store", "/store/part1/edges/node__to__node/indices.npy"
    server.cuts += [1 << 30, 1 << 30, 1000, 1 << 20]  # after the manifest's two requests
    content = server.files.pop(name)
    with pytest.raises(StoreError, match=r"cannot read .*/store/part1/edges/node__to__node/indices.npy") as caught:
        Store.open(url)
    assert caught.value.hint and in_stores(home) == []
    server.files[name] = content
    Store.open(url).verify()
    server.files["/store/manifest.json"] = b"{}"
    with pytest.raises(StoreError, match=f"{url} is damaged: manifest.json is not a manifest"):
        Store.open(url)


FETCH = "import sys; from gnnkit.storage.store import Store; Store.open(sys.argv[1])"


def test_a_fetch_that_was_killed_leaves_nothing_half_taken_and_the_next_one_goes_on(server: FileServer, home: Path) -> None:
    url, name = f"{server.url}/store", "/store/part0/nodes/node/x.npy"

    def has_begun() -> bool:
        return any(path.stat().st_size >= 8 << 20 for path in home.glob("stores/*.incomplete/part0/nodes/node/x.npy.part"))

    server.hold_from = {name: 8 << 20}
    fetching = subprocess.Popen([sys.executable, "-c", FETCH, url], env={**os.environ, "GNNKIT_HOME": str(home)}, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(has_begun)
    finally:
        fetching.kill()
        fetching.wait()
    server.release()
    assert in_stores(home) == []
    server.asked.clear()
    server.requests.clear()
    Store.open(url).verify()
    assert [asked for path, asked in zip(server.asked, server.requests, strict=True) if path == name] == [
        f"bytes={8 << 20}-{len(server.files[name]) - 1}"
    ]


@pytest.fixture
def interrupted_while_fetching(server: FileServer) -> Iterator[None]:
    """Interrupts this process once the server keeps a file back."""

    def interrupt() -> None:
        if wait_until(lambda: any(path.endswith(".npy") for path in server.asked)):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


@pytest.mark.usefixtures("interrupted_while_fetching")
def test_the_stop_button_ends_a_fetch(server: FileServer, home: Path) -> None:
    server.hold_from = dict.fromkeys(server.files, 0)
    del server.hold_from["/store/manifest.json"]
    with pytest.raises(KeyboardInterrupt):
        GraphLoader.from_store(f"{server.url}/store", **OPTIONS)
    server.release()
    assert in_stores(home) == []


def test_without_a_network_what_was_fetched_is_used_and_it_is_said(server: FileServer, home: Path) -> None:
    url, said = f"{server.url}/store", list[Any]()
    before = Store.open(url, [0])
    server.statuses += [503] * 40
    from gnnkit.cluster.urls.stores import open_url

    assert open_url(url, [0], said.append).path == before.path
    assert any("what was fetched before is used" in event.text for event in said)
    with pytest.raises(StoreError, match="503"):
        open_url(url, [0, 1])


def test_info_reads_the_manifest_alone(store: Store, server: FileServer, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", f"{server.url}/store", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == store.fingerprint
    assert set(server.asked) == {"/store/manifest.json"}
    assert run(["info", f"{server.url}/store"]) == 0
    assert "2 (contiguous)" in capsys.readouterr().out
    assert not (home / "stores").exists()
    assert run(["info", f"{server.url}/store", "--verify"]) == 2


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://me:my-word@host/store", "names a user or a password"),
        ("s3://my-word@bucket/store", "names a user or a password"),
        ("https://host/store?X-Amz-Signature=my-word", "a signature there"),
        ("file:///stores/one", "no URL of another machine"),
        ("s3://", "is no URL"),
    ],
)
def test_urls_that_hold_secrets_are_refused_without_showing_them(url: str, words: str, tmp_path: Path, store: Store) -> None:
    for attempt in (lambda: GraphLoader.from_store(url, **OPTIONS), lambda: Store.open(url), lambda: store.push(url)):
        with pytest.raises(PlanError, match=words) as caught:
            attempt()
        assert "my-word" not in f"{caught.value} {caught.value.hint}"
    plan = {"version": 3, "store": {"path": url, "fingerprint": "0", "graph": "0"}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(PlanError) as caught:
        GraphLoader.from_plan(tmp_path / "plan.json", progress=False)
    assert "my-word" not in str(caught.value)


def test_a_fetched_store_is_one_of_the_folder_of_stores(server: FileServer, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Store.open(f"{server.url}/store", [0]).path
    assert path.parent == home / "stores"
    assert run(["stores", "ls", "--json"]) == 0
    assert [entry["problem"] for entry in json.loads(capsys.readouterr().out)["stores"]] == [None]
    assert said("plan-capacity", f"{server.url}/store", "--num-parts", 2)["graph"]["num_nodes"] == 9000
    with pytest.raises(PlanError, match="nothing can be put at"):
        Store.open(path, [0]).push(server.url)
