"""Splits: what they are called, which attributes of a graph hold them, and which nodes have no label to be trained on."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.callers import warn
from gnnkit.errors import DatasetError, PlanError
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.user_arrays import to_array, to_ids

Owner = TypeVar("Owner", bound=Hashable)
# The words for the splits, in any case, of scikit-learn, Hugging Face, PyG, DGL and OGB. The names of what graphs hold come first.
SPLIT_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev", "development"), "valid"),
    **dict.fromkeys(("test", "testing", "holdout", "hold-out", "heldout", "held-out"), "test"),
}
SPLITS = tuple(dict.fromkeys(SPLIT_WORDS.values()))
SPLIT_MASKS = ("train_mask", "val_mask", "valid_mask", "test_mask")
_ATTRIBUTE = re.compile(r"(train|val|valid|test)_(mask|idx)")
_TRAIN = re.compile(r"(?<![a-z])train")
# Columns of tables whose names alone say that they are a split.
_COLUMN = re.compile(r"split|(is_?)?train(ing)?(_?(masks?|idx|index|nodes|set))?|idx_?train", re.IGNORECASE)


def split_name(word: str) -> str:
    """Returns the name of the split that a word means: "valid" for "val", "train.3" for the fourth of several "training"; else the word."""
    base, dot, number = word.partition(".")
    return SPLIT_WORDS.get(base.strip().lower().replace("_", "-"), base) + dot + number


def split_index_of(split: str | None) -> int | None:
    """Returns which of several splits a name means: 3 for "train.3"; None where it says none."""
    _, _, number = (split or "").partition(".")
    return int(number) if number.isdigit() else None


def shown_splits(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns the splits of some numbers of nodes as they are shown: of several of one name the first, called "train.0 to train.9"."""
    last = {name.partition(".")[0]: name for name in sorted(counts, key=lambda name: split_index_of(name) or 0)}
    shown = {name: last[name.partition(".")[0]] for name in counts if not split_index_of(name)}
    return {name if name == end else f"{name} to {end}": counts[name] for name, end in shown.items()}


def find_split(word: str, known: Iterable[str], index: int | None = None) -> str | None:
    """Returns the one of some splits that a word means.

    Args:
        word: The word, such as "val" or "train.3".
        known: The names of the splits.
        index: Which one is meant where there are several of the name; a split that there is once belongs to all of them.
    """
    names, wanted = {split_name(name): name for name in known}, split_name(word)
    return names.get(f"{wanted}.{index}", names.get(wanted))


def owners_of(word: str, splits: Mapping[Owner, Iterable[str]], index: int | None = None) -> dict[Owner, str]:
    """Returns the types that have the split that a word means, and its name there; see ``find_split``."""
    return {owner: name for owner, own in splits.items() if (name := find_split(word, own, index)) is not None}


def check_several(split: str, splits: Mapping[NodeType, Iterable[str]], schema: GraphSchema, index: int | None) -> None:
    """Refuses a name that several splits have, and a number that none of them has.

    Raises:
        PlanError: Says how many there are.
    """
    for owner, own in splits.items():
        numbers = [split_index_of(name) for name in own if find_split(split, [name.partition(".")[0]])]
        if count := sum(number is not None for number in numbers):
            masks = [name for name in schema.node_types[owner].arrays if name in SPLIT_MASKS]
            what = f"the masks {', '.join(masks)} hold" if masks else "there are"
            said = "" if index is None else f", and none of the number {index}"
            hint = (
                f"split_index=0 to split_index={count - 1} chooses one, for train, valid and test; {split!r} of it is '{split}.0' as well"
            )
            raise PlanError(f"{what} {count} splits {split!r} of {owner!r} nodes{said}", hint)


def is_split_attribute(name: str) -> bool:
    """Whether an attribute of a graph is called as those that hold splits are."""
    return name == "split_idx" or _ATTRIBUTE.fullmatch(name) is not None


