"""The table of options: what constructors say of themselves, what type checkers accept, and what answers a wrong name."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import GraphLoader
from gnnkit.datasets import PyGSource, ogb_names
from gnnkit.errors import PlanError
from gnnkit.loader.option_table import GROUPS, option_table
from gnnkit.vendor.ogb import OgbName

ROOT = Path(__file__).parents[2]
CONSTRUCTORS = (GraphLoader.from_ogb, GraphLoader.from_tables, GraphLoader.from_source, GraphLoader.from_pyg, GraphLoader.from_store)
NOT_BUILT = (GraphLoader.from_pyg, GraphLoader.from_store)

# Lines and the names that a type checker must mention for them; none where the line is right.
CALLS = """
import gnnkit
import numpy as np
from gnnkit import Colocated, GraphLoader, PPR
from gnnkit import Store
from torch_geometric.data import Data

data = Data()
GraphLoader.from_ogb("ogbn-products", num_neighbors=[15, 10], batch_size=1024, num_parts=2, partition="metis")  # right
GraphLoader.from_ogb("ogbn-products", num_neighbours=[15, 10])  # num_neighbours
GraphLoader.from_ogb("ogbn-products", batch_sizee=4)  # batch_sizee
GraphLoader.from_ogb("ogbn-products", batch_size="4")  # batch_size
GraphLoader.from_ogb("ogbn-products", partition="metiss")  # partition
GraphLoader.from_ogb("ogbn-product", num_neighbors=[15, 10])  # ogbn-product
GraphLoader.from_pyg(data, backend="colocate")  # colocate
GraphLoader.from_pyg(data, input_nodes={"train": [1]})  # input_nodes
GraphLoader.from_pyg(data, seed_weights="balance")  # balance
GraphLoader.from_pyg(data, sampler=PPR)  # sampler
GraphLoader.from_pyg(data, pad="buckets")  # pad
GraphLoader.from_pyg(data, input_nodes=np.arange(3), seed_weights=np.ones(3), time_window=3, memory_budget="2GB")  # right
GraphLoader.from_tables("edges.csv", "nodes.csv", label="y", undirected=True, standardize=True, fill="mean", num_neighbors=[5])  # right
GraphLoader.from_tables("edges.csv", labels="y")  # labels
GraphLoader.from_tables("edges.csv", fill="median")  # fill
gnnkit.tables("edges.csv", time_unit="m")  # time_unit
GraphLoader.from_pyg(data, num_neighbors={("a", "to", "b"): [2]}, backend=Colocated(num_workers=2), sampler=PPR())  # right
GraphLoader.from_pyg(data, num_parts=2)  # num_parts
GraphLoader.from_pyg(data, subgraph_type="directed")  # subgraph_type
GraphLoader.from_store("here", shuffle=True, edge_label_index="train", neg_sampling="binary")  # right
GraphLoader.from_store("here", shuffle=3.5)  # shuffle
loader = GraphLoader.from_store("here")
loader.for_split("valid", batch_size=8, seed=3)  # right
loader.for_split("valid", batchsize=8)  # batchsize
loader.for_links(None, neg_amount=2.0, batch_size=3)  # right
loader.with_backend("inprocess", prefetch=1)  # right
found: Store | None = loader.store  # right
number: int = loader.store  # Store
""".strip().splitlines()


def graph() -> Data:
    return Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), x=torch.eye(3), num_nodes=3)


def test_every_option_stands_in_one_group_with_a_sentence() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names)) and list(option_table()) == names
    assert all(row.text and row.text.endswith((".", '"')) for row in option_table().values())


@pytest.mark.parametrize("constructor", CONSTRUCTORS, ids=lambda each: each.__name__)
def test_a_constructor_spells_out_what_it_takes(constructor: Any) -> None:
    """The signature and the docstring name the same options, the common ones first."""
    signature, documented = inspect.signature(constructor), inspect.getdoc(constructor) or ""
    listed = re.findall(r"^    (\w+): ", documented.partition("Args:\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert set(listed) == set(signature.parameters) and "**options" not in documented
    without = {"Tables"} if constructor != GraphLoader.from_tables else set()
    without |= {"The store that is built"} if constructor in NOT_BUILT else set()
    wanted = [name for name, row in option_table().items() if row.group not in without]
    assert [name for name in signature.parameters if name in wanted and name not in ("weight", "time_attr", "edge_dir")] == [
        name for name in wanted if name not in ("weight", "time_attr", "edge_dir")
    ]
    assert all(len(line) <= 140 for line in documented.splitlines())


@pytest.mark.parametrize("constructor", [*CONSTRUCTORS, GraphLoader.from_plan], ids=lambda each: each.__name__)
def test_the_page_has_every_parameter_of_a_constructor(constructor: Any) -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert set(inspect.signature(constructor).parameters) <= listed


@pytest.mark.parametrize(
    ("function", "name", "texts"),
    [
        (GraphLoader.from_ogb, "name", ["ogbn-products", "ogbl-collab"]),
        (GraphLoader.from_ogb, "backend", ["inprocess", "colocated"]),
        (GraphLoader.from_pyg, "edge_dir", ["in", "out"]),
        (GraphLoader.from_pyg, "remainder", ["drop", "uneven"]),
        (GraphLoader.from_pyg, "seed_weights", ["balanced"]),
        (GraphLoader.from_tables, "time_unit", ["ms", "ns"]),
        (GraphLoader.from_store, "progress", ["auto"]),
        (gnnkit.partition, "partition", ["metis", "ldg"]),
        (gnnkit.tables, "dangling", ["error", "drop"]),
    ],
)
def test_signatures_show_the_texts_that_are_permitted(function: Any, name: str, texts: list[str]) -> None:
    shown = str(inspect.signature(function).parameters[name].annotation)
    assert "Literal[" in shown and all(repr(text) in shown for text in texts)


def test_names_of_datasets_are_those_that_there_are() -> None:
    assert list(get_args(OgbName)) == ogb_names()


def test_written_files_are_those_of_the_table() -> None:
    spec = importlib.util.spec_from_file_location("write_options", ROOT / "tools" / "write_options.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    for path, text in written.FILES.items():
        assert (ROOT / path).read_text() == text(), f"run tools/write_options.py: {path} is not what it writes"


def _of_mypy(file: Path) -> dict[int, str]:
    """What mypy says of each line; of gnnkit it knows what `make lint` has found."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    said: dict[int, str] = {}
    for number, text in re.findall(r"calls\.py:(\d+): (?:error|note): (.*)", done.stdout):
        said[int(number)] = said.get(int(number), "") + text
    assert said, done.stdout + done.stderr
    return said


