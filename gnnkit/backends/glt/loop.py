"""The work of a process that runs graphlearn-torch: it joins the others, follows its loader's messages, and hands batches over."""

from __future__ import annotations

import json
import logging
import mmap
import multiprocessing
import os
import threading
import time
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.backends.glt.batches import MessageReader, NodeRequest, write
from gnnkit.backends.glt.engine import ClientEngine, Engine, WorkerEngine, serve
from gnnkit.backends.glt.sampler import ERROR, TAG, job
from gnnkit.backends.glt.setup import EngineOptions, GltPlace, listen
from gnnkit.errors import StartTimeout, StoreError, WorkerDied
from gnnkit.plan import InputNodes, LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_memory import GraphHandle, SharedGraph
from gnnkit.runtime.remote import error_to_json, layout_to_json
from gnnkit.runtime.runs import with_tail
from gnnkit.runtime.supervisor import describe_end
from gnnkit.runtime.vitals import ParentWatch
from gnnkit.runtime.wire import Message, Wire, from_memory
from gnnkit.sampling.walked import SampleRequest
from gnnkit.storage.store import Store

logger = logging.getLogger(__name__)

_BEAT_S = 0.1
_END_S = 1.0
# The generation of batches outside an epoch; those of epochs count from 1.
_NOW = 0


