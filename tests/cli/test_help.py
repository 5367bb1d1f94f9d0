"""``gnnkit --help`` knows the verbs, whose modules are imported when they are invoked."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gnnkit.cli.app import VERBS, app


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_verbs_says_what_each_says_itself(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"], terminal_width=400, max_content_width=400)
    assert " ".join(shown.output.split("\n\n")[1].split()) == VERBS[verb][1]
