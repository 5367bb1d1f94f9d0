"""``gnnkit --help`` knows the verbs, whose modules are imported when they are invoked; help and completion are as other tools have them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gnnkit.cli.app import VERBS, app


def shown(*arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments, "--help"], terminal_width=400, max_content_width=400).output


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_verbs_says_what_each_says_itself(verb: str) -> None:
    assert " ".join(shown(verb).split("\n\n")[1].split()) == VERBS[verb][1]


@pytest.mark.parametrize("arguments", [[verb] for verb in VERBS] + [["stores", "ls"], ["stores", "rm"], ["stores", "prune"]])
def test_usage_names_arguments_without_signs_of_its_own(arguments: list[str]) -> None:
    usage, *rest = shown(*arguments).splitlines()
    assert usage.startswith(f"Usage: gnnkit {' '.join(arguments)} [OPTIONS]")
    assert not re.search("[{}<>]", usage)
    options = "\n".join(rest).partition("Options:\n")[2]
    assert not re.search(r"^  --[\w-]+ <", options, re.MULTILINE), options


@pytest.mark.parametrize(
    ("words", "wanted"), [("gnnkit plan-", "plan-capacity"), ("gnnkit partition --undir", "--undirected"), ("gnnkit stores r", "rm")]
)
def test_words_are_completed(words: str, wanted: str) -> None:
    asked = {"_GNNKIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    call = [str(Path(sys.executable).with_name("gnnkit"))]
    done = subprocess.run(call, env={**os.environ, **asked}, capture_output=True, text=True, timeout=120, check=False)
    assert wanted in done.stdout.split()


def test_completion_is_installed_for_the_shell(tmp_path: Path) -> None:
    command = f"{Path(sys.executable).with_name('gnnkit')} --install-completion; true"
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert "completion installed" in done.stdout and (tmp_path / ".bash_completions" / "gnnkit.sh").is_file(), done
