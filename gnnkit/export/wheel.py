"""The wheel of the installed gnnkit, which every job carries: what ranks install is what exported it, also where no index has it."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

from gnnkit.errors import PlanError
from gnnkit.shipped import shipped_data_dir

_NAME = "gnnkit"
_TAG = "py3-none-any"
_WHEEL = f"Wheel-Version: 1.0\nGenerator: {_NAME}\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
_SAID = ("METADATA", "entry_points.txt", "licenses/LICENSE")
# Made by running it, beside the files that were installed.
_MADE = {".pyc", ".nbi", ".nbc"}
# Files of one gnnkit make one wheel, whenever it is made: the first time that a zip can say.
_TIME = (1980, 1, 1, 0, 0, 0)


def own_wheel() -> tuple[str, bytes]:
    """Makes a wheel of this gnnkit, installed from whatever: an index, a file, a checkout, editable or not.

    Returns:
        Its file name, and its content: equal bytes for equal files.

    Raises:
        PlanError: gnnkit is not installed, only found on the import path.
    """
    try:
        found = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError as error:
        raise PlanError(
            "gnnkit runs from a folder and is not installed, so that nothing says what a job has to install",
            "pip install -e . in that folder",
        ) from error
    # Those of the package as it runs: an editable installation lists none of them.
    files = {f"{_NAME}/{name}": file for name, file in _files(Path(__file__).parents[1])}
    files |= {f"{_NAME}/data/{name}": file for name, file in _files(shipped_data_dir())}
    contents = {name: file.read_bytes() for name, file in sorted(files.items())}
    info = f"{_NAME}-{found.version}.dist-info"
    contents |= {f"{info}/{name}": text.encode() for name in _SAID if (text := found.read_text(name)) is not None}
    contents[f"{info}/WHEEL"] = _WHEEL.encode()
    record = "".join(f"{name},sha256={_hash(content)},{len(content)}\n" for name, content in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return f"{_NAME}-{found.version}-{_TAG}.whl", buffer.getvalue()


def _files(folder: Path) -> list[tuple[str, Path]]:
    """The files below a folder, by their names from there."""
    found = [(file.relative_to(folder).as_posix(), file) for file in folder.rglob("*") if file.is_file() and file.suffix not in _MADE]
    return [(name, file) for name, file in found if not any(part.startswith(".") for part in name.split("/"))]


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
