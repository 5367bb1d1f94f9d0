"""Progress outside of notebooks: real terminals (pseudo-terminals), pipes and files."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

import pytest

from gnnkit import set_options
from gnnkit.errors import PlanError
from gnnkit.events import Event, StageProgress
from gnnkit.ui.bars import StageLines
from gnnkit.ui.progress import make_sink

# A stage that seems to have begun in the past is drawn without waiting for it.
SCRIPT = """
import sys, threading, time
from gnnkit.events import Event, StageProgress
from gnnkit.ui.bars import StageLines
from gnnkit.ui.progress import make_sink

past = time.monotonic() - 4
with make_sink({progress!r}) as sink:
    sink(Event("start", "compile", "kernels", time_s=past + 1))
    sink(Event("start", "ingest", "ogbn-products", 0, 61859140.0, "edges", time_s=past))
    sink(Event("progress", "ingest", "ogbn-products", 14e6, 61859140.0, "edges"))
    time.sleep(1.0)
    sink(Event("end", "compile", "kernels", time_s=past + 4.5))
    sink(Event("message", "ingest", text="synthetic sample, not OGB's data"))
    sink(Event("end", "ingest", "ogbn-products", 61859140.0, 61859140.0, "edges", time_s=past + 4.5))
    sink(Event("start", "download", "papers", 0, 1e9, "B", time_s=past))
    sink(Event("fail", "download", "papers", 4.5e8, 1e9, "B", "DatasetError: no route to host", past + 4.5))
    for epoch in "01":
        sink(Event("start", "epoch", epoch, 0, 10, "batches"))
        sink(Event("end", "epoch", epoch, 10, 10, "batches"))
assert {threads!r} or [thread.name for thread in threading.enumerate()] == ["MainThread"]
print("the run went on")
"""


def script(progress: object = "auto", *, threads: bool = False) -> str:
    """The script; ``threads`` may be left behind."""
    return SCRIPT.replace("{progress!r}", repr(progress)).replace("{threads!r}", repr(threads))


def environment(**changes: str) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("NO_COLOR", "COLUMNS", "TERM", "GNNKIT_PROGRESS", "FORCE_COLOR", "TQDM_DISABLE")
    }
    return {**kept, "LC_ALL": "C.UTF-8", **changes}


def run_on_terminal(progress: object = "auto", columns: int = 110, source: str = "", **variables: str) -> str:
    """Runs the script with its standard error on a terminal; returns what the terminal got."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    command = [sys.executable, "-W", "error", "-c", source or script(progress)]
    process = subprocess.Popen(command, stderr=follower, stdout=subprocess.PIPE, stdin=follower, env=environment(**variables))
    os.close(follower)
    received = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the last process on the other side has gone
            break
        if not chunk:
            break
        received += chunk
    os.close(leader)
    assert process.communicate(timeout=240)[0] == (b"" if source else b"the run went on\n"), received.decode()
    assert process.returncode == 0
    return received.decode()


def screen_after(output: str) -> list[str]:
    """What a terminal shows in the end, for the control codes that tqdm writes."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.startswith("\x1b"):
            assert token in ("\x1b[A", "\x1b[2K"), f"unexpected control code {token!r}"
            if token == "\x1b[2K":
                lines[row] = ""
            else:
                row -= 1
            assert row >= 0, "above the first line"
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + len(token) :]
            column += len(token)
    return [line.rstrip() for line in lines if line.strip()]


INGESTED = r"ingest ogbn-products: 100%\|█{10}\| 61.9M/61.9M \[00:04<00:00, 1\d.\dM edges/s\]"
DOWNLOADED = r"download papers:  45%\|████▌     \| 450M/1.00G \[00:04<00:0\d, \d+MB/s, failed: DatasetError\]"


@pytest.mark.parametrize("progress", ["auto", True])
def test_a_terminal_gets_bars_of_tqdm_that_end_as_lines(progress: object) -> None:
    output = run_on_terminal(progress, TERM="xterm-256color")
    assert re.search(r"ingest ogbn-products:  23%\|█+. +\| 14.0M/61.9M \[00:0\d<00:\d\d, +[\d.]+M edges/s\]", output)
    assert output.count("\x1b[A"), "the second bar stands below the first"
    screen = screen_after(output)
    assert sorted(screen[:2]) == ["compile kernels: [00:03]", "synthetic sample, not OGB's data"]
    assert re.fullmatch(INGESTED, screen[2]) and re.fullmatch(DOWNLOADED, screen[3]), screen
    epochs = [re.match(r"epoch (\d): 100%\|█+\| 10/10", line) for line in screen[4:]]
    assert [found and found[1] for found in epochs] == (["0", "1"] if progress is True else [])


@pytest.mark.parametrize("columns", [24, 40, 60])
def test_a_narrow_terminal_is_not_overrun(columns: int) -> None:
    output = run_on_terminal(columns=columns, TERM="xterm")
    rows = re.split(r"[\r\n]+", re.sub(r"\x1b\[(A|2K)", "", output))
    assert max(map(len, rows)) <= max(columns, len("synthetic sample, not OGB's data"))
    assert any("%" in row for row in rows)


@pytest.mark.parametrize("term", ["dumb", "", "unknown"])
def test_a_dumb_terminal_gets_lines(term: str) -> None:
    output = run_on_terminal(TERM=term)
    assert "\x1b" not in output and "\r" not in output.replace("\r\n", "\n")
    assert "gnnkit: ingest ogbn-products: 100% 61.9M/61.9M [00:04<" in output


def test_an_ascii_terminal_gets_ascii() -> None:
    output = run_on_terminal(TERM="xterm", PYTHONIOENCODING="ascii")
    assert output.isascii() and "ingest ogbn-products: 100%|##########| 61.9M/61.9M" in output


def test_off_is_silent() -> None:
    assert run_on_terminal(False, TERM="xterm") == ""
    assert run_on_terminal(True, TERM="xterm", GNNKIT_PROGRESS="off") == "" == run_on_terminal(True, TERM="xterm", TQDM_DISABLE="1")


def run_piped(progress: object = "auto", **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", "-c", script(progress)]
    return subprocess.run(command, env=environment(TERM="xterm"), timeout=240, **{"capture_output": True, **options})  # type: ignore[call-overload, no-any-return]


def test_a_pipe_gets_lines_and_standard_output_none() -> None:
    done = run_piped(True)
    assert done.stdout == b"the run went on\n"
    lines = done.stderr.decode().splitlines()
    assert all(line.startswith("gnnkit: ") and line.isprintable() for line in lines)
    assert "gnnkit: synthetic sample, not OGB's data" in lines and len(lines) <= 9
    assert re.fullmatch(r"gnnkit: download papers: 45% 450M/1.00G \[00:04<00:0\d, \d+MB/s, failed: DatasetError\]", lines[-3])
    assert lines[-1].startswith("gnnkit: epoch 1: 100% 10/10 [00:00<")


def test_a_pipe_without_a_reader_does_not_end_the_run() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run_piped(capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, b"the run went on\n")


@pytest.mark.parametrize(
    "line", ['exec "$0" -c "$1" 2>&-', 'exec "$0" -c "import sys; sys.stderr.close()\n$1"'], ids=["no stream", "closed"]
)
def test_a_closed_standard_error_does_not_end_the_run(line: str) -> None:
    done = subprocess.run(["bash", "-c", line, sys.executable, script()], env=environment(), capture_output=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, b"the run went on\n")


def test_a_terminal_that_goes_away_does_not_end_the_run() -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        ["setsid", sys.executable, "-c", script()], stderr=follower, stdin=follower, stdout=subprocess.PIPE, env=environment(TERM="xterm")
    )
    os.close(follower)
    assert os.read(leader, 100)  # something was drawn
    os.close(leader)
    assert process.communicate(timeout=240)[0] == b"the run went on\n"


FORK = """    import os
    from tqdm import tqdm
    children = []
    for _ in range(20):
        if (child := os.fork()) == 0:
            sink(Event("message", "ingest", text="from the child"))
            tqdm(total=1, file=open(os.devnull, "w")).close()
            os._exit(0)
        children.append(child)
        time.sleep(0.05)
    for child in children:
        os.waitpid(child, 0)
