"""Where a batch's bytes go: ``python -m tools.bench.batch_bytes STORE`` counts them by step, beside the least that is possible.

Computed from the counts of real batches, not measured: lines of the cache that are touched, each fetched once. What is written is fetched
before, unless the processor sees whole lines; that is a column of its own. A store of one node type and one part.
"""

from __future__ import annotations

import statistics
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from gnnkit.backends.inprocess import InProcess
from gnnkit.cli.output import show_table
from gnnkit.graph_loader import GraphLoader
from gnnkit.kernels.row_copies import row_copies
from gnnkit.sampling.batch_writer import WIDEST_STREAMED
from gnnkit.storage.store import Store
from gnnkit.ui.cards import Table

_LINE = 64
_COLUMNS = ("step", "read", "fetched before it is written", "written", "least")
_MEGA = 1e6


class Moved(NamedTuple):
    """Bytes of one step.

    Attributes:
        step: The step.
        read: Bytes of the lines that are read.
        fetched: Bytes of the lines that are fetched to be written to.
        written: Bytes that are written.
        least: Bytes that no way of doing it can do without.
    """

    step: str
    read: float
    fetched: float
    written: float
    least: float


def touched(count: float | NDArray[Any], lines: float | NDArray[Any]) -> Any:
    """How many of ``lines`` so many accesses at random touch, on average."""
    return lines * -np.expm1(count * np.log1p(-1 / np.maximum(lines, 1.0000001)))


def moved(batch: Any, fan_outs: list[int], store: Store) -> list[Moved]:
    """Counts the bytes of a batch.

    Args:
        batch: A batch with "x", "n_id" and perhaps other arrays of nodes.
        fan_outs: What it was sampled with.
        store: The graph.
    """
    arrays = store.arrays()
    (parts,), (edge_parts,) = arrays.nodes.values(), arrays.edges.values()
    by_hop = batch.num_sampled_nodes
    nodes, edges, frontier = len(batch.n_id), batch.edge_index.shape[1], sum(by_hop[:-1])
    own = np.asarray(edge_parts[0].indptr)
    ids = batch.n_id.numpy()[:frontier]
    degrees, width = (own[ids + 1] - own[ids]).astype(np.float64), edge_parts[0].indices.dtype.itemsize
    taken = np.minimum(degrees, np.repeat(fan_outs, by_hop[:-1]))
    lists = touched(taken, degrees * width / _LINE + 1 - width / _LINE).sum() * _LINE
    numbers = touched(nodes, len(own) * 4 / _LINE) * _LINE
    found = [
        Moved("bounds and ids of neighbours", frontier * _LINE + lists, 0, 0, frontier * own.dtype.itemsize + edges * width),
        Moved("numbers of nodes, a table of 4 bytes for each of the graph's", 0, numbers, numbers, 0),
        Moved("edges and nodes in the thread's scratch", 16 * edges + 8 * nodes, 16 * edges + 8 * nodes, 16 * edges + 8 * nodes, 0),
        Moved("`edge_index`", 0, 16 * edges, 16 * edges, 16 * edges),
        Moved("`n_id`", 0, 8 * nodes, 8 * nodes, 8 * nodes),
    ]
    for name, rows in parts[0].arrays.items():
        row, shown = rows[0].nbytes, getattr(batch, name)[0].nbytes
        lines = touched(nodes, len(rows) * row / _LINE) if row < _LINE else nodes * (row / _LINE + 1 - min(row & -row, _LINE) / _LINE)
        streams = shown == row and nodes * row >= row_copies().streamed_from and row <= WIDEST_STREAMED and row != 8
        found.append(Moved(f"`{name}`", lines * _LINE, 0 if streams else nodes * shown, nodes * shown, nodes * (row + shown)))
    total = Moved("in all", *np.sum([step[1:] for step in found], axis=0).tolist())
    tensors = sum(step.written for step in found[3:])
    return [*found, total, Moved("the model, which reads the batch", tensors, 0, 0, tensors)]


def main(
    store: Annotated[Path, typer.Argument(help="Folder of a store.")],
    num_neighbors: str = typer.Option("15,10,5", help="Fan-outs."),
    batch_size: int = typer.Option(1024, help="Seeds of a batch."),
    batches: int = typer.Option(5, help="Batches that are counted; the table shows medians."),
) -> None:
    """Shows where a batch's bytes go, in MB."""
    opened, fan_outs = Store.open(store), [int(fan_out) for fan_out in num_neighbors.split(",")]
    options: dict[str, Any] = {"num_neighbors": fan_outs, "batch_size": batch_size, "shuffle": True, "progress": False}
    with GraphLoader.from_store(opened.path, backend=InProcess(1), memory_budget=0, **options) as loader:
        counted = [moved(batch, fan_outs, opened) for batch in islice(loader, batches)]
    rows = []
    for steps in zip(*counted, strict=True):
        figures = (statistics.median(step[i] for step in steps) / _MEGA for i in range(1, 5))
        rows.append((steps[0].step, *(f"{figure:.3g}" for figure in figures)))
    show_table(Table(_COLUMNS, rows))


if __name__ == "__main__":
    typer.run(main)
