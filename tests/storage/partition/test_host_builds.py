"""One store, built by several hosts: byte for byte what one host builds, whoever builds what, when, and is killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions, Store, datasets, partition
from gnnkit.errors import PlanError, StoreError
from gnnkit.storage.build import build_job, build_parts
from tests.helpers.command import run
from tests.helpers.graphs import ArraySource, random_source
from tests.helpers.ogb_trees import write_tree
from tests.helpers.stores import listed_stores, pruned
from tests.storage.checks import assert_holds, build_store, fast_folder, files_of
from tests.storage.test_build import options_for

pytestmark = pytest.mark.slow

KILLS_S = 300
WEEK_S = 7 * 24 * 3600


def source(seed: int = 3) -> ArraySource:
    return random_source(np.random.default_rng(seed), num_node_types=2, num_edge_types=2, max_edges=200)


# Equal bytes --------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), memory=st.sampled_from([1, 1 << 26]), from_store=st.booleans(), data=st.data())
@pytest.mark.core
def test_hosts_build_what_one_builds(seed: int, memory: int, from_store: bool, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    graph = random_source(rng, edges_are_cheap=bool(rng.random() < 0.5))
    options = options_for(graph, rng, cache_ratio=0.3 if rng.random() < 0.5 else 0.0)
    host_of = [data.draw(st.integers(0, 2)) for _ in range(options.num_parts)]
    with fast_folder() as name:
        folder = Path(name)
        if from_store:  # where "ldg" meets the nodes, and what is hot, goes by the numbers that they have there
            first = build_store(graph, folder / "first", options_for(graph, rng, with_edge=True))
            one, job = build_store(first, folder / "one", options, memory_bytes=1 << 26), build_job(first, folder / "many", options)
        else:
            one, job = build_store(graph, folder / "one", options), build_job(graph, folder / "many", options)
        many = None
        for host in data.draw(st.permutations(sorted(set(host_of)))):
            assert many is None and not (folder / "many").exists()
            many = build_parts(job, [part for part, own in enumerate(host_of) if own == host], memory_bytes=memory)
        assert many is not None and files_of(many.path) == files_of(one.path)
        many.verify()
        assert_holds(many, graph)
        assert not (folder / "many.parts").exists()


def graph_of(kind: str, folder: Path) -> Any:
    if kind == "ogb":
        write_tree("ogbn-proteins", folder)
        return datasets.open_ogb("ogbn-proteins", root=folder)
    if kind == "synthetic":
        return datasets.products_like(0.0005)
    if kind == "store":
        return partition(source(), 2, "random", folder / "store", with_edge=True)
    import torch
    from torch_geometric.data import Data

    edges = torch.randint(40, (2, 200), generator=torch.Generator().manual_seed(0))
    return Data(x=torch.arange(80.0).reshape(40, 2), edge_index=edges, train_mask=torch.arange(40) < 9)


@pytest.mark.parametrize("kind", ["ogb", "store", "pyg", "synthetic"])
@pytest.mark.parametrize("method", ["contiguous", "frequency"])
def test_any_source(kind: str, method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path / "home"))
    graph = graph_of(kind, tmp_path)
    one = partition(graph, 2, method, tmp_path / "one")
    assert partition(graph, 2, method, tmp_path / "many", parts=[1]) is None
    many = partition(graph, 2, method, tmp_path / "many", parts=[0])
    assert many is not None and many.fingerprint == one.fingerprint and files_of(many.path) == files_of(one.path)
    again = partition(graph, 2, method, tmp_path / "many", parts=[0])
    assert again is not None and again.path == many.path, "what is there is opened"


# Processes ----------------------------------------------------------------------------------------------------------------


def test_builders_at_once_and_builders_that_are_killed() -> None:
    call = [sys.executable, "-m", "tests.storage.partition.killed_parts"]
    done = subprocess.run(call, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=KILLS_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("kills\n")


# Disks of their own -------------------------------------------------------------------------------------------------------


def exchange(hosts: list[Path]) -> None:
    """Copies every host's records to the others, as rsync would."""
    for here in hosts:
        for there in hosts:
            if here != there:
                shutil.copytree(here / "store.parts" / "records", there / "store.parts" / "records", dirs_exist_ok=True)


