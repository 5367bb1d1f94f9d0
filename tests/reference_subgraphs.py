"""The sections on clusters and GraphSAINT of ``docs/development/sampling.md`` as a program; see ``reference_sampler`` for the graph."""

from tests.reference_sampler import bounded, draw, edge_at, epoch_batches, fold, shown, text


def incident(graph, edge_dir):
    """{node: [(edge, neighbour), ...]} of the only edge type, as edges are listed."""
    ((_, edges),) = graph["edges"].items()
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    found = {}
    for edge, ends in enumerate(edges["ends"]):
        found.setdefault(ends[near], []).append((edge, ends[far]))
    return found


def induced(graph, nodes, num_seeds, input_id, edge_dir):
    """The batch of these nodes, in the form of ``reference_sampler.sample``."""
    ((edge_type, edges),), ((node_type, rows),) = graph["edges"].items(), graph["nodes"].items()
    number, listed, taken = {}, incident(graph, edge_dir), []
    for i, v in enumerate(nodes):
        number.setdefault(v, i)
    for i, v in enumerate(nodes):
        taken += [(edge, number[u], i) for edge, u in listed.get(v, []) if u in number]
    e_id, row, col = ([edge[c] for edge in taken] for c in range(3))
    own = {"n_id": nodes, "num_sampled_nodes": [], **{name: [values[v] for v in nodes] for name, values in rows["rows"].items()}}
    out = {"edge_index": [row, col], "e_id": e_id, "num_sampled_edges": []}
    out.update({name: [values[e] for e in e_id] for name, values in edges["rows"].items()})
    return {"nodes": {node_type: own}, "edges": {shown(edge_type, edge_dir): out}, "input_id": input_id, "batch_size": num_seeds}


def clusters_epoch(graph, ids, clusters, num_clusters, clusters_per_batch, *, seed, name, epoch, shuffle, edge_dir):
    """An epoch's batches; ``clusters`` are those of all nodes."""
    batches = []
    for _, drawn in epoch_batches(num_clusters, clusters_per_batch, seed=seed, name=name, epoch=epoch, shuffle=shuffle):
        places = [i for c in drawn for i, v in enumerate(ids) if clusters[v] == c]
        seeds = [ids[i] for i in places]
        others = [v for c in drawn for v in range(len(clusters)) if clusters[v] == c and v not in ids]
        batches.append(induced(graph, seeds + others, len(seeds), places, edge_dir))
    return batches


def saint_epoch(graph, ids, roots, walk_length, num_steps, batch_size, *, seed, name, epoch, edge_dir):
    """An epoch's batches."""
    ((_, rows),), listed = graph["nodes"].items(), incident(graph, edge_dir)
    num_nodes, length = rows["num_nodes"], {"nodes": 0, "edges": 1, "walks": walk_length}[roots]
    q = [len(listed.get(v, [])) if roots == "nodes" else 1 for v in range(num_nodes)]
    stream, batches = fold(fold(fold(0, 1), seed), text(name)), []
    order = fold(fold(stream, epoch), 0)
    p = [edge_at(bounded(draw(order, i), sum(q)), q) for i in range(num_steps * batch_size)]
    for index in range(num_steps):
        key, met = fold(fold(fold(stream, epoch), 1), index), set()
        for i, v in enumerate(p[index * batch_size : (index + 1) * batch_size]):
            if roots != "edges" or v in listed:
                met.add(v)
            for h in range(length):
                walk = fold(fold(fold(key, h), text("node__to__node")), i)
                if v in listed:
                    v = listed[v][bounded(draw(fold(walk, v), 0), len(listed[v]))][1]
                    met.add(v)
        seeds = [v for v in sorted(met) if v in ids]
        nodes = seeds + [v for v in sorted(met) if v not in ids]
        batches.append(induced(graph, nodes, len(seeds), [ids.index(v) for v in seeds], edge_dir))
    return batches


def saint_norms(batches, num_nodes, num_edges):
    """Functions of a node, and of an edge and its target, from the batches that are counted."""
    nodes, edges = [0] * num_nodes, [0] * num_edges
    for batch in batches:
        ((_, own),), ((_, out),) = batch["nodes"].items(), batch["edges"].items()
        for v in own["n_id"]:
            nodes[v] += 1
        for e in out["e_id"]:
            edges[e] += 1

    def node_norm(v):
        return len(batches) / (nodes[v] or 0.1) / num_nodes

    def edge_norm(e, v):
        if not edges[e]:
            return 10.0**4 if nodes[v] else 0.1
        return min(nodes[v] / edges[e], 10.0**4)

    return node_norm, edge_norm
