"""The folder of stores, ``gnnkit.partition``, reports and reprs."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnnkit import BuildOptions, Store, partition
from gnnkit.errors import PlanError, StoreError
from gnnkit.storage.catalog import default_store_dir
from tests.helpers.command import run, run_captured
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source, stored
from tests.helpers.stores import listed_stores, pruned, said, write_manifest
from tests.storage.checks import assert_holds, build_store


def source() -> ArraySource:
    return random_source(np.random.default_rng(9), num_node_types=2, num_edge_types=2)


def kept(graph: Any, options: BuildOptions) -> Store:
    """``gnnkit.partition`` into the folder of stores."""
    return stored(graph, None, options)


def removed(folder: Path, name: str) -> None:
    assert run(["stores", "rm", name, "--store-dir", folder]) == 0


def test_the_second_call_opens_what_the_first_one_built(folder: Path) -> None:
    first = kept(source(), BuildOptions(2))
    again = source()
    second = kept(again, BuildOptions(2))
    assert first.path == second.path and set(again.passes.values()) == {0}
    assert first.path.name == f"tiny-2p-{first.fingerprint[:12]}"
    assert_holds(second, again)


def test_only_what_matters_makes_another_store(folder: Path) -> None:
    base = kept(source(), BuildOptions(2)).path
    for same in ({"num_neighbors": (3, 3)}, {"seed": 4}):
        assert kept(source(), BuildOptions(2, **same)).path == base  # type: ignore[arg-type]
    assert kept(source(), BuildOptions(1, "ldg")).path == kept(source(), BuildOptions(1)).path
    others = [{"with_edge": True}, {"edge_dir": "out"}, {"weight": "weight"}, {"partition": "random"}, {"partition": "random", "seed": 1}]
    paths = {base, *(kept(source(), BuildOptions(2, **other)).path for other in others)}  # type: ignore[arg-type]
    changed = source()
    next(iter(changed.edges.values()))[0, 0] ^= 1
    paths.add(kept(changed, BuildOptions(2)).path)
    assert len(paths) == 7


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(3),
        BuildOptions(2, "random", seed=3),
        BuildOptions(2, "ldg", with_edge=True, weight="weight"),
        BuildOptions(2, "frequency", edge_dir="out", cache_ratio=0.3, num_neighbors=(3, 3)),
        BuildOptions(3, "random", with_edge=True, num_neighbors=(3, 3), order="hotness"),
    ],
    ids=str,
)
def test_other_parts_are_cut_from_the_store_that_is_there(folder: Path, tmp_path: Path, options: BuildOptions) -> None:
    whole = BuildOptions(with_edge=options.with_edge, weight=options.weight, edge_dir=options.edge_dir)
    kept(source(), whole)
    again = source()
    store = kept(again, options)
    assert set(again.passes.values()) == {0}, "the dataset is not read again"
    assert_holds(store, source())
    direct = build_store(source(), tmp_path / "direct", options)
    assert contents(store.path) == contents(direct.path)


@pytest.mark.parametrize(
    "other", [{"with_edge": True}, {"edge_dir": "out"}, {"weight": "weight"}, {"time_attr": "time"}, {"feature_dtype": "float16"}]
)
def test_stores_of_other_options_are_not_cut(folder: Path, other: dict[str, Any]) -> None:
    kept(source(), BuildOptions(**other))
    again = source()
    store = kept(again, BuildOptions(2))
    assert all(again.passes.values()) and store.options == BuildOptions(2)


def test_a_damaged_store_is_not_cut(folder: Path) -> None:
    stores = [kept(source(), BuildOptions(parts)) for parts in (1, 2)]
    next(stores[0].path.rglob("indices.npy")).unlink()
    again = source()
    assert_holds(kept(again, BuildOptions(3)), source())
    assert set(again.passes.values()) == {0}, "the one in two parts is whole"
    removed(folder, kept(source(), BuildOptions(3)).path.name)
    rows = next(path for path in stores[1].path.rglob("weight.npy"))
    content = rows.read_bytes()
    rows.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert_holds(kept(again, BuildOptions(3)), source())
    assert all(again.passes.values()), "nothing is taken from a store of which one bit has changed"
    again = source()
    (stores[1].path / "manifest.json").write_text("{")
    removed(folder, kept(source(), BuildOptions(3)).path.name)
    assert_holds(kept(again, BuildOptions(3)), source())
    assert all(again.passes.values())


def test_a_damaged_store_is_built_again(folder: Path) -> None:
    store = kept(source(), BuildOptions(2))
    next(store.path.rglob("indices.npy")).unlink()
    (entry,) = listed_stores(folder)
    assert entry["problem"] is None
    assert_holds(kept(source(), BuildOptions(2)), source())
    (store.path / "manifest.json").write_text("{")
    (entry,) = listed_stores(folder)
    assert "dataset" not in entry and "damaged" in entry["problem"] and entry["nbytes"] > 0
    assert_holds(kept(source(), BuildOptions(2)), source())


def test_stores_are_listed_removed_and_pruned(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert listed_stores(folder) == [] and pruned(folder) == []
    one, two = (kept(source(), BuildOptions(parts)) for parts in (1, 2))
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("mine")
    assert [entry["path"] for entry in listed_stores(folder)] == [str(one.path), str(two.path)]
    assert listed_stores(folder)[0]["nbytes"] == one.nbytes
    arrays = two.arrays()
    code, _, err = run_captured(capfd, ["stores", "rm", two.path.name + "x"])
    assert code == 2 and "did you mean" in err
    removed(folder, two.path.name)
    for parts in arrays.edges.values():
        assert parts[0].indptr[-1] == len(parts[0].indices)
    incomplete = folder / f"{two.path.name}.incomplete"
    incomplete.mkdir()
    (incomplete / "half").write_bytes(b"x" * 100)
    os.rename(one.path, folder / f"{one.path.name}.replaced")
    assert pruned(folder) == [(incomplete, 100, "an unfinished build")]
    assert_holds(Store.open(one.path), source())
    value = json.loads((one.path / "manifest.json").read_text())
    value["format_version"] = 0
    write_manifest(one.path, value)
    assert [(path, reason) for path, _, reason in pruned(folder)] == [(one.path, "a store of the old format 0")]
    assert (folder / "notes" / "mine.txt").exists() and listed_stores(folder) == []


@pytest.mark.parametrize("opened", [0o755, None])
def test_stores_in_the_user_s_own_folder_are_for_the_user_alone_unless_it_is_open(
    opened: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path / "home"))
    if opened is not None:
        (tmp_path / "home" / "stores").mkdir(parents=True)
        (tmp_path / "home" / "stores").chmod(opened)
    first = partition(source(), 2)
    second = partition(first, 1)
    named = partition(source(), 1, out=tmp_path / "out" / "store")
    for store, mode in ((first, opened or 0o700), (second, opened or 0o700), (named, 0o777 & ~umask())):
        assert [folder.stat().st_mode & 0o777 for folder in (store.path, store.path.parent)] == [mode, mode]


def umask() -> int:
    """The bits that new files and folders do not have."""
    bits = os.umask(0)
    os.umask(bits)
    return bits


def test_default_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path / "home"))
    assert said("stores", "ls")["store_dir"] == str(tmp_path / "home" / "stores")
    assert default_store_dir(tmp_path) == tmp_path / "stores"
    assert not (tmp_path / "home").exists() and not (tmp_path / "stores").exists()
    monkeypatch.delenv("GNNKIT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    here = said("stores", "ls")["store_dir"]
    monkeypatch.chdir(tmp_path)
    assert said("stores", "ls")["store_dir"] == here == str(default_store_dir(Path("/proc/nowhere")))


def test_partition_takes_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path / "home"))
    built = partition(source(), 3, "random", tmp_path / "built")
    assert_holds(built, source())
    assert built.options.with_edge
    for number, store in enumerate((built, built.path, str(built.path))):
        made = partition(store, 2, out=tmp_path / str(number), edge_dir="out")
        assert_holds(made, source())
        assert made.num_parts == 2 and made.edge_dir == "out"
    kept_store = partition(built, 2)
    assert kept_store.path.parent == tmp_path / "home" / "stores" and kept_store.edge_dir == "in" and kept_store.options.with_edge
    assert partition(built, 2).path == kept_store.path == stored(kept_store, None, kept_store.options).path
    assert_holds(partition(source(), 1), source())
    again = source()
    assert_holds(partition(again, 4, out=tmp_path / "beside"), source())
    assert set(again.passes.values()) == {0}, "a store of the same graph is in the folder of stores"
    with pytest.raises(StoreError, match="no store"):
        partition(tmp_path / "nothing", 2)
    with pytest.raises(PlanError, match="num_parts"):
        partition(built, 0)
    with pytest.raises(PlanError):
        partition(object(), 2)  # type: ignore[arg-type]


def test_partition_takes_pyg_graphs(tmp_path: Path) -> None:
    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), x=torch.eye(3))
    store = partition(data, 2, out=tmp_path / "store")
    assert store.schema.num_nodes == 3 and store.schema.num_edges == 3
    (parts,) = store.arrays().nodes.values()
    np.testing.assert_array_equal(np.concatenate([part.arrays["x"] for part in parts]), np.eye(3))


def test_reports_count_balance_cut_and_bytes(tmp_path: Path) -> None:
    # Edges 0 -> 1, 1 -> 2, 2 -> 3, 3 -> 0, 0 -> 2 in the parts {0, 1}, {2, 3}: 1 -> 2, 3 -> 0 and 0 -> 2 are cut.
    edges = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    x = np.zeros((4, 2), np.float32)
    store = build_store(homogeneous_source(edges, 4, x=x, splits={"train": np.arange(3)}), tmp_path / "store", BuildOptions(2))
    report = store.report()
    assert report.cuts[("node", "to", "node")].tolist() == [[1, 1], [2, 1]]
    assert report.edge_cut == {("node", "to", "node"): 3 / 5} and report.total_edge_cut == 3 / 5
    assert report.node_balance == {"node": 1.0} and report.edge_balance == {("node", "to", "node"): 1.2}
    assert [dict(part.num_nodes) for part in report.parts] == [{"node": 2}, {"node": 2}]
    on_disk = [sum(file.stat().st_size for file in (store.path / f"part{p}").rglob("*.npy")) for p in (0, 1)]
    assert [part.nbytes for part in report.parts] == on_disk
    assert report.nbytes == store.nbytes == sum(file.stat().st_size for file in store.path.rglob("*.npy")) > sum(on_disk)
    assert json.loads(json.dumps(report.to_json()))["edge_cut"] == {"node__to__node": 0.6}
    assert "60.0% of the edges cut" in str(report) and "part 1: 2 nodes, 3 edges" in str(report)
    text = repr(store)
    assert text.startswith("Store(tiny: 4 nodes, 5 edges, 2 parts (contiguous), ") and str(store.path) in text


def test_notices_are_shown(tmp_path: Path) -> None:
    graph = homogeneous_source(random_edges(np.random.default_rng(0), 5, 5, 9), 5)
    graph.notice = "synthetic sample, not OGB's data"
    store = build_store(graph, tmp_path / "store", BuildOptions())
    assert store.notice == graph.notice
    assert graph.notice in repr(store) and graph.notice in str(store.report())


def test_stores_pickle_as_their_path(tmp_path: Path) -> None:
    store = build_store(source(), tmp_path / "store", BuildOptions(2))
    assert len(pickle.dumps(store)) < 1000
    assert_holds(pickle.loads(pickle.dumps(store)), source())


def test_ids_are_checked(tmp_path: Path) -> None:
    graph = homogeneous_source(random_edges(np.random.default_rng(0), 9, 9, 9), 9)
    store = build_store(graph, tmp_path / "store", BuildOptions(3, "random"))
    for wrong in (np.array([9]), np.array([-1])):
        with pytest.raises(PlanError, match=str(int(wrong[0]))):
            store.to_store_ids("node", wrong)
    with pytest.raises(PlanError, match="float64"):
        store.to_store_ids("node", np.array([1.0]))
    with pytest.raises(PlanError, match="did you mean 'node'"):
        store.to_store_ids("nodes", np.array([1]))
    assert store.to_store_ids("node", np.empty(0, np.int64)).tolist() == []


def test_metadata_must_be_json(tmp_path: Path) -> None:
    graph = homogeneous_source(random_edges(np.random.default_rng(0), 5, 5, 9), 5)
    graph.metadata = {"classes": {1, 2}}
    with pytest.raises(PlanError, match="not JSON"):
        build_store(graph, tmp_path / "store", BuildOptions())


def test_opening_a_store_imports_no_kernels(tmp_path: Path) -> None:
    store = build_store(source(), tmp_path / "store", BuildOptions(2))
    code = (
        f"import sys; from gnnkit.storage.store import Store; Store.open({str(store.path)!r}); "
        "print(sorted({'numba', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]"