"""


def test_forked_children_do_not_draw_and_may_use_tqdm() -> None:
    middle = '    sink(Event("message"'
    source = script().replace(middle, FORK + middle)
    assert "fork" in source
    done = subprocess.run([sys.executable, "-c", source], env=environment(), capture_output=True, timeout=240)
    assert done.stdout == b"the run went on\n"
    assert b"from the child" not in done.stderr
    assert done.stderr.count(b"ingest ogbn-products: 100%") == 1


def test_a_log_gets_a_line_about_a_stage_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = [0.0], io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    place, stage = StageLines(written.write), StageProgress(Event("start", "ingest", "", 0, 1000.0, "edges"))
    for step in range(1000):
        now[0] = step / 10
        stage.advance(Event("progress", "ingest", "", step, 1000.0, "edges"))
        place.draw({("ingest", ""): stage.state(now[0])}, [])
    assert [int(percent) for percent in re.findall(r"ingest: (\d+)% ", written.getvalue())] == [*range(0, 100, 5)]


def test_text_of_any_content_is_one_line() -> None:
    written = io.StringIO()
    bar = StageProgress(Event("start", "ingest", "\x1b[31m\r\n{label}", 3, None, "\x07rows")).state()
    StageLines(written.write, "ascii").draw({("ingest", ""): bar}, ["first\r\x1b[2Jsecond\nthird \udcff \u2713"])
    first, second = written.getvalue().splitlines()
    assert first == "gnnkit: first [2Jsecond third ?" and second.startswith("gnnkit: ingest [31m {label}: 3 rows [00:00")


TWO = """
import sys, threading, time
from gnnkit.events import Stage
from gnnkit.ui.progress import make_sink
from tqdm import tqdm

def work(label):
    with make_sink() as sink, Stage(sink, "ingest", label=label, total=1e6, unit="edges") as stage:
        for _ in range(40):
            time.sleep(0.04)
            stage.advance(25e3)
        stage.message(f"about {label}")

threads = [threading.Thread(target=work, args=(label,)) for label in ("one", "two")]
for thread in threads:
    thread.start()
for _ in tqdm(range(20), desc="mine"):
    time.sleep(0.1)
for thread in threads:
    thread.join()
"""


def test_two_loaders_in_two_threads_and_the_users_own_bar_do_not_overwrite_each_other() -> None:
    screen = screen_after(run_on_terminal(source=TWO, TERM="xterm"))
    starts = sorted(line.partition(":")[0] for line in screen)
    assert starts == ["about one", "about two", "ingest one", "ingest two", "mine"], screen
    assert all("100%" in line for line in screen if ":" in line)


def test_options_and_errors_reach_the_sink(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with set_options(progress=False), make_sink() as sink:
        sink(Event("fail", "ingest", text="x"))
    assert not capfd.readouterr().err
    with pytest.raises(PlanError):
        make_sink("bars")
    monkeypatch.setenv("GNNKIT_PROGRESS", "sometimes")
    with pytest.raises(PlanError, match="GNNKIT_PROGRESS"):
        make_sink()
