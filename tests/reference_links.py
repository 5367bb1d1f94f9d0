"""What ``docs/development/sampling.md`` says of batches of links, as a program: plain integers, lists and dicts.

A graph is what ``reference_sampler`` takes. Like there, every line is one sentence of the page, and nothing of gnnkit is used.
"""

import math

from tests.reference_rooted import walk
from tests.reference_sampler import bounded, draw, edge_at, fold, integer_weights, shown

TRIES = 32


def listing(num_nodes, node_times, until):
    """The nodes that may be drawn, in the order in which draws count them."""
    if node_times is None:
        return list(range(num_nodes))
    return [v for v in sorted(range(num_nodes), key=lambda v: node_times[v]) if node_times[v] <= until]  # a stable sort


def pick(number, nodes, weights):
    """The node that a draw means."""
    if weights is None:
        return nodes[bounded(number, len(nodes))]
    return nodes[edge_at(bounded(number, sum(weights[v] for v in nodes)), [weights[v] for v in nodes])]


def negatives(
    graph, batch, edge_type, sources, *, mode, amount, strict, src_weight=None, dst_weight=None, times=None, time_attr=None
):  # fmt: skip
    """The drawn negatives of a batch: [(source, target), ...]."""
    ends = [graph["nodes"][edge_type[end]] for end in (0, 2)]
    edges = set(graph["edges"][edge_type]["ends"])
    of_src, of_dst = (None if w is None else integer_weights(w) for w in (src_weight, dst_weight))
    found = []
    for j in range(math.ceil(len(sources) * amount)):
        key, until = fold(fold(batch, 1 << 32), j), None if times is None else times[j % len(sources)]
        from_src, from_dst = (listing(end["num_nodes"], end["rows"].get(time_attr) if time_attr else None, until) for end in ends)
        for attempt in range(TRIES):
            if mode == "binary":
                source, target = pick(draw(key, 2 * attempt), from_src, of_src), pick(draw(key, 2 * attempt + 1), from_dst, of_dst)
            else:
                source, target = sources[j % len(sources)], pick(draw(key, attempt), from_dst, of_dst)
            if not strict or (source, target) not in edges:
                break
        else:
            free = [v for v in from_dst if (source, v) not in edges and (of_dst is None or of_dst[v])]
            target = pick(draw(key, 2 * TRIES if mode == "binary" else TRIES), free, of_dst)
        found.append((source, target))
    return found


def labels_of(labels, mode):
    """All labels of a loader: where 0 is to mean a negative, those that start from 0 are one higher."""
    return [label + 1 for label in labels] if mode == "binary" and labels and min(labels) == 0 else labels


def reverse_of(edge_type, edge_types):
    """The type that holds an edge type's reverses."""
    a, r, b = edge_type
    prefixes = 0
    while r.startswith("rev_", 4 * prefixes):
        prefixes += 1
    toggled = b, r[4:] if prefixes % 2 else "rev_" + r, a
    if toggled in edge_types or a == b:
        return toggled if toggled in edge_types else edge_type
    (only,) = [t for t in edge_types if (t[0], t[2]) == (b, a)]
    return only


