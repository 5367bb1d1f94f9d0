"""Personalised PageRank as ``docs/development/sampling.md`` specifies it: plain numbers, lists and dicts, and nothing of gnnkit.

A graph is what ``tests.reference_sampler`` takes. Edge types in the result are as the batch shows them.
"""

import math
import struct

from tests.reference_sampler import choose, fold, shown, text

DEFAULTS = {
    "alpha": 0.5,
    "eps": 1e-4,
    "max_ppr_nodes": 50,
    "enable_residual_topup": True,
    "num_neighbors_per_hop": 1000,
    "max_fetch_iterations": None,
    "typed_channel_ratios": None,
    "include_sampled_edges": False,
}


def single(number):
    """The nearest number in single precision."""
    return struct.unpack("f", struct.pack("f", number))[0]


def target_counts(ratios, k):
    """How many nodes each channel may list."""
    targets = [math.floor(ratio * k) for ratio in ratios]
    by_remainder = sorted(range(len(ratios)), key=lambda c: targets[c] - ratios[c] * k)
    for c in by_remainder[: k - sum(targets)]:
        targets[c] += 1
    return targets


def draw_neighbors(graph, key, types, k, near, far, excluded):
    """{edge type: {node: [(edge, neighbour), ...]}}: what every node draws, without the (source, target) that are excluded."""
    drawn = {}
    for edge_type in types:
        edges = graph["edges"][edge_type]["ends"]
        incident = {}
        for edge, ends in enumerate(edges):
            incident.setdefault(ends[near], []).append(edge)
        walk = fold(fold(fold(key, 0), text("__".join(edge_type))), 0)
        drawn[edge_type] = {}
        for v, own in incident.items():
            picks = [own[i] for i in choose(fold(walk, v), len(own), k, False, None)]
            drawn[edge_type][v] = [(edge, edges[edge][far]) for edge in picks if edges[edge] not in excluded.get(edge_type, ())]
    return drawn


def push(seed, leads_on, drawn, far, degree, options, taken):
    """One walk: {node: [p, r, hop]} in the order in which nodes are reached; nodes are (type, id). ``taken`` gets those that are pushed."""
    alpha, factor = options["alpha"], options["alpha"] * options["eps"]
    r, p, hop, queue, rounds = {seed: alpha}, {}, {seed: 0}, {seed: None}, 0  # the queue is a dict: it lists its keys in order
    while queue and rounds != options["max_fetch_iterations"]:
        rounds += 1
        for _ in range(len(queue)):
            u = next(iter(queue))
            del queue[u]
            taken.add(u)
            mass, r[u] = r[u], 0.0
            p[u] = p.get(u, 0.0) + mass
            neighbors = [(t[2 * far], v) for t in leads_on.get(u[0], []) for _, v in drawn[t].get(u[1], [])]
            if not neighbors:
                continue
            share = (1 - alpha) * mass / len(neighbors)
            for v in neighbors:
                r[v] = r.get(v, 0.0) + share
                hop[v] = min(hop.get(v, hop[u] + 1), hop[u] + 1)
                if v not in queue and r[v] >= factor * degree.get(v, 0):
                    queue[v] = None
    return {v: [p.get(v, 0.0), r[v], hop[v]] for v in r}


def found(state, node_type, k, topup):
    """What a walk finds of one node type: [(score, place in the walk, node, hop), ...], best first."""
    places = [(place, v, *state[v]) for place, v in enumerate(state) if v[0] == node_type]
    ranked = sorted((row for row in places if row[2] > 0), key=lambda row: (-row[2], row[0]))[:k]
    if topup:
        rest = sorted((row for row in places if row[2] == 0 and row[3] > 0), key=lambda row: (-row[3], row[0]))
        ranked += rest[: k - len(ranked)]
    scored = [(p + r if topup else p, place, v, hop) for place, v, p, r, hop in ranked]
    return sorted(scored, key=lambda row: (-row[0], row[1]))


