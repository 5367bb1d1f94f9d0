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
from gnnkit.events import Event
from gnnkit.ui.progress import make_sink

# A stage that seems to have begun in the past is drawn without waiting for it.
SCRIPT = """
import sys, threading, time
from gnnkit.events import Event
from gnnkit.ui.progress import make_sink

class Drawn:
    # Pauses until one more frame has been drawn, however busy the machine is; not where nothing is drawn (any more).
    def __init__(self, renderer):
        self.is_over, self._done = renderer is None, threading.Semaphore(0)
        if renderer is not None:
            self._draw, renderer.draw = renderer.draw, self.draw
    def draw(self, frame):
        try:
            self._draw(frame)
        except BaseException:
            self.is_over = True
            raise
        finally:
            self._done.release()
    def __call__(self):
        assert self.is_over or self._done.acquire(timeout=60)

past = time.monotonic() - 4
with make_sink({progress!r}) as sink:
    drawn = Drawn(getattr(sink, "renderer", None))
    sink(Event("start", "compile", "kernels", time_s=past + 1))
    sink(Event("start", "ingest", "ogbn-products", 0, 61859140.0, "edges", time_s=past))
    for step in range(4):
        sink(Event("progress", "ingest", "ogbn-products", step * 14e6, 61859140.0, "edges"))
        drawn()
    sink(Event("end", "compile", "kernels", time_s=past + 4.5))
    sink(Event("message", "ingest", text="synthetic sample, not OGB's data"))
    sink(Event("end", "ingest", "ogbn-products", 61859140.0, 61859140.0, "edges", time_s=past + 4.5))
    sink(Event("start", "download", "papers", 0, 1e9, "B", time_s=past))
    sink(Event("fail", "download", "papers", 4.5e8, 1e9, "B", "DatasetError: no route to host", past + 4.5))
print("the run went on")
"""


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "TERM", "GNNKIT_PROGRESS", "FORCE_COLOR")}
    return {**kept, "LC_ALL": "C.UTF-8", **changes}


def run_on_terminal(progress: object = "auto", columns: int = 110, **variables: str) -> str:
    """Runs the script with its standard error on a terminal; returns what the terminal got."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    command = [sys.executable, "-W", "error", "-c", SCRIPT.format(progress=progress)]
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
    assert process.communicate(timeout=240)[0] == b"the run went on\n", received.decode()
    assert process.returncode == 0
    return received.decode()


def screen_after(output: str) -> list[str]:
    """What a terminal shows in the end, for the control codes that are allowed."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
        if token == "\r":
            column = 0
        elif token == "\n":
            row, column = row + 1, column
            lines += [""] * (row + 1 - len(lines))
        elif token.startswith("\x1b"):
            if token.endswith("K"):
                assert token == "\x1b[2K"
                lines[row] = ""
            elif token.endswith("A"):
                row -= int(token[2:-1])
                assert row >= 0, "above the first line"
            else:
                assert token.endswith("m"), f"unexpected control code {token!r}"
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + len(token) :]
            column += len(token)
    return [line.rstrip() for line in lines if line.strip()]


def test_a_terminal_gets_bars_that_end_as_lines() -> None:
    output = run_on_terminal(TERM="xterm-256color")
    assert "\x1b[1A" in output and "━" in output
    assert re.search(r"\d\d % · [\d.]+M of 61.9M edges · [\d.]+M edges/s · \d+ s left", output)
    screen = screen_after(output)
    assert screen[0].startswith("✓ compile kernels 3.")
    assert screen[1] == "synthetic sample, not OGB's data"
    assert re.fullmatch(r"✓ ingest ogbn-products 61.9M edges in 4.\d s, 1\d.\dM edges/s", screen[2])
    assert re.fullmatch(r"✗ download papers +[━╸╺]+ at 45 % after 4.\d s: DatasetError", screen[3])
    assert len(screen) == 4
    assert "\x1b[31m" in output


@pytest.mark.parametrize("columns", [24, 40, 60])
def test_a_narrow_terminal_is_not_overrun(columns: int) -> None:
    output = run_on_terminal(columns=200, COLUMNS=str(columns), TERM="xterm")
    rows = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output))
    assert max(map(len, rows)) < columns
    assert any("%" in row for row in rows)


def test_no_color_is_respected() -> None:
    output = run_on_terminal(TERM="xterm-256color", NO_COLOR="1")
    assert "━" in output
    assert not re.search(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7]|38)\b[0-9;]*m", output)


@pytest.mark.parametrize(("term", "progress"), [("dumb", "auto"), ("dumb", "text"), ("", "auto"), ("unknown", "auto"), ("xterm", "plain")])
def test_a_dumb_terminal_gets_plain_lines(term: str, progress: str) -> None:
    output = run_on_terminal(progress, TERM=term)
    assert "\x1b" not in output
    assert "\r" not in output.replace("\r\n", "\n")
    assert "gnnkit: ingest ogbn-products: 61.9M edges in 4." in output


def test_an_ascii_terminal_gets_ascii() -> None:
    output = run_on_terminal(TERM="xterm", PYTHONIOENCODING="ascii")
    assert output.isascii()
    assert any(line.startswith("+ ingest ogbn-products 61.9M edges") for line in screen_after(output))


