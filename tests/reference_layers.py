"""Layer-wise batches as ``docs/development/sampling.md`` specifies them: plain numbers, lists and dicts, and nothing of gnnkit."""

from tests.reference_hgt import batch_of, incident_edges
from tests.reference_sampler import bounded, draw, fold, integer_weights, text


def probabilities(weights, count):
    """Which of more than ``count`` weights are certain, how many are drawn of the others, and these with their sum."""
    rest = list(range(len(weights)))
    while True:
        total = sum(weights[i] for i in rest)
        left = [i for i in rest if weights[i] * count < total]
        if left == rest:
            return rest, count, total
        rest, count = left, count - (len(rest) - len(left))


def choose_nodes(key, count, scores):
    """``{node: its probability}`` of the candidates of ``{node: score}`` that are chosen."""
    nodes = list(scores)
    if len(nodes) <= count:
        return dict.fromkeys(nodes, 1.0)
    bits = min(40, 62 - count.bit_length() - len(nodes).bit_length())
    most = max(scores.values())
    weights = [max(1, int(scores[v] / most * 2.0**bits)) for v in nodes]
    order, count, total = probabilities(weights, count)
    chosen = {nodes[i]: 1.0 for i in range(len(nodes)) if i not in order}
    for i in range(len(order) - 1, 0, -1):
        j = bounded(draw(key, len(order) - 1 - i), i + 1)
        order[i], order[j] = order[j], order[i]
    threshold, running = bounded(draw(key, len(order) - 1), total), 0
    for i in order:
        running += weights[i]
        if running * count > threshold:
            chosen[nodes[i]] = float(weights[i] * count) / float(total)
            threshold += total
    return chosen


def all_edges(graph, num_nodes, h, near, far, incident, weights, n_id, new):
    """Every edge of a hop's frontier: (edge type, edge, its neighbour, number of the node, entry)."""
    for t in sorted(graph["edges"]):
        frontier, neighbor = t[2 * near], t[2 * far]
        for i in range(*new[frontier]) if neighbor in num_nodes and num_nodes[neighbor][h] else []:
            edges = incident[t].get(n_id[frontier][i], [])
            q = [weights[t][e] if t in weights else 1 for e in edges]
            for e, share in zip(edges, q, strict=True):
                yield t, e, graph["edges"][t]["ends"][e][far], i, share / sum(q)


def sample(graph, key, input_type, seeds, positions, num_nodes, *, edge_dir="in", weight=None):
    """A batch, in the form of ``tests.reference_sampler.sample``; edge types have ``edge_weight`` beside (as Python floats)."""
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    num_hops = max(map(len, num_nodes.values()))
    n_id = {t: list(seeds) if t == input_type else [] for t in graph["nodes"]}
    new = {t: (0, len(ids)) for t, ids in n_id.items()}
    taken = {t: [] for t in graph["edges"]}
    beside = {t: {"num_sampled_edges": [], "edge_weight": []} for t in graph["edges"]}
    sampled_nodes = {t: [len(ids)] for t, ids in n_id.items()}
    weights = {t: integer_weights(e["rows"][weight]) for t, e in graph["edges"].items() if weight in e["rows"]}
    incident = incident_edges(graph, near, lambda t, e: t not in weights or weights[t][e] > 0)
    for h in range(num_hops):
        found = list(all_edges(graph, num_nodes, h, near, far, incident, weights, n_id, new))
        scores = {t: {} for t in n_id}
        for t, _, u, _, entry in found:
            scores[t[2 * far]][u] = scores[t[2 * far]].get(u, 0.0) + entry * entry
        chosen = {}
        for t, of_type in scores.items():
            draws = fold(fold(fold(key, 2**32 + 2), h), text(t))
            chosen[t] = choose_nodes(draws, num_nodes[t][h], of_type) if of_type else {}
        before = {t: len(edges) for t, edges in taken.items()}
        for t, e, u, i, entry in found:
            ids, p = n_id[t[2 * far]], chosen[t[2 * far]].get(u)
            if p is not None:
                if u not in ids:
                    ids.append(u)
                taken[t].append((e, ids.index(u), i))
                beside[t]["edge_weight"].append(entry / p)
        for t, edges in taken.items():
            beside[t]["num_sampled_edges"].append(len(edges) - before[t])
        new = {t: (new[t][1], len(ids)) for t, ids in n_id.items()}
        for t, (begin, end) in new.items():
            sampled_nodes[t].append(end - begin)
    return batch_of(graph, n_id, sampled_nodes, {t: (taken[t], beside[t]) for t in taken}, edge_dir, seeds, positions)
