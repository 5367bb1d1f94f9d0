"""The table of options: what constructors take as ``**options``, from which their signatures, docstrings, types and pages come.

Names, types, defaults and sentences stand once, at the classes that hold the values (``LoaderOptions``, ``InputOptions``, ``LinkOptions``,
``BuildOptions``, ``TableOptions``); this module says in which order and groups they are shown. ``tools/write_options.py`` writes the static
types (the stubs ``loader/option_types.pyi`` and ``datasets/table_types.pyi``) and ``docs/options.md`` from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from gnnkit.arguments import DocumentedField, documented_fields, spelled_out
from gnnkit.datasets.table_options import TableOptions
from gnnkit.errors import interruptible
from gnnkit.loader.inputs import LINK_OPTIONS, InputOptions, LinkOptions
from gnnkit.loader.options import BUILD_OPTIONS, LoaderOptions, check_names
from gnnkit.storage.layout import BuildOptions

F = TypeVar("F", bound=Callable[..., Any])

# The order in which options are shown: the common ones first.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Common": ("num_neighbors", "batch_size", "split_index", "shuffle", "backend", "device", "transform", "seed"),
    "Form of batches": ("pad", "is_edge_index"),
    "Sampling": (
        "sampler",
        "replace",
        "disjoint",
        "subgraph_type",
        "temporal_strategy",
        "time_window",
        "temporal_comparison",
        "input_time",
    ),
    "Links": ("edge_label_index", *LINK_OPTIONS),
    "Order and ranks": ("seed_weights", "drop_last", "remainder", "rank", "world_size"),
    "Memory and time": ("prefetch", "max_nodes", "memory_budget", "feature_cache", "placement", "start_timeout_s", "batch_timeout_s"),
    "Tables": tuple(field.name for field in fields(TableOptions)),
    "The store that is built": BUILD_OPTIONS,
}
# Where an option works on some backends only, or otherwise than on the others; what is not here works on all of them.
_ALL, _OWN = "all", "all but Glt"
BACKENDS: Mapping[str, str] = {
    **dict.fromkeys(("disjoint", "subgraph_type", "temporal_strategy", "input_time", "weight", "time_attr"), _OWN),
    **dict.fromkeys(("time_window", "temporal_comparison"), _OWN),
    **dict.fromkeys(("edge_label_index", *LINK_OPTIONS), _OWN),
    **dict.fromkeys(("feature_cache", "pad"), _OWN),
    "sampler": "all but Glt; OnDevice: `Labor` alone",
    "memory_budget": "InProcess, Colocated, GraphStore",
    "replace": "all; Glt draws with replacement on processors, whatever it says",
    "seed": "all; Glt's draws differ between runs, its order of seeds does not",
    "placement": 'all; InProcess and OnDevice: "replicate" alone',
}
# A constructor knows the hosts, and a build does not.
_NUM_PARTS = "Parts to cut the graph into, at least 1; None is one for each host."


@dataclass(frozen=True)
class Option(DocumentedField):
    """A row of the table.

    Attributes:
        group: The group that it is shown in.
        backends: The backends that it works on, in words; "all" for most.
        holder: The class that holds its value.
    """

    group: str
    backends: str
    holder: type


@functools.cache
def option_table() -> Mapping[str, Option]:
    """All options by name, in the order in which they are shown."""
    found: dict[str, Option] = {}
    for holder in (LoaderOptions, InputOptions, LinkOptions, BuildOptions, TableOptions):
        for option in documented_fields(holder):
            group = next((group for group, names in GROUPS.items() if option.name in names), None)
            if group is not None and option.name not in found:
                found[option.name] = Option(**vars(option), group=group, backends=BACKENDS.get(option.name, _ALL), holder=holder)
    found["num_parts"] = replace(found["num_parts"], annotation="int | None", shown="int | None", default=None, text=_NUM_PARTS)
    return {name: found[name] for names in GROUPS.values() for name in names}


def takes_options(*holders: type) -> Callable[[F], F]:
    """Spells out the options that a constructor takes as ``**options``, see ``spelled_out``: those of every loader, and of ``holders``.

    An interrupt of the constructor is shown as briefly as an error.
    """

    def decorate(function: F) -> F:
        rows = [row for row in option_table().values() if row.holder in (LoaderOptions, InputOptions, LinkOptions, *holders)]
        noted = interruptible(f"{function.__name__}()")(function)
        return spelled_out(noted, rows, check_names)

    return decorate
