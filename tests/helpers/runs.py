"""Folders of runs as processes of gnnkit make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnkit.runtime.runs import RunFolder


def run_folder(root: Path, facts: dict[str, Any]) -> Any:
    """The folder of a run of this process, which lives until it is closed."""
    return RunFolder(root, facts)
