"""Errors of gnnkit in IPython: in a few lines, once for each."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from gnnkit.errors import GnnkitError
from gnnkit.printable import clean, clean_block
from gnnkit.ui.options import get_options

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_MAX_CAUSE = 1000
_MAX_PLACES = 4
_MAX_CAUSES = 3
# Of a log: its end is what tells most.
_LOG_CHARACTERS = 2400
# Frames of these are no user's code; contextlib stands between a cell and a decorated function.
_SHELL = ("IPython", "ipykernel", "contextlib")
_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)$')
_WAY_OUT = "gnnkit.set_options(tracebacks='full'), then %tb"


def report_of(error: BaseException, broken_off: str = "", shell: Any = None, *, colour: bool = False) -> list[str]:
    """Returns what is shown of an error: what happened, the end of a log, what to do, where in the reader's own code, and its causes.

    Args:
        error: Any error.
        broken_off: For an interrupt: what it broke off.
        shell: The IPython shell, which knows the cells' numbers; None outside of IPython.
        colour: Whether its class is red.
    """
    interrupted = isinstance(error, KeyboardInterrupt)
    message, hint = (error.message, error.hint) if isinstance(error, GnnkitError) else (str(error), None)
    if interrupted:
        message, hint = f"stopped in {broken_off}", _after_interrupt(broken_off)
    first, _, rest = str(message).partition("\n")
    first, hint, name = clean(first, _MAX_CAUSE), clean(hint or "", _MAX_CAUSE), type(error).__name__
    title = f"\x1b[31m{name}\x1b[39m" if colour else name
    return [
        f"{title}: {first}" if first else title,
        *(f"    {line}" for line in clean_block(rest, _LOG_CHARACTERS).splitlines()),
        *([f"  -> {hint}"] if hint else []),
        *(f"  at {place}" for place in _places(error.__traceback__, shell)),
        *(f"  because of {cause}" for cause in (() if interrupted else _causes(error, shell))),
        f"  full traceback: {_WAY_OUT}",
    ]


def lines_for(error: BaseException, broken_off: str = "") -> list[str]:
    """Returns the lines that IPython prints for an error.

    Args:
        error: An error of gnnkit, or an interrupt.
        broken_off: The call that an interrupt broke off.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if get_options().tracebacks == "full" and shell is not None:
        return list(shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__))
    colour = shell is not None and str(getattr(shell, "colors", "")).lower() != "nocolor"
    return report_of(error, broken_off, shell, colour=colour)


def _after_interrupt(broken_off: str) -> str:
    if broken_off.startswith("epoch"):
        return "loader.resume() goes on with the batches that are left; a new loop is the next epoch"
    if broken_off.startswith("the wait for the run"):
        return "the run goes on: its result() waits again, stop() ends it"
    if broken_off.startswith(("download", "compile")):
        return "run the cell again: what has come so far is kept"
    return "run the cell again"


def _places(tb: TracebackType | None, shell: Any) -> Iterator[str]:
    """The reader's own frames: those before the first of gnnkit's, without IPython's."""
    own = []
    while tb is not None and not tb.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        if tb.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _SHELL:
            own.append((tb.tb_frame.f_code, tb.tb_lineno))
        tb = tb.tb_next
    for code, line in own if len(own) <= _MAX_PLACES else [own[0], *own[1 - _MAX_PLACES :]]:
        yield _place(code.co_filename, line, code.co_name, linecache.getline(code.co_filename, line), shell)


def _place(file: str, line: int | str, function: str, source: str, shell: Any) -> str:
    """A line of a file, or of a cell by its number: "In[3], line 4 in train(): for batch in loader:"."""
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    within = "" if function == "<module>" else f" in {function}()"
    source = clean(source, 100)
    return f"{named[1] if named else file}, line {line}{within}" + (f": {source}" if source else "")


def _causes(error: BaseException, shell: Any) -> Iterator[str]:
    seen: set[int] = set()
    cause = error.__cause__
    while cause is not None and id(cause) not in seen and len(seen) < _MAX_CAUSES:
        seen.add(id(cause))
        lines = [line for line in str(cause).splitlines() if line.strip()]
        if lines and re.match(r"Traceback \(", lines[0]):
            yield _remote(lines, shell)
        else:
            yield clean(f"{type(cause).__name__}: {lines[0] if lines else ''}", 200)
        cause = cause.__cause__


def _remote(lines: list[str], shell: Any) -> str:
    """The error of another process, of which there is a traceback as text: what it was, and where in the reader's own code."""
    frames = [(number, match) for number, line in enumerate(lines) if (match := _FRAME.match(line))]
    after = frames[-1][0] + 1 if frames else 1
    # Its message and our hint may have more lines.
    what = clean(next((line for line in lines[after:] if not line.startswith(" ")), lines[-1]), 200)
    for number, match in reversed(frames):
        file, line, function = match.groups()
        if not file.startswith((_PACKAGE, "<frozen", *_installed())):
            text = lines[number + 1].strip() if len(lines) > number + 1 and lines[number + 1].startswith("    ") else ""
            return f"{what}; at {_place(file, line, function, text, shell)}"
    return what


def _installed() -> set[str]:
    """The folders of Python's own modules and of installed ones."""
    return {sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")}
