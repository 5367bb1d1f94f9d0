"""What ``docs/development/sampling.md`` says of disjoint, temporal, bidirectional and induced batches, as a program.

Plain integers, lists and dicts.

A graph is what ``reference_sampler`` takes. Like there, every line is one sentence of the page, and nothing of gnnkit is used.
"""

from tests.reference_sampler import choose, fold, integer_weights, shown, text


def time_of(graph, edge_type, edge, far, time_attr):
    """An edge's time: its own, else that of the node that it leads to, else none."""
    edges, node_type = graph["edges"][edge_type], edge_type[2 * far]
    if time_attr in edges["rows"]:
        return edges["rows"][time_attr][edge]
    times = graph["nodes"][node_type]["rows"].get(time_attr)
    return None if times is None else times[edges["ends"][edge][far]]


def listed(graph, edge_type, near, far, time_attr):
    """{node: its edges of one type}, in the dataset's order or, where they have times, by time."""
    found = {}
    for edge, ends in enumerate(graph["edges"][edge_type]["ends"]):
        found.setdefault(ends[near], []).append(edge)
    if time_attr is not None:
        for edges in found.values():
            times = [time_of(graph, edge_type, edge, far, time_attr) for edge in edges]
            if None not in times:
                edges.sort(key=lambda edge: time_of(graph, edge_type, edge, far, time_attr))  # a stable sort
    return found


def walk(graph, key, seeds, fan_outs, *, edge_dir, replace, weight, times, time_attr, last, windows=None, strict=False):
    """Nodes as (root, id) pairs by type, counts of each hop, and edges as (edge, neighbour, node) by type and hop."""
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    num_hops = max(map(len, fan_outs.values()), default=0)
    nodes = {t: [(root, v) for root, v in seeds.get(t, [])] for t in graph["nodes"]}
    number = {t: {v: i for i, v in reversed(list(enumerate(pairs)))} for t, pairs in nodes.items()}
    new = {t: (0, len(pairs)) for t, pairs in nodes.items()}
    sampled = {t: [len(pairs)] for t, pairs in nodes.items()}
    taken = {t: [[] for _ in range(num_hops)] for t in graph["edges"]}
    incident = {t: listed(graph, t, near, far, time_attr) for t in graph["edges"]}
    weights = {t: integer_weights(e["rows"][weight]) for t, e in graph["edges"].items() if weight in e["rows"]}
    for h in range(num_hops):
        for edge_type in sorted(graph["edges"]):
            frontier, neighbor = edge_type[2 * near], edge_type[2 * far]
            hop = fold(fold(key, h), text("__".join(edge_type)))
            for i in range(*new[frontier]):
                root, v = nodes[frontier][i]
                edges, k = incident[edge_type].get(v, []), fan_outs[edge_type][h]
                if times is not None:
                    pairs = [(edge, time_of(graph, edge_type, edge, far, time_attr)) for edge in edges]
                    counts = [time is None or time < times[root] or (time == times[root] and not strict) for _, time in pairs]
                    if windows is not None:
                        counts = [c and (t is None or times[root] - t <= windows[root]) for c, (_, t) in zip(counts, pairs, strict=True)]
                    edges = [edge for edge, counted in zip(edges, counts, strict=True) if counted]
                if last and k >= 0 and (not edges or time_of(graph, edge_type, edges[0], far, time_attr) is not None):
                    picks = list(range(max(0, len(edges) - k), len(edges)))
                else:
                    q = [weights[edge_type][e] for e in edges] if edge_type in weights else None
                    picks = choose(fold(fold(hop, root), v), len(edges), k, replace, q)
                for pick in picks:
                    u = root, graph["edges"][edge_type]["ends"][edges[pick]][far]
                    if u not in number[neighbor]:
                        number[neighbor][u] = len(nodes[neighbor])
                        nodes[neighbor].append(u)
                    taken[edge_type][h].append((edges[pick], number[neighbor][u], i))
        new = {t: (new[t][1], len(pairs)) for t, pairs in nodes.items()}
        for t, (begin, end) in new.items():
            sampled[t].append(end - begin)
    return nodes, number, sampled, taken