def test_hosts_with_disks_of_their_own_exchange_records(tmp_path: Path) -> None:
    graph, options = source(), {"partition": "random", "with_edge": True, "cache_ratio": 0.2}
    one = partition(graph, 3, out=tmp_path / "one", **options)  # type: ignore[arg-type]
    shares = {tmp_path / "host0": [0, 2], tmp_path / "host1": [1]}
    for host, parts in shares.items():
        assert partition(graph, 3, out=host / "store", parts=parts, **options) is None  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="the parts 0, 2 of .* are not built, or their records are not here"):
        partition(graph, 3, out=tmp_path / "host1" / "store", finish=True, **options)  # type: ignore[arg-type]
    exchange(list(shares))
    whole = files_of(one.path)
    for host, parts in shares.items():
        assert partition(graph, 3, out=host / "store", parts=parts, **options) is None, "no store without all files unless told"  # type: ignore[arg-type]
        made = partition(graph, 3, out=host / "store", finish=True, **options)  # type: ignore[arg-type]
        assert list(made.local_parts) == parts and made.manifest == one.manifest
        absent = tuple(f"part{part}/" for part in set(range(3)) - set(parts))
        assert files_of(made.path) == {name: data for name, data in whole.items() if not name.startswith(absent)}
        Store.open(made.path, parts).verify()
        assert (host / "store.parts" / "records").is_dir(), "another host may yet need them"


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    """Hosts that have come to different assignments, as two versions of a partitioner may."""
    for host, seed in (("host0", 0), ("host1", 1)):
        job = build_job(source(), tmp_path / host / "store", BuildOptions(2, "random", seed=seed))
        job = type(job)(job.open_input, job.path, job.options, "f" * 64, job.stage)
        assert build_parts(job, [seed]) is None
    exchange([tmp_path / "host0", tmp_path / "host1"])
    with pytest.raises(StoreError, match=r"do not belong together: .*the numbering of nodes differ") as caught:
        build_parts(job, [], finish=True)
    assert caught.value.hint and not (tmp_path / "host1" / "store").exists()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    partition(source(), 2, out=tmp_path / "store", parts=[0])
    record = tmp_path / "store.parts" / "records" / "part0.json"
    record.write_bytes(record.read_bytes().replace(b'"random"', b'"ranbom"').replace(b'"name": "', b'"name": "x'))
    with pytest.raises(StoreError, match=r"part0\.json is damaged: its checksum differs"):
        partition(source(), 2, out=tmp_path / "store", parts=[1])


# What is refused ----------------------------------------------------------------------------------------------------------


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no part 2 of 2"):
        partition(source(), 2, out=tmp_path / "store", parts=[2])
    with pytest.raises(PlanError, match="no out"):
        partition(source(), 2, parts=[0])
    partition(source(), 2, out=tmp_path / "store", parts=[0])
    with pytest.raises(StoreError, match="holds parts of another build") as caught:
        partition(source(), 3, out=tmp_path / "store", parts=[0])
    assert caught.value.hint and "rm -r" in caught.value.hint
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="something else than a store"):
        partition(source(), 2, out=tmp_path / "mine", parts=[0])


def test_an_older_store_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    old = partition(source(seed=4), 2, out=tmp_path / "store").fingerprint
    with pytest.raises(StoreError, match="the store of another graph"):
        partition(source(), 2, out=tmp_path / "store", parts=[0])
    assert partition(source(), 2, out=tmp_path / "store", parts=[0], overwrite=True) is None
    assert Store.open(tmp_path / "store").fingerprint == old
    made = partition(source(), 2, out=tmp_path / "store", parts=[1], overwrite=True)
    assert made is not None and made.fingerprint != old and Store.open(tmp_path / "store").fingerprint == made.fingerprint


def test_prune_leaves_parts_for_a_week(tmp_path: Path) -> None:
    partition(source(), 2, out=tmp_path / "store", parts=[0])
    assert listed_stores(tmp_path) == [] and pruned(tmp_path) == []
    with pytest.raises(StoreError, match="the parts 1 of"):
        partition(source(), 2, out=tmp_path / "store", finish=True)
    before = time.time() - WEEK_S - 3600
    for path in (tmp_path / "store.parts", *(tmp_path / "store.parts").rglob("*")):
        os.utime(path, (before, before))
    ((path, _, reason),) = pruned(tmp_path)
    assert path == tmp_path / "store.parts" and "not touched for a week" in reason
    assert not path.exists()


def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = partition(source(), 1, out=tmp_path / "first", with_edge=True).path
    one = partition(Store.open(first), 3, "random", tmp_path / "one")
    call = ["partition", str(first), "3", "--partition", "random", "--out", str(tmp_path / "many")]
    assert run([*call, "--part", "0"]) == 0
    assert f"part 0 of {tmp_path / 'many'} is built; parts 1, 2 are missing" in capfd.readouterr().out
    assert run([*call, "--finish"]) == 2
    assert "the parts 1, 2 of" in capfd.readouterr().err
    assert run([*call, "--part", "1", "--part", "2", "--json"]) == 0
    assert '"fingerprint"' in capfd.readouterr().out
    assert files_of(tmp_path / "many") == files_of(one.path)