def splits_of(attributes: Iterable[tuple[str, Any]], num_nodes: int, where: str) -> dict[str, NDArray[np.int64]]:
    """Returns the splits that attributes of nodes hold, by name: masks, ids, and ``split_idx``, a dict of either.

    A mask of several splits ``[n, k]`` holds as many of each name, "train.0" and so on.

    Args:
        attributes: Names and values; those that hold no splits are passed over, and so are values that are neither masks nor ids.
        num_nodes: How many nodes there are.
        where: What stands before a name in error messages.

    Raises:
        DatasetError: Two attributes say different things of one split.
    """
    found: dict[str, NDArray[np.int64]] = {}
    for attribute, word, value in _attributes(attributes):
        with_index = list(_columns(value, num_nodes, f"{where}{attribute}"))
        for number, ids in enumerate(with_index):
            split = split_name(word) + (f".{number}" if len(with_index) > 1 else "")
            if split in found and not np.array_equal(np.sort(found[split]), np.sort(ids)):
                hint = f"del {where}{attribute}, or what contradicts it"
                raise DatasetError(f"{where}{attribute} and another attribute hold different nodes of the split {split!r}", hint)
            found.setdefault(split, ids)
    return found


def _attributes(attributes: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Name, split and value of what holds a split."""
    for name, value in attributes:
        if match := _ATTRIBUTE.fullmatch(name):
            yield name, match[1], value
        elif name == "split_idx" and isinstance(value, Mapping):
            yield from ((f"{name}[{word!r}]", word, own) for word, own in value.items() if split_name(str(word)) in SPLITS)


def _columns(value: Any, num_nodes: int, what: str) -> Iterator[NDArray[np.int64]]:
    """The nodes of each split of a mask, or those of ids; nothing of what is neither."""
    try:
        array = to_array(value, what)
        if array.ndim and len(array) == num_nodes and (array.dtype == np.bool_ or bool(np.isin(array, (0, 1)).all())):
            yield from (np.flatnonzero(column) for column in array.reshape(num_nodes, -1).T)
        elif not what.endswith("_mask"):
            yield to_ids(array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array, num_nodes, what)
    except PlanError:
        return


def check_no_split(attributes: Iterable[tuple[str, Any]], num_nodes: int, where: str) -> None:
    """Refuses attributes of nodes that speak of training by their names, and are masks or ids: they contradict that there are no splits.

    Args:
        attributes: Names and values of attributes that are no splits; values that are not known are empty.
        num_nodes: How many nodes there are.
        where: What stands before a name in error messages.

    Raises:
        PlanError: Names the first of them.
    """
    for name, value in attributes:
        if _TRAIN.search(name.lower()) and _may_be_split(name, value, num_nodes):
            hint = f"rename it: train_mask is a mask, train_idx holds ids; or say input_nodes={where}{name}, or None for all nodes"
            if is_split_attribute(name):
                hint = f"it is neither a mask of {num_nodes} nodes nor ids below that; input_nodes=None starts from all nodes"
            raise PlanError(f"the graph has no split 'train', and {where}{name} looks like one", hint)


def _may_be_split(name: str, value: Any, num_nodes: int) -> bool:
    if isinstance(value, Mapping) or is_split_attribute(name):
        return True
    try:
        array = to_array(value, name)
    except PlanError:
        return False
    if not array.ndim or not array.size:
        return False
    if len(array) == num_nodes and bool(np.isin(array, (0, 1)).all()):
        return True
    is_ids = array.ndim == 1 and array.dtype.kind in "iu" and 0 <= array.min() <= array.max() < num_nodes
    return bool(is_ids and len(np.unique(array)) == len(array))


def is_split_column(name: str) -> bool:
    """Whether a column of a table is a split by its name alone."""
    return _COLUMN.fullmatch(name) is not None


def has_label(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows of labels say something, bool ``[n]``: negative whole numbers are no classes, and NaN is no number."""
    known = ~np.isnan(y) if y.dtype.kind == "f" else y >= 0
    return np.asarray(known.reshape(len(y), -1).any(1))


def with_labels(
    ids: NDArray[np.int64], known: NDArray[np.bool_], where: str, split: str = "train", *, is_told: bool = False
) -> NDArray[np.int64]:
    """Returns those of some nodes to train on that have a label, and warns where others are left out.

    Args:
        ids: int64 ``[k]``.
        known: Which of them have one, bool ``[k]``.
        where: What holds the labels, in messages.
        split: The split that they are of, in messages.
        is_told: Whether there was such a warning of another of several splits.

    Raises:
        DatasetError: None has one.
    """
    if known.all():
        return ids
    if not known.any():
        hint = "name other nodes to train on; or, to train without labels, leave the labels out"
        raise DatasetError(f"none of the {len(ids)} nodes of the split {split!r} has a label in {where}", hint)
    if not is_told:
        what = f"{len(ids) - int(known.sum())} of {len(ids)} nodes of the split {split!r} have no label in {where}"
        others = "; so are those of the others" if split_index_of(split) is not None else ""
        warn(f"{what}, and are left out of it{others}")
    return ids[known]
