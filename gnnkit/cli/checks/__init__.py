"""The checks of ``gnnkit doctor``: each is a function that returns one row."""

from __future__ import annotations

from gnnkit.cli.checks.row import Check, Verdict

__all__ = ["Check", "Verdict"]
