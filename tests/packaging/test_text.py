"""The repository's text: nothing large, nothing about the machine it was written on, and docstrings that are no riddles."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

TEXT = {".py", ".md", ".toml", ".txt", ".cfg", ".yml", ".yaml", ".html", ".j2", ".ipynb", ".sh", ""}
# Absolute paths of somebody's machine, and index hosts: neither belongs into a project that others run.
# Written in pieces so that this file does not contain what it looks for.
PIECES = (
    r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me)/\w",
    "py" + r"pi\.org",
    "python" + "hosted",
    "--index" + "-url",
    "whl.pytorch" + r"\.org",
)
FORBIDDEN = re.compile("|".join(PIECES))
# A docstring begins with what the thing is or does; "What it does" makes its reader guess.
RIDDLE = re.compile(r"\s*(?:What|Who|Where|How)\b")


@cache
def repository_files() -> list[Path]:
    """Files that are, or are about to be, in the repository; without git (an unpacked sdist) everything that lies there."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        skip = {".venv", ".envs", ".git"}
        return sorted(path for path in ROOT.rglob("*") if path.is_file() and not skip & set(path.relative_to(ROOT).parts))
    return sorted(ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file())


def test_no_machine_path_is_named() -> None:
    found = []
    for path in repository_files():
        if path.suffix in TEXT and path.stat().st_size < 5_000_000:
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if match := FORBIDDEN.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("line", ["see /ro" + "ot/x", "cd /ho" + "me/me", "pip install --index" + "-url x"])
def test_a_machine_path_would_be_found(line: str) -> None:
    assert FORBIDDEN.search(line)


def test_nothing_large_is_in_the_repository() -> None:
    large = {str(path.relative_to(ROOT)): path.stat().st_size for path in repository_files() if path.stat().st_size > 5_000_000}
    assert not large


def riddles(source: str) -> list[tuple[int, str]]:
    """The lines and texts of docstrings of ``source`` that begin with What, Who, Where or How."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    texts = ((node.body[0].lineno, text) for node in nodes if (text := ast.get_docstring(node)) is not None)
    return [(number, text.partition("\n")[0]) for number, text in texts if RIDDLE.match(text)]


def test_docstrings_begin_with_what_a_thing_is_or_does() -> None:
    files = sorted((ROOT / "gnnkit").rglob("*.py"))
    found = [f"{path.relative_to(ROOT)}:{number}: {text}" for path in files for number, text in riddles(path.read_text(encoding="utf-8"))]
    assert not found, "begin with a noun or a verb (CONTRIBUTING.md):\n" + "\n".join(found)


@pytest.mark.parametrize("word", ["What", "Who", "Where", "How"])
def test_a_riddle_would_be_found(word: str) -> None:
    source = f'"""{word} m."""\nclass C:\n    """\n    {word} c.\n    """\n    async def f(self):\n        """{word}\'s f."""\n'
    assert [number for number, _ in riddles(source)] == [1, 3, 7]
    assert not riddles('"""Whatever m."""\nclass C:\n    """Returns what."""\ndef f():\n    """Whether f."""\n')
