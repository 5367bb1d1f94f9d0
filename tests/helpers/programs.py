"""Programs that a test starts side by side."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.helpers.machine import ROOT


@contextmanager
def started(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Programs in the checkout, with sessions of their own, whose output is kept; what still runs of them at the end is killed.

    Args:
        commands: The words of each.
        environments: The variables of each.
    """
    programs: list[subprocess.Popen[str]] = []
    try:
        for command, variables in zip(commands, environments, strict=True):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            programs.append(subprocess.Popen(command, env=variables, **pipes, text=True, cwd=ROOT, start_new_session=True))
        yield programs
    finally:
        for program in programs:
            if program.poll() is None:
                os.killpg(program.pid, 9)
            program.communicate()
