"""HGT batches as ``docs/development/sampling.md`` specifies them: plain integers, lists and dicts, and nothing of gnnkit."""

from tests.reference_sampler import bounded, choose, draw, fold, shown, text

MAX_NEIGHBORS = 50


def draw_nodes(key, count, budget):
    """Which of the candidates of ``{node: budget}`` are drawn, in order."""
    nodes = list(budget)
    if len(nodes) <= count:
        return nodes
    shift = max(0, max(budget.values()).bit_length() - (62 - len(nodes).bit_length()) // 2)
    weights = [max(1, budget[v] >> shift) ** 2 for v in nodes]
    drawn = []
    for i in range(count):
        target, place = bounded(draw(key, i), sum(weights)), 0
        while target >= weights[place]:
            target, place = target - weights[place], place + 1
        drawn.append(nodes[place])
        weights[place] = 0
    return drawn


def incident_edges(graph, near, counts=lambda edge_type, edge: True):
    """``{edge type: {node: its edges}}``, those that count."""
    found = {t: {} for t in graph["edges"]}
    for edge_type, edges in graph["edges"].items():
        for edge, ends in enumerate(edges["ends"]):
            if counts(edge_type, edge):
                found[edge_type].setdefault(ends[near], []).append(edge)
    return found


def batch_of(graph, n_id, sampled_nodes, edges, edge_dir, seeds, positions):
    """A batch, in the form of ``tests.reference_sampler.sample``.

    ``edges`` holds for each stored type a list of (edge, row, col), and possibly the names and values that it has beside.
    """
    nodes = {t: {"n_id": ids, "num_sampled_nodes": sampled_nodes[t]} for t, ids in n_id.items()}
    for t, store in graph["nodes"].items():
        nodes[t].update({name: [values[v] for v in n_id[t]] for name, values in store["rows"].items()})
    result = {}
    for t, (kept, beside) in edges.items():
        e_id, row, col = ([edge[c] for edge in kept] for c in range(3))
        out = result[shown(t, edge_dir)] = {"edge_index": [row, col], "e_id": e_id}
        out.update({name: [values[e] for e in e_id] for name, values in graph["edges"][t]["rows"].items()})
        out.update(beside)
    return {"nodes": nodes, "edges": result, "input_id": list(positions), "batch_size": len(seeds)}


def draw_edges(graph, edge_type, key, hop, far, edges_of, nodes, new):
    """What the nodes with the numbers of the range ``new`` draw: (edge, its neighbour, number of the node, edges that the node drew)."""
    walk = fold(fold(fold(key, hop), text("__".join(edge_type))), 0)
    for i in range(*new):
        edges = edges_of.get(nodes[i], [])
        picks = choose(fold(walk, nodes[i]), len(edges), MAX_NEIGHBORS, False, None)
        for pick in picks:
            yield edges[pick], graph["edges"][edge_type]["ends"][edges[pick]][far], i, len(picks)


def sample(graph, key, input_type, seeds, positions, num_samples, *, edge_dir="in"):
    """A batch, in the form of ``tests.reference_sampler.sample``."""
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    iterations = max(map(len, num_samples.values()))
    n_id = {t: list(seeds) if t == input_type else [] for t in graph["nodes"]}
    sampled_nodes = {t: [len(ids)] for t, ids in n_id.items()}
    incident, budgets = incident_edges(graph, near), {t: {} for t in graph["nodes"]}
    drawn = {t: [] for t in graph["edges"]}
    new = {t: (0, len(ids)) for t, ids in n_id.items()}
    for iteration in range(iterations + 1):
        for t in sorted(graph["edges"]):
            frontier, budget = t[2 * near], budgets[t[2 * far]]
            found = list(draw_edges(graph, t, key, iteration, far, incident[t], n_id[frontier], new[frontier]))
            drawn[t] += found
            for _, u, _, k in found:
                if u not in n_id[t[2 * far]]:
                    budget[u] = budget.get(u, 0) + 2**32 // k
        for t, ids in n_id.items() if iteration < iterations else ():
            count = num_samples.get(t, [0] * iterations)[iteration]
            chosen = draw_nodes(fold(fold(fold(key, 2**32 + 1), iteration), text(t)), count, budgets[t])
            new[t] = (len(ids), len(ids) + len(chosen))
            ids += chosen
            sampled_nodes[t].append(len(chosen))
            for v in chosen:
                del budgets[t][v]
    edges = {}
    for t, found in drawn.items():
        ids = n_id[t[2 * far]]
        edges[t] = [(e, ids.index(u), i) for e, u, i, _ in found if u in ids], {"num_sampled_edges": []}
    return batch_of(graph, n_id, sampled_nodes, edges, edge_dir, seeds, positions)
