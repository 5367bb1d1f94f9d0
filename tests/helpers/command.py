"""The command ``gnnkit`` in this process."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import pytest

from gnnkit.cli.app import run as _run


def run(arguments: Sequence[object]) -> int:
    """Runs a command line; its exit code."""
    return _run([str(argument) for argument in arguments])


def run_captured(capfd: pytest.CaptureFixture[str], arguments: Sequence[object]) -> tuple[int, str, str]:
    """Runs a command line; its exit code, its output and its errors."""
    capfd.readouterr()
    code = run(arguments)
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def quietly(arguments: Sequence[object]) -> int:
    """Runs a command line without its words; its exit code."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run(arguments)
