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

from gnnkit import BuildOptions, Store, partition
from gnnkit.errors import PlanError, StoreError
from gnnkit.storage.catalog import (
    default_root,
    default_store_dir,
    find_or_build,
    list_stores,
    prune,
    remove_store,
)
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source
from tests.storage.checks import assert_holds, build_store
from tests.storage.test_damage import write_manifest


def source() -> ArraySource:
    return random_source(np.random.default_rng(9), num_node_types=2, num_edge_types=2)


def test_the_second_call_opens_what_the_first_one_built(tmp_path: Path) -> None:
    first = find_or_build(source(), BuildOptions(2), tmp_path)
    again = source()
    second = find_or_build(again, BuildOptions(2), tmp_path)
    assert first.path == second.path and set(again.passes.values()) == {0}
    assert first.path.name == f"tiny-2p-{first.fingerprint[:12]}"
    assert_holds(second, again)


def test_only_what_matters_makes_another_store(tmp_path: Path) -> None:
    base = find_or_build(source(), BuildOptions(2), tmp_path).path
    for same in ({"num_neighbors": (3, 3)}, {"seed": 4}):
        assert find_or_build(source(), BuildOptions(2, **same), tmp_path).path == base  # type: ignore[arg-type]
    assert find_or_build(source(), BuildOptions(1, "ldg"), tmp_path).path == find_or_build(source(), BuildOptions(1), tmp_path).path
    others = [{"with_edge": True}, {"edge_dir": "out"}, {"weight": "weight"}, {"partition": "random"}, {"partition": "random", "seed": 1}]
    paths = {base, *(find_or_build(source(), BuildOptions(2, **other), tmp_path).path for other in others)}  # type: ignore[arg-type]
    changed = source()
    next(iter(changed.edges.values()))[0, 0] ^= 1
    paths.add(find_or_build(changed, BuildOptions(2), tmp_path).path)
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
def test_other_parts_are_cut_from_the_store_that_is_there(tmp_path: Path, options: BuildOptions) -> None:
    whole = BuildOptions(with_edge=options.with_edge, weight=options.weight, edge_dir=options.edge_dir)
    find_or_build(source(), whole, tmp_path / "stores")
    again = source()
    store = find_or_build(again, options, tmp_path / "stores")
    assert set(again.passes.values()) == {0}, "the dataset is not read again"
    assert_holds(store, source())
    direct = build_store(source(), tmp_path / "direct", options)
    assert contents(store.path) == contents(direct.path)


@pytest.mark.parametrize(
    "other", [{"with_edge": True}, {"edge_dir": "out"}, {"weight": "weight"}, {"time_attr": "time"}, {"feature_dtype": "float16"}]
)
def test_stores_of_other_options_are_not_cut(tmp_path: Path, other: dict[str, Any]) -> None:
    find_or_build(source(), BuildOptions(**other), tmp_path)
    again = source()
    store = find_or_build(again, BuildOptions(2), tmp_path)
    assert all(again.passes.values()) and store.options == BuildOptions(2)


def test_a_damaged_store_is_not_cut(tmp_path: Path) -> None:
    stores = [find_or_build(source(), BuildOptions(parts), tmp_path) for parts in (1, 2)]
    next(stores[0].path.rglob("indices.npy")).unlink()
    again = source()
    assert_holds(find_or_build(again, BuildOptions(3), tmp_path), source())
    assert set(again.passes.values()) == {0}, "the one in two parts is whole"
    remove_store(tmp_path, find_or_build(source(), BuildOptions(3), tmp_path).path.name)
    rows = next(path for path in stores[1].path.rglob("weight.npy"))
    content = rows.read_bytes()
    rows.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert_holds(find_or_build(again, BuildOptions(3), tmp_path), source())
    assert all(again.passes.values()), "nothing is taken from a store of which one bit has changed"
    again = source()
    (stores[1].path / "manifest.json").write_text("{")
    remove_store(tmp_path, find_or_build(source(), BuildOptions(3), tmp_path).path.name)
    assert_holds(find_or_build(again, BuildOptions(3), tmp_path), source())
    assert all(again.passes.values())


def test_a_damaged_store_is_built_again(tmp_path: Path) -> None:
    store = find_or_build(source(), BuildOptions(2), tmp_path)
    next(store.path.rglob("indices.npy")).unlink()
    (entry,) = list_stores(tmp_path)
    assert entry.problem is None
    assert_holds(find_or_build(source(), BuildOptions(2), tmp_path), source())
    (store.path / "manifest.json").write_text("{")
    (entry,) = list_stores(tmp_path)
    assert entry.manifest is None and "damaged" in str(entry.problem) and entry.nbytes > 0
    assert_holds(find_or_build(source(), BuildOptions(2), tmp_path), source())


def test_stores_are_listed_removed_and_pruned(tmp_path: Path) -> None:
    assert list_stores(tmp_path / "missing") == [] and prune(tmp_path / "missing") == []
    one, two = (find_or_build(source(), BuildOptions(parts), tmp_path) for parts in (1, 2))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    assert [entry.path for entry in list_stores(tmp_path)] == [one.path, two.path]
    assert list_stores(tmp_path)[0].nbytes == one.nbytes
    arrays = two.arrays()
    with pytest.raises(StoreError, match="did you mean"):
        remove_store(tmp_path, two.path.name + "x")
    assert remove_store(tmp_path, two.path.name) > two.nbytes
    for parts in arrays.edges.values():
        assert parts[0].indptr[-1] == len(parts[0].indices)
    incomplete = tmp_path / f"{two.path.name}.incomplete"
    incomplete.mkdir()
    (incomplete / "half").write_bytes(b"x" * 100)
    os.rename(one.path, tmp_path / f"{one.path.name}.replaced")
    removed = prune(tmp_path)
    assert [(entry.path, entry.nbytes, entry.reason) for entry in removed] == [(incomplete, 100, "an unfinished build")]
    assert_holds(Store.open(one.path), source())
    value = json.loads((one.path / "manifest.json").read_text())
    value["format_version"] = 0
    write_manifest(one.path, value)
    assert [(entry.path, entry.reason) for entry in prune(tmp_path)] == [(one.path, "a store of the old format 0")]
    assert (tmp_path / "notes" / "mine.txt").exists() and list_stores(tmp_path) == []


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
    assert default_root() == tmp_path / "home" and default_store_dir() == tmp_path / "home" / "stores"
    assert default_store_dir(tmp_path) == tmp_path / "stores"
    assert not (tmp_path / "home").exists() and not (tmp_path / "stores").exists()
    monkeypatch.delenv("GNNKIT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    here = default_root()
    monkeypatch.chdir(tmp_path)
    assert default_root() == here and default_store_dir(Path("/proc/nowhere")) == here / "stores"


def test_partition_takes_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path / "home"))
    built = partition(source(), 3, "random", tmp_path / "built")
    assert_holds(built, source())
    assert built.options.with_edge
    for number, store in enumerate((built, built.path, str(built.path))):
        made = partition(store, 2, out=tmp_path / str(number), edge_dir="out")
        assert_holds(made, source())
        assert made.num_parts == 2 and made.edge_dir == "out"
    kept = partition(built, 2)
    assert kept.path.parent == tmp_path / "home" / "stores" and kept.edge_dir == "in" and kept.options.with_edge
    assert partition(built, 2).path == kept.path == find_or_build(kept, kept.options, kept.path.parent).path
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
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data").Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), x=torch.eye(3))
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
