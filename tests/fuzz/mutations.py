"""Changes to valid samples, decided by a random generator alone: the same generator makes the same change again."""

from __future__ import annotations

import json
import random
import re
from typing import Any

# What lies at the ends of what numbers, sizes and counts can be.
_NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    127,
    255,
    256,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    10**20,
    -(2**31),
    -(2**63),
)
_TEXTS = (
    "",
    "x",
    "../x",
    "/etc/passwd",
    "int32",
    "O",
    "V1000000000",
    "<M8[ns]",
    "a\0b",
    "\x1b[31m",
    "é" * 40,
    "9" * 500,
    "__class__",
    "a" * 70_000,
)
_DIGITS = re.compile(rb"\d+")


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Bytes with one to four changes."""
    value = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _changed(rng, value)
    return bytes(value)


def _changed(rng: random.Random, value: bytearray) -> bytearray:
    if not value:
        return bytearray(rng.randbytes(rng.randrange(16)))
    place, how = rng.randrange(len(value)), rng.randrange(8)
    if how == 0:
        value[place] ^= 1 << rng.randrange(8)
    elif how == 1:
        value[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif how == 2:  # a number of four or eight bytes, as it may lie anywhere
        width = rng.choice((2, 4, 8))
        value[place : place + width] = (rng.choice(_NUMBERS) % 2 ** (8 * width)).to_bytes(width, rng.choice(("little", "big")))
    elif how == 3:  # a number that is written out
        found = list(_DIGITS.finditer(value))
        if found:
            match = rng.choice(found)
            value[match.start() : match.end()] = str(rng.choice(_NUMBERS)).encode()
    elif how == 4:
        del value[place : place + rng.choice((1, 2, 8, 64, len(value)))]
    elif how == 5:
        value[place:place] = rng.randbytes(rng.choice((1, 2, 8, 64)))
    elif how == 6:  # something twice
        value[place:place] = value[place : place + rng.choice((1, 4, 32, 256))]
    else:  # something in another place
        other = rng.randrange(len(value))
        value[place : place + 16] = value[other : other + 16]
    return value


def mutated_json(rng: random.Random, value: Any) -> Any:
    """A JSON value with one to three changes, somewhere inside; the value itself is left as it is."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = _places(value)
        if not places:
            return _something(rng)
        container, key = rng.choice(places)
        how = rng.randrange(6)
        if how == 0:
            del container[key]
        elif how == 1:  # something that stands elsewhere
            other, place = rng.choice(places)
            container[key] = json.loads(json.dumps(other[place])) if _has(other, place) else None
        elif how == 2 and isinstance(container[key], int):
            container[key] += rng.choice((-1, 1, 1000))
        elif how == 3 and isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), json.loads(json.dumps(container[key])))
        elif how == 4 and isinstance(container, dict):
            container[rng.choice((str(key) + "x", "", "#", "0"))] = container[key] if rng.random() < 0.5 else container.pop(key)
        else:
            container[key] = _something(rng)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    found, left = [], [value]
    while left:
        each = left.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        found += [(each, key) for key in keys]
        left += [each[key] for key in keys]
    return found


def _has(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else key < len(container)


def _something(rng: random.Random) -> Any:
    def deep() -> Any:
        value: Any = 1
        for _ in range(rng.choice((3, 200))):
            value = [value] if rng.random() < 0.5 else {"#": value}
        return value

    made = (
        lambda: rng.choice(_NUMBERS),
        lambda: rng.choice(_TEXTS),
        lambda: rng.choice((None, True, False, 0.5, -1e300, float("inf"), float("nan"))),
        lambda: rng.choice(([], {}, [[]], [0] * 50, {"": 0}, ["a", "b", "c"])),
        deep,
    )
    return rng.choice(made)()
