"""The table of options: what constructors take as ``**options``, from which their signatures, docstrings, types and pages come.

Names, types, defaults and sentences stand once, at the classes that hold the values (``LoaderOptions``, ``InputOptions``, ``LinkOptions``,
``BuildOptions``); this module says in which order and groups they are shown. ``tools/write_options.py`` writes the static types
(``gnnkit.loader.option_types``) and ``docs/options.md`` from it.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from gnnkit.arguments import checks_arguments
from gnnkit.errors import interruptible
from gnnkit.loader.inputs import LINK_OPTIONS, InputOptions, LinkOptions
from gnnkit.loader.options import BUILD_OPTIONS, LoaderOptions
from gnnkit.storage.layout import BuildOptions

F = TypeVar("F", bound=Callable[..., Any])

# The order in which options are shown: the common ones first.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Common": ("num_neighbors", "batch_size", "shuffle", "backend", "device", "transform", "seed"),
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
    "Memory and time": ("prefetch", "memory_budget", "feature_cache", "placement", "start_timeout_s", "batch_timeout_s"),
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
# Characters of a line of a docstring, with its indentation.
_WIDTH = 140
# A constructor knows the hosts, and a build does not.
_NUM_PARTS = "Parts to cut the graph into, at least 1; None is one for each host."


class Option(NamedTuple):
    """A row of the table.

    Attributes:
        name: Its name.
        annotation: Its type, as written.
        default: Its default.
        text: What it does.
        group: The group that it is shown in.
        backends: The backends that it works on, in words; "all" for most.
        holder: The class that holds its value.
    """

    name: str
    annotation: str
    default: Any
    text: str
    group: str
    backends: str
    holder: type


@functools.cache
def option_table() -> Mapping[str, Option]:
    """All options by name, in the order in which they are shown."""
    found: dict[str, Option] = {}
    for holder in (LoaderOptions, InputOptions, LinkOptions, BuildOptions):
        texts = attribute_texts(holder)
        for name, parameter in inspect.signature(holder).parameters.items():
            group = next((group for group, names in GROUPS.items() if name in names), None)
            if group is not None and name not in found:
                found[name] = Option(
                    name, str(parameter.annotation), parameter.default, texts.get(name, ""), group, BACKENDS.get(name, _ALL), holder
                )
    found["num_parts"] = found["num_parts"]._replace(annotation="int | None", default=None, text=_NUM_PARTS)
    return {name: found[name] for names in GROUPS.values() for name in names}


def attribute_texts(documented: type) -> dict[str, str]:
    """Returns the texts of the section "Attributes" of a class's docstring, by attribute."""
    _, _, section = inspect.cleandoc(documented.__doc__ or "").partition("Attributes:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in section.partition("\n\n")[0].splitlines():
        if begun := re.match(r"    (\w+): (.*)", line):
            name, texts[begun[1]] = begun[1], begun[2]
        else:
            texts[name] += " " + line.strip()
    return texts


def takes_options(*, with_build: bool) -> Callable[[F], F]:
    """Spells out the options that a constructor takes as ``**options`` in its signature and its docstring, where notebooks look for them.

    An interrupt of the constructor is shown as briefly as an error.

    Args:
        with_build: Whether it takes those of the store that it builds.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        table = (row for row in option_table().values() if with_build or row.holder is not BuildOptions)
        rows = [row for row in table if row.name not in signature.parameters]
        first = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY or each.name == "input_nodes"]
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        options = [inspect.Parameter(row.name, keyword_only, default=row.default, annotation=row.annotation) for row in rows]
        rest = [each for each in own if each not in first]
        noted = checks_arguments(interruptible(f"{function.__name__}()")(function))
        noted.__signature__ = signature.replace(parameters=[*first, *options, *rest])  # type: ignore[attr-defined]
        if function.__doc__:  # python -OO takes docstrings out
            noted.__doc__ = spelled_out(function.__doc__, rows)
        return noted

    return decorate


def spelled_out(docstring: str, rows: Iterable[Option]) -> str:
    """A docstring with what it says of ``**options`` replaced by all of them.

    Args:
        docstring: The docstring, as it stands in the source.
        rows: The options.
    """
    begin = re.search(r"^( *)\*\*options: .*\n(?:\1 +.*\n)*", docstring, re.MULTILINE)
    assert begin is not None, docstring
    indent = begin[1]
    lines = (textwrap.wrap(f"{row.name}: {row.text}", _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ") for row in rows)
    return docstring[: begin.start()] + "".join(f"{line}\n" for entry in lines for line in entry) + docstring[begin.end() :]
