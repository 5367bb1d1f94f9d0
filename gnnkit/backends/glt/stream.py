"""The trainer's side of ``Glt``: a stream of batches, and the processes that run graphlearn-torch."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.base import END_OF_EPOCH, EndOfEpoch, StreamStatus, check_owner
from gnnkit.cluster.hosts import ONE_HOST, Hosts, environment_int, find_hosts, group_store, interface_to, listening_address
from gnnkit.errors import BatchTimeout, GnnkitError, LoaderClosed, PlanError, StartTimeout, WorkerDied
from gnnkit.events import EventSink, Stage
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.limits import check_descriptors
from gnnkit.runtime.pool import weakly
from gnnkit.runtime.process_status import ProcessStatus, look_at, process_state
from gnnkit.runtime.remote import error_from_json, fresh, layout_from_json
from gnnkit.runtime.ring import mapped
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.scheduler import Scheduler
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions, children_of
from gnnkit.runtime.waiters import SLICE_S
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule, Step
from gnnkit.sampling.subgraph import SampledSubgraph
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.backends.glt.options import Glt


_LOOPBACK = "127.0.0.1"
_MODULE = "gnnkit.backends.glt.driver"
_numbers = itertools.count()
# torch's RPC finds the others through a store that we have opened, as under torchrun it would find torchrun's: it opens none itself then.
_OWN_STORE = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}


class GltGroup:
    """The processes that sample together for one trainer of each host.

    Where every host holds the whole graph, each trainer has all of them to itself.

    Args:
        options: The backend's options.
        plan: The plan.
        num_parts: Parts of the graph.

    Attributes:
        hosts: The hosts that share the parts; one host where nothing is shared.
        parts: The parts that this host's processes hold.
        num_parts: All parts.
        address: Where this host's processes listen.

    Raises:
        PlanError: The hosts are not clear, or one of them holds no part.
    """

    def __init__(self, options: Glt, plan: LoaderPlan, num_parts: int) -> None:
        self._options, self.num_parts = options, num_parts
        self.hosts: Hosts = ONE_HOST
        self.parts: tuple[int, ...] = tuple(range(num_parts))
        self.address = _LOOPBACK
        placement = plan.placement
        if placement is None or placement.is_replicated:
            return
        if placement.whole_structure:
            raise PlanError("Glt() has structure and features of a part on one host", "placement='partition', or backend='colocated'")
        self.hosts = find_hosts(None, plan.batching.world_size, plan.runtime.start_timeout_s)
        if self.hosts.count != placement.num_hosts or not self.hosts.in_group:
            raise PlanError(
                f"the plan places parts on {placement.num_hosts} hosts, and the process group has {self.hosts.count}",
                "call torch.distributed.init_process_group on every host before making the loader",
            )
        holders = [next(host for host, held in enumerate(placement.hosts) if part in held) for part in range(num_parts)]
        if idle := sorted(set(range(placement.num_hosts)) - set(holders)):
            raise PlanError(
                f"with Glt() every host holds parts of its own, and hosts {idle} of {placement.num_hosts} have none",
                f"gnnkit.partition(..., {placement.num_hosts}) makes a store with enough parts",
            )
        self.parts = tuple(part for part in range(num_parts) if holders[part] == self.hosts.index)
        self._number = next(_numbers)  # of the clusters that span hosts: every host counts the same ones
        self.address = listening_address(self.hosts, options.interface)

    @property
    def members(self) -> list[int | None]:
        """The parts that this host's processes hold, None for a client; the first one serves the trainer."""
        return [*self.parts] if self._options.mode == "worker" else [None, *self.parts]

    def role(self, part: int | None) -> str:
        """Returns the role of the process that holds a part, or of the client."""
        return "worker" if self._options.mode == "worker" else "client" if part is None else "server"

    def opens(self) -> dict[str, int]:
        """The meeting places that this host's first process opens, with their ports; 0 is a free one.

        Sampling workers meet under "samplers", of each client by themselves; servers and clients under "group".
        """
        with_servers = self._options.mode == "server_client"
        local_rank = environment_int("LOCAL_RANK") or self.hosts.local_rank
        port = 0 if self._options.master_port is None else self._options.master_port + 2 * local_rank
        is_first = self.hosts.index == 0
        found = {"samplers": port} if with_servers or is_first else {}
        if with_servers and is_first:
            found["group"] = port + 1 if port else 0
        return found

    def place(self, part: int | None, own: dict[str, int], met: dict[str, Any]) -> dict[str, Any]:
        """Returns the place of a process, as JSON values for ``gnnkit.backends.glt.loop.GltPlace``.

        Args:
            part: The part that it holds; None for a client.
            own: Ports of the meeting places that this host has opened.
            met: ``{"address": ..., "ports": {...}}`` of the first host.
        """
        with_servers = self._options.mode == "server_client"
        samplers = [self.address, own["samplers"]] if with_servers else [met["address"], met["ports"]["samplers"]]
        return {
            "part": self.parts[0] if part is None else part,
            "num_parts": self.num_parts,
            "samplers": samplers,
            "group": [met["address"], met["ports"]["group"]] if with_servers else None,
            "client": self.hosts.index,
            "num_clients": self.hosts.count if with_servers else 0,
        }

    def announce(self, ports: dict[str, int]) -> None:
        """Tells the other hosts where to meet, through the process group's store."""
        if self.hosts.count > 1 and self.hosts.index == 0:
            group_store().set(self._key, json.dumps({"address": self.address, "ports": ports}))

    def meeting(self, ports: dict[str, int]) -> dict[str, Any] | None:
        """Returns the address and the ports at which processes meet; None while the first host has not published them.

        Args:
            ports: The ports that this host has opened.
        """
        if self.hosts.index == 0:
            return {"address": self.address, "ports": ports}
        store = group_store()
        return dict(json.loads(store.get(self._key))) if store.check([self._key]) else None

    @property
    def _key(self) -> str:
        return f"gnnkit/glt/{self._number}/{self.hosts.local_rank}"

    def environment(self) -> dict[str, str]:
        """Variables of the processes."""
        interface = interface_to(self.address)
        if interface is None:
            raise PlanError(f"no interface of this host has the address {self.address}", "name one: Glt(interface='eth0')")
        found = {**_OWN_STORE, "TP_SOCKET_IFNAME": interface}  # torch's RPC takes names
        if self._options.graph_mode != "CPU":  # children see no GPU otherwise
            import torch

            every = ",".join(map(str, range(torch.cuda.device_count())))
            found["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", every)
        return found


