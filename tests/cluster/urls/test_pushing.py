"""Stores and tables in buckets of real servers, of S3 and of Google Cloud Storage: pushed, fetched, and no secret anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import gnnkit
from gnnkit import GraphLoader, Store
from gnnkit.errors import DatasetError, PlanError, StoreError
from tests.helpers.batches import digest
from tests.helpers.bucket_servers import BUCKET, SECRET, gs_server, s3_server
from tests.helpers.command import run

pytestmark = pytest.mark.packages("boto3", "flask_cors", "gcp_storage_emulator", "gcsfs", "moto", "s3fs")
OPTIONS = {"num_neighbors": [4, 3], "batch_size": 128, "seed": 7, "progress": False}


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[str]:
    """The server, shared by these tests: each has a prefix of its own."""
    with s3_server() as address:
        yield address


@pytest.fixture
def bucket() -> Iterator[dict[str, bytes]]:
    """Puts and looks at objects without what is tested."""
    yield Bucket()


class Bucket(dict[str, bytes]):
    """The bucket as a mapping from keys to contents."""

    def __init__(self) -> None:
        import boto3

        super().__init__()
        self.client = boto3.client("s3")

    def __setitem__(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def __getitem__(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def below(self, prefix: str) -> set[str]:
        """The keys below a prefix, without it."""
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
        return {entry["Key"].removeprefix(f"{prefix}/") for entry in found}


def test_a_pushed_store_gives_the_same_batches_and_no_file_holds_a_secret(
    store: Store, home: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["push", str(store.path), f"s3://{BUCKET}/one/"]) == 0
    assert f"s3://{BUCKET}/one" in capsys.readouterr().out
    assert bucket.below("one") == {"manifest.json", *store.manifest.files}
    said = list[Any]()
    assert store.push(f"s3://{BUCKET}/one", events=said.append) == f"s3://{BUCKET}/one"
    assert [event.text for event in said] == [f"{store.name} is at s3://{BUCKET}/one already"]
    with GraphLoader.from_store(store.path, **OPTIONS) as here, GraphLoader.from_store(f"s3://{BUCKET}/one", **OPTIONS) as there:
        assert digest(list(there)) == digest(list(here))
        there.plan.save(tmp_path / "plan.json")
        there.export(tmp_path / "job", launcher="torchrun", nodes=2)
    assert run(["info", f"s3://{BUCKET}/one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == store.fingerprint
    job = {path.name: path.read_text() for path in (tmp_path / "job").iterdir() if path.suffix not in ("", ".whl")}
    assert json.loads(job["plan.json"])["store"]["path"] == f"s3://{BUCKET}/one"
    assert f"fetches the whole store {store.name}" in job["README.md"] and "s3fs==" in job["requirements.txt"]
    files = [path for root in (home, tmp_path) for path in root.rglob("*") if path.is_file() and path.suffix != ".npy"]
    assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_the_manifest_comes_with_the_last_part_whoever_has_it(store: Store, home: Path, bucket: Bucket) -> None:
    url, said = f"s3://{BUCKET}/parts", list[Any]()
    Store.open(store.path, [0]).push(url, events=said.append)
    assert said[-1].text == "parts 1 are yet to be pushed by the hosts that have them"
    assert "manifest.json" not in bucket.below("parts") and "part0/nodes/node/x.npy" in bucket.below("parts")
    with pytest.raises(StoreError, match="manifest.json"):
        Store.open(url)
    bucket["parts/part0/nodes/node/x.npy"] = b"cut"  # as a push that was broken off may leave it where objects are not put whole
    whole = list[Any]()
    store.push(url, events=whole.append)
    moved = [event.done for event in whole if event.kind == "progress"]
    assert moved[-1] == store.nbytes and min(moved) > 0, "what was put before is not put again"
    assert bucket.below("parts") == {"manifest.json", *store.manifest.files}
    Store.open(url).verify()


def test_nothing_else_is_replaced_unasked(store: Store, home: Path, bucket: Bucket, tmp_path: Path) -> None:
    bucket["mine/letters.txt"] = b"dear"
    with pytest.raises(StoreError, match="something else than a store"):
        store.push(f"s3://{BUCKET}/mine")
    url = f"s3://{BUCKET}/replaced"
    other = gnnkit.partition(store, 1, out=tmp_path / "other")
    other.push(url)
    with pytest.raises(StoreError, match="another store") as caught:
        store.push(url)
    assert caught.value.hint and "overwrite=True" in caught.value.hint
    store.push(url, overwrite=True)
    assert bucket.below("replaced") == {"manifest.json", *store.manifest.files}
    with pytest.raises(StoreError, match="cannot read s3://no-such-bucket-here") as missing:
        store.push("s3://no-such-bucket-here/one")
    assert missing.value.hint and "is the URL right" in missing.value.hint


def test_a_damaged_file_is_not_pushed(store: Store, home: Path, bucket: Bucket, tmp_path: Path) -> None:
    copy = gnnkit.partition(store, 1, out=tmp_path / "copy")
    path = copy.path / "part0/nodes/node/x.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StoreError, match=f"{path} was changed: its CRC-32"):
        copy.push(f"s3://{BUCKET}/damaged")
    assert "manifest.json" not in bucket.below("damaged")


def test_missing_credentials_are_an_error_that_says_where_they_are_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StoreError, match="redentials") as caught:
        Store.open(f"s3://{BUCKET}/one")
    assert caught.value.hint and "AWS_ACCESS_KEY_ID" in caught.value.hint
    with pytest.raises(StoreError, match="cannot be opened") as unknown:
        Store.open("nosuchscheme://bucket/one")
    assert unknown.value.hint and "gnnkit[url]" in unknown.value.hint


# Puts a folder at a URL: gcsfs brings threads, which a test's own process is to have none of.
PUT = "import fsspec, sys; fsspec.filesystem('gs').put(sys.argv[1] + '/', sys.argv[2] + '/', recursive=True)"


def edges(seed: int) -> bytes:
    """A Parquet file of edges."""
    rng, sink = np.random.default_rng(seed), pa.BufferOutputStream()
    parquet.write_table(pa.table({"a": rng.integers(0, 90, 300), "b": rng.integers(0, 90, 300)}), sink, row_group_size=100)
    return bytes(sink.getvalue().to_pybytes())


def test_tables_at_urls_are_those_of_files_and_are_fetched_once(
    home: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        bucket[f"tables/buys/{number}.parquet"] = edges(number)
        (tmp_path / f"{number}.parquet").write_bytes(edges(number))
    bucket["tables/buys/_SUCCESS"] = b""
    bucket["tables/buys/_temporary/0/9.parquet"] = edges(9)
    bucket["tables/delta/0.parquet"], bucket["tables/delta/_delta_log/0.json"] = edges(0), b"{}"
    with pytest.raises(PlanError, match="a table of Delta, whose log says"):
        gnnkit.tables(edges=f"s3://{BUCKET}/tables/delta")
    wanted = gnnkit.tables(edges=f"{tmp_path}/*.parquet").fingerprint()
    said = list[Any]()
    for url in ("tables/buys/*.parquet", "tables/buys", "tables/buys/"):
        assert gnnkit.tables(edges=f"s3://{BUCKET}/{url}", events=said.append).fingerprint() == wanted
    downloads = [event.label for event in said if event.stage == "download" and event.kind == "start"]
    assert downloads == [f"s3://{BUCKET}/tables/buys/*.parquet", f"s3://{BUCKET}/tables/buys"]
    monkeypatch.setenv("GNNKIT_OFFLINE", "1")
    assert gnnkit.tables(edges=f"s3://{BUCKET}/tables/buys").fingerprint() == wanted
    with pytest.raises(DatasetError, match="GNNKIT_OFFLINE is set"):
        gnnkit.tables(edges=f"s3://{BUCKET}/tables/others.csv")
    monkeypatch.delenv("GNNKIT_OFFLINE")
    bucket["tables/buys/1.parquet"] = edges(7)
    (tmp_path / "1.parquet").write_bytes(edges(7))
    assert gnnkit.tables(edges=f"s3://{BUCKET}/tables/buys").fingerprint() == gnnkit.tables(edges=f"{tmp_path}/*.parquet").fingerprint()


def test_what_is_wrong_with_a_table_at_a_url_names_it(home: Path, bucket: Bucket) -> None:
    url = f"s3://{BUCKET}/bad/edges.parquet"
    with pytest.raises(DatasetError, match=f"edges: there is no table at {url}"):
        gnnkit.tables(edges=url)
    content = edges(0)
    bucket["bad/edges.parquet"] = content[:200] + bytes(200) + content[400:]
    with pytest.raises(DatasetError, match=f"^{url}, row group 0"):
        gnnkit.tables(edges=url).fingerprint()
    bucket["bad/edges.parquet"] = content[:300]
    with pytest.raises(DatasetError, match=f"^{url} cannot be read"):
        gnnkit.tables(edges=url)
    with pytest.raises(PlanError, match="names a user or a password"):
        gnnkit.tables(edges="https://me:my-word@host/edges.csv")


@pytest.mark.slow(8)
def test_google_cloud_storage_holds_stores_and_tables_too(
    store: Store, home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with gs_server():
        said = list[Any]()
        for events in ([].append, said.append):
            assert store.push(f"gs://{BUCKET}/one/", events=events) == f"gs://{BUCKET}/one"
        assert [event.text for event in said] == [f"{store.name} is at gs://{BUCKET}/one already"]
        assert run(["info", f"gs://{BUCKET}/one", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["fingerprint"] == store.fingerprint
        assert not list(home.rglob("*.npy")), "the manifest alone was read"
        with GraphLoader.from_store(store.path, **OPTIONS) as here, GraphLoader.from_store(f"gs://{BUCKET}/one", **OPTIONS) as there:
            assert digest(list(there)) == digest(list(here))
        with pytest.raises(StoreError, match=f"cannot read gs://{BUCKET}/two") as caught:
            Store.open(f"gs://{BUCKET}/two")
        assert caught.value.hint and "is the URL right" in caught.value.hint
        (tmp_path / "buys").mkdir()
        (tmp_path / "buys/0.parquet").write_bytes(edges(0))
        (tmp_path / "buys/1.parquet").write_bytes(edges(1))
        wanted = gnnkit.tables(edges=str(tmp_path / "buys")).fingerprint()
        put = [sys.executable, "-c", PUT, str(tmp_path / "buys"), f"gs://{BUCKET}/buys"]
        assert subprocess.run(put, timeout=120, check=False).returncode == 0
        assert gnnkit.tables(edges=f"gs://{BUCKET}/buys/*.parquet").fingerprint() == wanted
