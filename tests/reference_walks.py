"""Random walks as ``docs/development/sampling.md`` specifies them: plain numbers, lists and dicts, and nothing of gnnkit."""

import math

from tests.reference_sampler import bounded, draw, edge_at, fold, integer_weights, text


def biases(p, q):
    """B of the node before, of its neighbours, and of the others."""
    chances = [1 / p, 1.0, 1 / q]
    e = math.frexp(max(chances))[1]
    return [max(1, round(math.ldexp(b, 30 - e))) for b in chances]


def pick(node, bias, weights, b, most, are_weighted):
    """Which of a node's edges is taken, of these weights and biases."""
    for i in range(64):
        edge = edge_at(bounded(draw(node, i), sum(weights)), weights)
        if bounded(draw(bias, i), most) < b[edge]:
            return edge
    total = [max(1, own * weight >> 30) if are_weighted else own for own, weight in zip(b, weights, strict=True)]
    return edge_at(bounded(draw(bias, 64), sum(total)), total)


def step(edges, near, far, weights, key, h, t, j, v, before, chances):
    """The node that walk j goes to from v, or None."""
    own = [e for e, ends in enumerate(edges) if ends[near] == v and weights[e] > 0]
    if not own:
        return None
    others, reached = [edges[e][far] for e in own], [ends[far] for ends in edges if ends[near] == before]
    back, close, away = chances if h else (1, 1, 1)
    b = [back if u == before else close if u in reached else away for u in others]
    node = fold(fold(fold(fold(key, h), text("__".join(t))), j), v)
    bias = fold(fold(fold(key, 2**32 + 16), h), j)
    return others[pick(node, bias, [weights[e] for e in own], b, max(back, close, away), max(weights) > 1)]


def numbered(paths, n_id, types, seeds):
    """Paths as numbers of nodes, which get them here."""
    rows = [[j % len(seeds)] for j in range(len(paths))]
    for h, t in enumerate(types):
        for row, path in zip(rows, paths, strict=True):
            u = path[h + 1]
            if u is not None and u not in n_id[t]:
                n_id[t].append(u)
            row.append(-1 if u is None else n_id[t].index(u))
    return rows


def sample(
    graph, key, input_type, seeds, positions, *, length, metapath, per_node=1, p=1.0, q=1.0, num_negatives=0, edge_dir="in", weight=None
):
    """A batch, in the form of ``tests.reference_sampler.sample``, without edges; ``walks`` and ``neg_walks`` are its own."""
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    n_id = {t: list(seeds) if t == input_type else [] for t in graph["nodes"]}
    types = [metapath[h % len(metapath)] for h in range(length)]
    weights = {t: [1] * len(graph["edges"][t]["ends"]) for t in metapath}
    weights |= {t: integer_weights(graph["edges"][t]["rows"][weight]) for t in metapath if weight in graph["edges"][t]["rows"]}
    paths = [[seeds[j % len(seeds)]] for j in range(len(seeds) * per_node)]
    for h, t in enumerate(types):
        for j, path in enumerate(paths):
            v, before = path[-1], path[-2] if h else None
            edges = graph["edges"][t]["ends"]
            path.append(None if v is None else step(edges, near, far, weights[t], key, h, t, j, v, before, biases(p, q)))
    leads_to = [t[2 * far] for t in types]
    sizes = [graph["nodes"][t]["num_nodes"] for t in leads_to]
    draws = [fold(fold(key, 2**32), k) for k in range(len(paths) * num_negatives)]
    negatives = [[seeds[k % len(seeds)], *(bounded(draw(own, h), size) for h, size in enumerate(sizes))] for k, own in enumerate(draws)]
    found = {"walks": numbered(paths, n_id, leads_to, seeds), "neg_walks": numbered(negatives, n_id, leads_to, seeds)}
    nodes = {t: {"n_id": ids, **{name: [v[u] for u in ids] for name, v in graph["nodes"][t]["rows"].items()}} for t, ids in n_id.items()}
    return {"nodes": nodes, "input_id": list(positions), "batch_size": len(seeds), **found}
