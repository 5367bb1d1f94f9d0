"""``gnnkit plan-capacity``: what a run would need of other machines."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, cast

import typer

from gnnkit.bounds import size_in_bytes
from gnnkit.capacity import Asked, Cluster, Estimate, Rates, SizedGraph, asked, estimate, from_bench, measure, sized_graph
from gnnkit.cli.output import OK, WARNING, fan_outs, show_json, show_line, show_rows
from gnnkit.cli.stores import FEATURE_DTYPE, feature_dtypes
from gnnkit.errors import PlanError
from gnnkit.host import available_cpus, total_memory
from gnnkit.storage.layout import BuildOptions, part_of
from gnnkit.units import format_bytes, format_count, format_rate

_BITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def plan_capacity(
    source: str = typer.Argument(
        metavar="SOURCE", help="An OGB dataset's name (nothing is downloaded), a store's folder, or a plan's file."
    ),
    nodes: int = typer.Option(1, help="Machines with trainers."),
    procs_per_node: int = typer.Option(1, help="Trainers on each: one for each GPU, as a rule."),
    num_neighbors: str | None = typer.Option(None, help="Fan-outs; a plan's own by default, else 15,10,5."),
    batch_size: int | None = typer.Option(None, min=1, help="Seeds of a batch; a plan's own by default, else 1024."),
    backend: str | None = typer.Option(None, help="colocated or graph_store; by default what --storage-nodes says."),
    storage_nodes: int | None = typer.Option(None, min=1, help="Machines that hold the graph, for graph_store."),
    num_parts: int | None = typer.Option(None, min=1, help="Parts; one for each machine that holds the graph by default."),
    partition: str = typer.Option("contiguous", help="How nodes are assigned to parts."),
    feature_dtype: list[str] | None = FEATURE_DTYPE,
    memory: str | None = typer.Option(None, help="Memory of each machine, such as 256GB (of 1024 MB each); this one's by default."),
    cpus: int | None = typer.Option(None, min=1, help="Processors of each machine; this one's by default."),
    network: str | None = typer.Option(None, help="Network of each machine, such as 25Gbit."),
    train_rate: float | None = typer.Option(None, help="Seeds a second that one trainer's model takes, as loader.profile() measures it."),
    bench: Path | None = typer.Option(None, help="Rates from a record of gnnkit bench --json; measured here by default."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON."),
) -> None:
    """Say what a run needs of memory, disk and network on each machine, and what would hold it back.

    Sizes come from what OGB publishes or from a store, rates from a measurement of some seconds on this machine. Exit code 1 if the
    graph does not fit.
    """
    storage = _storage_nodes(backend, storage_nodes)
    have = size_in_bytes("memory", memory, "write it like 256GB")
    rate = None if network is None else _bytes_per_s(network)
    room = total_memory() if have is None else have
    cluster = Cluster(nodes, procs_per_node, storage, room, rate, cpus or available_cpus(), train_rate)
    options = BuildOptions(num_parts or cluster.holders, cast(Any, partition), feature_dtype=feature_dtypes(feature_dtype))
    graph = sized_graph(source, options)
    wanted = asked(graph, None if num_neighbors is None else fan_outs(num_neighbors), batch_size)
    rates = measure(wanted.num_neighbors) if bench is None else from_bench(bench)
    found = estimate(graph, cluster, wanted, rates)
    if as_json:
        show_json({"graph": _facts(graph), "cluster": vars(cluster), "rates": vars(rates), **found.to_json()})
    else:
        _show(graph, cluster, rates, found, wanted)
    raise typer.Exit(WARNING if found.bottleneck == "memory" else OK)


def _storage_nodes(backend: str | None, storage_nodes: int | None) -> int:
    if backend not in (None, "colocated", "graph_store"):
        raise PlanError(f"backend={backend!r}", "it is colocated or graph_store")
    if backend == "colocated" and storage_nodes:
        raise PlanError("--backend colocated and --storage-nodes: there, trainers' machines hold the graph", "leave one of them out")
    return storage_nodes or (1 if backend == "graph_store" else 0)


def _bytes_per_s(text: str) -> float:
    """Bytes a second of a network: "25Gbit" are 3.125e9."""
    match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([kmgt]?)bit(?:/s|ps)?\s*", text, re.IGNORECASE)
    found = float(match[1]) * _BITS[match[2].lower()] / 8 if match else 0.0
    if not found > 0:
        raise PlanError(f"--network {text!r} is no rate", "write it like 25Gbit")
    return found


def _facts(graph: SizedGraph) -> dict[str, Any]:
    of_parts: Counter[int | None] = Counter()
    for name, size in graph.sizes.items():
        of_parts[part_of(name)] += size
    return {
        "name": graph.manifest.name,
        "source": graph.source,
        "num_nodes": graph.manifest.schema.num_nodes,
        "num_edges": graph.manifest.schema.num_edges,
        "nbytes": graph.nbytes,
        "part_bytes": [of_parts[part] for part in range(graph.manifest.num_parts)],
        "shared_bytes": of_parts[None],
    }


def _show(graph: SizedGraph, cluster: Cluster, rates: Rates, found: Estimate, wanted: Asked) -> None:
    def sizes(needs: Any) -> str:
        # In the unit of --memory, as memory is sold.
        each = ", ".join(f"{name} {format_bytes(count, 1024)}" for name, count in needs.items())
        return f"{format_bytes(sum(needs.values()), 1024)} of {format_bytes(cluster.memory, 1024)} ({each})"

    manifest, schema, batch, storage = graph.manifest, graph.manifest.schema, found.batch, cluster.storage_nodes
    choices = [
        f"{word}: {format_bytes(found.holding[word], 1024)} on each, {format_bytes(crossing, 1024)} of a batch cross between machines"
        for word, crossing in found.crossing.items()
    ]
    rows = [
        ("graph", f"{format_count(schema.num_nodes)} nodes, {format_count(schema.num_edges)} edges; {graph.source}"),
        ("store", f"{format_bytes(graph.nbytes, 1024)} in {manifest.num_parts} part{'s' if manifest.num_parts > 1 else ''}"),
        ("a batch", f"{format_count(batch['nodes'])} nodes, {format_count(batch['edges'])} edges, {format_bytes(batch['bytes'], 1024)}"),
        ("", batch["source"]),
        ("placement", f"{found.placement}, {format_bytes(found.disk, 1024)} of disk on each {'storage machine' if storage else 'machine'}"),
        *[("", choice) for choice in choices if not storage and len(choices) > 1],
        ("memory", f"{sizes(found.memory)}; model and optimizer come on top"),
        *([("storage memory", sizes(found.storage_memory))] if storage else []),
        (
            "network",
            f"{format_bytes(found.network)} into a machine for a seed; {format_rate(found.network * found.seeds_per_s, 'B')} at that speed",
        ),
        *[(name, f"{format_rate(rate, 'seeds')} for each machine") for name, rate in found.limits.items()],
        (
            "epoch",
            f"{format_rate(found.seeds_per_s * cluster.nodes, 'seeds')} on {cluster.nodes} machine{'s' if cluster.nodes > 1 else ''}",
        ),
        ("rates", f"{format_rate(rates.edges_per_s, 'edges')} and {format_rate(rates.bytes_per_s, 'B')} a thread; {rates.source}"),
        ("bottleneck", found.bottleneck),
    ]
    if reads := found.reads:
        pages = f"{format_count(reads['missed'])} of the {format_count(reads['touched'])} pages that a batch touches, with"
        rows.insert(
            6, ("from disk", f"{pages} {format_bytes(reads['room'], 1024)} for pages of a store of {format_bytes(graph.nbytes, 1024)}")
        )
        rows.insert(7, ("", f"{format_rate(reads['pages_per_s'], 'pages')}, probed with {reads['depth']:.0f} reads under way"))
    trainers = f"{cluster.nodes} x {cluster.procs_per_node} trainers of {wanted.batch_size} seeds"
    show_rows(f"{manifest.name}, {trainers}, num_neighbors {','.join(map(str, wanted.num_neighbors))}", rows)
    for note in found.notes:
        show_line(note)
