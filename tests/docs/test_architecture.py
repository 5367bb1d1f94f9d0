"""The examples of the page on architecture: the files that a change touches, what is changed there, and that they are few."""

from __future__ import annotations

import re

import pytest

from tests.helpers.machine import ROOT

PAGE = (ROOT / "docs/development/architecture.md").read_text()
# The rows of each example's table, by its heading: file, what is changed there, why.
EXAMPLES = {
    title: [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| `gnnkit/")]
    for title, section in re.findall(r"^### (.*?)\n(.*?)(?=^###? |\Z)", PAGE.partition("## Five changes")[2], re.S | re.M)
}


@pytest.mark.parametrize("title", EXAMPLES)
def test_a_change_of_its_kind_is_three_files_and_lines_of_tables(title: str) -> None:
    changed = [row for row in EXAMPLES[title] if " line of " not in row[1]]
    assert len(changed) <= 3 and len(EXAMPLES[title]) - len(changed) <= 1


@pytest.mark.parametrize(("file", "what"), [(row[0].strip("`"), row[1]) for rows in EXAMPLES.values() for row in rows])
def test_what_an_example_changes_stands_in_its_file(file: str, what: str) -> None:
    text = (ROOT / file).read_text()
    for name in re.findall(r"`([^`]+)`", what):
        assert re.search(rf"\b{re.escape(name.rpartition('.')[2].rstrip('()'))}\b", text), name


def test_the_five_examples_are_there() -> None:
    assert [len(rows) for rows in EXAMPLES.values()] == [4, 3, 4, 2, 0]
