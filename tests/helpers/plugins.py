"""Packages with entry points, as pip leaves them: a module and its metadata in a folder of ``sys.path``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(site: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str, launchers: str) -> None:
    """Installs a package until the end of a test.

    Args:
        site: The folder, on ``sys.path`` from now on.
        monkeypatch: Undoes it.
        module: The module's name, and the package's.
        code: Its source.
        launchers: Its entry points of the group ``gnnkit.launchers``: ``name = module:Class`` lines.
    """
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gnnkit.launchers]\n{launchers}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(sys.modules, module, None)  # is gone again after the test
    del sys.modules[module]
