"""``%gnnkit`` in a real kernel and without one: runs listed, read, stopped, cleaned up from a cell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnkit.cli import magic
from gnnkit.errors import PlanError
from gnnkit.runtime import runs
from gnnkit.ui.cards import Card
from tests.helpers.runs import run_folder
from tests.ui.budgets import MAX_HTML_BYTES
from tests.ui.kernels import Cell, Kernel

_SETUP = """
%load_ext gnnkit
import subprocess, sys
from pathlib import Path
from gnnkit.cli import magic
from gnnkit.runtime import runs
from gnnkit.runtime.runs import RunFolder
root = Path({root!r})
runs.known_roots = lambda: [root]
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
mine = RunFolder(root, {{"store": "/data/<script>alert(1)"}})
mine.add(0, sleeper.pid)
mine.log(0).write_text("<b>hello</b>\\n")
"""

_COMPLETE = """
from IPython.core.completer import provisionalcompleter

def complete(*lines):
    with provisionalcompleter():
        completer = get_ipython().Completer
        print(json.dumps([[c.text for c in completer.completions(f"%gnnkit {line}", 8 + len(line))] for line in lines]))
"""


def shown(kernel: Kernel, cell: Cell) -> dict[str, str]:
    """What a cell's last line shows."""
    (result,) = [m["content"]["data"] for m in kernel.of_type("execute_result") if m["parent_header"]["msg_id"] == cell.msg_id]
    return dict(result)


def test_in_a_cell(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(_SETUP.format(root=str(tmp_path)))
    names = json.loads(kernel.run("import json; print(json.dumps([mine.path.name, sleeper.pid]))").stdout)
    run, pid = names
    try:
        bundle = shown(kernel, kernel.run("%gnnkit ps"))
        assert f"{run}  running: sampling processes of " in bundle["text/plain"] and "1 running; 1 process " in bundle["text/plain"]
        html = bundle["text/html"]
        assert run in html and str(pid) in html and "<script" not in html and "&lt;script&gt;" in html and len(html) < MAX_HTML_BYTES
        bundle = shown(kernel, kernel.run(f"%gnnkit logs {pid} --lines 3"))
        assert "<b>hello</b>" in bundle["text/plain"] and "&lt;b&gt;hello&lt;/b&gt;" in bundle["text/html"]

        kernel.run(_COMPLETE)
        verbs, stops, ids, rest = json.loads(kernel.run("complete('', 'st', 'stop ', 'ps ')").stdout)
        assert {"ps", "logs", "stop", "cleanup"} <= set(verbs) and stops == ["stop"] and {"--all", run} <= set(ids) and run not in rest

        assert "cleanup" in kernel.run("%gnnkit").stdout and "--elsewhere" in kernel.run("%gnnkit cleanup --help").stdout
        cell = kernel.run("%gnnkit stop nobody", may_fail=True)
        assert "PlanError: there is no run 'nobody'" in cell.traceback and "argparse" not in cell.traceback

        assert f"{run}  ended 1 process" in shown(kernel, kernel.run(f"%gnnkit stop {run[:-2]}"))["text/plain"]
        assert kernel.run("print(sleeper.wait(60))").stdout == f"{-signal.SIGTERM}\n"
        assert "nothing to clean up" in shown(kernel, kernel.run("%gnnkit cleanup"))["text/plain"]
        assert kernel.run("mine.close()\nprint(list(root.iterdir()))").stdout == "[]\n"
        cell = kernel.run("%unload_ext gnnkit\n%gnnkit ps", may_fail=True)
        assert "`%gnnkit` not found" in cell.stderr + cell.traceback
        kernel.run("%load_ext gnnkit\n%reload_ext gnnkit\n%gnnkit ps")
    finally:
        kernel.run("sleeper.kill(); sleeper.wait(60)")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder of runs."""
    # Otherwise runs of all processes of this user are known, those of other tests too.
    monkeypatch.setattr(runs, "known_roots", lambda: [tmp_path])
    return tmp_path


def text_of(line: str) -> str:
    card = magic.run_line(line)
    assert isinstance(card, Card)
    return card.to_block()


def test_without_runs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no runs" in text_of("ps") and "no run has processes" in text_of("stop --all")
    assert "nothing to clean up" in text_of("cleanup --failed --elsewhere")
    assert magic.run_line("") is None and magic.run_line("logs --help") is None
    assert "--lines" in capsys.readouterr().out
    with pytest.raises(PlanError, match="there are no runs with logs"):
        magic.run_line("logs")


def test_many_runs_fit_on_a_card(root: Path) -> None:
    """And say how many more there are."""
    made = [run_folder(root, {"store": "/a/long/path" * 10}) for _ in range(60)]
    card = magic.run_line("ps")
    assert (
        card is not None
        and len(card.to_html().encode()) < MAX_HTML_BYTES
        and "more rows" in card.to_html()
        and "60 running" in card.to_html()
    )
    for each in made:
        each.close()


def test_what_was_left_behind(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as sleeper:
        run = run_folder(root, {})
        run.add(0, sleeper.pid)
        run.note(pid=2**22 + 1)
        assert "! 1 run left behind, with 1 unused process: gnnkit cleanup" in text_of("ps")
        assert f"{run.path.name}  ended 1 process, removed its folder" in text_of("cleanup")
        assert sleeper.wait(5) == -signal.SIGKILL and not list(root.iterdir())


@pytest.mark.parametrize(
    "line", ["nonsense", "stop", "stop --all 1", "ps --nonsense", "logs 'one", "logs --rank x", "logs --lines 0", "logs a b"]
)
def test_lines_that_make_no_sense(root: Path, line: str) -> None:
    with pytest.raises(PlanError):
        magic.run_line(line)


def test_completions(root: Path) -> None:
    run = run_folder(root, {})
    assert magic.completions("%gnnkit") == magic.completions("%gnnkit lo") == ["ps", "logs", "stop", "cleanup"]
    assert magic.completions("%gnnkit logs ") == ["--rank", "--lines", run.path.name]
    assert magic.completions(f"%gnnkit stop {run.path.name} ") == ["--all"] and str(os.getpid()) in run.path.name
    assert magic.completions("%gnnkit nonsense ") == []
    run.close()
