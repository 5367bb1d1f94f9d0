"""Run by the interpreter that has graphlearn-torch's native library: ``python -m tests.backends.glt.scenario NAME FOLDER``.

Ends with a line of JSON. Without arguments it takes them from standard input, a line per scenario, and answers each with a line of JSON:
importing takes seconds there.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from gnnkit import Glt, GraphLoader
from gnnkit.errors import BatchTimeout, GnnkitError, SamplingError, WorkerDied
from tests.backends.glt.graphs import DEGREE, NUM_NODES, check_batch, library, ring, town

HANG_S = 60.0


def loader_of(source: Any, folder: str, **options: Any) -> GraphLoader:
    """A loader on a store of the source."""
    return GraphLoader.from_source(
        source, store_dir=folder, with_edge=True, progress=False, **{"batch_size": 8, "shuffle": True, "start_timeout_s": 200.0, **options}
    )


def below(pid: int | None = None) -> dict[int, str]:
    """Command lines of everything that a process has started, multiprocessing's tracker of resources aside."""
    found = {}
    for child in psutil.Process(pid).children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in line:
            found[child.pid] = line
    return found


def sampling_workers() -> list[int]:
    """graphlearn-torch's own workers."""
    return [pid for pid, line in below().items() if "--multiprocessing-fork" in line]


def seeds_of(loader: GraphLoader, node_type: str | None = None) -> list[int]:
    """Positions of an epoch's seeds, with the batches checked for them."""
    found: list[int] = []
    for batch in loader:
        store = batch if node_type is None else batch[node_type]
        found += store.input_id.tolist()
        assert store.n_id[: store.batch_size].tolist() == loader_inputs(loader)[store.input_id.numpy()].tolist()
    return found


def loader_inputs(loader: GraphLoader) -> Any:
    """The ids of a loader's input nodes."""
    ids = loader.pipeline.batches.inputs.written_out().ids
    return np.arange(loader.pipeline.batches.inputs.num_inputs) if ids is None else ids


def worker(folder: str) -> dict[str, Any]:
    """Worker mode on two parts of a typed graph."""
    before = (torch.get_num_threads(), os.sched_getaffinity(0), dict(os.environ), threading.active_count())
    source = library()
    fans = {t: [3, 2] for t in source.edges} | {("paper", "cites", "paper"): [4, -1]}
    backend = Glt(num_workers=1, log_dir=folder)
    options = {"num_parts": 2, "partition": "random", "input_nodes": ("paper", "train"), "backend": backend}
    with loader_of(source, folder, num_neighbors=fans, **options) as loader:
        started = len(sampling_workers())
        for _ in range(2):
            seen = []
            for batch in loader:
                check_batch(batch, source, fans, "in")
                seen += batch["paper"].input_id.tolist()
            assert sorted(seen) == list(range(25))
        next(iter(loader))  # and the rest is left
        assert sorted(seeds_of(loader, "paper")) == list(range(25))
        check_batch(loader.sample([4, 49, 4, 5, 49]), source, fans, "in")  # repeated ones; 49 has no neighbours
        repeated = loader.sample([4, 49, 4])["paper"]
        assert repeated.n_id[:3].tolist() == [4, 49, 4] and torch.equal(repeated.x[0], repeated.x[2])
        assert loader.peek()["paper"].batch_size == 8
        assert "graphlearn_torch" not in sys.modules
        assert loader.plan.to_json()["backend"]["drawn_by"] == "graphlearn-torch"
        said = [repr(loader), loader.status().details["drawn by"]]
        closing = time.monotonic()
    return {
        "workers": started,
        "said": said,
        "close_s": time.monotonic() - closing,
        "left": below(),
        "changed": before != (torch.get_num_threads(), os.sched_getaffinity(0), dict(os.environ), threading.active_count()),
    }


