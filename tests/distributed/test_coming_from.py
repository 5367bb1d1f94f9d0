"""``docs/development/names.md``: every name it says exists does, with the arguments it says; what it says is missing, is."""

from __future__ import annotations

import inspect
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import gnnkit
import gnnkit.distributed
from tests.helpers.glt import needs_glt, of_glt
from tests.helpers.machine import ROOT

PAGE = ROOT / "docs/development/names.md"
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \|(.*)\| `([\w.]+)::(\w+)` \|$")
CALL = re.compile(r"^([\w.]+)(?:\((.*)\))?$")
HERE = re.compile(r"^`(gnnkit\.[\w.]+)(?:\((.*)\))?`$")


def rows() -> list[tuple[str, str, str]]:
    """(their name with arguments, where it is here, how) of every row."""
    found = [match.groups() for line in PAGE.read_text().splitlines() if (match := ROW.match(line))]
    return [(theirs, here.strip(), how.strip()) for theirs, here, how, *_ in found]


def arguments(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def resolve(path: str) -> Any:
    """The object that a dotted path names; of a record's field, its annotation."""
    value: Any = gnnkit
    for name in path.split(".")[1:]:
        fields = getattr(value, "__dataclass_fields__", {})
        value = fields[name].type if name in fields and not hasattr(value, name) else getattr(value, name)
    return value


def parameters(value: Any) -> set[str]:
    return set(inspect.signature(value).parameters)


def by_position(value: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, found in inspect.signature(value).parameters.items() if found.kind in kinds and name != "self"]


def glts_own(how: str) -> bool:
    return how.startswith("GLT's own, native")


EXISTING = [
    pytest.param(theirs, here, how, marks=[needs_glt] if glts_own(how) else [], id=theirs.partition("(")[0])
    for theirs, here, how in rows()
    if here.startswith("`")
]
MISSING = [pytest.param(theirs, here, how, id=theirs.partition("(")[0]) for theirs, here, how in rows() if not here.startswith("`")]


@pytest.mark.parametrize(("theirs", "here", "how"), EXISTING)
def test_what_is_said_to_exist_does(theirs: str, here: str, how: str) -> None:
    match = HERE.match(here)
    assert match, f"not the name of something in gnnkit: {here}"
    path, own_arguments = match.groups()
    if glts_own(how):
        name, *attributes = path.split(".")[2:]
        value = reduce(getattr, attributes, of_glt(gnnkit.distributed._GLT_HOMES[name]))
    else:
        value = resolve(path)
    for name in arguments(own_arguments):
        assert name in parameters(value), f"{path} has no argument {name}"
    named = CALL.match(theirs)
    if named and named[1].split(".")[-1] == path.split(".")[-1]:
        missing = [name for name in arguments(named[2]) if name not in parameters(value)]
        assert not missing, f"{path} has no arguments {missing}"
        # A call without names means the same here: what may be given by place stands at the same place.
        places = {name: place for place, name in enumerate(by_position(value) if named[2] and not glts_own(how) else [])}
        moved = [name for place, name in enumerate(arguments(named[2])) if places.get(name, place) != place]
        assert not moved, f"{path} takes {moved} at another place"


@pytest.mark.parametrize(("theirs", "here", "how"), MISSING)
def test_what_is_said_to_be_missing_is(theirs: str, here: str, how: str) -> None:
    assert here in ("not yet", "no"), here
    assert here == "not yet" or how, "a name that will never be there needs a reason"
    name = theirs.partition("(")[0]
    with pytest.raises((AttributeError, KeyError)):
        resolve(f"gnnkit.distributed.{name}")


def test_the_page_for_readers_has_every_name() -> None:
    readers = (ROOT / "docs/coming-from.md").read_text()
    named = {theirs.partition("(")[0].partition(".")[0] for theirs, *_ in rows()}
    assert not sorted(name for name in named if f"`{name}`" not in readers)


def test_every_name_has_one_row_and_every_row_is_understood() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(lines) == len(rows()), [line for line in lines if not ROW.match(line)]
    for section in PAGE.read_text().split("\n## ")[1:]:
        names = [match[1].partition("(")[0] for line in section.splitlines() if (match := ROW.match(line))]
        assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


def test_every_row_names_a_test_that_is_there() -> None:
    others = PAGE.read_text().partition("\n## GiGL")[2]
    tables = [line for line in others.splitlines() if line.startswith("| ") and not line.endswith("| shown by |")]
    assert tables and not [line for line in tables if not re.search(r"\| `test_\w+\.py::\w+` \|$", line)]
    of_pyg = PAGE.read_text().partition("\n## GiGL")[0]
    for file, name in set(re.findall(r"`(test_\w+\.py)::(\w+)`", PAGE.read_text())):
        folder = ROOT / "tests/pyg" if f"`{file}::{name}`" in of_pyg else Path(__file__).parent
        assert re.search(rf"^def {name}\(", (folder / file).read_text(), re.MULTILINE), f"{file}::{name}"


def test_every_public_name_has_a_row() -> None:
    listed = {match[1].split(".")[2] for _, here, _ in rows() if (match := HERE.match(here)) and match[1].startswith("gnnkit.distributed.")}
    # What no other library has: a base class, and the arithmetic that their producers keep to themselves.
    own = {"PartitionBook", "worker_seed_ranges"}
    assert set(gnnkit.distributed.__all__) - own == listed - set(gnnkit.distributed._GLT_HOMES)
    assert set(gnnkit.distributed._GLT_HOMES) <= listed


@needs_glt
@pytest.mark.parametrize("name", ["DistDataset", "DistFeature", "DistGraph", "DistNeighborLoader"])
def test_ours_take_whatever_the_installed_graphlearn_torchs_take(name: str) -> None:
    their_own = of_glt(f"distributed.{name}")
    unneeded = {"DistDataset": {"id_filter", "node_split", "graph_caching", "id_select"}, "DistFeature": {"rpc_router", "device"}}
    lacking = parameters(their_own) - parameters(getattr(gnnkit.distributed, name)) - {"self"}
    assert lacking <= unneeded.get(name, set()), lacking


def test_a_wrong_row_would_be_found() -> None:
    with pytest.raises(AttributeError):
        resolve("gnnkit.distributed.DistDataset.unload")
    assert "graph_directory" not in parameters(resolve("gnnkit.distributed.DistDataset.load"))