def _of_pyright(file: Path) -> dict[int, str]:
    """What pyright says of each line: as basedpyright, whose wheel needs no download at run time, with pyright's own rules."""
    project = file.with_name("pyrightconfig.json")
    project.write_text(json.dumps({"typeCheckingMode": "standard", "include": [file.name], "extraPaths": [str(ROOT)]}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(project), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    said: dict[int, str] = {}
    for row in json.loads(done.stdout)["generalDiagnostics"]:
        number = row["range"]["start"]["line"] + 1
        said[number] = said.get(number, "") + row["message"]
    assert said, done.stdout + done.stderr
    return said


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize(
    "checker",
    [
        pytest.param(_of_mypy, id="mypy", marks=pytest.mark.packages("mypy")),
        pytest.param(_of_pyright, id="pyright", marks=pytest.mark.packages("basedpyright")),
    ],
)
def test_type_checkers_refuse_wrong_names_and_types(checker: Callable[[Path], dict[int, str]], tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text("\n".join(CALLS) + "\n")
    said = checker(file)
    for number, line in enumerate(CALLS, 1):
        _, _, wanted = line.partition("  # ")
        if wanted == "right" or not wanted:
            assert number not in said, (line, said[number])
        else:
            assert wanted in said.get(number, ""), (line, said)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("num_workers", "Colocated(num_workers=4)"),
        ("pin_memory", "page-locked"),
        ("fanouts", "num_neighbors"),
        ("persistent_workers", "until loader.close()"),
        ("filter_per_worker", "nothing to choose"),
        ("directed", "subgraph_type"),
        ("weight_attr", "weight="),
        ("collate_fn", "transform="),
        ("num_parts", "taken as it is"),
    ],
)
def test_names_of_other_loaders_are_explained(name: str, says: str) -> None:
    with pytest.raises(PlanError, match=f"unknown option '{name}'") as error:
        GraphLoader.from_pyg(graph(), num_neighbors=[1], progress=False, **{name: 1})
    assert says in str(error.value) and "did you mean" not in str(error.value)
    assert isinstance(error.value, ValueError)


def test_attributes_cannot_be_assigned() -> None:
    with GraphLoader.from_pyg(graph(), num_neighbors=[1], batch_size=3, progress=False) as loader:
        for name, says in (
            ("num_neighbors", "for_split(..., num_neighbors=...)"),
            ("epoch", "cannot be assigned"),
            ("mine", "of your own"),
        ):
            with pytest.raises(PlanError, match=f"'{name}' of a loader cannot be assigned") as error:
                setattr(loader, name, [5])
            assert says in str(error.value) and isinstance(error.value, AttributeError)
        assert len(list(loader)) == 1


def test_a_subclass_keeps_facts_of_its_own() -> None:
    class Counting(GraphLoader):
        """Has an attribute beside the loader's."""

    plain = GraphLoader.from_pyg(graph(), num_neighbors=[1], progress=False)
    with plain, Counting.from_pyg(graph(), num_neighbors=[1], progress=False) as loader:
        loader.mine = 3  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match="'plan' of a loader"):
            loader.plan = plain.plan  # type: ignore[misc]