def server_client(folder: str) -> dict[str, Any]:
    """Servers for two parts of a homogeneous graph with 8-bit features, along out-edges; how often each neighbour is drawn."""
    source = ring()
    (edge_type,) = source.edges
    options = {"num_parts": 2, "partition": "random", "edge_dir": "out", "input_nodes": None, "feature_dtype": "quint8"}
    counts = np.zeros(DEGREE, np.int64)
    backend = Glt(mode="server_client", worker_concurrency=2)
    with loader_of(source, folder, num_neighbors=[4, 2], backend=backend, **options) as loader:
        for batch in loader:
            check_batch(batch, source, {edge_type: [4, 2]}, "out")
        assert sorted(seeds_of(loader)) == list(range(NUM_NODES))
        listeners = {c.laddr.ip for pid in below() for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        busiest = int(np.bincount(source.edges[edge_type][0], minlength=NUM_NODES).argmax())
        ends = source.edges[edge_type][1][source.edges[edge_type][0] == busiest]
        for index in range(150):
            batch = loader.sample([busiest], index=index)
            counts += np.bincount(np.searchsorted(np.sort(ends), batch.n_id[batch.edge_index[0, :4]].numpy()), minlength=DEGREE)
        kinds = sorted(below().values())
    return {
        "counts": counts[: len(ends)].tolist(),
        "listeners": sorted(listeners),
        "servers": sum("gnnkit.backends.glt.driver" in k for k in kinds),
        "left": below(),
    }


def faults(folder: str) -> dict[str, Any]:
    """Batches that do not fit, processes that are stopped and killed."""
    source = ring()
    options = {"num_neighbors": [3], "input_nodes": None, "num_parts": 1, "batch_size": 2}
    found: dict[str, Any] = {}
    with loader_of(source, folder, backend=Glt(channel_size="14KB"), batch_timeout_s=30.0, **options) as loader:
        found["too large"] = failure(lambda: loader.sample(range(NUM_NODES)), SamplingError)
        assert sorted(seeds_of(loader)) == list(range(NUM_NODES))
        loader.plan.runtime.__dict__["batch_timeout_s"] = 1.0
        (pid,) = sampling_workers()
        iterator = iter(loader)
        next(iterator)
        os.kill(pid, signal.SIGSTOP)
        found["stopped"] = failure(lambda: list(iterator), BatchTimeout)
        os.kill(pid, signal.SIGCONT)
        loader.plan.runtime.__dict__["batch_timeout_s"] = 30.0
        iterator = iter(loader)
        next(iterator)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        found["worker killed"] = failure(lambda: list(iterator), WorkerDied)
        found["seen after"] = time.monotonic() - killed
        assert sorted(seeds_of(loader)) == list(range(NUM_NODES))
        iterator = iter(loader)
        next(iterator)
        (driver,) = loader.status().details["pids"].values()
        os.kill(driver, signal.SIGKILL)
        found["driver killed"] = failure(lambda: list(iterator), WorkerDied)
        killed = time.monotonic()
        while sampling_workers() and time.monotonic() < killed + HANG_S:
            time.sleep(0.05)
        found["gone after"] = time.monotonic() - killed
    found["left"] = below()
    return found


def failure(call: Any, kind: type[GnnkitError]) -> str:
    """What a call that must fail says, with its cause."""
    try:
        call()
    except kind as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError(f"no {kind.__name__}")


def rank(folder: str) -> dict[str, Any]:
    """One of two hosts, each with one part of the store that lies in its own folder."""
    torch.distributed.init_process_group("gloo")
    number, source = torch.distributed.get_rank(), ring()
    (edge_type,) = source.edges
    options: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "batch_size": 8,
        "shuffle": True,
        "progress": False,
        "placement": "partition",
        "start_timeout_s": 200.0,
    }
    mode: Any = os.environ["GLT_MODE"]
    with GraphLoader.from_store(
        Path(folder) / f"host{number}", input_nodes=None, backend=Glt(mode=mode), remainder="uneven", **options
    ) as loader:
        seen = []
        for batch in loader:
            check_batch(batch, source, {edge_type: [3, 2]}, "in")
            seen += batch.input_id.tolist()
        answer({"seen": seen, "pids": list(below())})
        sys.stdin.readline()  # where it is killed, or goes on
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return {}


