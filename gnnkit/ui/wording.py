"""Bars and lines in words; every renderer says the same."""

from __future__ import annotations

import math

from gnnkit.ui.format import clean
from gnnkit.ui.progress_model import Bar, Line
from gnnkit.units import format_duration, format_percent, format_quantity, format_rate, format_short


def name_of(item: Bar | Line) -> str:
    """The stage and what it works on: "ingest ogbn-products"."""
    return clean(f"{item.stage} {item.label}", 80)


def bar_details(bar: Bar) -> list[str]:
    """Facts about an open stage, in the order in which they are printed.

    With a total: percent, amounts, rate and time left; without one: amount, rate and time spent. What else was said of it comes last.
    """
    if bar.fraction is None or bar.total is None:
        amounts = [format_quantity(bar.done, clean(bar.unit, 20))] if bar.done > 0 else []
        return [*amounts, *_rate(bar), format_duration(bar.elapsed_s), *_note(bar)]
    return [
        format_percent(bar.fraction),
        _amounts(bar.done, bar.total, bar.unit),
        *_rate(bar),
        *([f"{format_duration(max(math.ceil(bar.eta_s), 1))} left"] if bar.eta_s is not None else []),
        *_note(bar),
    ]


def fitting_details(bar: Bar, width: int, separator: str) -> str:
    """As much of ``bar_details`` as fits: the amounts go first, then the rate, and the percentage last."""
    details = bar_details(bar)
    # Who watches a narrow bar wants to know how far it is and how long it takes.
    for drop in (None, 1, 1):
        if drop is not None and len(details) > drop:
            details.pop(drop)
        if len(joined := separator.join(details)) <= width:
            return joined
    return details[0] if details and len(details[0]) <= width else ""


def outcome(line: Line) -> str:
    """What a finished stage came to: "61.9M edges in 14 s, 4.42M edges/s", its own summary, or how far it got."""
    bar = line.bar
    if bar is None:
        return clean(line.text, 400)
    spent = format_duration(bar.elapsed_s)
    amount = format_quantity(bar.done, clean(bar.unit, 20)) if bar.done > 0 else ""
    if line.kind == "done":
        amount = clean(line.text, 200) or amount
        return ", ".join([f"{amount} in {spent}" if amount else spent, *([] if line.text else _rate(bar))])
    reached = amount if bar.fraction is None else format_percent(bar.fraction)
    where = f"at {reached} after {spent}" if reached else f"after {spent}"
    return f"{where}: {clean(line.text, 300)}" if line.text else where


def sentence(line: Line) -> str:
    """A line that stands alone, in plain text: "ingest ogbn-products: failed at 45 % after 6.3 s: DatasetError: ..."."""
    if line.kind == "message":
        return outcome(line)
    if line.kind == "done":
        return f"{name_of(line)}: {outcome(line)}"
    return f"{name_of(line)}: {line.kind} {outcome(line)}"


def _amounts(done: float, total: float, unit: str) -> str:
    whole = format_quantity(total, clean(unit, 20))
    part = format_quantity(min(done, total), "B") if unit == "B" else format_short(min(done, total))
    # "0.31 GB of 1.48 GB" repeats its unit unless it is the same one.
    if unit == "B" and part.split()[-1:] == whole.split()[-1:]:
        part = part.split()[0]
    return f"{part} of {whole}"


def _note(bar: Bar) -> list[str]:
    return [clean(bar.note, 80)] if bar.note else []


def _rate(bar: Bar) -> list[str]:
    return [] if bar.rate is None else [format_rate(bar.rate, clean(bar.unit, 20))]