def keep(by_channel, targets, k, with_channels):
    """What a seed keeps of one node type: [(node, edge attribute), ...], best first."""
    best = {}
    for c, rows in enumerate(by_channel):
        for score, place, v, _ in rows:
            if v not in best or score > best[v][0]:
                best[v] = (score, c, place)
    ranked = sorted(best, key=lambda v: (-best[v][0], best[v][1], best[v][2]))
    kept = set()
    for c, target in enumerate(targets):
        kept |= set([v for v in ranked if best[v][1] == c][:target])
    kept |= set([v for v in ranked if v not in kept][: k - len(kept)])
    rows = []
    for v in (v for v in ranked if v in kept):
        columns = []
        for found_rows in by_channel:
            columns.append(next(((score, 1 / (1 + hop), 1.0) for score, _, u, hop in found_rows if u == v), (0.0, 0.0, 0.0)))
        attribute = [best[v][0], max(proximity for _, proximity, _ in columns)]
        if with_channels:
            attribute += [number for column in columns for number in column]
        rows.append((v, [single(number) for number in attribute]))
    return rows


def reachable(node_type, leads_on, far):
    """The types that a walk from a type can come to."""
    types, fresh = {node_type}, [node_type]
    while fresh:
        for t in leads_on.get(fresh.pop(), []):
            if t[2 * far] not in types:
                types.add(t[2 * far])
                fresh.append(t[2 * far])
    return sorted(types)


def sample(graph, key, seeds, *, edge_dir="in", edge_types=None, excluded=None, **options):
    """A batch around seeds ``{node type: [ids]}``.

    The result is {"nodes": {type: ids}, "num_seeds": {type: count}, "edges": {type: (row, col, attributes or edge ids)}}.
    """
    options = {**DEFAULTS, **options}
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    types, k = sorted(graph["edges"] if edge_types is None else edge_types), options["max_ppr_nodes"]
    drawn = draw_neighbors(graph, key, types, options["num_neighbors_per_hop"], near, far, excluded or {})
    degree = {}
    for t in types:
        for ends in graph["edges"][t]["ends"]:
            v = (t[2 * near], ends[near])
            degree[v] = degree.get(v, 0) + 1
    ratios = options["typed_channel_ratios"]
    groups = [types] if ratios is None else [sorted([group] if isinstance(group[0], str) else group) for group in ratios]
    targets = [k] if ratios is None else target_counts(list(ratios.values()), k)
    leads_on = [{a: [t for t in group if t[2 * near] == a] for a in graph["nodes"]} for group in groups]
    everywhere = {a: [t for t in types if t[2 * near] == a] for a in graph["nodes"]}
    n_id, taken = {t: list(seeds.get(t, [])) for t in graph["nodes"]}, set()
    number = {(t, v): i for t, ids in n_id.items() for i, v in reversed(list(enumerate(ids)))}
    edges = {}
    for s in sorted(seeds):
        for t in reachable(s, everywhere, far):
            edges[(s, "ppr", t)] = ([], [], [])
        for i, seed in enumerate(seeds[s]):
            states = [push((s, seed), of_channel, drawn, far, degree, options, taken) for of_channel in leads_on]
            for t in graph["nodes"]:
                rows = [found(state, t, k, options["enable_residual_topup"]) for state in states]
                for v, attribute in keep(rows, targets, k, ratios is not None):
                    if v not in number:
                        number[v] = len(n_id[t])
                        n_id[t].append(v[1])
                    row, col, attributes = edges[(s, "ppr", t)]
                    row.append(i)
                    col.append(number[v])
                    attributes.append(attribute)
    if options["include_sampled_edges"]:
        for t in types:
            edges[shown(t, edge_dir)] = among(t, drawn[t], n_id, number, taken, near, far)
    return {"nodes": n_id, "num_seeds": {t: len(seeds.get(t, [])) for t in n_id}, "edges": edges}


def among(edge_type, drawn, n_id, number, taken, near, far):
    """The walked edges of one type among the batch's nodes: numbers of neighbours and nodes, and edges."""
    row, col, e_id = [], [], []
    for i, v in enumerate(n_id[edge_type[2 * near]]):
        met = set()
        if number[edge_type[2 * near], v] != i or (edge_type[2 * near], v) not in taken:
            continue
        for edge, u in drawn.get(v, []):
            m = number.get((edge_type[2 * far], u))
            if m is not None and m not in met:
                met.add(m)
                row.append(m)
                col.append(i)
                e_id.append(edge)
    return row, col, e_id
