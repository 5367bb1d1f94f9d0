"""Tests patch next to nothing of gnnkit itself: what they say holds for whatever it is rebuilt into."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

# ``{(file, what is patched): why there is no other way}``. Patches of what is not gnnkit's (the system's answers, torch, the environment)
# are nobody's business here.
REASONS = {
    (
        "tests/backends/test_contract_watching.py",
        "gnnkit.runtime.supervisor.Supervisor.listen",
    ): "a server speaks in two ways, and nothing from outside holds one of them up without the other",
    (
        "tests/cli/test_cli.py",
        "gnnkit.cli.demo.run_demo",
    ): "the demonstration trains for a minute; the command only passes scale and verdict on",
    (
        "tests/distributed/standing_in.py",
        "gnnkit.distributed.dist_server.request_server",
    ): "a real server keeps no list of what it was asked",
    (
        "tests/distributed/standing_in.py",
        "gnnkit.distributed.dist_server.async_request_server",
    ): "a real server cannot be made to answer late, wrongly and never, each when a test wants",
    (
        "tests/distributed/test_graph_store_loaders.py",
        "gnnkit.cluster.serving.connection.client_id",
    ): "another trainer's calls between this one's: a process of its own would have to be told of every one",
    (
        "tests/e2e/interrupted.py",
        "gnnkit.ui.progress.make_sink",
    ): "interrupts come when a stage begins, which no drawing shows at once",
    ("tests/examples/recorded.py", "gnnkit.GraphLoader"): "an example runs as it is, and prints no seeds",
    (
        "tests/helpers/devices.py",
        "gnnkit.loader.epoch.DeviceTransfer.looks_ahead",
    ): "without a GPU nothing copies while the loop works",
    (
        "tests/security/test_large_requests.py",
        "gnnkit.sampling.owned._PIECE_NODES",
    ): "all neighbours of as many weighted nodes as a piece has take minutes",
    # Files and draws of the sizes at which these are reached would do as well, and take longer.
    ("tests/cluster/parts/test_spread.py", "gnnkit.sampling.graph_access._FIRST_CAPACITY"): "4 M edges in one batch",
    ("tests/cluster/parts/test_spread.py", "gnnkit.sampling.owned._MOST_PREALLOCATED"): "4 M edges in one answer",
    ("tests/cluster/parts/test_spread.py", "gnnkit.sampling.owners.MESSAGE_NBYTES"): "rows of 4 MB for each host",
    ("tests/datasets/test_ogb.py", "gnnkit.datasets.ogb_table._BLOCK_BYTES"): "seams between blocks at every few rows, of every dataset",
    ("tests/datasets/test_ogb.py", "gnnkit.datasets.ogb_table._SAMPLE_BYTES"): "256 kB of text",
    ("tests/export/test_verify.py", "gnnkit.cluster.namespaces.why_not"): "a machine whose root may make no namespaces",
    ("tests/ui/test_magic.py", "gnnkit.runtime.runs.known_roots"): "runs of all processes of this user are known, those of other tests too",
}
_METHODS = ("setattr", "delattr", "setitem", "delitem", "object", "dict", "multiple")
_FUNCTIONS = ("setattr", "delattr", "patch")


def own_names(tree: ast.AST) -> dict[str, str]:
    """Names that a file has of gnnkit: ``{name: what it stands for}``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.asname or alias.name.split(".")[0], alias.name if alias.asname else "gnnkit") for alias in node.names]
            found.update(
                {name: meant for (name, meant), alias in zip(names, node.names, strict=True) if alias.name.split(".")[0] == "gnnkit"}
            )
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "gnnkit":
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return found


def meant_by(node: ast.expr, own: dict[str, str]) -> str | None:
    """What of gnnkit an expression reaches: ``"gnnkit.host.available_memory"``; None where that is nothing of it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and node.value.split(".")[0] == "gnnkit" else None
    path = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return None
    return ".".join([own[node.id], *reversed(path)]) if node.id in own else None


def patches(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and target of every patch of gnnkit's own modules, classes and functions, and of every assignment to their attributes."""
    tree = ast.parse(source)
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            function, named = node.func, node.args[1] if len(node.args) > 1 else None
            is_patch = function.attr in (*_METHODS, "patch") if isinstance(function, ast.Attribute) else False
            is_patch |= isinstance(function, ast.Name) and function.id in _FUNCTIONS
            target = meant_by(node.args[0], own) if is_patch else None
            if target is not None:
                is_named = not isinstance(node.args[0], ast.Constant) and isinstance(named, ast.Constant)
                yield node.lineno, f"{target}.{named.value}" if is_named and isinstance(named, ast.Constant) else target
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            for place in [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else node.targets:
                if isinstance(place, (ast.Attribute, ast.Subscript)) and (target := meant_by(place, own)) is not None:
                    yield node.lineno, target


def found_in(folder: Path) -> list[tuple[str, int, str]]:
    """Every patch in the tests: file, line and target."""
    files = sorted(folder.rglob("*.py"))
    return [(str(file.relative_to(folder.parent)), line, target) for file in files for line, target in patches(file.read_text())]


def test_patches_of_our_own_have_a_reason() -> None:
    found = found_in(ROOT / "tests")
    new = [f"{file}:{line} patches {target}" for file, line, target in found if (file, target) not in REASONS]
    assert not new, "\n".join(
        [*new, "a test that patches what it tests ends with the next redesign: show the behaviour through what users have"]
    )
    gone = set(REASONS) - {(file, target) for file, _, target in found}
    assert not gone, f"nothing is patched there any more: {gone}"
    assert max(Counter((file, target) for file, _, target in found).values(), default=0) <= 1, "one place for one patch, a helper"
    assert len(REASONS) <= 17


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("monkeypatch.setattr('gnnkit.host.available_memory', int)", "gnnkit.host.available_memory"),
        ("from gnnkit import host\nmonkeypatch.setattr(host, 'available_memory', int)", "gnnkit.host.available_memory"),
        ("import gnnkit.host as h\npatch.setattr(h.os, 'getpid', int)", "gnnkit.host.os.getpid"),
        ("import gnnkit.host\nmonkeypatch.delattr(gnnkit.host, 'os')", "gnnkit.host.os"),
        ("from gnnkit.host import FreeMemory as F\nwith mock.patch.object(F, 'take', int): pass", "gnnkit.host.FreeMemory.take"),
        ("def test():\n    from gnnkit.cli import app\n    monkeypatch.setitem(app.TABLE, 'x', 1)", "gnnkit.cli.app.TABLE.x"),
        ("with patch('gnnkit.host.os'): pass", "gnnkit.host.os"),
        ("from gnnkit import host\nhost.available_memory = int", "gnnkit.host.available_memory"),
        ("from gnnkit import host\nsetattr(host, 'available_memory', int)", "gnnkit.host.available_memory"),
        ("import os\nmonkeypatch.setattr(os, 'getpid', int)", None),
        ("monkeypatch.setattr('torch.cuda.is_available', bool)", None),
        ("from gnnkit import host\nmonkeypatch.setenv('HOST', 'x')", None),
    ],
)
def test_every_way_to_patch_is_found(line: str, target: str | None) -> None:
    assert [found for _, found in patches(line)] == ([] if target is None else [target])
