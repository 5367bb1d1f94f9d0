"""Sizes, counts, rates and times the way people read them: in progress, cards, tables, errors and the command line."""

from __future__ import annotations

import math

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_COUNT_UNITS = ("", "k", "M", "G", "T", "P", "E")
# Below this, a count is short enough to be written out.
_EXACT_BELOW = 10_000


def format_bytes(count: float, base: int = 1000) -> str:
    """Bytes in powers of ``base`` and three digits: ``1480000000`` is "1.48 GB"."""
    return _scaled(count, _BYTE_UNITS, separator=" ", base=base)


def format_count(count: float) -> str:
    """A count in full: ``2449029`` is "2,449,029"."""
    return f"{int(count):,}" if math.isfinite(count) else "?"


def format_short(count: float) -> str:
    """A count in at most three digits from 10,000 on: ``61859140`` is "61.9M", ``1024`` is "1,024"."""
    if not math.isfinite(count):
        return "?"
    return format_count(count) if abs(count) < _EXACT_BELOW else _scaled(count, _COUNT_UNITS, separator="")


def format_number(count: int, what: str) -> str:
    """A few things by number: "1 run", "2 processes"."""
    return f"{count} {what}{'' if count == 1 else 'es' if what.endswith(('s', 'ch')) else 's'}"


def format_quantity(count: float, unit: str) -> str:
    """A count with its unit ("27.9M edges"); the unit "B" stands for bytes ("1.48 GB")."""
    return format_bytes(count) if unit == "B" else f"{format_short(count)} {unit}".rstrip()


def format_rate(per_second: float, unit: str) -> str:
    """Units per second: "45.1 MB/s", "4.42M edges/s", and "0.25 batches/s" where less than ten happen in a second."""
    if unit == "B":
        return f"{format_bytes(per_second)}/s"
    number = f"{per_second:.2g}" if math.isfinite(per_second) and 0 < per_second < 9.95 else format_short(per_second)
    return f"{number} {unit}/s" if unit else f"{number}/s"


def format_duration(seconds: float) -> str:
    """A span of time: "12 ms", "4.2 s", "42 s", "3 min 12 s", "2 h 5 min", "3 d 4 h"; an int is taken for whole seconds."""
    if not math.isfinite(seconds):
        return "?"
    seconds = max(seconds, 0)
    if isinstance(seconds, int) and seconds < 60:
        return f"{seconds} s"
    if seconds < 0.0995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_percent(fraction: float) -> str:
    """A share of one, rounded down so that "100 %" means all: ``0.999`` is "99 %"."""
    return f"{math.floor(fraction * 100 + 1e-9)} %" if math.isfinite(fraction) else "?"


def _scaled(count: float, units: tuple[str, ...], *, separator: str, base: int = 1000) -> str:
    if not math.isfinite(count):
        return "?"
    value, power = float(count), 0
    # 999.5 would be written "1000", so the next unit begins there.
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / base, power + 1
    if power == 0:
        return f"{int(value)}{separator}{units[0]}".rstrip()
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}{separator}{units[power]}"
