"""The specification in ``docs/development/sampling.md`` as a program: plain integers, lists and dicts, and nothing of gnnkit.

A graph is ``{"nodes": {type: {"num_nodes": n, "rows": {name: list}}}, "edges": {(a, r, b): {"ends": [(source, target), ...],
"rows": {name: list}}}}``. It is slow on purpose: every line is one sentence of the page.
"""

import math

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def fold(key, value):
    return mix((key ^ (value * GOLDEN & MASK)) + GOLDEN & MASK)


def text(s):
    data = s.encode("utf-8")
    key = fold(0, len(data))
    for start in range(0, len(data), 8):
        key = fold(key, sum(byte << (8 * i) for i, byte in enumerate(data[start : start + 8])))
    return key


def draw(key, i):
    return mix(key + (i + 1) * GOLDEN & MASK)


def bounded(number, n):
    return (number * n) >> 64


def epoch_batches(num_seeds, batch_size, *, seed, name, epoch, shuffle, drop_last=False, weights=None, parts=None, num_parts=1):
    """The epoch's list of batches: [(batch key, positions of the seeds), ...]; ``parts`` are those of the seeds, if batches go by them."""
    stream = fold(fold(fold(0, 1), seed), text(name))
    order, p = fold(fold(stream, epoch), 0), list(range(num_seeds))
    for i in range(num_seeds - 1, 0, -1) if shuffle else []:
        j = bounded(draw(order, num_seeds - 1 - i), i + 1)
        p[i], p[j] = p[j], p[i]
    if weights is not None:
        q = integer_weights(weights)
        p = [edge_at(bounded(draw(order, i), sum(q)), q) for i in range(num_seeds)]
    if parts is not None:
        p = sum(part_batches(p, batch_size, parts, num_parts)[0], [])
    batches = [p[start : start + batch_size] for start in range(0, num_seeds, batch_size)]
    if drop_last and batches and len(batches[-1]) < batch_size:
        batches.pop()
    return [(fold(fold(fold(stream, epoch), 1), index), positions) for index, positions in enumerate(batches)]


def part_batches(p, batch_size, parts, num_parts):
    """Batches of one part each and then of what is left, from the shuffled positions; and the part of each, None for the last ones."""
    own = [[i for i in p if parts[i] == part] for part in range(num_parts)]
    full = [[q[start : start + batch_size] for start in range(0, len(q) - batch_size + 1, batch_size)] for q in own]
    turns = sorted(range(num_parts), key=lambda part: [part >> bit & 1 for bit in range(64)])
    batches, found = [], []
    for i in range(sum(map(len, full))):
        part = turns[i % num_parts]
        if not full[part]:
            part = max(range(num_parts), key=lambda other: (len(full[other]), -other))
        batches.append(full[part].pop(0))
        found.append(part)
    rest = [i for i in p if not any(i in batch for batch in batches)]
    last = [rest[start : start + batch_size] for start in range(0, len(rest), batch_size)]
    return batches + last, found + [None] * len(last)


def dealt(batch_parts, num_parts, world_size, remainder):
    """The batches of each rank: [[index, ...], ...], for batches of these parts, or of none."""
    ranks, ranges = [[] for _ in range(world_size)], min(num_parts, world_size)
    for first in range(0, len(batch_parts), world_size):
        step = [i % len(batch_parts) for i in range(first, first + world_size)]
        if first + world_size > len(batch_parts) and remainder != "pad":
            step = [] if remainder == "drop" else step[: len(batch_parts) - first]
        got, left = {}, list(range(len(step)))
        for rank in range(len(step)):
            for place in left:
                part = batch_parts[step[place]]
                if part is not None and part * ranges // num_parts == rank * ranges // world_size:
                    got[rank] = place
                    left.remove(place)
                    break
        for rank in range(len(step)):
            ranks[rank].append(step[got[rank] if rank in got else left.pop(0)])
    return ranks


def integer_weights(weights):
    e = math.frexp(max(weights, default=0))[1]
    return [0 if x == 0 else max(1, round(math.ldexp(x, 32 - e))) for x in weights]


def edge_at(u, q):
    position = 0
    while u >= q[position]:
        u, position = u - q[position], position + 1
    return position


def choose(key, d, k, replace, q):
    """Which of a node's d edges are taken, in order; q are their integer weights, or None."""
    positive = list(range(d)) if q is None else [i for i in range(d) if q[i] > 0]
    if k == 0 or not positive or k == -1 or (not replace and len(positive) <= k):
        return positive if k else []
    picks, s = [], 0
    if q is None and replace:
        return [bounded(draw(key, i), d) for i in range(k)]
    for i in range(k):
        if q is None:
            t = bounded(draw(key, i), d - k + i + 1)
            picks.append(t if t not in picks else d - k + i)
            continue
        for _ in range(32):
            t, s = edge_at(bounded(draw(key, s), sum(q)), q), s + 1
            if replace or t not in picks:
                break
        else:
            rest = [0 if i in picks else weight for i, weight in enumerate(q)]
            t, s = edge_at(bounded(draw(key, s), sum(rest)), rest), s + 1
        picks.append(t)
    return picks


