"""Unpickling files of other people: only names that are handed in may come up, and nothing else of a file is called."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO


class PickleRefused(pickle.UnpicklingError):
    """A file asks for something that it may not have."""


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickles plain values, and what the given names stand for.

    Args:
        file: The file.
        names: What each full name ("torch.LongStorage") stands for that the file may ask for.
        persistent_load: Makes the value of a persistent id; without it a file with one is refused.

    Raises:
        PickleRefused: By ``load``: the file asks for another name. Damaged bytes raise nearly anything else.
    """

    def __init__(self, file: BinaryIO, names: Mapping[str, Any], persistent_load: Callable[[Any], Any] | None = None) -> None:
        # Python 2's text, and the bytes of protocol 2, are in latin1.
        super().__init__(file, encoding="latin1")
        self._names, self._persistent_load = names, persistent_load

    def find_class(self, module: str, name: str) -> Any:
        """Returns the object that a name in the file stands for; refuses all but the allowed names."""
        full = f"{module}.{name}"
        if full not in self._names:
            raise PickleRefused(f"asks for {full}, which is neither an array nor a plain container")
        return self._names[full]

    def persistent_load(self, pid: Any) -> Any:
        """The value of a persistent id."""
        if self._persistent_load is None:
            raise PickleRefused("asks for a value that is not in it")
        return self._persistent_load(pid)


def encode_latin1(text: str, encoding: str) -> bytes:
    """Stands for ``_codecs.encode``, with which protocol 2 pickles bytes as text: its inverse, and nothing else.

    Raises:
        PickleRefused: The encoding is another.
    """
    if encoding != "latin1":
        raise PickleRefused(f"holds bytes in the encoding {encoding!r}")
    return text.encode("latin1")