def test_off_is_silent() -> None:
    assert run_on_terminal(False, TERM="xterm") == "" == run_on_terminal("auto", TERM="xterm", GNNKIT_PROGRESS="off")


def run_piped(progress: object = "auto", **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", "-c", SCRIPT.format(progress=progress)]
    return subprocess.run(command, env=environment(TERM="xterm"), timeout=240, **{"capture_output": True, **options})  # type: ignore[call-overload, no-any-return]


def test_a_pipe_gets_plain_lines_and_standard_output_none() -> None:
    done = run_piped()
    assert done.stdout == b"the run went on\n"
    lines = done.stderr.decode().splitlines()
    assert all(line.startswith("gnnkit: ") and line.isprintable() for line in lines)
    assert "gnnkit: synthetic sample, not OGB's data" in lines
    assert lines[-1].startswith("gnnkit: download papers: failed at 45 % after 4.")
    assert lines[-1].endswith("s: DatasetError")
    assert not any("\r" in line for line in lines)


@pytest.mark.parametrize("progress", ["auto", "text"])
def test_a_pipe_without_a_reader_does_not_end_the_run(progress: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run_piped(progress, capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, b"the run went on\n")


def test_closed_standard_streams_do_not_end_the_run() -> None:
    source = "import sys\nsys.stderr.close()\n" + SCRIPT.format(progress="auto")
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, b"the run went on\n")
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" 2>&-', *command[:2], SCRIPT.format(progress="auto")],
        env=environment(),
        capture_output=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, b"the run went on\n")


def test_a_stream_closed_in_the_middle_does_not_end_the_run() -> None:
    for progress in ("plain", "text"):
        stream = io.StringIO()
        with make_sink(progress, stream=stream) as sink:
            sink(Event("start", "ingest", time_s=time.monotonic() - 1))
            stream.close()
            sink(Event("end", "ingest"))
            sink(Event("message", "ingest", text="unheard"))


FORK = """    import os
    child = os.fork()
    if child == 0:
        sink(Event("message", "ingest", text="from the child"))
        sys.exit()
    os.waitpid(child, 0)
"""


def test_a_forked_child_does_not_draw() -> None:
    middle = '    sink(Event("message"'
    source = SCRIPT.format(progress="auto").replace(middle, FORK + middle)
    assert "fork" in source
    done = subprocess.run([sys.executable, "-c", source], env=environment(), capture_output=True, timeout=240)
    assert done.stdout == b"the run went on\n"
    assert b"from the child" not in done.stderr
    assert done.stderr.count(b"ingest ogbn-products: 61.9M") == 1


def test_plain_lines_come_at_tenths_or_every_half_minute() -> None:
    from gnnkit.ui.progress import PlainRenderer, ProgressReporter

    now, written = [0.0], io.StringIO()
    sink = ProgressReporter(PlainRenderer(written.write, clock=lambda: now[0]), clock=lambda: now[0], background=False)
    sink(Event("start", "ingest", total=1000.0, unit="edges", time_s=0.0))
    for step in range(1000):
        now[0] = step * 0.5
        sink(Event("progress", "ingest", done=step if step < 500 else 500, total=1000.0, unit="edges", time_s=now[0]))
    lines = written.getvalue().splitlines()
    percents = [int(re.findall(r"(\d+) %", line)[0]) for line in lines]
    # Half-minutes fall between tenths (every 50 s), and go on alone when nothing moves any more.
    assert percents[:5] == [0, 6, 10, 16, 20]
    assert len(percents) == pytest.approx(1 + 5 * 2 + 250 / 30, abs=2)


def test_messages_of_any_content_are_one_plain_line_each() -> None:
    stream = io.StringIO()
    with make_sink("plain", stream=stream) as sink:
        sink(Event("message", "ingest", text="first\r\x1b[2Jsecond\nthird \udcff"))
    assert stream.getvalue() == "gnnkit: first [2Jsecond third\n"


def test_two_loaders_on_one_terminal_do_not_overwrite_each_other() -> None:
    stream = io.StringIO()
    first, second = make_sink("text", stream=stream), make_sink("text", stream=stream)
    past = time.monotonic() - 2
    for sink, label in ((first, "one"), (second, "two")):
        sink(Event("start", "ingest", label, time_s=past))
        sink(Event("message", "ingest", text=f"about {label}"))
        sink.close()
    screen = screen_after(stream.getvalue().replace("\n", "\r\n"))
    assert [line for line in screen if line.startswith("about")] == ["about one", "about two"]
    assert sum("ingest one" in line for line in screen) == sum("ingest two" in line for line in screen) == 1


def test_options_and_errors_reach_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with set_options(progress=False):
        with make_sink(stream=stream) as sink:
            sink(Event("fail", "ingest", text="x"))
        assert not stream.getvalue()
    with pytest.raises(PlanError):
        make_sink("bars")
    monkeypatch.setenv("GNNKIT_PROGRESS", "sometimes")
    with pytest.raises(PlanError, match="GNNKIT_PROGRESS"):
        make_sink()
