"""Times that users give, in the unit of a graph's times: dates of any kind are converted, and whole numbers of another unit refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError

UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
# Whole numbers that are a date of these years in another unit, and none in their own, are of the other one.
_FIRST, _LAST = np.datetime64("1980-01-01", "s"), np.datetime64("2100-01-01", "s")


def in_unit(value: Any, what: str, unit: str | None) -> Any:
    """Times or spans of time as whole numbers of a unit; what is neither a date nor a span stays as it is.

    Dates are NumPy's, pandas' and Python's, and texts as ISO 8601 has them; those with a time zone are converted to UTC, others are UTC.

    Args:
        value: One or ``[n]`` of them.
        what: The argument's name, for messages.
        unit: That of the graph's times; None where they have none.

    Raises:
        PlanError: The graph's times have no unit, a value is missing or no date, or the unit does not reach it.
    """
    if hasattr(value, "detach") or value is None:
        return value
    array = _as_numpy(value)
    if array is None or array.dtype.kind not in "mM":
        return value
    if unit is None:
        number = "timedelta64[s]" if array.dtype.kind == "m" else "datetime64[s]"
        raise PlanError(
            f"{what} holds {array.dtype}, and the graph's times are whole numbers without a unit, or time_attr names none",
            f"give whole numbers, too, for example of seconds: np.asarray({what}, {number!r}).astype('int64')",
        )
    if np.isnat(array).any():
        raise PlanError(f"{what} has a missing time", "give each input a time")
    kind = "timedelta64" if array.dtype.kind == "m" else "datetime64"
    found = array.astype(f"{kind}[{unit}]")
    if (found.astype(f"{kind}[D]") != array.astype(f"{kind}[D]")).any():
        raise PlanError(f"{what} has {array.min()} to {array.max()}, beyond what int64 holds of {UNITS[unit]}")
    return found.astype(np.int64)


def check_unit(values: NDArray[Any], what: str, unit: str | None) -> None:
    """Refuses whole numbers that are dates in another unit than the graph's.

    Raises:
        PlanError: Shows one of them as a date in both units.
    """
    if unit is None or not len(values) or values.dtype.kind not in "iu":
        return

    def is_date(name: str) -> NDArray[np.bool_]:
        low, high = (int(bound.astype(f"datetime64[{name}]").astype(np.int64)) for bound in (_FIRST, _LAST))
        return (values >= low) & (values <= high)

    strange = ~is_date(unit)
    for other in UNITS if strange.any() else ():
        if (bad := np.flatnonzero(strange & is_date(other))).size:
            number = int(values[bad[0]])
            own, meant = (values[bad[:1]].astype(f"datetime64[{name}]")[0] for name in (unit, other))
            steps = 1000 ** (list(UNITS).index(unit) - list(UNITS).index(other))
            change = f"{what} * {steps}" if steps > 1 else f"{what} // {round(1 / steps)}"
            raise PlanError(
                f"{what} has {number}: in {UNITS[unit]}, the unit of the graph's times, that is {own}; in {UNITS[other]} it is {meant}",
                f"{change} is in {UNITS[unit]}, and datetime64, pandas.Timestamp and datetime are converted",
            )


def _as_numpy(value: Any) -> NDArray[Any] | None:
    """Dates or spans as NumPy has them; None where a value is neither."""
    if isinstance(value, (date, timedelta, str)):
        value = _as_date(value)
    if isinstance(value, np.ma.MaskedArray):  # which those that read numbers refuse, as lists of several lengths
        return None
    try:
        array = np.asarray(value) if np.isscalar(value) or hasattr(value, "__len__") else None
    except ValueError:
        return None
    if array is None or array.dtype.kind not in "OU" or not array.size:
        return array
    found = [_as_date(each) for each in array.reshape(-1)]
    return None if any(each is None for each in found) else np.array(found).reshape(array.shape)


def _as_date(value: Any) -> Any:
    """One date or span as NumPy has it; None where a value is neither."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
    for name in ("to_datetime64", "to_timedelta64"):  # pandas' own, which have nanoseconds and are in UTC
        if hasattr(value, name):
            return getattr(value, name)()
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(timezone.utc).replace(tzinfo=None)
    if isinstance(value, date):
        return np.datetime64(value, "us")
    return np.timedelta64(value, "us") if isinstance(value, timedelta) else value if isinstance(value, np.generic) else None
