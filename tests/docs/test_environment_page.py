"""The page of environment variables and log levels says what the code does: no more and no less."""

from __future__ import annotations

import ast
import logging
import re

from tests.helpers.machine import ROOT

PAGE = (ROOT / "docs/environment.md").read_text()
PACKAGE = ROOT / "gnnkit"
TEXT = {".py", ".j2", ".sh", ".html"}
# Spelled out where the code puts one together.
VARIABLE = re.compile(r"\bGNNKIT_[A-Z][A-Z_]*[A-Z]\b")


def test_every_variable_is_in_the_table_and_no_other() -> None:
    found = {name for path in PACKAGE.rglob("*") if path.suffix in TEXT for name in VARIABLE.findall(path.read_text())}
    rows = re.findall(r"^\| `(GNNKIT_\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(found) == sorted(rows)


def test_every_level_that_is_logged_is_in_the_table_and_no_other() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "logger" in ast.unparse(node.func.value).lower():
                used.add("error" if node.func.attr == "exception" else node.func.attr)
    levels = {name.lower() for name in logging.getLevelNamesMapping()} if hasattr(logging, "getLevelNamesMapping") else set(used)
    rows = re.findall(r"^\| `([A-Z]+)` \|", PAGE, re.MULTILINE)
    assert {name for name in used if name in levels} == {row.lower() for row in rows}
