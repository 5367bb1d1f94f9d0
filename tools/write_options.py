"""Writes what is made of the table of options: static types of constructors and of ``gnnkit.tables``, and ``docs/options.md``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnkit.arguments import documented_section
from gnnkit.datasets.table_options import TableOptions
from gnnkit.graph_loader import GraphLoader
from gnnkit.loader.inputs import LINK_OPTIONS, InputOptions, LinkOptions
from gnnkit.loader.option_table import GROUPS, Option, option_table
from gnnkit.loader.options import LoaderOptions
from gnnkit.storage.layout import BuildOptions

ROOT = Path(__file__).parent.parent
_TYPES_HEAD = '''"""The options of constructors and verbs as type checkers see them; written by ``tools/write_options.py``, not by hand."""

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from gnnkit.arguments import Array, Dates, EdgesOption
from gnnkit.backends import BackendName
from gnnkit.backends.base import Backend
from gnnkit.backends.devices import Device
from gnnkit.cluster.hosts import PlacementOption
from gnnkit.datasets.table_types import TableKeywords
from gnnkit.loader.inputs import NegativesOption
from gnnkit.loader.options import PadOption, WeightsOption, WindowOption
from gnnkit.plan import ExcludeEdges, Remainder, SubgraphType, TemporalComparison, TemporalStrategy
from gnnkit.plan.sampling import FanOuts
from gnnkit.samplers import Sampler
from gnnkit.schema import EdgeDir
from gnnkit.storage.layout import ByColumn, FeatureDtypes, Given, Order, Partitioner
'''
_TABLES_HEAD = '''"""The options of ``gnnkit.tables`` as type checkers see them; written by ``tools/write_options.py``, not by hand."""

from collections.abc import Mapping
from typing import Any, TypedDict

from gnnkit.datasets.table_options import ByType, Columns, Dangling, Decimal, Mean, TimeUnit
'''
_PAGE_HEAD = """# Options

```python
from gnnkit import GraphLoader

loader = GraphLoader.from_ogb("ogbn-products", num_neighbors=[15, 10, 5])
help(GraphLoader.from_ogb)  # these options
```

Every option of `GraphLoader.from_ogb`, `from_tables`, `from_source`, `from_pyg` and `from_store`, as `help(GraphLoader.from_ogb)` and
Shift-Tab in a notebook show them; `from_tables` alone has those about tables, which `gnnkit.tables` takes, too. A name that is none of
these is an error that says what was meant. `for_split`, `for_links`, `for_anchors` and `with_backend` take all of them but those of
tables and of the store that is built. What is not given stays as it is in the loader that they are
called on; `shuffle`, `remainder` and the options of links start from their defaults. The last column says on which
backends an option works; elsewhere it is refused, or does nothing where nothing can be done.

