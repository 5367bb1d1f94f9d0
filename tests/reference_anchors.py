"""What ``docs/development/sampling.md`` says of batches of anchors, as a program: plain integers, lists and dicts.

A graph is what ``reference_sampler`` takes. Like there, every line is one sentence of the page, and nothing of gnnkit is used.
"""

from tests.reference_rooted import walk
from tests.reference_sampler import shown


def turned(edge_type):
    """The type that holds the same edges the other way round."""
    a, r, b = edge_type
    prefixes = 0
    while r.startswith("rev_", 4 * prefixes):
        prefixes += 1
    return b, r[4:] if prefixes % 2 else "rev_" + r, a


def is_label(edge_type):
    return edge_type[1].endswith("_gigl_positive") or edge_type[1].endswith("_gigl_negative")


def labels_of(graph, edge_type, anchor, cap, edge_dir):
    """An anchor's labels along a type that leads from anchors to labels."""
    if edge_dir == "in":
        ends = [(anchor_, label) for label, anchor_ in graph["edges"][turned(edge_type)]["ends"]]
    else:
        ends = graph["edges"][edge_type]["ends"]
    return [label for anchor_, label in ends if anchor_ == anchor][:cap]


def sample(
    graph, key, anchor_type, anchors, positions, fan_outs, *, labels, cap=None, edge_dir="in", replace=False, weight=None, disjoint=False
):
    """A batch: see ``reference_sampler.sample``; ``labels`` is [(positive type, negative type or None), ...].

    "y_positive" and "y_negative" are lists with {number of the anchor: numbers of its labels} for each of ``labels``, or None.
    """
    seeds = {anchor_type: list(anchors)}
    found = {"y_positive": [], "y_negative": []}
    held = set()
    for positive, negative in labels:
        for name, edge_type in (("y_positive", positive), ("y_negative", negative)):
            if edge_type is None:
                found[name].append(None)
                continue
            held.add(turned(edge_type) if edge_dir == "in" else edge_type)
            of_type = seeds.setdefault(edge_type[2], [])
            numbers = {}
            for i, anchor in enumerate(anchors):
                numbers[i] = []
                for label in labels_of(graph, edge_type, anchor, cap, edge_dir):
                    if label not in of_type:
                        of_type.append(label)
                    numbers[i].append(of_type.index(label))
            found[name].append(numbers)
    roots, count = {}, 0
    for t in sorted(seeds):
        roots[t] = [count + i if disjoint else 0 for i in range(len(seeds[t]))]
        count += len(seeds[t])
    pairs = {t: list(zip(roots[t], ids, strict=True)) for t, ids in seeds.items()}
    none = [0] * max(map(len, fan_outs.values()), default=0)
    fan_outs = {t: none if t in held or is_label(t) else fan_out for t, fan_out in fan_outs.items()}
    nodes, _, sampled, taken = walk(
        graph, key, pairs, fan_outs, edge_dir=edge_dir, replace=replace, weight=weight, times=None, time_attr=None, last=False
    )
    result = {"nodes": {}, "edges": {}, "input_id": list(positions), "batch_size": len(anchors), **found}
    for t, of_type in nodes.items():
        rows = {name: [values[v] for _, v in of_type] for name, values in graph["nodes"][t]["rows"].items()}
        result["nodes"][t] = {"n_id": [v for _, v in of_type], "num_sampled_nodes": sampled[t], **rows}
        if disjoint:
            result["nodes"][t]["batch"] = [root for root, _ in of_type]
    for t, hops in taken.items():
        e_id, row, col = ([edge[c] for hop in hops for edge in hop] for c in range(3))
        rows = {name: [values[e] for e in e_id] for name, values in graph["edges"][t]["rows"].items()}
        counts = list(map(len, hops))
        result["edges"][shown(t, edge_dir)] = {"edge_index": [row, col], "e_id": e_id, "num_sampled_edges": counts, **rows}
    return result
