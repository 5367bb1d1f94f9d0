"""``gnnkit --help`` and completion know the verbs, whose modules are imported when they are invoked."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gnnkit.cli.app import VERBS, app


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_verbs_says_what_each_says_itself(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"], terminal_width=400, max_content_width=400)
    assert " ".join(shown.output.split("\n\n")[1].split()) == VERBS[verb][1]


def test_completion_knows_verbs_and_their_options() -> None:
    def completed(*words: str) -> list[str]:
        code = (
            "import sys\nfrom typer.main import get_command\nfrom gnnkit.cli.app import app\n"
            "get_command(app).main(prog_name='gnnkit', complete_var='_GNNKIT_COMPLETE')"
        )
        environment = {"_GNNKIT_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["gnnkit", *words]), "COMP_CWORD": str(len(words))}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
        return done.stdout.split()

    assert completed("pa") == ["partition"]
    assert "--feature-dtype" in completed("partition", "--feat")
