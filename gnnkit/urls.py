"""URLs of stores and tables: told from paths, and refused where they hold what must not be written down."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gnnkit.errors import PlanError

OFFLINE_VARIABLE = "GNNKIT_OFFLINE"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_HTTP = ("http", "https")
_LOCAL = ("file", "local", "memory")
# What fsspec needs for a scheme beside itself.
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
}


def is_url(value: Any) -> bool:
    """Whether a user's path is a URL, such as ``"s3://bucket/store"``."""
    return isinstance(value, str) and "://" in value


def packages_for(url: str) -> tuple[str, ...]:
    """The packages that a URL of this scheme is read with, as far as they are known."""
    package = _PACKAGES.get(url.partition("://")[0])
    return ("fsspec",) if package is None else ("fsspec", package)


def is_offline() -> bool:
    """Whether ``GNNKIT_OFFLINE`` forbids to ask other machines for anything."""
    return os.environ.get(OFFLINE_VARIABLE, "").strip().lower() not in ("", "0", "false", "no")


def check_url(url: str | Path, what: str) -> str:
    """Returns a URL as it may be written into plans, exports and logs: without a slash at its end.

    Args:
        url: What the user gave.
        what: What it is of, for errors: "the store".

    Raises:
        PlanError: It names a user, a password or a signature, or is no URL that files can be fetched from. The error shows none of them.
    """
    text = str(url)
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    shown = _without_secrets(text)
    if not _SCHEME.fullmatch(scheme) or not rest.strip("/"):
        raise PlanError(f"{what}: {shown!r} is no URL", "write it like s3://bucket/prefix, gs://bucket/prefix or https://host/prefix")
    if scheme in _LOCAL:
        raise PlanError(f"{what}: {shown!r} is no URL of another machine", "give the path alone")
    if "@" in rest.partition("/")[0]:
        raise PlanError(
            f"{what}: the URL {shown!r} names a user or a password, which would be written into plans and logs",
            "leave them out: fsspec reads credentials from the environment and from its own files",
        )
    if scheme in _HTTP and any(sign in rest for sign in "?#"):
        raise PlanError(
            f"{what}: the URL {shown!r} goes on after its path; a signature there would be written into plans and logs",
            "give a URL without ? and #, or s3:// or gs:// with credentials in the environment",
        )
    return f"{scheme}://{rest.rstrip('/')}"


def _without_secrets(text: str) -> str:
    """A URL without its user, password, query and fragment."""
    try:
        parts = urlsplit(text)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return text.partition("://")[0] + "://..."