def float32(value):
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(fraction, 24)), exponent - 24)


def hash32(key, x):
    z = x ^ (key % 2**32)
    z = ((z ^ (z >> 16)) * 0x7FEB352D + (key >> 32)) % 2**32
    z = (z ^ (z >> 15)) * 0x846CA68B % 2**32
    return z ^ (z >> 16)


def variate_of(key, u):
    half = u >> 32
    return hash32(fold(key, half) if half else key, u % 2**32)


def labor(seed, name, epoch, index, *, layer_dependency=False, batch_dependency=1):
    """Batch ``index``'s variate of node u of a type in hop h, as a function of these three."""
    stream = fold(fold(fold(0, 1), seed), text(name))

    def variate(h, node_type, u):
        period = (index + bounded(fold(text(node_type), u), batch_dependency)) // batch_dependency
        key = fold(fold(fold(fold(stream, epoch), 3), period), 0 if layer_dependency else h)
        return variate_of(fold(key, text(node_type)), u)

    return variate


def choose_smallest(variates, k, q):
    """Which edges are taken, in order, of those whose neighbours have these variates; q are their integer weights, or None."""
    positive = [i for i in range(len(variates)) if q is None or q[i] > 0]
    if k == -1 or len(positive) <= k:
        return positive
    ranks = variates if q is None else [float32(float32(variates[i]) / float32(q[i] or 1)) for i in range(len(q))]
    return sorted(sorted(positive, key=lambda i: (ranks[i], i))[:k])


def shown(edge_type, edge_dir):
    a, r, b = edge_type
    if edge_dir == "in" or a == b:
        return edge_type
    prefixes = 0
    while r.startswith("rev_", 4 * prefixes):
        prefixes += 1
    return b, r[4:] if prefixes % 2 else "rev_" + r, a


def sample(graph, key, input_type, seeds, positions, fan_outs, *, edge_dir="in", replace=False, weight=None, variate=None):
    """A batch: {"nodes": {type: {attribute: list}}, "edges": {shown type: {attribute: list}}, "input_id": list}."""
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    num_hops = max(map(len, fan_outs.values()), default=0)
    n_id = {t: list(seeds) if t == input_type else [] for t in graph["nodes"]}
    number = {t: {v: i for i, v in reversed(list(enumerate(ids)))} for t, ids in n_id.items()}
    new = {t: (0, len(ids)) for t, ids in n_id.items()}
    taken = {t: [[] for _ in range(num_hops)] for t in graph["edges"]}  # (edge, number of the neighbour, number of the node)
    sampled_nodes = {t: [len(ids)] for t, ids in n_id.items()}
    incident = {t: {} for t in graph["edges"]}
    for edge_type, edges in graph["edges"].items():
        for edge, ends in enumerate(edges["ends"]):
            incident[edge_type].setdefault(ends[near], []).append(edge)
    weights = {t: integer_weights(e["rows"][weight]) for t, e in graph["edges"].items() if weight in e["rows"]}
    for h in range(num_hops):
        for edge_type in sorted(graph["edges"]):
            frontier, neighbor = edge_type[2 * near], edge_type[2 * far]
            walk = fold(fold(fold(key, h), text("__".join(edge_type))), 0)
            for i in range(*new[frontier]):
                v = n_id[frontier][i]
                edges = incident[edge_type].get(v, [])
                q = [weights[edge_type][e] for e in edges] if edge_type in weights else None
                picks = choose(fold(walk, v), len(edges), fan_outs[edge_type][h], replace, q)
                if variate is not None:
                    others = [graph["edges"][edge_type]["ends"][edge][far] for edge in edges]
                    picks = choose_smallest([variate(h, neighbor, u) for u in others], fan_outs[edge_type][h], q)
                for pick in picks:
                    u = graph["edges"][edge_type]["ends"][edges[pick]][far]
                    if u not in number[neighbor]:
                        number[neighbor][u] = len(n_id[neighbor])
                        n_id[neighbor].append(u)
                    taken[edge_type][h].append((edges[pick], number[neighbor][u], i))
        new = {t: (new[t][1], len(ids)) for t, ids in n_id.items()}
        for t, (begin, end) in new.items():
            sampled_nodes[t].append(end - begin)
    nodes = {t: {"n_id": ids, "num_sampled_nodes": sampled_nodes[t]} for t, ids in n_id.items()}
    for t, rows in ((t, store["rows"]) for t, store in graph["nodes"].items()):
        nodes[t].update({name: [values[v] for v in n_id[t]] for name, values in rows.items()})
    result = {}
    for t, hops in taken.items():
        e_id, row, col = ([edge[c] for hop in hops for edge in hop] for c in range(3))
        out = result[shown(t, edge_dir)] = {"edge_index": [row, col], "e_id": e_id, "num_sampled_edges": list(map(len, hops))}
        out.update({name: [values[e] for e in e_id] for name, values in graph["edges"][t]["rows"].items()})
    return {"nodes": nodes, "edges": result, "input_id": list(positions), "batch_size": len(seeds)}
