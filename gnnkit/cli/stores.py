"""``gnnkit stores``: the graphs that gnnkit keeps on this disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from gnnkit.cli.output import WARNING, show_error, show_json, show_line, show_table
from gnnkit.errors import GnnkitError

app = typer.Typer(help="List and remove the stores that gnnkit keeps on this disk.", no_args_is_help=True, rich_markup_mode=None)
_FOLDER = typer.Option(None, "--store-dir", help="Folder of stores; by default the one that GraphLoader uses.")
_JSON = typer.Option(False, "--json", help="Write JSON.")


def _folder(given: Path | None) -> Path:
    from gnnkit.storage.catalog import default_store_dir

    return default_store_dir() if given is None else given


@app.command("ls")
def list_(store_dir: Path | None = _FOLDER, as_json: bool = _JSON) -> None:
    """List the stores.

    Exit code 1 if one of them cannot be opened.
    """
    from gnnkit.storage.catalog import list_stores
    from gnnkit.units import format_bytes, format_count

    folder = _folder(store_dir)
    entries = list_stores(folder)
    if as_json:
        show_json({"store_dir": str(folder), "stores": [_facts(entry) for entry in entries]})
    elif not entries:
        show_line(f"no stores in {folder}")
    else:
        rows = []
        for entry in entries:
            sizes = ("?", "?", "?", entry.problem or "")
            if entry.manifest is not None:
                schema = entry.manifest.schema
                sizes = (
                    str(entry.manifest.num_parts),
                    format_count(schema.num_nodes),
                    format_count(schema.num_edges),
                    entry.manifest.notice or "",
                )
            rows.append((entry.path.name, format_bytes(entry.nbytes), *sizes))
        show_table(("store", "size", "parts", "nodes", "edges", "notice"), rows, right=("size", "parts", "nodes", "edges"))
    if any(entry.problem for entry in entries):
        raise typer.Exit(WARNING)


@app.command("rm")
def remove(
    names: list[str] = typer.Argument(help="Names of stores, as `gnnkit stores ls` shows them."), store_dir: Path | None = _FOLDER
) -> None:
    """Remove stores.

    Exit code 2 if one of them is not there or is being built.
    """
    from gnnkit.storage.catalog import remove_store
    from gnnkit.units import format_bytes

    folder = _folder(store_dir)
    failed: list[GnnkitError] = []
    for name in names:
        try:
            show_line(f"removed {name} ({format_bytes(remove_store(folder, name))})")
        except GnnkitError as error:
            failed.append(error)
    for other in failed[:-1]:
        show_error(other.message, other.hint)
    if failed:
        raise failed[-1]


@app.command("prune")
def prune(store_dir: Path | None = _FOLDER, as_json: bool = _JSON) -> None:
    """Remove unfinished builds, stores of older formats, and compiled kernels not used for a month."""
    from gnnkit.kernels.jit import prune_kernels
    from gnnkit.storage.catalog import Pruned
    from gnnkit.storage.catalog import prune as prune_stores
    from gnnkit.units import format_bytes

    folder = _folder(store_dir)
    kernels = [Pruned(path, nbytes, "compiled kernels, not used for a month") for path, nbytes in prune_kernels()]
    pruned = prune_stores(folder) + kernels
    if as_json:
        facts = [{"path": str(item.path), "nbytes": item.nbytes, "reason": item.reason} for item in pruned]
        show_json({"store_dir": str(folder), "removed": facts})
        return
    for item in pruned:
        show_line(f"removed {item.path.name} ({format_bytes(item.nbytes)}): {item.reason}")
    if not pruned:
        show_line(f"nothing to remove in {folder}")


def _facts(entry: Any) -> dict[str, Any]:
    manifest = entry.manifest
    facts: dict[str, Any] = {"name": entry.path.name, "path": str(entry.path), "nbytes": entry.nbytes, "problem": entry.problem}
    if manifest is not None:
        facts |= {
            "dataset": manifest.name,
            "notice": manifest.notice,
            "fingerprint": manifest.fingerprint,
            "num_parts": manifest.num_parts,
            "num_nodes": manifest.schema.num_nodes,
            "num_edges": manifest.schema.num_edges,
        }
    return facts