`input_nodes` says what batches start from: a split's name, ids, a mask, `("type", any of these)`, or None for all nodes. Where nothing is
said they start from the split "train" of the graph, of nodes or else of links, and from all nodes where it has no split. A graph
that has splits, and none of that name, has to be told.
"""
CONSTRUCTORS: tuple[Callable[..., Any], ...] = (
    GraphLoader.from_ogb,
    GraphLoader.from_tables,
    GraphLoader.from_source,
    GraphLoader.from_pyg,
    GraphLoader.from_store,
    GraphLoader.from_plan,
)
_WIDTH = 140
_MOST_CELL_WORDS = 30  # as tools/build_docs.py checks on every page


def rows_of(*holders: type) -> list[Option]:
    """The rows whose values a class of ``holders`` holds."""
    return [row for row in option_table().values() if row.holder in holders]


def types() -> str:
    """``gnnkit/loader/option_types.pyi``."""
    beside = [row for row in rows_of(LoaderOptions) if row.name != "backend"]
    backend = [row for row in rows_of(LoaderOptions) if row.name == "backend"]
    links = [row for row in rows_of(LinkOptions) if row.name in LINK_OPTIONS]
    classes = (
        ("BesideKeywords", "TypedDict, total=False", "The keywords of a loader that samples on another backend.", beside),
        ("LoaderKeywords", "BesideKeywords, total=False", "The keywords of any loader.", backend),
        ("LinkKeywords", "LoaderKeywords, total=False", "The keywords of a loader of links.", links),
        ("ConstructorKeywords", "LinkKeywords, total=False", "The keywords of a constructor.", rows_of(InputOptions)),
        ("BuildKeywords", "ConstructorKeywords, total=False", "The keywords of a constructor that builds a store.", rows_of(BuildOptions)),
    )
    text = _TYPES_HEAD + "".join(_typed_dict(*each) for each in classes)
    return text + _typed_dict("TablesKeywords", "BuildKeywords, TableKeywords, total=False", "The keywords of a constructor of tables.", [])


def table_types() -> str:
    """``gnnkit/datasets/table_types.pyi``."""
    return _TABLES_HEAD + _typed_dict("TableKeywords", "TypedDict, total=False", "The keywords about tables.", rows_of(TableOptions))


def _typed_dict(name: str, bases: str, summary: str, rows: list[Option]) -> str:
    text = f'\nclass {name}({bases}):\n    """{summary}"""\n' + ("\n" if rows else "")
    kinds = {row.name: row.annotation.replace("'", '"') for row in rows}
    return text + "".join(f"    {row.name}: {kinds[row.name]}\n    {_quoted(row.text)}\n" for row in rows)


def _quoted(text: str) -> str:
    """A docstring of an attribute, in lines of at most ``_WIDTH`` characters."""
    words, lines = text.split(), ['"""']
    for word in words:
        if len(lines[-1]) + len(word) + 9 > _WIDTH:
            lines.append("")
        lines[-1] += word if lines[-1] in ('"""', "") else f" {word}"
    return "\n    ".join(lines) + '"""'


def page() -> str:
    """``docs/options.md``."""
    text = _PAGE_HEAD
    for group, names in GROUPS.items():
        details = ""
        text += f"\n## {group}\n\n| option | type | default | | backends |\n|---|---|---|---|---|\n"
        for row in (option_table()[name] for name in names):
            phrase, rest = _phrase_and_rest(row.text)
            text += f"| `{row.name}` | `{_cell(row.shown)}` | `{row.default!r}` | {_cell(phrase)} | {row.backends} |\n"
            details += f"* **`{row.name}`**: {rest}\n" if rest else ""
        text += f"\n{details}" if details else ""
    details = ""
    text += "\n## Of single constructors\n\n| option | of | type | default | |\n|---|---|---|---|---|\n"
    for constructor in CONSTRUCTORS:
        own = documented_section(constructor, "Args")
        for name, parameter in inspect.signature(constructor).parameters.items():
            if name not in option_table() and not own[name].startswith("See "):
                phrase, rest = _phrase_and_rest(own[name])
                shown = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
                text += f"| `{name}` | `{constructor.__name__}` | `{_cell(str(parameter.annotation))}` | {shown} | {_cell(phrase)} |\n"
                details += f"* **`{name}`** of `{constructor.__name__}`: {rest}\n" if rest else ""
    return f"{text}\n{details}" if details else text


def _phrase_and_rest(text: str) -> tuple[str, str]:
    """What a cell has room for, ``_MOST_CELL_WORDS``, and what stands below the table; the second is empty where all fits."""
    text = text.replace("``", "`")
    if len(text.split()) <= _MOST_CELL_WORDS:
        return text, ""
    ends = [match.end() for match in re.finditer(r"(?<=[.;:]) ", text) if len(text[: match.end()].split()) <= _MOST_CELL_WORDS]
    sentences = [end for end in ends if text[end - 2] == "."]
    end = (sentences or ends)[-1]
    rest = text[end:].strip()
    return text[:end].strip().rstrip(";:"), rest[0].upper() + rest[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


FILES = {"gnnkit/loader/option_types.pyi": types, "gnnkit/datasets/table_types.pyi": table_types, "docs/options.md": page}

if __name__ == "__main__":
    for path, write in FILES.items():
        (ROOT / path).write_text(write())
