"""``gnnkit push``: a store, put where other machines fetch it from."""

from __future__ import annotations

from pathlib import Path

import typer

from gnnkit.cli.info import open_store
from gnnkit.cli.output import show_line


def push(
    store: str = typer.Argument(metavar="PATH|NAME", help="A store's folder or name."),
    url: str = typer.Argument(metavar="URL", help="Where to, such as s3://bucket/store."),
    part: list[int] | None = typer.Option(None, help="Push this part only; may be given several times. The last host adds the manifest."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace another store at URL."),
    root: Path | None = typer.Option(None, help="Where datasets and stores are kept."),
) -> None:
    """Put a store at a URL, from where GraphLoader.from_store(URL) fetches it.

    Credentials are those that fsspec finds in the environment and in files of its libraries. A push that was broken off goes on.
    """
    from gnnkit.ui.progress import make_sink

    opened = open_store(store, root, parts=part)
    with make_sink("auto") as events:
        place = opened.push(url, overwrite=overwrite, events=events)
    show_line(f"pushed {opened.name}: GraphLoader.from_store({place!r}) fetches it")