def dataset(folder: str) -> dict[str, Any]:
    """One of two processes in which graphlearn-torch's own loader samples ``DistDataset``s, one part in each."""
    from graphlearn_torch.distributed import CollocatedDistSamplingWorkerOptions, DistNeighborLoader, init_worker_group
    from graphlearn_torch.distributed import DistDataset as TheirDataset

    from gnnkit.distributed import DistDataset

    number = int(os.environ["RANK"])
    init_worker_group(2, number, "parts")
    sampled = 0
    for name, source, input_type in (("ring", ring(), None), ("town", town(), "user")):
        data: Any = DistDataset.from_store(Path(folder) / name, number, 2)
        assert all(isinstance(data, kind) for kind in (TheirDataset, DistDataset))
        nodes = data.node_ids if input_type is None else data.node_ids[input_type]
        seeds = nodes[nodes < NUM_NODES - 9]  # those of the ring that have neighbours
        loader: Any = DistNeighborLoader(
            data,
            [3, 2],
            seeds if input_type is None else (input_type, seeds),
            batch_size=8,
            with_edge=True,
            edge_dir="in",
            collect_features=True,
            to_device=torch.device("cpu"),
            worker_options=CollocatedDistSamplingWorkerOptions(master_addr="127.0.0.1", master_port=int(os.environ["PORT"])),
            random_seed=number,
        )
        for batch in loader:
            check_theirs(batch, source)
            sampled += 1
        torch.distributed.rpc.api._all_gather(None)  # the other one may still ask for this part
    whole: Any = DistDataset.from_store(Path(folder) / "town", number)
    whole.train_idx = {"user": torch.tensor([3, 1])}  # as graphlearn-torch's can be given splits
    for pickler in (pickle.dumps, ForkingPickler.dumps):
        copy = pickle.loads(pickler(whole))
        assert copy.train_idx["user"].tolist() == [3, 1] and torch.equal(copy.node_ids["user"], whole.node_ids["user"])
    assert whole.node_pb["shop"].tolist() == look_up_parts(Path(folder) / "town", "shop")
    return {"batches": sampled}


def look_up_parts(path: Path, node_type: str) -> list[int]:
    """The part of every node, from the store itself."""
    from gnnkit import Store

    graph = Store.open(path).arrays()
    found = np.empty(graph.schema.node_types[node_type].num_nodes, np.int64)
    for part in range(graph.num_parts):
        ids = graph.nodes[node_type][part].global_id
        found[slice(*graph.node_bounds[node_type][part : part + 2]) if ids is None else ids] = part
    return [int(part) for part in found]


def check_theirs(batch: Any, source: Any) -> None:
    """Asserts that features, labels and edges of a batch that graphlearn-torch made are the source's."""
    homogeneous = source.schema.is_homogeneous
    for node_type, arrays in source.node_arrays.items():
        store = batch if homogeneous else batch[node_type]
        ids = store.node.numpy()
        assert np.array_equal(store.x.numpy(), arrays["x"][ids])
        if "y" in store:
            assert np.array_equal(store.y.numpy(), arrays["y"][ids])
    for edge_type, ends in source.edges.items():
        store = batch if homogeneous else batch[edge_type]
        if not store.edge_index.numel():
            continue
        near, far = (batch if homogeneous else batch[edge_type[2]]).node, (batch if homogeneous else batch[edge_type[0]]).node
        e_id = store.edge.numpy()
        assert np.array_equal(ends[0, e_id], far[store.edge_index[0]].numpy())
        assert np.array_equal(ends[1, e_id], near[store.edge_index[1]].numpy())
        if homogeneous:
            assert np.array_equal(store.edge_attr.numpy(), source.edge_arrays[edge_type]["edge_attr"][e_id])


def gpu(folder: str) -> dict[str, Any]:
    """Sampling on a GPU, homogeneous and typed; it draws without replacement there."""
    mode: Any = os.environ["GLT_GRAPH_MODE"]
    for source, input_nodes in ((ring(), None), (library(), ("paper", None))):
        fans = {t: [3, 2] for t in source.edges}
        with loader_of(source, folder, num_neighbors=fans, input_nodes=input_nodes, num_parts=1, backend=Glt(graph_mode=mode)) as loader:
            for batch in loader:
                check_batch(batch, source, fans, "in")
    return {}


def answer(found: dict[str, Any]) -> None:
    """Writes a line of JSON."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main(words: list[str]) -> None:
    """Runs one scenario, or those that standard input names."""
    if words:
        answer(globals()[words[0]](words[1]))
        return
    for line in sys.stdin:
        name, folder = line.split()
        try:
            answer(globals()[name](folder))
        except Exception:
            answer({"failed": traceback.format_exc()})


if __name__ == "__main__":
    main(sys.argv[1:])
