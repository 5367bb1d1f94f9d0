"""Takes outputs and everything else that a run leaves behind out of notebooks, as they are kept in git.

    python tools/strip_notebooks.py            # those of notebooks/
    python tools/strip_notebooks.py --check    # exit code 1 where something would change

Needs nothing but the standard library of Python 3.10 or newer.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def stripped(text: str) -> str:
    """A notebook's file without outputs, counts, widget states and marks of front ends; tags stay.

    Args:
        text: The file.

    Raises:
        ValueError: It is no notebook of format 4.
    """
    notebook = json.loads(text)
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4:
        raise ValueError("this is no notebook of format 4")
    cells = [_cell(number, cell) for number, cell in enumerate(notebook["cells"])]
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    kept = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, cell: dict[str, Any]) -> dict[str, Any]:
    source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
    tags = cell["metadata"].get("tags")
    kept: dict[str, Any] = {"cell_type": cell["cell_type"]}
    if kept["cell_type"] == "code":
        kept["execution_count"] = None
    kept |= {"id": f"cell-{number}", "metadata": {"tags": tags} if tags else {}}
    if kept["cell_type"] == "code":
        kept["outputs"] = []
    return {**kept, "source": source.splitlines(keepends=True)}


def main() -> int:
    """Strips notebooks, or finds those that are not; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 where something would change")
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; those of notebooks/ where none is named")
    options = parser.parse_args()
    changed = []
    for path in options.paths or sorted(FOLDER.glob("*.ipynb")):
        before = path.read_text(encoding="utf-8")
        after = stripped(before)
        if after != before:
            changed.append(path)
            if not options.check:
                path.write_text(after, encoding="utf-8")
    for path in changed:
        print(f"{path}: {'is not stripped' if options.check else 'stripped'}")
    return 1 if changed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
