"""Plans as files: written whole or not at all, with the store's path as it is seen from the file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.files import read_json, write_whole
from gnnkit.urls import is_url

_HINT = "write it with loader.plan.save('plan.json')"
# Of a plan: seeds that are written out are compressed, about 3 bytes each.
_MOST_BYTES = 1 << 30


def write_plan_file(value: Mapping[str, Any], path: Path) -> None:
    """Puts the JSON of a plan into a file, all at once: nobody reads half of it, and a full disk leaves what was there.

    Raises:
        PlanError: The file cannot be written.
    """
    try:
        write_whole(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise PlanError(f"the plan {str(path)!r} cannot be written: {error.strerror or error}", "choose another folder") from error


def read_plan_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        PlanError: The file cannot be read or holds none.
    """
    try:
        value = read_json(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot read the plan {str(path)!r}: {error}", _HINT) from error
    if not isinstance(value, dict):
        raise PlanError(f"{str(path)!r} holds no plan", _HINT)
    return value


def path_from(folder: Path, target: str) -> str:
    """A path as it is to be written into a file of ``folder``: relative where both lie below a common folder, so that this can be moved.

    The root of all folders is none: what shares only that moves apart, and is written as it is.
    """
    if not os.path.isabs(target):
        return target
    here = folder.absolute()
    if Path(target).is_relative_to(here):
        return os.path.relpath(target, here)
    # ".." leads to where a folder really is, whatever links lead into it.
    real, base = os.path.realpath(target), os.path.realpath(here)
    common = os.path.commonpath([real, base])
    return target if common == os.path.dirname(common) else os.path.relpath(real, base)


def path_in(folder: Path, written: str) -> str:
    """Reverses ``path_from``: an absolute path to the same place, or the URL that was written."""
    if os.path.isabs(written) or is_url(written):
        return written
    here = os.path.realpath(folder) if ".." in Path(written).parts else str(folder.absolute())
    return os.path.normpath(os.path.join(here, written))