def test_the_package_shows_public_names_only() -> None:
    assert set(dir(gnnkit)) == {*gnnkit.__all__, "__version__"}


def test_the_class_documents_the_loader() -> None:
    documented = inspect.getdoc(GraphLoader) or ""
    assert "Args:" not in documented and "for batch in loader" in documented


SHARE = {"train": 6, "valid": 2, "test": 2}


def divided(names: tuple[str, ...] = ("node",)) -> Any:
    """A ring of ten nodes of each type, whose splits are written in PyG's masks."""
    data: Any = Data() if names == ("node",) else HeteroData()
    for name in names:
        store = data if names == ("node",) else data[name]
        store.x = torch.arange(10.0).view(-1, 1)
        place = torch.arange(10)
        store.train_mask, store.val_mask, store.test_mask = place % 5 < 3, place % 5 == 3, place % 5 == 4
        edges = torch.stack([place, (place + 1) % 10])
        if names == ("node",):
            data.edge_index = edges
        else:
            data[name, "to", name].edge_index = edges
    return data


def of_tables(**options: Any) -> GraphLoader:
    data = divided()
    fold = np.where(data.train_mask, "train", np.where(data.val_mask, "val", "test"))
    nodes = {"x": data.x[:, 0].numpy(), "fold": fold}
    return GraphLoader.from_tables(tuple(data.edge_index.numpy()), nodes, features="x", split="fold", **options)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., GraphLoader]:
    """A loader on the same ten nodes, by the constructor of a name."""

    def make(name: str, data: Any = None, **options: Any) -> GraphLoader:
        options = {"num_neighbors": [2], "batch_size": 4, "progress": False, **options}
        data = divided() if data is None else data
        if name == "from_pyg":
            return GraphLoader.from_pyg(data, **options)
        if name == "from_tables":
            return of_tables(store_dir=tmp_path, **options)
        if name == "from_source":
            return GraphLoader.from_source(PyGSource(data), store_dir=tmp_path, **options)
        return GraphLoader.from_store(gnnkit.partition(data, 1, out=tmp_path / "store", overwrite=True).path, **options)

    return make


@pytest.mark.parametrize("name", ["from_pyg", "from_tables", "from_source", "from_store"])
def test_batches_start_from_the_split_train_where_nothing_is_said(opened: Any, name: str) -> None:
    def seeds(loader: GraphLoader) -> list[int]:
        with loader:
            return [int(x) for batch in loader for x in batch.x[: batch.batch_size, 0]]

    train = [0, 1, 2, 5, 6, 7]
    with opened(name) as loader:
        assert loader.plan.inputs.split == "train" and loader.plan.batching.shuffle
        assert "train" in repr(loader)
    assert sorted(seeds(opened(name))) == train
    assert seeds(opened(name, shuffle=False)) == train
    assert seeds(opened(name, input_nodes=None)) == list(range(10))
    assert seeds(opened(name, input_nodes="test")) == [4, 9]


@pytest.mark.parametrize("name", ["from_pyg", "from_source", "from_store"])
def test_batches_start_from_all_nodes_where_there_is_no_split(opened: Any, name: str) -> None:
    with opened(name, graph()) as loader:
        assert loader.plan.inputs.split is None and not loader.plan.batching.shuffle and "all nodes" in repr(loader)
    with pytest.raises(PlanError, match="no split 'train'"):
        opened(name, graph(), input_nodes="train")


def test_where_types_have_splits(opened: Any) -> None:
    with pytest.raises(PlanError, match="several node types have a split 'train'"):
        opened("from_pyg", divided(("a", "b")))
    both = divided(("a", "b"))
    del both["a"].train_mask
    with opened("from_pyg", both) as loader:
        assert loader.plan.inputs.input_type == "b" and loader.plan.inputs.split == "train"
    del both["b"].train_mask
    with pytest.raises(PlanError, match=r"splits \['test', 'valid'\] and none named 'train'"):
        opened("from_pyg", both)
    with opened("from_pyg", both, input_nodes=("b", None)) as loader:
        assert loader.plan.inputs.split is None


def test_one_named_type_needs_no_name(opened: Any) -> None:
    only = divided(("paper",))
    with opened("from_pyg", only, input_nodes=None) as loader:
        assert loader.plan.inputs.input_type == "paper" and len(loader) == 3
    with opened("from_pyg", only, input_nodes=[3]) as loader:
        assert loader.plan.inputs.ids.tolist() == [3]
    with opened("from_pyg", only, edge_label_index=torch.tensor([[0], [1]])) as loader:
        assert loader.plan.inputs.input_type == ("paper", "to", "paper")
