"""``gnnkit demo``: a training that shows whether everything works here."""

from __future__ import annotations

import typer

from gnnkit.demo import run_demo


def demo(
    scale: float = typer.Option(0.1, help="Size of the generated graph; 1 is OGBN-Products' size.", min=0.001),
) -> None:
    """Train GraphSAGE on two graphs.

    A generated one with OGBN-Products' shape, and Cora; the first one's batches are sampled again in two parts by background
    processes. Exit code 1 if the accuracies do not beat the baselines, or if those batches are not the same.
    """
    raise typer.Exit(run_demo(scale=scale))
