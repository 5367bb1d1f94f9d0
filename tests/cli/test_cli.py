"""The command line: what it prints, and with which code it ends."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

import gnnkit
from gnnkit import BuildOptions, Store
from gnnkit.datasets import products_like
from tests.helpers.command import run_captured
from tests.helpers.graphs import homogeneous_source, random_edges, stored
from tests.helpers.kernels import compiled_kernels

Cli = Callable[..., tuple[int, str, str]]
VERBS = ("demo", "doctor", "info", "partition", "stores", "serve", "ps", "logs", "stop", "cleanup", "bench")


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any store in it."""
    monkeypatch.setenv("COLUMNS", "250")
    return home


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command line in this process: ``(code, output, errors)``."""
    return lambda *arguments: run_captured(capfd, arguments)


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store of two parts."""
    path = tmp_path_factory.mktemp("stores") / "small"
    stored(products_like(0.0005), path, BuildOptions(num_parts=2, partition="random"))
    return path


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m gnnkit`` as a process of its own."""
    call = [sys.executable, "-m", "gnnkit", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, timeout=240, **options)


def used_by_children() -> float:
    """Seconds of processors that processes have used which this one has waited for: how long they would take alone."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick_and_names_every_verb() -> None:
    times = []
    for _ in range(5):
        before = used_by_children()
        done = command("--help")
        times.append(used_by_children() - before)
        assert done.returncode == 0
        if times[-1] < 1.0:
            break
    assert min(times) < 1.0, times
    for verb in VERBS:
        assert f"\n  {verb} " in done.stdout
    assert "Exit codes" in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(cli: Cli, verb: str) -> None:
    code, out, _ = cli(verb, "--help")
    assert code == 0
    assert f"gnnkit {verb}" in out


