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
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.loader.option_table import GROUPS, option_table

ROOT = Path(__file__).parents[2]
CONSTRUCTORS = (GraphLoader.from_ogb, GraphLoader.from_source, GraphLoader.from_pyg, GraphLoader.from_store)
NOT_BUILT = (GraphLoader.from_pyg, GraphLoader.from_store)

# Lines and the names that a type checker must mention for them; none where the line is right.
CALLS = """
from gnnkit import Colocated, GraphLoader, PPR
from gnnkit.storage.store import Store
from torch_geometric.data import Data

data = Data()
GraphLoader.from_ogb("ogbn-products", num_neighbors=[15, 10], batch_size=1024, num_parts=2, partition="metis")  # right
GraphLoader.from_ogb("ogbn-products", num_neighbours=[15, 10])  # num_neighbours
GraphLoader.from_ogb("ogbn-products", batch_sizee=4)  # batch_sizee
GraphLoader.from_ogb("ogbn-products", batch_size="4")  # batch_size
GraphLoader.from_ogb("ogbn-products", partition="metiss")  # partition
GraphLoader.from_pyg(data, num_neighbors={("a", "to", "b"): [2]}, backend=Colocated(num_workers=2), sampler=PPR())  # right
GraphLoader.from_pyg(data, num_parts=2)  # num_parts
GraphLoader.from_pyg(data, subgraph_type="directed")  # subgraph_type
GraphLoader.from_store("here", shuffle=True, edge_label_index="train", neg_sampling="binary")  # right
GraphLoader.from_store("here", shuffle=3.5)  # shuffle
loader = GraphLoader.from_store("here")
loader.for_split("valid", batch_size=8, seed=3)  # right
loader.for_split("valid", batchsize=8)  # batchsize
loader.for_links(None, neg_amount=2.0, batch_size=3)  # right
loader.with_backend("in_process", prefetch=1)  # right
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
    wanted = [name for name, row in option_table().items() if constructor not in NOT_BUILT or row.group != "The store that is built"]
    assert [name for name in signature.parameters if name in wanted and name not in ("weight", "time_attr", "edge_dir")] == [
        name for name in wanted if name not in ("weight", "time_attr", "edge_dir")
    ]
    assert all(len(line) <= 140 for line in documented.splitlines())


def test_written_files_are_those_of_the_table() -> None:
    spec = importlib.util.spec_from_file_location("write_options", ROOT / "tools" / "write_options.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    for path, text in written.FILES.items():
        assert (ROOT / path).read_text() == text(), f"run tools/write_options.py: {path} is not what it writes"


UNREAD = "torch torch_geometric numba pyarrow ogb pandas IPython ipywidgets matplotlib networkx rich typer httpx scipy"


def _of_mypy(file: Path) -> dict[int, str]:
    """What mypy says of each line. It reads gnnkit and NumPy; of all else that gnnkit imports, options have nothing."""
    config = file.with_name("mypy.ini")
    unread = ",".join(f"{name},{name}.*" for name in UNREAD.split())
    config.write_text(
        f"[mypy]\nstrict = True\nignore_missing_imports = True\ncache_dir = /dev/null\n[mypy-{unread}]\nfollow_imports = skip\n"
    )
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", str(config), str(file)]
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
@pytest.mark.parametrize("checker", [_of_mypy, _of_pyright], ids=["mypy", "pyright"])
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
