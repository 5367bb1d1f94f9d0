"""Unpickling files of other people: only names that are handed in may come up, and nothing else of a file is called."""

from __future__ import annotations

import io
import mmap
import pickle
import pickletools
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, BinaryIO

# How many opcodes without a length of their own are passed at a time.
_RUN = 4096
_LENGTHS = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT4: 4, pickletools.TAKEN_FROM_ARGUMENT4U: 4}
_LENGTHS[pickletools.TAKEN_FROM_ARGUMENT8U] = 8


class PickleRefused(pickle.UnpicklingError):
    """A file asks for something that it may not have."""


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickles plain values, and what the given names stand for.

    Args:
        file: The file, where the pickle begins.
        names: What each full name ("torch.LongStorage") stands for that the file may ask for.
        persistent_load: Makes the value of a persistent id; without it a file with one is refused.

    Raises:
        PickleRefused: By ``load``: the file asks for another name. Damaged bytes raise nearly anything else. At once: it numbers what it
            holds beyond its own size, and Python would make a table for all of these numbers, of 32 GB for the largest.
    """

    def __init__(self, file: BinaryIO, names: Mapping[str, Any], persistent_load: Callable[[Any], Any] | None = None) -> None:
        _check_numbers(file)
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


def _check_numbers(file: BinaryIO) -> None:
    """Reads the opcodes of one pickle, from where the file stands, and leaves it there.

    Raises:
        PickleRefused: An opcode that puts a value under a number names one that is larger than the file.
    """
    start = file.tell()
    if isinstance(file, io.BytesIO):
        _check_opcodes(file.getbuffer(), start)
        return
    with closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data:  # tensors of gigabytes are passed over
        _check_opcodes(data, start)


def _opcodes() -> tuple[re.Pattern[bytes], dict[int, int], dict[int, int]]:
    """A pattern that passes opcodes of a fixed size; the bytes of the length that others begin with; the lines that follow still others."""
    fixed: dict[int, list[str]] = {}
    lengths, lines = {}, {}
    for opcode in pickletools.opcodes:
        size = 0 if opcode.arg is None else opcode.arg.n
        code = ord(opcode.code)
        if size in _LENGTHS:
            lengths[code] = _LENGTHS[size]
        elif size == pickletools.UP_TO_NEWLINE:
            lines[code] = 2 if opcode.name in ("GLOBAL", "INST") else 1
        elif opcode.name not in ("STOP", "LONG_BINPUT"):
            fixed.setdefault(size, []).append(opcode.code)
    words = ["[" + re.escape("".join(codes)) + "]" + (f".{{{size}}}" if size else "") for size, codes in fixed.items()]
    return re.compile(f"(?:{'|'.join(words)}){{0,{_RUN}}}".encode("latin1"), re.DOTALL), lengths, lines


_PASSED, _WITH_LENGTH, _WITH_LINES = _opcodes()
_PUT, _LONG_BINPUT = b"p"[0], b"r"[0]


def _check_opcodes(data: mmap.mmap | memoryview, at: int) -> None:
    while True:
        passed = _PASSED.match(data, at)
        at = at if passed is None else passed.end()
        if passed is not None and passed.group():
            continue
        code, at = data[at] if at < len(data) else None, at + 1
        number = 0
        if code == _LONG_BINPUT:
            number, at = int.from_bytes(data[at : at + 4], "little"), at + 4
        elif code in _WITH_LENGTH:
            width = _WITH_LENGTH[code]
            at += width + int.from_bytes(data[at : at + width], "little")
        elif code in _WITH_LINES:
            for _ in range(_WITH_LINES[code]):
                line = _LINE.match(data, at)
                if line is None:
                    return
                number = int(line[1]) if code == _PUT and line[1].isdigit() else 0
                at = line.end()
        else:  # the end, or nothing that Python reads either
            return
        if number > len(data):
            raise PickleRefused(f"puts a value under the number {number}, in {len(data)} bytes")


_LINE = re.compile(rb"([^\n]*)\n")


def encode_latin1(text: str, encoding: str) -> bytes:
    """Stands for ``_codecs.encode``, with which protocol 2 pickles bytes as text: its inverse, and nothing else.

    Raises:
        PickleRefused: The encoding is another.
    """
    if encoding != "latin1":
        raise PickleRefused(f"holds bytes in the encoding {encoding!r}")
    return text.encode("latin1")
