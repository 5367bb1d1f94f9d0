"""``gnnkit partition``: cut a dataset, or repartition a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import typer

from gnnkit.cli.info import open_store_or_none, show_store, store_facts
from gnnkit.cli.output import show_json


def partition(
    source: str = typer.Argument(metavar="SOURCE", help="A store's folder or name, or a dataset's name such as ogbn-products."),
    num_parts: int = typer.Argument(metavar="NUM_PARTS", help="How many parts."),
    method: str = typer.Option("contiguous", help="contiguous, random, ldg, metis or frequency."),
    out: Path | None = typer.Option(None, help="Folder of the new store; by default a name in the store folder."),
    root: Path | None = typer.Option(None, help="Where datasets are kept."),
    edge_dir: str | None = typer.Option(None, help="Compress edges by target (in) or by source (out)."),
    with_edge: bool | None = typer.Option(None, "--with-edge/--without-edge", help="Store edge ids."),
    feature_dtype: str | None = typer.Option(None, help="Store features as float32, float16 or bfloat16."),
    cache_ratio: float | None = typer.Option(None, help="Share of all nodes whose features every part replicates, hottest first."),
    seed: int | None = typer.Option(None, help="Seed of partitioners that draw."),
    download: bool | None = typer.Option(None, "--download/--no-download", help="Allow or forbid downloads of any size."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON."),
) -> None:
    """Cut a dataset or a store into parts.

    Reports balance, edge cut and bytes.
    """
    from gnnkit.partitioning import partition as cut
    from gnnkit.ui.progress import make_sink

    given = {"edge_dir": edge_dir, "with_edge": with_edge, "feature_dtype": feature_dtype, "cache_ratio": cache_ratio, "seed": seed}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with make_sink(False if as_json else "auto") as events:
        store = open_store_or_none(source, root)
        graph: Any = store if store is not None else _open_dataset(source, root, download, events)
        made = cut(graph, num_parts, cast(Any, method), out, events=events, **options)
    if as_json:
        show_json(store_facts(made))
    else:
        show_store(made)


def _open_dataset(name: str, root: Path | None, download: bool | None, events: Any) -> Any:
    from gnnkit.datasets.ogb import open_ogb

    return open_ogb(name, root=root, download="auto" if download is None else download, events=events)
