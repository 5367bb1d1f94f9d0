"""Names that others chose, with characters that a terminal obeys: shown as escapes, wherever they are shown."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import GraphLoader, Store, partition
from gnnkit.datasets import open_ogb
from gnnkit.errors import GnnkitError, StoreError
from gnnkit.printable import clean, clean_block, printable
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import find_runs
from gnnkit.ui.runs import runs_card
from tests.helpers.command import run
from tests.helpers.graphs import built, homogeneous_source, random_edges
from tests.helpers.runs import run_folder
from tests.helpers.stores import checksum, listed_stores

# Sets a terminal's title, colours, deletes a line, goes back to its beginning, and says it in one byte and from right to left.
EVIL = "graph\x1b]0;owned\x07\x1b[31m\x1b[2K\r\x9b1A\u202e\udc9b\x7fend"
Cli = Callable[..., tuple[int, str]]


def obeyed(text: str) -> set[str]:
    """The characters in a text that a terminal does something else with than to show them, or that cannot be written."""
    return {character for character in text if not character.isprintable()} - {"\n", "\t"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of stores with one whose dataset, notice and folder have such a name."""
    folder = tmp_path_factory.mktemp("stores")
    rng = np.random.default_rng(0)
    source = homogeneous_source(random_edges(rng, 20, 20, 60), 20, x=rng.standard_normal((20, 4)).astype(np.float32))
    built(source, folder / "plain", 2)
    evil = folder / os.fsdecode(EVIL.encode("utf-8", "surrogateescape"))
    (folder / "plain").rename(evil)
    value = json.loads((evil / "manifest.json").read_text())
    del value["checksum"]
    value |= {"name": EVIL, "notice": EVIL, "metadata": {"task": EVIL}}
    (evil / "manifest.json").write_text(json.dumps({**value, "checksum": checksum(value)}))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def store(stores: Path) -> Path:
    (path,) = stores.iterdir()
    return path


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command line in this process: its code, and all that it writes."""
    monkeypatch.setenv("COLUMNS", "400")

    def call(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        code = run(list(map(str, arguments)))
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    return call


def test_the_command_line_shows_a_store_without_obeying_its_name(cli: Cli, stores: Path, store: Path) -> None:
    for arguments in (
        ("info", store),
        ("info", store, "--json"),
        ("info", store, "--verify"),
        ("stores", "ls", "--store-dir", stores),
        ("stores", "ls", "--store-dir", stores, "--json"),
    ):
        code, shown = cli(*arguments)
        assert code == 0 and "graph" in shown, shown
        assert not obeyed(shown), (arguments, obeyed(shown))
    assert r"\x1b]0;owned\x07" in cli("info", store)[1]
    facts = json.loads(cli("info", store, "--json")[1])
    assert facts["notice"] == EVIL  # a program gets the name as it is


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", f"/nowhere/{EVIL}"),
        ("stores", "rm", EVIL),
        ("export", f"/nowhere/{EVIL}", "--plan", f"/nowhere/{EVIL}"),
        ("partition", EVIL, "--num-parts", "2"),
        ("logs", EVIL),
    ],
)
def test_errors_on_the_command_line_show_what_was_named(cli: Cli, arguments: tuple[str, ...]) -> None:
    code, shown = cli(*arguments)
    assert code == 2 and not obeyed(shown), (shown, obeyed(shown))


def test_a_damaged_store_is_named_in_its_error(cli: Cli, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / store.name
    shutil.copytree(store, copy)
    next(copy.glob("part0/nodes/*/x.npy")).unlink()
    with pytest.raises(StoreError) as caught:
        Store.open(copy)
    assert "owned" in str(caught.value) and not obeyed(str(caught.value))
    (copy / "manifest.json").write_text(json.dumps({"format": EVIL}))
    assert not obeyed(listed_stores(tmp_path)[0]["problem"])
    code, shown = cli("stores", "ls", "--store-dir", tmp_path)
    assert code == 1 and not obeyed(shown)


def test_objects_show_themselves_without_obeying_names(store: Path, tmp_path: Path) -> None:
    opened = Store.open(store)
    with GraphLoader.from_store(store, num_neighbors=[2], batch_size=4, input_nodes=np.arange(20), progress=False) as loader:
        texts = [repr(opened), str(opened), repr(opened.report()), str(opened.report()), repr(loader), str(loader), repr(loader.plan)]
    assert not [obeyed(str(text)) for text in texts if obeyed(str(text))]


def test_keys_and_embeddings_show_themselves_without_obeying_names(tmp_path: Path) -> None:
    evil = EVIL.replace("\udc9b", "")  # which is no text of a table
    edges, nodes = {"src": [evil, "b"], "dst": ["b", evil]}, {evil: [evil, "b"]}
    source = gnnkit.tables(edges, nodes, keys=evil, src="src", dst="dst", scratch_dir=tmp_path)
    keys = partition(source, 1, out=tmp_path / "store").keys()
    assert keys[0] == evil and not obeyed(repr(keys)) and "graph" in repr(keys)
    data = HeteroData()
    data[evil].x, data[evil, "to", evil].edge_index = torch.ones(4, 2), torch.tensor([[0, 1], [1, 2]])
    with GraphLoader.from_pyg(data, input_nodes=(evil, None), num_neighbors=[1], batch_size=2, progress=False) as loader:
        found = loader.inference([lambda batch: {evil: batch[evil].x[: batch[evil].batch_size]}], out=tmp_path / "embeddings")
    assert found[evil].shape == (4, 2) and not obeyed(repr(found))


def test_a_run_that_somebody_wrote_down_is_listed(cli: Cli, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, {"store": f"/data/{EVIL}", "program": EVIL})
    folder.note(program=EVIL, failed=True)
    folder.add(0, 2**22 + 1)
    folder.log(0).write_text(f"client {EVIL} has come\n  0%\r 50%\r100%\n", errors="surrogateescape")
    for arguments in (("ps", "-p"), ("ps", "--json"), ("logs", folder.path.name), ("cleanup", "--failed")):
        _, shown = cli(*arguments, "--log-dir", tmp_path)
        assert not obeyed(shown), (arguments, obeyed(shown))
        assert arguments[0] != "logs" or r"client graph\x1b]0" in shown and " 50%\n100%" in shown
    card = runs_card(find_runs([tmp_path]))
    assert not obeyed(card.to_block()) and not obeyed(card.to_text())
    folder.close()
    shutil.rmtree(folder.path, ignore_errors=True)


def test_names_in_graphs_and_datasets_are_refused_or_shown_as_escapes(tmp_path: Path) -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    data[f"column{EVIL}"] = torch.zeros(2, 3)
    with pytest.warns(UserWarning, match="as many edges") as unclear:
        partition(data, 1, out=tmp_path / "unclear")
    assert not obeyed(str(unclear[0].message))
    data.edge_index = torch.tensor([[0, 1, 1], [1, 0, 1]])
    shown = str(partition(data, 1, out=tmp_path / "store"))
    assert "owned" in shown and not obeyed(shown)
    root = tmp_path / os.fsdecode(EVIL.encode("utf-8", "surrogateescape"))
    (root / "ogbn_arxiv" / "raw").mkdir(parents=True)
    with pytest.raises(GnnkitError) as caught:
        open_ogb("ogbn-arxiv", root=root, download=False)
    assert "owned" in str(caught.value) and not obeyed(str(caught.value))


def test_an_error_of_another_process_is_shown_without_obeying_it() -> None:
    error = error_from_json({"type": "OSError", "message": EVIL, "hint": None, "traceback": EVIL, "ours": False}, "reading")
    assert "owned" in error.message and not obeyed(f"{error}{error.args}{error.__cause__}")


def test_what_can_be_shown_stays_as_it_is() -> None:
    for text in ("", "ogbn-products, 2 449 029 nodes", "Größe ≤ 3\n\tübrig", "数据集 🎉"):
        assert printable(text) == text
    assert printable(EVIL) == r"graph\x1b]0;owned\x07\x1b[31m\x1b[2K\r\x9b1A\u202e\udc9b\x7fend"
    assert not obeyed(clean(EVIL)) and not obeyed(clean_block(EVIL))
