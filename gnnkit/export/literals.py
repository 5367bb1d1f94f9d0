"""Values as the text that makes them."""

from __future__ import annotations

import ast
import math
import pprint
from typing import Any

_WIDTH = 100
# A longer one is data, which nobody reads in a program.
_LONGEST = 20_000
_PLAIN = (int, complex, str, bytes, bool, type(None), type(Ellipsis))


def literal_text(value: Any) -> str | None:
    """A value as a Python literal; None where it has none, or one that is too long to be read."""
    if isinstance(value, float) and type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    if not _is_plain(value):
        return None
    text = repr(value)
    if len(text) > _LONGEST:
        return None
    if len(text) > _WIDTH and isinstance(value, (list, tuple, set, dict)):
        text = pprint.pformat(value, width=_WIDTH, sort_dicts=False)
    return text if same_literal(ast.literal_eval(text), value) else None


def same_literal(left: Any, right: Any) -> bool:
    """Whether two values are the same literal: 1 is not True, and 1.0 is not 1."""
    return type(left) is type(right) and repr(left) == repr(right) if not isinstance(left, set) else left == right


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind in (list, tuple, set):
        return all(map(_is_plain, value))
    return kind is dict and all(_is_plain(part) for item in value.items() for part in item)
