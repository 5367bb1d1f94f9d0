"""Arrays that users give: ids, masks, links, rows, times and weights of any kind, checked, as NumPy's."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType, GraphSchema

UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
# Whole numbers that are a date of these years in another unit, and none in their own, are of the other one.
_FIRST, _LAST = np.datetime64("1980-01-01", "s"), np.datetime64("2100-01-01", "s")
# A weight's share of 64 bits: sums over all nodes stay below 2**63.
_WEIGHT_BITS = 32
OF_KEYS = "ids are places of nodes in the graph, counted from 0; of a graph of tables loader.store.keys(node_type).ids([...]) has them"
LINK_FORMS = "give a tensor [2, n], a split's name, (edge type, either of these), or an edge type for all its edges"


def to_array(value: Any, what: str, hint: str | None = None) -> NDArray[Any]:
    """An array of numbers from a tensor, array or list.

    Args:
        value: What the user said.
        what: The argument's name, for messages.
        hint: What to give instead.

    Raises:
        PlanError: It is none.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("some of its values are masked")
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # sparse and nested tensors, lists of several lengths
        raise PlanError(f"{what} is a {type(value).__name__} that cannot be read as an array: {error}", hint) from error
    if array.size and array.dtype.kind not in "biuf":
        raise PlanError(f"{what} must hold numbers, got dtype {array.dtype}", hint)
    return array


def looks_like_mask(ids: NDArray[Any], counts: Collection[int] = ()) -> bool:
    """Whether ids are zeros and ones that can be meant as a mask: as ids they are two nodes over and over.

    Args:
        ids: Whole numbers ``[k]``.
        counts: Lengths that masks have; of bytes, which masks were before there was ``torch.bool``, any length is one.
    """
    is_long_enough = len(ids) > 2 and (ids.dtype.itemsize == 1 or len(ids) in counts)
    return is_long_enough and 0 <= int(ids.min()) <= int(ids.max()) <= 1


def to_ids(value: Any, num_nodes: int, what: str, others: Collection[int] = ()) -> NDArray[np.int64]:
    """Node ids from a tensor, array or list of whole numbers, or from a mask.

    Args:
        value: Ids ``[k]`` or a mask ``[num_nodes]``.
        num_nodes: Ids are below it.
        what: The argument's name, for messages.
        others: Numbers of nodes of other types.

    Returns:
        int64 ``[k]``.

    Raises:
        PlanError: Wrong dtype or shape, an id out of range, or zeros and ones that look like a mask and are not of the dtype bool.
    """
    if (
        (isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim))
        and len(value)
        and all(isinstance(key, str) for key in value)
    ):
        hint = "a graph of tables has ids for its keys: loader.store.keys(node_type).ids([...])"
        raise PlanError(f"{what} must hold whole numbers or be a mask, got texts such as {value[0]!r:.40}", hint)
    ids = to_array(value, what, "node ids are whole numbers: give them or a mask, as a tensor, an array or a list")
    if ids.ndim == 0:
        raise PlanError(f"{what} must be several, got {value!r:.40}", f"[{ids.item()!r:.40}] is one of them")
    if ids.ndim != 1:
        several = ids.dtype == np.bool_ and ids.ndim == 2 and len(ids) == num_nodes and ids.shape[1] > 1
        hint = f"it is a mask of {ids.shape[1]} splits, a column each: {what}[:, 0] is the first" if several else "use .reshape(-1)"
        raise PlanError(f"{what} must be one-dimensional, got shape {tuple(ids.shape)}", hint)
    if ids.dtype == np.bool_:
        if len(ids) != num_nodes:
            hint = "a mask has an element for each node of the graph; ids of nodes are given as whole numbers"
            raise PlanError(f"{what} is a mask of {len(ids)} elements, but there are {num_nodes} nodes", hint)
        return np.flatnonzero(ids).astype(np.int64)
    if ids.size == 0:
        return np.empty(0, np.int64)
    if ids.dtype.kind not in "iu":
        raise PlanError(f"{what} must hold whole numbers or be a mask, got dtype {ids.dtype}", "for example ids.long()")
    low, high = int(ids.min()), int(ids.max())
    if looks_like_mask(ids, (num_nodes, *others)):
        raise PlanError(
            f"{what} holds {len(ids)} zeros and ones of dtype {ids.dtype}, and there are {num_nodes} nodes: a mask is of dtype bool",
            f"{what}.bool() of a tensor, .astype(bool) of an array",
        )
    if low < 0 or high >= num_nodes:
        raise PlanError(f"{what} holds node {low if low < 0 else high}, but ids go from 0 to {num_nodes - 1}", OF_KEYS)
    return ids.astype(np.int64)