def test_version(cli: Cli) -> None:
    import gnnkit

    assert cli("--version") == (0, f"gnnkit {gnnkit.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["nonsense"], ["info"], ["doctor", "--nonsense"], ["partition", "x", "two"]])
def test_wrong_usage_is_code_2(cli: Cli, arguments: list[str]) -> None:
    code, _, err = cli(*arguments)
    assert code == 2
    assert err.strip()


def test_an_error_is_a_message_and_a_hint_without_a_traceback(tmp_path: Path) -> None:
    done = command("info", tmp_path / "none")
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith("error: ") and "none" in first
    assert second.startswith("  -> ")
    assert "Traceback" not in done.stderr


def test_an_operating_system_error_has_no_traceback_either(cli: Cli, tmp_path: Path) -> None:
    longer = tmp_path / ("x" * 300)
    assert cli("info", longer) == (2, "", f"error: File name too long: {longer}\n")


@pytest.mark.slow
def test_output_into_a_closed_pipe_is_no_traceback(store_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    call = [sys.executable, "-m", "gnnkit", "info", str(store_path)]
    done = subprocess.run(call, stdout=write, stderr=subprocess.PIPE, text=True, timeout=240)
    os.close(write)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


# info ------------------------------------------------------------------------------------------------------------------


def test_info_shows_a_store(cli: Cli, store_path: Path) -> None:
    code, out, _ = cli("info", store_path)
    assert code == 0
    source = products_like(0.0005)
    for wanted in (
        f"{source.schema.num_nodes:,}",
        f"{source.schema.num_edges:,}",
        "x float32[100]",
        "random",
        "not OGB's data",
        "with_edge=False",
    ):
        assert wanted in out


def test_info_as_json_agrees_with_the_store(cli: Cli, store_path: Path) -> None:
    code, out, _ = cli("info", store_path, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["options"]["num_parts"] == 2 == len(facts["parts"])
    assert sum(part["num_nodes"]["node"] for part in facts["parts"]) == facts["schema"]["node_types"][0]["num_nodes"]
    assert facts["splits"]["node"].keys() == {"train", "valid", "test"}
    assert "verified" not in facts


def test_info_verify_finds_a_flipped_bit(cli: Cli, store_path: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(store_path, copy)
    assert "verified" in cli("info", copy, "--verify")[1]
    features = next(copy.glob("part0/nodes/*/x.npy"))
    with features.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    code, _, err = cli("info", copy, "--verify")
    assert code == 1
    assert "x.npy" in err and "-> " in err
    code, out, _ = cli("info", copy, "--verify", "--json")
    assert code == 1
    assert json.loads(out)["verified"] is False


def test_info_knows_datasets(cli: Cli) -> None:
    code, out, _ = cli("info", "ogbn-products")
    assert code == 0 and "47 classes" in out
    facts = json.loads(cli("info", "ogbn-products", "--json")[1])
    assert facts["num_classes"] == 47 and facts["found"] is None and facts["stores"] == []
    code, _, err = cli("info", "ogbn-prodcts")
    assert code == 2 and "ogbn-products" in err
    for verb in (("info", "nope"), ("partition", "nope", "2")):
        code, _, err = cli(*verb)
        assert code == 2 and "'nope' is neither a store nor a dataset" in err and "gnnkit stores ls" in err and "did you mean" not in err
    code, _, err = cli("info", "ogbn-products", "--verify")
    assert code == 2 and "stores" in err


# partition -------------------------------------------------------------------------------------------------------------


def test_partition_cuts_a_store_again(cli: Cli, store_path: Path, tmp_path: Path) -> None:
    out_path = tmp_path / "three"
    code, out, _ = cli("partition", store_path, 3, "--partition", "ldg", "--out", out_path, "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["path"] == str(out_path)
    assert facts["partition"] == "ldg" and len(facts["parts"]) == 3
    assert np.array(facts["cuts"]["node__to__node"]).sum() == products_like(0.0005).schema.num_edges
    code, out, _ = cli("info", out_path, "--verify")
    assert code == 0 and "ldg" in out


def test_partition_prepares_what_is_sampled_by(cli: Cli, tmp_path: Path) -> None:
    edge_arrays = {"time": np.array([3, 1, 2]), "w": np.ones(3, np.float32)}
    source = homogeneous_source(np.array([[0, 1, 2], [3, 3, 3]]), 4, edge_arrays=edge_arrays, x=np.eye(4, 2, dtype=np.float32))
    stored(source, tmp_path / "first", BuildOptions())
    words = ("--time-attr", "time", "--weight", "w", "--feature-dtype", "quint8", "--out", tmp_path / "second")
    code, out, _ = cli("partition", tmp_path / "first", 2, *words)
    assert code == 0
    assert "weight='w', time_attr='time', feature_dtype='quint8'" in out and "x quint8[2]" in out
    assert Store.open(tmp_path / "second").options == BuildOptions(2, feature_dtype="quint8", weight="w", time_attr="time")


def test_each_type_gets_features_of_its_own_dtype(cli: Cli, tmp_path: Path) -> None:
    for name, text in (("paper", "id,a,b\n1,0.5,1.5\n2,1,2\n"), ("author", "id,a\n1,0.5\n2,1.5\n"), ("writes", "w,p\n1,2\n2,1\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    tables = ("--edges", f"author,writes,paper={tmp_path}/writes.csv", "--nodes", f"paper={tmp_path}/paper.csv")
    tables += ("--nodes", f"author={tmp_path}/author.csv", "--features", "paper=a,b", "--features", "author=a")
    tables += ("--keys", "paper=id", "--keys", "author=id")
    dtypes = ("--feature-dtype", "paper=quint4x2", "--feature-dtype", "author=float16")
    code, out, _ = cli("partition", 1, *tables, *dtypes, "--out", tmp_path / "store")
    assert code == 0 and "x quint4x2[2]" in out and "x float16[1]" in out
    assert Store.open(tmp_path / "store").options.feature_dtype == {"paper": "quint4x2", "author": "float16"}
    for words, said in (
        (("--feature-dtype", "papers=quint8"), "names the unknown type 'papers'; did you mean 'paper'?"),
        (("--feature-dtype", "author,wrote,paper=quint8"), "names the unknown type 'author__wrote__paper'"),
        (("--feature-dtype", "paper=int4"), "must be one of"),
        (("--feature-dtype", "quint8", "--feature-dtype", "paper=quint4x2"), "several values need TYPE=VALUE each"),
    ):
        code, _, err = cli("partition", 1, *tables, *words, "--out", tmp_path / "other")
        assert code == 2 and said in " ".join(err.split()), err


def test_partition_reads_tables(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("a,b\n1,2\n2,3\n3,1\n")
    code, out, _ = cli("partition", tmp_path / "edges.csv", 2, "--json")
    facts = json.loads(out)
    assert code == 0 and len(facts["parts"]) == 2
    assert Store.open(facts["path"]).keys()[[0, 1, 2]].tolist() == [1, 2, 3]
    (tmp_path / "users.csv").write_text("id,age,name\n1,30,x\n2,40,y\n3,50,z\n")
    (tmp_path / "graph.yaml").write_text(
        "nodes: {user: users.csv}\nedges: {'user,knows,user': edges.csv}\nkeys: {user: id}\nfeatures: {user: [age]}\nname: people\n"
    )
    code, out, _ = cli("partition", tmp_path / "graph.yaml", 1, "--out", tmp_path / "one", "--json")
    assert code == 0 and Store.open(tmp_path / "one").name == "people"
    words = ["--nodes", f"user={tmp_path / 'users.csv'}", "--edges", f"user,knows,user={tmp_path / 'edges.csv'}"]
    words += ["--keys", "user=id", "--features", "user=age", "--out", str(tmp_path / "two"), "--json"]
    code, out, _ = cli("partition", 1, *words)
    assert code == 0 and Store.open(tmp_path / "two").fingerprint == Store.open(tmp_path / "one").fingerprint
    assert gnnkit.partition(tmp_path / "graph.yaml", 1, out=tmp_path / "three").fingerprint == Store.open(tmp_path / "one").fingerprint


@pytest.mark.parametrize(
    ("label", "options", "row", "facts"),
    [
        ("cook nurse - cook", [], "2 classes, 1 node without", [2, 1]),
        ("cook nurse - unknown", ["--unlabelled", "unknown"], "2 classes, 2 nodes without", [2, 2]),
        ("cook nurse ? unknown", ["--unlabelled", "unknown", "--unlabelled", "?"], "2 classes, 2 nodes without", [2, 2]),
        ("3 1 - 9", ["--unlabelled", "9"], "4 classes, 2 nodes without", [4, 2]),
        ("0.5 1 - 2", [], "numbers to predict, 1 node without", [None, 1]),
        ("1 0 1 0", [], "2 classes", [2, 0]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*no label")
def test_info_counts_classes_and_nodes_without_a_label(
    cli: Cli, label: str, options: list[str], row: str, facts: list[Any], tmp_path: Path
) -> None:
    rows = [f"{i},{'' if word == '-' else word},train" for i, word in enumerate(label.split())]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,job,fold", *rows]))
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n2,3\n")
    tables = ["--edges", tmp_path / "edges.csv", "--nodes", tmp_path / "nodes.csv", "--keys", "id", "--label", "job", "--split", "fold"]
    assert cli("partition", 2, *tables, *options, "--out", tmp_path / "store")[0] == 0
    assert re.search(rf"labels +{row} *\n", cli("info", tmp_path / "store")[1])
    assert list(json.loads(cli("info", tmp_path / "store", "--json")[1])["labels"]["node"].values()) == facts


def test_partition_measures_by_one_of_several_splits(cli: Cli, tmp_path: Path) -> None:
    masks = np.random.default_rng(0).random((60, 3)) < 0.5
    splits = {f"train.{k}": np.flatnonzero(masks[:, k]) for k in range(3)}
    stored(homogeneous_source(random_edges(np.random.default_rng(0), 60, 60, 200), 60, splits=splits), tmp_path / "store", BuildOptions(1))
    words = ["partition", tmp_path / "store", 2, "--partition", "frequency", "--out", tmp_path / "two"]
    code, _, err = cli(*words)
    assert code == 2 and "split_index=0 chooses the first of several" in " ".join(err.split())
    assert cli(*words, "--split-index", 1)[0] == 0 and Store.open(tmp_path / "two").options.input_nodes == "train.1"


def test_a_warning_is_a_line_without_a_place(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,job,fold\n0,cook,train\n1,,train\n")
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    words = ["--edges", "edges.csv", "--nodes", "nodes.csv", "--keys", "id", "--label", "job", "--split", "fold", "--out", "store"]
    command = [sys.executable, "-m", "gnnkit", "partition", "1", *words]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True).stderr
    assert re.search(r"(?m)^warning: .*no label", said) and ".py" not in said, said


def test_partition_says_how_texts_are_read_and_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0|1|0,5\n5|6|NA\n% 7\n")
    words = ["--decimal", ",", "--null", "NA", "--comment", "%", "--edge-dir", "in", "--out", tmp_path / "out"]
    code, out, _ = cli("partition", tmp_path / "edges.txt", 1, *words)
    assert code == 0 and "edges.txt ('|', row 1 is values), 2 rows" in out
    assert re.search(r"node__to__node src +f0 \(int64\)", out) and re.search(r"node__to__node unused +f2", out)
    (tmp_path / "told.csv").write_text("a;b\nc;d\n")
    for header, edges in (("false", 2), ("true", 1)):
        words = ["--header", header, "--sep", ";", "--out", tmp_path / header]
        code, out, _ = cli("partition", tmp_path / "told.csv", 1, *words)
        assert code == 0 and Store.open(tmp_path / header).schema.num_edges == edges
    code, out, err = cli("partition", tmp_path / "told.csv", 1, "--sep", "", "--out", tmp_path / "no")
    assert code != 0 and "one to four characters" in out + err


def test_append_writes_a_new_version(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("id,age,plan\nx1,30,pro\n2,40,free\n")
    (tmp_path / "edges.csv").write_text("a,b\nx1,2\n2,x1\n")
    (tmp_path / "more-users.csv").write_text("id,age,plan\n7,,2\n")  # looks like numbers, and like nothing
    (tmp_path / "more.csv").write_text("a,b\n7,2\n")
    words = ["--nodes", f"user={tmp_path / 'users.csv'}", "--edges", f"user,knows,user={tmp_path / 'edges.csv'}", "--keys", "user=id"]
    words += ["--features", "user=age", "--label", "user=plan"]
    assert cli("partition", 1, *words, "--out", tmp_path / "store")[0] == 0
    more = ["--edges", f"user,knows,user={tmp_path / 'more.csv'}", "--nodes", f"user={tmp_path / 'more-users.csv'}", "--json"]
    code, _, errors = cli("append", tmp_path / "store", *more)
    assert code != 0 and "nulls" in errors
    code, out, _ = cli("append", tmp_path / "store", *more, "--fill", "age=0.5")
    made = Store.open(json.loads(out)["path"])
    assert code == 0 and made.schema.num_edges == 3 and made.keys().ids(["7"]).tolist() == [2]
    assert made.arrays().nodes["user"][0].arrays["x"][:, 0].tolist() == [30.0, 40.0, 0.5]
    assert made.arrays().nodes["user"][0].arrays["y"].tolist() == [2, 1, 0] and made.metadata["num_classes"] == 3
    assert cli("append", tmp_path / "nothing", *more)[0] != 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["edges.csv"], "NUM_PARTS"),
        (["x", 2, "--edges", "edges.csv"], "NUM_PARTS"),
        ([2, "--edges", "edges.csv", "--edges", "more.csv"], "TYPE=VALUE"),
        (["bad.yaml", 2], "featurez"),
        (["edges.csv", 2, "--src", "c"], "src='c' names no column"),
    ],
    ids=["no number", "two sources", "no types", "no argument", "no column"],
)
def test_partition_says_what_is_wrong_with_tables(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.csv").write_text("a,b\n1,2\n")
    (tmp_path / "bad.yaml").write_text("edges: edges.csv\nfeaturez: a\n")
    code, _, err = cli("partition", *arguments)
    assert code != 0 and word in err


def test_partition_takes_a_name_from_the_store_folder_and_keeps_the_result_there(cli: Cli) -> None:
    store = stored(products_like(0.0005), None)
    code, out, _ = cli("partition", store.path.name, 2, "--json")
    assert code == 0
    assert Path(json.loads(out)["path"]).parent == store.path.parent


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([0], "num_parts"),
        ([2, "--partition", "metiss"], "metis"),
        ([2, "--edge-dir", "up"], "edge_dir"),
        ([2, "--cache-ratio", "2"], "cache_ratio"),
    ],
)
def test_partition_refuses_what_makes_no_sense(cli: Cli, store_path: Path, tmp_path: Path, arguments: list[object], word: str) -> None:
    code, _, err = cli("partition", store_path, *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert word in err
    assert not (tmp_path / "out").exists()


# stores ----------------------------------------------------------------------------------------------------------------


def test_names_of_stores_are_whole_in_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    store = stored(products_like(0.0005), None)
    lines = cli("stores", "ls")[1].splitlines()
    assert max(map(len, lines[:2])) <= 80 and lines[1].split()[0] == store.path.name
    assert any(line.startswith(f"{store.path.name}: synthetic") for line in lines[2:])


def test_stores_are_listed_and_removed(cli: Cli) -> None:
    assert "no stores" in cli("stores", "ls")[1]
    store = stored(products_like(0.0005), None)
    code, out, _ = cli("stores", "ls")
    assert code == 0 and store.path.name in out
    (entry,) = json.loads(cli("stores", "ls", "--json")[1])["stores"]
    assert entry["num_nodes"] == store.schema.num_nodes and entry["problem"] is None
    code, out, _ = cli("stores", "rm", store.path.name)
    assert code == 0 and "removed" in out
    assert not store.path.exists()
    code, _, err = cli("stores", "rm", store.path.name)
    assert code == 2 and store.path.name in err


def test_removing_several_stores_goes_on_after_one_that_is_not_there(cli: Cli) -> None:
    store = stored(products_like(0.0005), None)
    code, out, err = cli("stores", "rm", "first", store.path.name, "last")
    assert code == 2
    assert not store.path.exists() and store.path.name in out
    assert "'first'" in err and "'last'" in err


def test_a_damaged_store_is_listed_with_its_problem(cli: Cli) -> None:
    store = stored(products_like(0.0005), None)
    (store.path / "manifest.json").write_text("{")
    code, out, _ = cli("stores", "ls")
    assert code == 1 and store.path.name in out
    assert json.loads(cli("stores", "ls", "--json")[1])["stores"][0]["problem"]


def test_prune_removes_unfinished_builds_only(cli: Cli) -> None:
    store = stored(products_like(0.0005), None)
    assert "nothing to remove" in cli("stores", "prune")[1]
    unfinished = store.path.with_name("other-1p-0.incomplete")
    unfinished.mkdir()
    (unfinished / "x").write_bytes(b"0" * 1000)
    code, out, _ = cli("stores", "prune", "--json")
    assert code == 0
    assert [Path(item["path"]).name for item in json.loads(out)["removed"]] == [unfinished.name]
    assert store.path.exists() and not unfinished.exists()


def test_prune_removes_kernels_that_nothing_has_loaded_for_a_month(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_home / "cache"))
    kernels = own_home / "cache" / "gnnkit" / "kernels"
    now = time.time()
    for name, days in (("old", 31), ("young", 29)):
        (kernels / name).mkdir(parents=True)
        (kernels / name / "walk.nbc").write_bytes(b"0" * 500)
        os.utime(kernels / name, (now, now - days * 86400))
    done = command("stores", "prune", "--json")  # a process that has not found its kernels yet
    assert done.returncode == 0, done.stderr
    (item,) = json.loads(done.stdout)["removed"]
    assert (Path(item["path"]).name, item["nbytes"]) == ("old", 500) and "kernels" in item["reason"]
    assert (kernels / "young").exists() and not (kernels / "old").exists()
    assert "nothing to remove" in command("stores", "prune").stdout


@pytest.fixture
def own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the compiled kernels, which processes that are started find as the user's."""
    compiled = compiled_kernels()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(compiled, tmp_path / "cache" / "gnnkit" / "kernels")


@pytest.mark.slow
def test_loading_kernels_keeps_them(own_kernels: Path) -> None:
    # As if the kernels of this very version had been compiled long ago, and used since.
    compile_and_prune = "from gnnkit.kernels import jit; from gnnkit.sampling import kinds; kinds.warm()"
    compile_and_prune += "; print(*(path.name for path, _ in jit.prune_kernels()))"
    folders = [path for path in own_kernels.iterdir() if path.is_dir()]
    for path in folders:
        os.utime(path, (0, 0))
    done = subprocess.run([sys.executable, "-c", compile_and_prune], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    left = [path.name for path in own_kernels.iterdir() if path.is_dir()]
    assert left and not set(left) & set(done.stdout.split()) and set(left) <= {path.name for path in folders}


# demo ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1])
def test_demo_ends_with_its_verdict(cli: Cli, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    scales = []
    # It trains for a minute; the command only passes scale and verdict on.
    monkeypatch.setattr("gnnkit.cli.demo.run_demo", lambda scale: scales.append(scale) or code)
    assert cli("demo", "--scale", "0.5")[0] == code
    assert scales == [0.5]


@pytest.mark.slow
def test_kernels_that_are_there_are_loaded_during_the_compilation_of_others(own_kernels: Path) -> None:
    warm = [sys.executable, "-c", "from gnnkit.sampling import kinds; kinds.warm()"]
    subprocess.run(warm, check=True, timeout=240)  # whatever is missing
    with FileLock(own_kernels / "compile.lock"):
        subprocess.run(warm, check=True, timeout=240)