class GltLoop:
    """Obeys the loader.

    Args:
        wire: The connection to it.
        watch: The process's watchman.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        self._wire, self._watch = wire, watch
        self._generation = _NOW
        self._lock = threading.Lock()
        self._wanted: dict[tuple[int, int], tuple[NodeRequest, float]] = {}
        self._is_ready = self._is_ending = False
        self._stores: list[Any] = []

    def run(self) -> None:
        """Works until the loader goes away or says stop."""
        try:
            self._start()
            self._obey()
        except EOFError:
            pass
        except BaseException as error:  # the loader raises it
            self._fail(error)
            raise
        finally:
            self._end_workers()

    def _obey(self) -> None:
        handlers = {"begin": self._begin, "sample": self._sample, "now": self._sample_now}
        while (message := self._wire.next()).kind != "stop":
            handlers[message.kind](message)

    def _end_workers(self) -> None:
        """Ends graphlearn-torch's workers, which would take seconds to end by themselves."""
        self._is_ending = True
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join(_END_S)

    def _start(self) -> None:
        setup = self._wire.next()
        body = setup.body
        self._log = Path(body["log"])
        threading.Thread(target=self._watch_workers, name="gnnkit-watch-workers", daemon=True).start()
        ports = {}
        for name, port in body["open"].items():
            store, ports[name] = listen(body["address"], port)
            self._stores.append(store)
        self._wire.send("event", what="opened", ports=ports)
        self._plan = LoaderPlan.from_json(body["plan"])
        handle = self._handle = _open_graph(self._plan, setup)
        self._batches, self._reader = BatchList(self._plan, handle), MessageReader(self._plan, handle.arrays)
        join = self._wire.next().body
        place = GltPlace.from_json(join["place"])
        options = EngineOptions(plan=self._plan, **body["options"])
        if body["role"] == "server":
            serve(handle.arrays, place, options)
        else:
            engine = ClientEngine if body["role"] == "client" else WorkerEngine
            self._engine: Engine = engine(handle.arrays, place, options)
            threading.Thread(target=self._pump, name="gnnkit-pump", daemon=True).start()
        self._is_ready = True
        self._wire.tell("ready", lanes=0 if body["role"] == "server" else self._engine.lanes)

    def _fail(self, error: BaseException) -> None:
        self._wire.tell("failed", error=error_to_json(error))

    def _watch_workers(self) -> None:
        """Ends this process when one of graphlearn-torch's workers has ended, which nobody else would notice (GLT-8)."""
        known: dict[int, Any] = {}
        ended = threading.Event()  # never set: there is nobody yet to wait for
        while True:
            for child in multiprocessing.active_children():
                known[child.pid or 0] = child
            ended.wait(_BEAT_S) if not known else connection.wait([child.sentinel for child in known.values()], _BEAT_S)
            for pid, child in known.items():
                if child.exitcode is not None and not self._is_ending:
                    kind = WorkerDied if self._is_ready else StartTimeout
                    what = f"the graphlearn-torch worker {pid} of process {os.getpid()} {describe_end(child.exitcode)}"
                    self._fail(kind(with_tail(what, self._log), "iterate the loader again: its processes are started anew"))
                    os._exit(1)

    def _begin(self, message: Message) -> None:
        self._generation = message.body["g"]
        with self._lock:
            self._wanted = {tag: wanted for tag, wanted in self._wanted.items() if tag[0] in (_NOW, self._generation)}

    def _sample(self, message: Message) -> None:
        body, jobs = message.body, []
        for step, batch in body["steps"]:
            request = self._batches.request(body["epoch"], batch)
            jobs.append(self._want((body["g"], step), request))
        self._engine.submit(body["lane"], jobs)

    def _sample_now(self, message: Message) -> None:
        body = message.body
        if message.fds:
            seeds = np.frombuffer(from_memory(message.fds[0]), np.int64)
            request = self._batches.request_for(body["epoch"], body["batch"], seeds)
        else:
            request = self._batches.request(body["epoch"], body["batch"])
        self._engine.submit(body["lane"], [self._want((_NOW, body["number"]), request)])

    def _want(self, tag: tuple[int, int], request: SampleRequest) -> NDArray[np.int64]:
        inputs = self._plan.inputs
        assert isinstance(inputs, InputNodes), "graphlearn-torch samples around nodes"
        seeds = np.ascontiguousarray(self._handle.to_store_ids(inputs.node_type, request.arrays["node"]))
        with self._lock:
            self._wanted[tag] = NodeRequest(inputs.node_type, seeds, request.input_id), time.perf_counter()
        return job(tag, seeds)

    def _pump(self) -> None:
        """Takes messages and hands batches over; the only thread that does."""
        try:
            while True:
                message = self._engine.receive()
                if message is not None:
                    self._hand_over(message)
                del message  # its memory is the channel's
        except BaseException as error:  # the loader raises it
            logger.exception("the process ends")
            self._fail(error)
            os._exit(1)

    def _hand_over(self, message: dict[str, torch.Tensor]) -> None:
        generation, step = (int(number) for number in message[TAG])
        name = {"g": generation, "step": step}
        with self._lock:
            wanted = self._wanted.pop((generation, step), None)
        if wanted is None:  # of an epoch that was abandoned
            self._wire.tell("done", **name)
            return
        if ERROR in message:
            self._wire.tell("done", error=json.loads(message[ERROR].numpy().tobytes()), **name)
            return
        request, since = wanted
        try:
            sampled = time.perf_counter()
            layout, arrays = self._reader.lay_out({key: value.numpy() for key, value in message.items()}, request)
            fd = os.memfd_create("gnnkit-batch", os.MFD_CLOEXEC)
            try:
                os.ftruncate(fd, max(1, layout.nbytes))
                write(layout, arrays, np.frombuffer(mmap.mmap(fd, max(1, layout.nbytes)), np.uint8))
                began_s = time.monotonic() - (time.perf_counter() - since)  # one clock for all processes of a host
                times = {"began_s": began_s, "sample_s": sampled - since, "gather_s": time.perf_counter() - sampled}
                self._wire.tell("done", (fd,), layout=layout_to_json(layout), **times, **name)
            finally:
                os.close(fd)
        except Exception as error:  # of this batch alone; the loader raises it
            self._wire.tell("done", error=error_to_json(error), **name)


def _open_graph(plan: LoaderPlan, setup: Message) -> GraphHandle:
    """The graph that the loader samples: of a store, the parts that this process needs."""
    if plan.store is None:
        return GraphHandle(SharedGraph.attach(setup.fds[0], setup.body["graph"]).graph, {})
    store = Store.open(plan.store.path, setup.body["parts"])
    if store.fingerprint != plan.store.fingerprint:
        raise StoreError(f"the store {str(store.path)!r} was replaced while it was in use", "make the loader again")
    return GraphHandle(store.arrays(), store.splits, plan.store, link_splits=store.link_splits)
