"""The ranks of a launch on a Ray cluster, as the process sees them that has asked for them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from gnnkit.errors import GnnkitError, PlanError, StartTimeout, TrainingFailed, WorkerDied
from gnnkit.events import EventSink
from gnnkit.jobs.environment import VISIBLE
from gnnkit.jobs.launching.job import Job, LaunchSpec, PlanInputs, named
from gnnkit.ray.cluster import RayCluster
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import opened_log
from gnnkit.runtime.supervisor import ChildProcess, Exit, SupervisorOptions
from gnnkit.runtime.wire import Message, from_memory
from gnnkit.waiting import Deadline

MODULE = "gnnkit.ray"
_ADVICE = "launch them again: ctx.restore(...) goes on from the last checkpoint in the directory"
# That processes of a cluster of this host may take to meet.
_MEET_MS = 300_000
# Variables of Ray's own processes, which are not for those of other nodes.
_RAYS = "RAY_"
# What Ray takes to end the processes of a cluster on this host.
STOP_TIMEOUT_S = 20.0


def driver_environment(engine: RayCluster) -> dict[str, str]:
    """Returns the variables of a driver that Ray reads when it is imported."""
    # A call that comes after the connection was closed is an error, and starts no other cluster.
    found = {"RAY_ENABLE_AUTO_CONNECT": "0"}
    if engine.joined is None:
        # On a busy machine Ray's own processes take longer to meet than the half minute after which it gives all of them up.
        found |= {"RAY_agent_register_timeout_ms": str(_MEET_MS)}
        # What belongs to this cluster shows this token; without it, Ray would leave one of its own in the user's home.
        found |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    return found


def driver_options(environment: Mapping[str, str], advice: str, *, first: int = 0, threads: int = 1) -> SupervisorOptions:
    """The options of the one process that is Ray's driver.

    Args:
        environment: Its own variables.
        advice: What to do when it is gone.
        first: Its number.
        threads: See ``SupervisorOptions``.
    """
    name = "Ray's driver"
    return SupervisorOptions(
        1, threads, MODULE, title=name, first=first, lane=name, advice=advice, stop_timeout_s=STOP_TIMEOUT_S, environment=environment
    )


class RayJob(Job):
    """Has Ray run the ranks; they are started again by Ray Train, as often as the launch allows.

    Args:
        engine: The cluster.
        spec: What ranks are to do.
        inputs: The graph that they sample.
        events: Shows how far they are.

    Raises:
        PlanError: There is no folder for logs.
        OSError: The system does not start processes.
    """

    def __init__(self, engine: RayCluster, spec: LaunchSpec, inputs: PlanInputs, events: EventSink) -> None:
        self._engine = engine
        self._due = self._room_due = Deadline(None)
        self._resources: dict[str, float] = {}
        self._is_pending = False
        # Of ranks that have raised since they were last started: when, and what.
        self._errors: dict[int, tuple[float, GnnkitError]] = {}
        super().__init__(spec, inputs, events)

    def _options(self) -> SupervisorOptions:
        # The driver's number, and so its log, comes after those of the ranks.
        visible = self.spec.setup()["variables"][VISIBLE]
        environment = driver_environment(self._engine) | ({} if visible is None else {VISIBLE: visible})
        return driver_options(environment, _ADVICE, first=self.spec.num_procs, threads=self.spec.threads)

    def _begin(self) -> None:
        self._supervisor.start_missing()
        self.states.begin({})

    def _set_up(self, child: ChildProcess) -> None:
        spec = self.spec
        body = {
            "engine": self._engine.to_json(),
            "device": spec.device,
            "timeout_s": spec.start_timeout_s,
            "directory": self.directory,
            "max_restarts": spec.max_restarts,
            "variables": {name: value for name, value in os.environ.items() if not name.startswith(_RAYS) and name != VISIBLE},
        }
        child.wire.send("setup", (self._code_fd,), **body)

    def _watch(self) -> None:
        self._allow()  # however long the graph has taken
        super()._watch()

    def _pump(self) -> None:
        self._listen(self._take)
        due = self._room_due if self._is_pending else self._due
        if due.has_passed and not self.states.failures:
            self.states.fail(None, time.time(), self._overdue())
        error = self.states.first_failure
        if error is not None:
            self._fail(error)
        elif self.states.are_done:
            self._finish("done")
        elif self._state != "running" and self.states.are_training:
            self._state, self._has_begun, self._due = "running", True, Deadline(None)
            self._reporter.started()
        if self._state == "running":
            self._reporter.show(self.states.ranks)

    def _listen(self, take: Callable[[int, Message], None]) -> None:
        for number, what in self._supervisor.listen():
            if isinstance(what, Exit):  # of the driver
                self.states.fail(None, time.time(), what.error)
            else:
                take(number, what)

    def _take(self, rank: int, message: Message) -> None:
        body = message.body
        if message.kind == "joined":
            self._resources = dict(body["resources"])
        elif message.kind == "pending":
            self._take_pending(body)
        elif message.kind == "begins":
            self.states.change(body["rank"], pid=body["pid"] if self._engine.joined is None else 0, state="starting")
        elif message.kind == "ready":
            self.states.change(body["rank"], state="training", device=body["device"])
        elif message.kind == "steps":
            self.states.change(**body)
        elif message.kind == "output":
            with opened_log(self.folder.log(body["rank"]), "ab") as log:
                log.write(body["text"].encode(errors="replace"))
        elif message.kind == "raised":
            self._take_error(body)
        elif message.kind == "broken":
            self._take_deaths(body["reasons"])
        elif message.kind == "result":
            self.states.change(body["rank"], state="done")
            self.states.results[body["rank"]] = from_memory(message.fds.pop())
        elif message.kind == "trained" and not self.states.are_done:
            self.states.fail(None, time.time(), WorkerDied("Ray has ended, and not all ranks have handed over their result", _ADVICE))
        elif message.kind == "lost":
            self.states.fail(None, time.time(), error_from_json(body["error"], "Ray", StartTimeout))
        message.close()

    def _allow(self) -> None:
        """Has the ranks' time begin: that to start, and that to wait for room in the cluster."""
        self._due = Deadline(self.spec.start_timeout_s)
        self._room_due = Deadline(self.spec.start_timeout_s + self._engine.pending_timeout_s)

    def _take_pending(self, body: Any) -> None:
        """Notes that Ray has no room for the ranks, or has it now: their time to start begins then."""
        self._is_pending, self._resources, free = body["is_pending"], dict(body["resources"]), body["free"]
        if self._is_pending:
            self._reporter.wait_for(f"{self._wanted}; the cluster has {_amounts(self._resources)} (free: {_amounts(free)})")
        else:
            self._due = Deadline(self.spec.start_timeout_s)
            self._reporter.wait_for("")

    def _take_error(self, body: Any) -> None:
        """Notes the error of a rank. Ray tells when it has seen it, too, and starts all again; for some errors that is of no use."""
        rank = body["rank"]
        error = named(error_from_json(body["error"], f"rank {rank}", TrainingFailed), rank)
        self.states.change(rank, state="failed")
        self._errors[rank] = body["at"], error
        if isinstance(error, PlanError) or not (body["is_training"] or self._has_begun):
            self.states.fail(rank, body["at"], error)

    def _take_deaths(self, reasons: dict[str, str]) -> None:
        """Ray has seen ranks fail: it starts all again, or the run has failed."""
        died = sorted(int(rank) for rank in reasons if int(rank) not in self._errors)
        if died:  # what others then complain about
            error: GnnkitError = WorkerDied(f"rank {died[0]} has died; {reasons[str(died[0])]}", _ADVICE)
        else:
            error = min(self._errors.values(), key=lambda found: found[0])[1]
        if self._restarts >= self.spec.max_restarts or not self._has_begun:
            self.states.fail(died[0] if died else None, time.time(), error)
            return
        self._restarts += 1
        self._last_error = str(error).splitlines()[0]
        self._state = "restarting"
        self._allow()
        self._errors.clear()
        self.states.results.clear()
        self.states.begin({})
        self._reporter.restarting(self._last_error, self._restarts)

    def _overdue(self) -> StartTimeout:
        start_s, log = f"{self.spec.start_timeout_s:g} s", f"its driver's log: {self.folder.log(self.spec.num_procs)}"
        if not self._resources:
            return StartTimeout(f"Ray was not there after {start_s}", f"raise start_timeout_s; {log}")
        if not self._is_pending:
            return StartTimeout(
                f"Ray has not brought {self._wanted} to their function within {start_s}; the cluster has {_amounts(self._resources)}",
                f"raise start_timeout_s; `ray status` says who uses what; {log}",
            )
        return StartTimeout(
            f"the Ray cluster had no room for {self._wanted} within {start_s} and pending_timeout_s={self._engine.pending_timeout_s:g};"
            f" it has {_amounts(self._resources)}",
            "fewer num_workers or cpus_per_worker, a larger cluster, or a longer pending_timeout_s; `ray status` says who uses what",
        )

    @property
    def _wanted(self) -> str:
        """The request of all ranks, in words."""
        engine = self._engine
        others = "".join(f", {amount:g} {name}" for name, amount in (engine.resources or {}).items())
        return f"{engine.num_workers} rank(s) with {engine.cpus_per_worker} processor(s){others} each"


def _amounts(resources: Mapping[str, float]) -> str:
    """Processors, GPUs and custom resources of a cluster in words, without those that Ray counts for itself."""
    own = ("memory", "node:", "object_store", "accelerator_")
    known = {name: value for name, value in resources.items() if not name.startswith(own)}
    return ", ".join(f"{value:g} {name}" for name, value in sorted(known.items())) or "no processors"