def sample(
    graph, key, edge_type, links, positions, fan_outs, *, labels=None, times=None, mode=None, amount=1, strict=False, src_weight=None,
    dst_weight=None, own_src=None, own_dst=None, is_negative=None, exclude=None, edge_dir="in", replace=False, weight=None,
    disjoint=False, time_attr=None,
):  # fmt: skip
    """A batch: see ``reference_sampler.sample``; what it says of links is in "links": {(where, name): values}."""
    (a, _, b), p = edge_type, len(links)
    src, dst = [s for s, _ in links], [d for _, d in links]
    if mode == "official":
        for ends, own in ((src, own_src), (dst, own_dst)):
            for k in range(len(own[0]) if own else 0):
                ends.extend(row[k] for row in own)
    elif mode is not None:
        drawn = negatives(
            graph, key, edge_type, list(src), mode=mode, amount=amount, strict=strict, src_weight=src_weight, dst_weight=dst_weight,
            times=times, time_attr=time_attr,
        )  # fmt: skip
        src += [s for s, _ in drawn] if mode == "binary" else []
        dst += [d for _, d in drawn]
    rooted = disjoint or time_attr is not None
    listed = [src + dst] if a == b else [src, dst]
    if rooted:
        chosen = listed
        place_src, place_dst = list(range(len(src))), [i + (len(src) if a == b else 0) for i in range(len(dst))]
        start = [0, len(src)]
        seeds = {t: [(first + i, v) for i, v in enumerate(ids)] for t, ids, first in zip([a, b], chosen, start, strict=False)}
    else:
        chosen = [sorted(set(ids)) for ids in listed]
        place_src, place_dst = [chosen[0].index(s) for s in src], [chosen[-1].index(d) for d in dst]
        seeds = {t: [(0, v) for v in ids] for t, ids in zip([a, b], chosen, strict=False)}
    root_times = None if time_attr is None else [times[i % p] for i in range(len(src))] + [times[i % p] for i in range(len(dst))]
    nodes, _, sampled, taken = walk(
        graph, key, seeds, fan_outs, edge_dir=edge_dir, replace=replace, weight=weight, times=root_times, time_attr=time_attr, last=False
    )
    result = {"nodes": {}, "edges": {}, "input_id": list(positions), "links": {}}
    link_of_root = [i % p for i in range(len(src))] + [i % p for i in range(len(dst))]
    for t, pairs in nodes.items():
        rows = {name: [values[v] for _, v in pairs] for name, values in graph["nodes"][t]["rows"].items()}
        result["nodes"][t] = {"n_id": [v for _, v in pairs], "num_sampled_nodes": sampled[t], **rows}
        result["nodes"][t]["batch"] = [link_of_root[root] for root, _ in pairs] if rooted else None
    positive = {link for i, link in enumerate(links) if is_negative is None or not is_negative[i]}
    left_out = {t: set() for t in graph["edges"]}
    if exclude is not None:
        left_out[edge_type] |= positive
    if exclude == "reverse":
        left_out[reverse_of(edge_type, list(graph["edges"]))] |= {(d, s) for s, d in positive}
    for t, hops in taken.items():
        hops = [[edge for edge in hop if tuple(graph["edges"][t]["ends"][edge[0]]) not in left_out[t]] for hop in hops]
        e_id, row, col = ([edge[c] for hop in hops for edge in hop] for c in range(3))
        rows = {name: [values[e] for e in e_id] for name, values in graph["edges"][t]["rows"].items()}
        result["edges"][shown(t, edge_dir)] = {
            "edge_index": [row, col], "e_id": e_id, "num_sampled_edges": list(map(len, hops)), **rows,
        }  # fmt: skip
    result["links"] = show(p, place_src, place_dst, labels, times, mode, by_link=mode == "triplet" or bool(own_src or own_dst))
    return result


def show(p, src, dst, labels, times, mode, by_link):
    """What a batch says of its links."""
    found = {}
    if by_link:
        found["src", "src_index"], found["dst", "dst_pos_index"] = src[:p], dst[:p]
        for where, name, places in (("src", "src_neg_index", src), ("dst", "dst_neg_index", dst)):
            k = len(places) // p - 1
            rows = [[places[p + j * p + i] for j in range(k)] for i in range(p)]
            if k:
                found[where, name] = [row[0] for row in rows] if k == 1 else rows
    else:
        found["edge", "edge_label_index"] = [src, dst]
    if mode == "binary":
        labels = ([1.0] * p if labels is None else labels) + [0] * (len(src) - p)
    if labels is not None:
        found["edge", "edge_label"] = labels
    if times is not None and by_link:
        found["src", "seed_time"] = found["dst", "seed_time"] = times
    elif times is not None:
        found["edge", "edge_label_time"] = [times[i % p] for i in range(len(src))]
    return found
