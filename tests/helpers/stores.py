"""The folder of stores, as ``gnnkit stores`` lists it and clears it up."""

from __future__ import annotations

import contextlib
import io
import json
import zlib
from pathlib import Path
from typing import Any

from tests.helpers.command import run


def said(*arguments: object) -> Any:
    """What a command says as JSON; it may find something that needs attention."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = run([*arguments, "--json"])
    assert code in (0, 1), arguments
    return json.loads(out.getvalue())


def checksum(value: dict[str, Any]) -> str:
    """The checksum of a manifest or a record without it, as its format says."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True, separators=(',', ':')).encode()):08x}"


def write_manifest(folder: Path, value: Any) -> None:
    """Writes a manifest with the checksum that belongs to it."""
    if isinstance(value, dict):
        value.pop("checksum", None)
        value["checksum"] = checksum(value)
    (folder / "manifest.json").write_text(json.dumps(value))


def listed_stores(folder: Path) -> list[dict[str, Any]]:
    """The stores in a folder, whole or not."""
    found: list[dict[str, Any]] = said("stores", "ls", "--store-dir", folder)["stores"]
    return found


def pruned(folder: Path) -> list[tuple[Path, int, str]]:
    """Removes what is of no use in a folder of stores: the path of each, its bytes and why."""
    removed = [(Path(each["path"]), each["nbytes"], each["reason"]) for each in said("stores", "prune", "--store-dir", folder)["removed"]]
    return [each for each in removed if folder in each[0].parents]