_AGAIN = "iterate the loader again: its processes are started anew"
_AGAIN_EVERYWHERE = "make the loader again on every host"


class Fleet:
    """Starts the processes, introduces them to each other, and listens to them.

    Args:
        options: The backend's options.
        plan: The plan.
        graph: The graph.
        events: Receives the stage "start".

    Attributes:
        supervisor: The processes; the first one serves the trainer.
        lanes: Workers that can be given batches.
        failure: Why they are of no use any more, or None.
    """

    def __init__(self, options: Glt, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._options, self._plan, self._events = options, plan, events
        self._owner = os.getpid()
        self.failure: GnnkitError | None = None
        self.lanes = options.num_workers * (graph.arrays.num_parts if options.mode == "server_client" else 1)
        self._ports: dict[str, int] | None = None
        self._joined = False
        self._cluster = GltGroup(options, plan, graph.arrays.num_parts)
        count = len(self._cluster.members)
        check_descriptors(count)
        self._shared = graph.share_now() if plan.store is None else None
        folder = new_run(options.log_dir, {"store": None if plan.store is None else plan.store.path})
        supervisor_options = SupervisorOptions(count, 1, module=_MODULE, environment=self._cluster.environment())
        self.supervisor = Supervisor(supervisor_options, folder, weakly(self.set_up))

    def start(self) -> None:
        """Starts every process and waits until all have found each other.

        Raises:
            StartTimeout: One was not ready in time, or ended.
            PlanError: graphlearn-torch cannot be used.
        """
        count, ready = self.supervisor.options.num_workers, 0
        self.supervisor.start_missing()
        with Stage(self._events, "start", label="graphlearn-torch", total=count, unit="processes") as stage:
            while ready < count:
                for _, message in self.listen():
                    if message.kind == "ready":
                        ready += 1
                        stage.update(ready)
                self._introduce()
                overdue = self.supervisor.overdue(self._plan.runtime.start_timeout_s)
                failure = self.failure or (None if overdue is None else overdue[1])
                if failure is not None:
                    raise failure
                if ready < count:
                    self.supervisor.poller().poll(SLICE_S * 1000)

    def set_up(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is there for."""
        part, shared = self._cluster.members[child.rank], self._shared
        child.wire.send(
            "setup",
            () if shared is None else (shared.block.fd,),
            plan=self._plan.to_json(),
            graph=None if shared is None else dict(shared.description),
            parts=list(self._cluster.parts) if part is None else [part],
            role=self._cluster.role(part),
            address=self._cluster.address,
            open=self._cluster.opens() if child.rank == 0 else {},
            options=asdict(self._options),
            log=str(child.log),
        )

    def _introduce(self) -> None:
        """Tells every process where the others are, once that is known."""
        if self._joined or self._ports is None:
            return
        if (met := self._cluster.meeting(self._ports)) is not None:
            self._joined = True
            for rank, part in enumerate(self._cluster.members):
                self.supervisor.send(rank, "join", place=self._cluster.place(part, self._ports, met))

    def listen(self) -> Iterator[tuple[int, Message]]:
        """Yields what has arrived; a death becomes ``failure``."""
        for rank, what in self.supervisor.listen():
            if isinstance(what, Exit):
                self.failure = self.failure or self._explained(what.error)
            elif what.kind == "event":
                if rank == 0:
                    self._ports = what.body["ports"]
                    self._cluster.announce(self._ports)
            else:
                yield rank, what

    @property
    def can_start_again(self) -> bool:
        """Whether this host can replace the processes by itself: those of other hosts would not meet new ones."""
        return self._cluster.hosts.count == 1

    def _explained(self, error: GnnkitError) -> GnnkitError:
        if isinstance(error, (WorkerDied, StartTimeout)):
            explained = type(error)(error.message, _AGAIN if self.can_start_again else _AGAIN_EVERYWHERE)
            explained.__cause__ = error.__cause__
            return explained
        return error

    def close(self) -> None:
        """Ends the processes, and with them graphlearn-torch's own; does nothing in a forked child."""
        if os.getpid() == self._owner:
            self.supervisor.stop()


# The generation of batches outside an epoch.
_NOW = 0


class GltStream:
    """Batches that graphlearn-torch samples, delivered in order. An epoch's batches go to the worker that has least to do.

    Every message is handled by the thread that waits for a batch: there is no thread of the stream's own.

    Args:
        options: The backend's options.
        plan: The plan.
        graph: The graph.
        events: Receives the stage "start".

    Attributes:
        batches: See ``BatchStream.batches``.

    Raises:
        StartTimeout: A process did not become ready in time, or ended.
        PlanError: The system's limits or an option do not allow it.
    """

    def __init__(self, options: Glt, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._options, self._plan, self._graph, self._events = options, plan, graph, events
        self.batches = BatchList(plan, graph)
        self._lock = threading.RLock()
        self._closed, self._owner = False, os.getpid()
        self._scheduler: Scheduler[SampledSubgraph | GnnkitError] = Scheduler(0)
        self._schedule: Schedule | None = None
        self._last_number = 0
        self._lane_of: dict[int, int] = {}  # of batches outside an epoch
        self._answers: dict[int, SampledSubgraph | GnnkitError] = {}
        self._awaited: set[int] = set()
        self._last_heard = time.monotonic()
        self._broken: GnnkitError | None = None  # why the epoch cannot go on, although processes have been started anew
        self._launch()

    def _launch(self) -> None:
        """Starts the processes; in place of others, if there were any."""
        self._fleet = fleet = Fleet(self._options, self._plan, self._graph, self._events)
        self._end = weakref.finalize(self, fleet.close)  # also when the interpreter ends
        try:
            fleet.start()
        except BaseException as error:
            self._end()
            fleet.failure = error if isinstance(error, GnnkitError) else LoaderClosed("starting was interrupted")
            raise

    def start_epoch(self, epoch: int, schedule: Schedule) -> None:
        """Starts an epoch; what is left of the one before is dropped. Processes that have died are started again."""
        with self._lock:
            self._check_open()
            self._revive()
            self._broken, self._schedule = None, schedule
            self._scheduler.begin(epoch, len(schedule))
            # What an interrupt has lost would count as a worker's for ever.
            for lane in range(self._fleet.lanes):
                for generation, step in self._scheduler.assigned_to(lane):
                    if generation < self._scheduler.generation - 1:
                        self._scheduler.forget(generation, step)
            self._fleet.supervisor.send(0, "begin", g=self._scheduler.generation)
            self._assign()

    def recv(self, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | EndOfEpoch:
        """The next batch, in order; see ``BatchStream.recv``."""
        with self._lock:
            ready = len(self._scheduler.results)
        result = self._await(None, timeout_s, check)
        if result is None:
            return END_OF_EPOCH
        result.ready = ready
        return result

    def sample_now(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampledSubgraph:
        """One batch outside the epoch; see ``BatchStream.sample_now``. Its draws are not repeatable, whatever the key."""
        with self._lock:
            self._check_open()
            self._revive()
            self._last_number += 1
            number, lane = self._last_number, self._least_busy()
            self._lane_of[number] = lane
            self._awaited.add(number)
            given = () if seeds is None else (np.ascontiguousarray(seeds).data,)
            self._fleet.supervisor.send(0, "now", given, number=number, epoch=epoch, batch=batch_index, lane=lane)
        try:
            found = self._await(number, self._plan.runtime.batch_timeout_s, lambda: None)
            assert found is not None, "it is no epoch's"
        finally:
            with self._lock:
                self._awaited.discard(number)
                self._answers.pop(number, None)  # where an interrupt came between its arrival and its delivery
        found.epoch, found.batch_index = epoch, batch_index
        return found

    def _await(self, request: int | None, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | None:
        """The batch of the request of that number, or the epoch's next one; None where the epoch is over."""
        scheduler, deadline, waited_for = self._scheduler, Deadline(timeout_s), request
        while True:
            with self._lock:
                self._check_open()
                check()
                if request is None and scheduler.is_over:
                    return None
                wanted = scheduler.delivered if request is None else request
                if waited_for != wanted:  # another thread had the one before: this is a new wait
                    deadline, waited_for = Deadline(timeout_s), wanted
                self._pump()
                result: SampledSubgraph | GnnkitError | None
                if request is not None:
                    result = self._answers.pop(request, None)
                elif wanted in scheduler.results:
                    result = scheduler.hand_out()
                    self._assign()
                else:
                    result = None
                if isinstance(result, SampledSubgraph):
                    return result
                if result is not None:
                    raise result
                fleet = self._fleet
                failure = fleet.failure or (self._broken if request is None else None)
                if failure is not None:
                    raise fresh(failure)
                if deadline.has_passed:
                    what = f"epoch {scheduler.epoch}, step {wanted}" if request is None else "a batch outside the epoch"
                    raise BatchTimeout(f"no batch within {timeout_s:g} s ({what}); {self._whereabouts()}", "raise batch_timeout_s")
            fleet.supervisor.poller().poll(deadline.within(SLICE_S) * 1000)

    def _pump(self) -> None:
        for _, message in self._fleet.listen():
            if message.kind == "done":
                self._take(message)
        self._assign()

    def _take(self, message: Message) -> None:
        self._last_heard = time.monotonic()
        generation, number, step = message.body["g"], message.body["step"], None
        if generation == _NOW:
            lane = self._lane_of.pop(number, None)
            step = Step(number, 0, None) if number in self._awaited else None
        else:
            lane = self._scheduler.worker_of(number) if generation == self._scheduler.generation else None
            if lane is None or self._schedule is None:
                self._scheduler.forget(generation, number)
            else:
                step = self._schedule.step(number)
        result = None if step is None else self._result(message, lane, step)
        if result is None:
            message.close()
        elif generation == _NOW:
            self._answers[number] = result
        else:
            self._scheduler.complete(generation, number, result)

    def _result(self, message: Message, lane: int | None, step: Step) -> SampledSubgraph | GnnkitError | None:
        body, epoch = message.body, self._scheduler.epoch
        if "error" in body:
            return error_from_json(body["error"], f"sampling batch {step.batch_index} of epoch {epoch} with graphlearn-torch")
        if "layout" not in body:
            return None
        layout, block = layout_from_json(body["layout"]), mapped(message.fds[0])
        times = body["sample_s"], body["gather_s"], f"worker {lane}", body["began_s"]
        return SampledSubgraph(epoch, step.batch_index, step.is_padding, layout, block, *times)

    def _assign(self) -> None:
        """Gives workers as many steps as they may have under way, several at a time, so that they can sample these concurrently."""
        schedule, scheduler, fleet, each = self._schedule, self._scheduler, self._fleet, self._options.worker_concurrency
        if schedule is None or fleet.failure is not None or self._broken is not None:
            return
        ahead = 2 * each * fleet.lanes + self._plan.runtime.prefetch
        scheduler.window = ahead + each - 1  # a worker is given several at once
        while (first := scheduler.next_step()) is not None and first < scheduler.delivered + ahead:
            lane, left = self._least_busy(), scheduler.num_steps - first
            count = min(each, 2 * each - self._load(lane), left)
            # A worker starts on its next steps when it has finished all before: few and large ones are better than many small ones.
            if count < min(each, left):
                return
            assigned = [scheduler.assign(lane) for _ in range(count)]
            steps = [(step, schedule.step(step).batch_index) for _, step in assigned]
            fleet.supervisor.send(0, "sample", g=scheduler.generation, epoch=scheduler.epoch, lane=lane, steps=steps)

    def _load(self, lane: int) -> int:
        return len(self._scheduler.assigned_to(lane)) + sum(of == lane for of in self._lane_of.values())

    def _least_busy(self) -> int:
        return min(range(self._fleet.lanes), key=self._load)

    def _revive(self) -> None:
        self._fleet.supervisor.settle()
        self._pump()
        if self._fleet.failure is not None:
            if not self._fleet.can_start_again:
                raise fresh(self._fleet.failure)
            self._broken = self._fleet.failure
            self._end()
            for lane in range(self._fleet.lanes):
                self._scheduler.lost(lane)
            self._lane_of.clear()
            self._launch()

    def _whereabouts(self) -> str:
        named = []
        for rank, child in self._fleet.supervisor.alive.items():
            named.append((f"process {rank}", child.pid))
            named += [(f"its child {number}", pid) for number, pid in enumerate(children_of(child.pid))]
        states = ", ".join(f"{name} (pid {pid}) is {process_state(pid)}" for name, pid in named)
        return f"graphlearn-torch last answered {time.monotonic() - self._last_heard:.1f} s ago; {states}"

    def status(self) -> StreamStatus:
        """Returns the stream's state, counts and memory."""
        with self._lock:
            state = "closed" if self._closed else "ready" if self._scheduler.is_over else "sampling"
            supervisor = self._fleet.supervisor
            found = [*self._scheduler.results.values(), *self._answers.values()]
            ready = [result for result in found if isinstance(result, SampledSubgraph)]
            details: dict[str, Any] = {
                "drawn by": self._options.drawn_by,
                "pids": {rank: child.pid for rank, child in supervisor.alive.items()},
                "logs": str(supervisor.folder.path),
            }
            processes = tuple(self._look_around(supervisor.alive))
            slots = 2 * self._options.worker_concurrency * self._fleet.lanes + self._plan.runtime.prefetch
            buffers = sum(len(result.block) for result in ready)
            return StreamStatus(state, self._fleet.lanes, len(ready), buffers, 0, slots, processes, details)

    @staticmethod
    def _look_around(supervisor: Mapping[int, ChildProcess]) -> Iterator[ProcessStatus]:
        yield look_at("trainer", os.getpid())
        for rank, child in sorted(supervisor.items()):
            yield look_at(f"process {rank}", child.pid, child.log)
            for number, pid in enumerate(children_of(child.pid)):
                yield look_at(f"process {rank}, child {number}", pid, child.log)

    def restart(self, timeout_s: float) -> None:
        """Raises PlanError: graphlearn-torch's processes find each other once."""
        raise PlanError("graphlearn-torch's processes cannot be restarted inside an epoch", "close the loader and make it again")

    def close(self) -> None:
        """Ends the processes; batches that were handed out stay valid. Does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            self._end()
            self._scheduler.results.clear()
            self._answers.clear()

    def _check_open(self) -> None:
        check_owner(self._owner, is_closed=self._closed)
