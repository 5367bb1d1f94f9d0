"""Official splits of links: checked, written as the dataset has them, and mapped back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.schema import EdgeType, GraphSchema
from gnnkit.storage.files import FileSpec, as_count
from gnnkit.storage.layout import STORABLE_DTYPES, split_file

LinkSplitSpecs = dict[EdgeType, dict[str, dict[str, FileSpec]]]
LINK_INDEX = "edge_label_index"
_NAMES = (LINK_INDEX, "edge_label", "edge_label_time", "neg_edge_index", "src_neg_index", "dst_neg_index")
# Ids looked at in one go.
_STEP = 1 << 20


def spec_of(what: str, name: str, values: NDArray[Any]) -> FileSpec:
    """The dtype and shape of an array of a split; ``what`` names the split for the error.

    Raises:
        DatasetError: It is no array.
    """
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise DatasetError(f"{name!r} of {what} is no array but {type(values).__name__}")
    return FileSpec(values.dtype, values.shape)


def check_range(ids: NDArray[Any], count: int, what: str) -> None:
    """Refuses ids that belong to none of ``count`` nodes; ``what`` names them for the error.

    Raises:
        DatasetError: Names the first such id.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        wrong = int(ids[(ids < 0) | (ids >= count)][0])
        raise DatasetError(f"{what} holds node {wrong}, but there are {count} nodes")


def check_specs(what: str, specs: Mapping[str, FileSpec]) -> None:
    """Refuses arrays that are none of a split's, or do not go together.

    Args:
        what: The split, for the error.
        specs: ``{name: dtype and shape}``.

    Raises:
        DatasetError: Names the array.
    """
    if LINK_INDEX not in specs:
        raise DatasetError(f"{what} has no {LINK_INDEX!r}, it has {sorted(specs)}")
    index = specs[LINK_INDEX].shape
    count = index[1] if len(index) == 2 else -1
    expected: dict[str, tuple[int | None, ...]] = {
        LINK_INDEX: (2, None),
        "edge_label_time": (count,),
        "neg_edge_index": (2, None),
        "src_neg_index": (count, None),
        "dst_neg_index": (count, None),
    }
    for name, spec in specs.items():
        if name not in _NAMES:
            raise DatasetError(f"{what} has an array {name!r}, which is none of {list(_NAMES)}")
        if name == "edge_label":
            right = spec.dtype.name in STORABLE_DTYPES and spec.shape[:1] == (count,)
        else:
            shape = expected[name]
            right = spec.dtype == np.int64 and len(spec.shape) == len(shape)
            right = right and all(want in (None, have) for want, have in zip(shape, spec.shape, strict=True))
        if not right:
            wanted = ["k" if n is None else n for n in expected.get(name, (count,))]
            dtype = "numbers" if name == "edge_label" else "int64"
            raise DatasetError(f"{name!r} of {what} is {spec.dtype} {list(spec.shape)} where {dtype} {wanted} must be".replace("'k'", "k"))


def id_rows(schema: GraphSchema, edge_type: EdgeType, name: str, values: NDArray[Any]) -> Iterator[tuple[NDArray[Any], int]]:
    """Yields what of an array are ids, in pieces, each with the number of nodes that they must be below."""
    sources, targets = (schema.node_types[node_type].num_nodes for node_type in (edge_type[0], edge_type[2]))
    if name in (LINK_INDEX, "neg_edge_index"):
        rows = [(values[0], sources), (values[1], targets)]
    elif name in ("src_neg_index", "dst_neg_index"):
        rows = [(values.reshape(-1), sources if name == "src_neg_index" else targets)]
    else:
        rows = []
    for ids, count in rows:
        for first in range(0, len(ids), _STEP):
            yield ids[first : first + _STEP], count


def link_split_files(specs: LinkSplitSpecs) -> dict[str, FileSpec]:
    """Returns the dtype and shape of every file of the link splits, by path."""
    return {
        split_file(edge_type, split, name): replace(spec, holds=("links", edge_type, name))
        for edge_type, by_split in specs.items()
        for split, arrays in by_split.items()
        for name, spec in arrays.items()
    }


def specs_from_json(value: Mapping[str, Any], edge_types: Mapping[str, EdgeType]) -> LinkSplitSpecs:
    """Reverses ``gnnkit.schema.plain``; raises whatever a wrong value causes.

    Args:
        value: The JSON form.
        edge_types: The schema's edge types by their folders' names.
    """
    specs: LinkSplitSpecs = {}
    for folder, by_split in value.items():
        own = specs[edge_types[folder]] = {}
        for split, arrays in by_split.items():
            own[split] = {str(name): FileSpec(np.dtype(str(s["dtype"])), tuple(map(as_count, s["shape"]))) for name, s in arrays.items()}
            check_specs(f"split {split!r} of {folder}", own[split])
    return specs