def to_links(value: Any, edge_type: EdgeType, schema: GraphSchema) -> NDArray[np.int64]:
    """Links from a tensor, array or list ``[2, n]``: int64, dataset ids of sources and targets.

    Raises:
        PlanError: Wrong dtype or shape, or an id out of range.
    """
    array = to_array(value, "edge_label_index", LINK_FORMS)
    if array.ndim != 2 or array.shape[0] != 2:
        raise PlanError(f"edge_label_index must be [2, n], sources and targets, got shape {list(array.shape)}", LINK_FORMS)
    if array.size and array.dtype.kind not in "iu":
        raise PlanError(f"edge_label_index must hold whole numbers, got dtype {array.dtype}", "for example edge_label_index.long()")
    for row, node_type, end in zip(array, (edge_type[0], edge_type[2]), ("source", "target"), strict=True):
        num_nodes = schema.node_types[node_type].num_nodes
        if row.size and not 0 <= row.min() <= row.max() < num_nodes:
            wrong = int(row[(row < 0) | (row >= num_nodes)][0])
            hint = OF_KEYS + ("; row 0 holds sources, row 1 targets" if edge_type[0] != edge_type[2] else "")
            raise PlanError(f"edge_label_index holds the {end} {wrong}, but ids of {node_type!r} go from 0 to {num_nodes - 1}", hint)
    return np.array(array, np.int64, order="C")


def to_rows(value: Any, what: str, count: int) -> NDArray[Any]:
    """Numbers ``[count, ...]`` that go with links; a copy.

    Raises:
        PlanError: They are none, or of another length.
    """
    array = to_array(value, what)
    if array.ndim == 0 or len(array) != count:
        hint = f"give {what} for the same links as edge_label_index, in their order"
        raise PlanError(f"{what} must have a row for each of {count} links, got shape {list(array.shape)}", hint)
    return np.array(array, order="C")


def to_times(value: Any, what: str, count: int, inputs: str, unit: str | None) -> NDArray[np.int64]:
    """Times of inputs: int64 ``[count]``.

    Args:
        value: Whole numbers, or dates as ``in_unit`` takes them.
        what: The argument's name, for messages.
        count: How many inputs there are.
        inputs: What they are, for messages.
        unit: The unit of the graph's times; None where they have none.

    Raises:
        PlanError: They are neither, of another shape, or in another unit.
    """
    array = to_array(in_unit(value, what, unit), what)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise PlanError(
            f"{what} must be whole numbers [{count}] or dates, one for each of {count} {inputs}; got {array.dtype} {list(array.shape)}",
            f"for example {what}.long()",
        )
    check_unit(array, what, unit)
    return array.astype(np.int64)


def as_of(ids: NDArray[np.int64], value: Any, unit: str | None) -> NDArray[np.int64]:
    """Ids of ``sample()`` with their times, as requests carry them: int64 ``[2 k]``, see ``InputRows.given``.

    Args:
        ids: int64 ``[k]``.
        value: One time for all of them, or ``[k]``; see ``to_times``.
        unit: See ``to_times``.

    Raises:
        PlanError: They are no times, or of another number.
    """
    if np.isscalar(value) or isinstance(value, date) or getattr(value, "ndim", 1) == 0:
        value = [value] * len(ids)
    return np.concatenate([~ids, to_times(value, "input_time", len(ids), "nodes", unit)])


def one_window(value: Any) -> int | None:
    """Returns the time window that all inputs share; None where there is none, or one for each.

    Raises:
        PlanError: It is a single value, and no whole number.
    """
    if value is None or (not np.isscalar(value) and getattr(value, "ndim", 1) != 0):
        return None
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not float(value).is_integer():
        raise PlanError(f"time_window must be a whole number of at least 0, in the unit of the times, got {value!r}")
    return int(value)


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


def integer_weights(weight: NDArray[Any], count: int, what: str, of: str = "nodes") -> NDArray[np.int64]:
    """Weights as ``docs/development/sampling.md`` makes integers of them: the largest lies between 2**31 and 2**32.

    Args:
        weight: Numbers ``[count]``.
        count: How many may be drawn.
        what: The weights' name, for messages.
        of: What is drawn, for messages.

    Raises:
        PlanError: They are of another length, negative, not finite, or all zero.
    """
    values = np.asarray(weight, np.float64)
    if values.shape != (count,):
        raise PlanError(f"{what} has shape {values.shape}, and there are {count} {of} to draw", f"give one number for each of the {of}")
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise PlanError(f"{what} must hold finite numbers of at least 0, not all of them 0")
    # From the exponent alone and not by libm's powers, which differ between CPUs.
    shift = _WEIGHT_BITS - int(np.frexp(values.max())[1])
    scaled = np.rint(np.ldexp(values, shift))
    return np.where(values > 0, np.maximum(scaled, 1), 0).astype(np.int64)