def induced(graph, nodes, number, fan_outs, edge_dir):
    """Every edge of a followed type between two nodes of one root, node by node."""
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    followed = {t for t in graph["edges"] if any(fan_outs[t])} or set(graph["edges"])
    found = {t: [] for t in graph["edges"]}
    for edge_type in sorted(followed):
        incident = listed(graph, edge_type, near, far, None)
        for i, (root, v) in enumerate(nodes[edge_type[2 * near]]):
            for edge in incident.get(v, []):
                u = root, graph["edges"][edge_type]["ends"][edge][far]
                if u in number[edge_type[2 * far]]:
                    found[edge_type].append((edge, number[edge_type[2 * far]][u], i))
    return found


def coalesced(edges):
    """Edges (id, row, col) by col and then row, of several between two nodes the first."""
    first = {}
    for edge, row, col in edges:
        first.setdefault((col, row), edge)
    return [(edge, row, col) for (col, row), edge in sorted(first.items())]


def bidirectional(edges):
    """{shown type: edges (id, row, col)} with their reverses, and the types whose ids mean nothing because two types were merged."""
    found, merged = {}, set()
    for a, r, b in edges:
        prefixes = 0
        while r.startswith("rev_", 4 * prefixes):
            prefixes += 1
        other = b, r[4:] if prefixes % 2 else "rev_" + r, a
        if other not in edges and a == b:
            other = a, r, b
        elif other not in edges:
            (other,) = [t for t in edges if (t[0], t[2]) == (b, a)]
        found[a, r, b] = coalesced(edges[a, r, b] + turned(edges[other]))
        if other != (a, r, b):
            merged.add((a, r, b))
    return found, merged


def turned(edges):
    return [(edge, col, row) for edge, row, col in edges]


def sample(
    graph, key, input_type, seeds, positions, fan_outs, *, edge_dir="in", replace=False, weight=None, disjoint=False,
    subgraph_type="directional", time_attr=None, input_time=None, temporal_strategy="uniform",
    time_window=None, temporal_comparison="<=",
):  # fmt: skip
    """A batch: see ``reference_sampler.sample``; node types also have a "batch", and the batch a "seed_time"."""
    rooted, times = disjoint or time_attr is not None, None
    if time_attr is not None:
        times = input_time if input_time is not None else [graph["nodes"][input_type]["rows"][time_attr][v] for v in seeds]
    nodes, number, sampled, taken = walk(
        graph, key, {input_type: [(i if rooted else 0, v) for i, v in enumerate(seeds)]}, fan_outs, edge_dir=edge_dir, replace=replace,
        weight=weight, times=times, time_attr=time_attr, last=temporal_strategy == "last", strict=temporal_comparison == "<",
        windows=[time_window] * len(seeds) if isinstance(time_window, int) else time_window,
    )  # fmt: skip
    sampled_edges = {t: list(map(len, hops)) for t, hops in taken.items()}
    edges = {t: [edge for hop in hops for edge in hop] for t, hops in taken.items()}
    if subgraph_type == "induced":
        edges = induced(graph, nodes, number, fan_outs, edge_dir)
    stored = {shown(t, edge_dir): t for t in edges}
    edges = {shown(t, edge_dir): of_type for t, of_type in edges.items()}
    merged = set()
    if subgraph_type == "bidirectional":
        edges, merged = bidirectional(edges)
    result = {"nodes": {}, "edges": {}, "input_id": list(positions), "batch_size": len(seeds), "seed_time": times}
    for t, pairs in nodes.items():
        rows = {name: [values[v] for _, v in pairs] for name, values in graph["nodes"][t]["rows"].items()}
        result["nodes"][t] = {"n_id": [v for _, v in pairs], "batch": [root for root, _ in pairs] if rooted else None, **rows}
        result["nodes"][t]["num_sampled_nodes"] = sampled[t] if subgraph_type == "directional" else None
    for t, of_type in edges.items():
        ids, row, col = ([edge[c] for edge in of_type] for c in range(3))
        rows = {"e_id": ids} | {name: [values[e] for e in ids] for name, values in graph["edges"][stored[t]]["rows"].items()}
        result["edges"][t] = {"edge_index": [row, col], **({} if t in merged else rows)}
        result["edges"][t]["num_sampled_edges"] = sampled_edges[stored[t]] if subgraph_type == "directional" else None
    return result
