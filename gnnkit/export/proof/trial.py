"""A job on trial on this machine: as much of it as fits, a folder for each node, and its commands, started and watched by a keeper."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnkit.bounds import is_whole, shown
from gnnkit.cluster.hosts import shares
from gnnkit.cluster.namespaces import INTERFACE, host_address
from gnnkit.errors import PlanError, StartTimeout, WorkerDied
from gnnkit.export.job import PLAN, RECORD, SIZES, STAGE, SizedJob
from gnnkit.export.recording import VARIABLE
from gnnkit.export.writer import read_record
from gnnkit.host import available_cpus, available_memory
from gnnkit.kernels.folder import KERNEL_CACHE_VARIABLE, kernel_cache_root
from gnnkit.plan import Held, LoaderPlan, Placement
from gnnkit.plan.files import read_plan_file
from gnnkit.runtime.runs import tail
from gnnkit.runtime.wire import Message, Wire
from gnnkit.storage.files import link_or_copy
from gnnkit.storage.layout import MANIFEST_NAME, is_held
from gnnkit.storage.manifest import read_manifest
from gnnkit.units import format_bytes
from gnnkit.urls import is_url
from gnnkit.waiting import Deadline

_KEEPER = "gnnkit.export.proof.keeper"
# How long what has done its work may take to end by itself, and how long the keeper may take to end the rest.
_STOP_TIMEOUT_S, _KEEPER_S = 5.0, 15.0
# After the first command that failed: the one at fault may not be the first to end.
_MORE_S = 2.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class Command:
    """A command of a job.

    Attributes:
        name: What it is, for messages: "launch.sh of node 1".
        words: Its words.
        environment: All of its variables.
        folder: Where it runs.
        log: The file that its output goes to.
        host: The network namespace that it runs in; None: none of them.
        serves: Whether it runs until it is ended.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    host: int | None
    serves: bool = False


class TrialRun:
    """Commands that run.

    Args:
        commands: The commands.
        keeper: Their keeper.
        wire: The connection to it.
        log: What it writes.

    Attributes:
        commands: See above.
    """

    def __init__(self, commands: Sequence[Command], keeper: subprocess.Popen[bytes], wire: Wire, log: Path) -> None:
        self.commands, self._keeper, self._wire, self._log = commands, keeper, wire, log
        self._left = {number for number, command in enumerate(commands) if not command.serves}

    def look(self, wait_s: float = 0.0) -> bool:
        """Sees what has happened; whether all but the servers have done their work.

        Args:
            wait_s: How long to wait for something to happen.

        Raises:
            WorkerDied: A command has failed, or a server has ended.
            StartTimeout: They cannot be started.
        """
        for said in self._said(wait_s):
            if said.kind == "failed":
                raise StartTimeout(f"the job cannot be started here: {said.body['why']}")
            self._book(said.body["number"], said.body["status"])
        return not self._left

    def _book(self, number: int, status: int) -> None:
        command = self.commands[number]
        self._left.discard(number)
        if status or command.serves:
            how = f"ended with exit status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
            deadline = Deadline(_MORE_S)
            while self._left and (rest_s := deadline.left_s) > 0:
                self._left -= {said.body["number"] for said in self._said(min(rest_s, _LOOK_S)) if said.kind == "ended"}
            raise WorkerDied(f"{command.name} {how}{last_lines(command.log)}")

    def _said(self, wait_s: float) -> Iterator[Message]:
        """Yields the messages of the keeper that have come since the last call."""
        self._wire.wait(wait_s)
        try:
            while (message := self._wire.receive()) is not None:
                yield message
        except EOFError as error:
            status = self._keeper.wait(_KEEPER_S)
            raise WorkerDied(f"what keeps the job's processes ended with exit status {status}{last_lines(self._log)}") from error


@contextlib.contextmanager
def running(commands: Sequence[Command], num_hosts: int, folder: Path, scratch: Path) -> Iterator[TrialRun]:
    """Commands, for as long as the block lasts.

    Args:
        commands: The commands.
        num_hosts: Network namespaces to run them in; 0: none.
        folder: Where they are at home.
        scratch: Is removed with the commands if this process is killed.
    """
    log, (wire, theirs) = folder / "keeper.log", Wire.pair()
    path = os.pathsep.join(os.getcwd() if entry == "" else entry for entry in sys.path)
    with log.open("wb") as errors, theirs:
        keeper = subprocess.Popen(
            [sys.executable, "-m", _KEEPER, str(os.getpid()), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    try:
        told = [{**vars(command), "folder": str(command.folder), "log": str(command.log)} for command in commands]
        wire.tell("run", hosts=num_hosts, folder=str(folder), scratch=str(scratch), commands=told)
        yield TrialRun(commands, keeper, wire, log)
        wire.tell("stop", timeout_s=_STOP_TIMEOUT_S)
    finally:
        wire.close()
        try:
            keeper.wait(_KEEPER_S + _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()


def last_lines(log: Path, lines: int = 40) -> str:
    """The end of a log for an error: the log is gone when that is read.

    Args:
        log: The log.
        lines: How many lines, at most.
    """
    end = tail(log, lines)
    return ", and wrote nothing" if not end else "; its last lines:\n" + "\n".join(f"    {line}" for line in end.splitlines())


# What a rank takes before it has a batch: torch, PyG and a process group.
_BYTES_PER_RANK = 700 << 20
# Ranks take turns on a processor without harm; more than so many for each only wait for each other.
_RANKS_PER_CPU = 2
_LEAST_RANKS = 4
_SMALL = 2


@dataclass(frozen=True, kw_only=True)
class TrialSize(SizedJob):
    """The facts about a job and the size in which it is tried.

    Attributes:
        name: The directory's name.
        placement: What each node that holds the graph has of it.
        gpus_per_proc: GPUs of each rank.
        cut_from: The notebook's store, where the job's is cut from it.
    """

    name: str
    placement: str
    gpus_per_proc: int
    cut_from: str | None

    @property
    def num_hosts(self) -> int:
        """Nodes of both kinds."""
        return self.nodes + self.storage_nodes

    @property
    def size(self) -> str:
        """In words: "2 x 2 ranks and 2 x 1 storage servers"."""
        servers = f" and {self.storage_nodes} x {self.servers_per_node} storage servers" if self.storage_nodes else ""
        return f"{self.nodes} x {self.procs_per_node} ranks{servers}"


def read_job(directory: Path) -> TrialSize:
    """The job of an exported directory.

    Raises:
        PlanError: It is no exported directory, or what it says of itself is damaged.
    """
    options = read_record(directory)["options"]
    numbers: dict[str, Any] = {}
    for name, least in (*SIZES.items(), ("gpus_per_proc", 0)):
        value = numbers[name] = options.get(name)
        if not is_whole(value, least):
            raise PlanError(f"{RECORD} says {name}={shown(value)}", "export the job again")
    if not isinstance(options.get("launcher"), str):
        raise PlanError(f"{RECORD} says launcher={options.get('launcher')!r}", "export the job again")
    placement = str(options.get("placement"))
    return TrialSize(name=directory.name, launcher=options["launcher"], placement=placement, cut_from=options.get("cut_from"), **numbers)


def fitting(job: TrialSize) -> tuple[TrialSize, list[str]]:
    """The job in the size in which this machine can run it, and what to say where that is not the job's own.

    Args:
        job: The job.
    """
    cpus, memory = available_cpus(), available_memory()
    most_by_cpu, most_by_memory = max(_LEAST_RANKS, _RANKS_PER_CPU * cpus), memory // _BYTES_PER_RANK
    reasons = []
    if job.world_size > most_by_cpu or job.num_servers > most_by_cpu:
        reasons.append(f"{cpus} processor{'s' if cpus > 1 else ''}")
    if job.world_size + job.num_servers > most_by_memory:
        reasons.append(f"{format_bytes(memory)} of free memory")
    small = replace(job, **{name: min(_SMALL, getattr(job, name)) for name in SIZES})
    if not reasons or small == job:
        return job, []
    return small, [f"{small.size} in place of {job.size}: this machine has {' and '.join(reasons)}"]


LOOPBACK = "127.0.0.1"
_PORTS = range(15000, 32000)
# What may lie in a job's directory and no node needs; a larger file is no part of a job either.
_LEFT_OUT = ("token",)
_MOST_BYTES = 16 << 20
# Variables of this process that would tell a job where it is: it is elsewhere.
_TOLD = re.compile(
    r"GNNKIT_(?!HOME$|OFFLINE$).*|SLURM_.*|SRUN_.*|PET_.*|TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|(MASTER|STORAGE)_.*|NODE_RANK"
    r"|NNODES|NPROC_PER_NODE|SERVERS_PER_NODE|MAX_RESTARTS|JOB_.*|(JOIN|PREPARE)_TIMEOUT_S|(GLOO|NCCL|TP)_SOCKET_IFNAME"
)


@dataclass(frozen=True)
class Node:
    """One node of the job.

    Attributes:
        host: Which of the hosts of the trial it is.
        rank: Its number among the nodes with trainers, or among those with servers.
        address: Where others reach it.
        folder: Its own copy of the job's directory.
        store: Its own parts of the store.
    """

    host: int
    rank: int
    address: str
    folder: Path
    store: Path


@dataclass(frozen=True)
class JobTrial:
    """A job that is about to run on this machine.

    Attributes:
        job: The job, in the size in which it runs.
        folder: Where everything is that it writes.
        nodes: Nodes with trainers.
        storage_nodes: Nodes with servers.
        in_namespaces: Whether each node is a network namespace; else all of them are on loopback.
        environment: Variables of every command.
    """

    job: TrialSize
    folder: Path
    nodes: tuple[Node, ...]
    storage_nodes: tuple[Node, ...]
    in_namespaces: bool
    environment: Mapping[str, str]

    @property
    def records(self) -> Path:
        """The folder to which ranks write their records."""
        return self.folder / "records"

    @property
    def num_hosts(self) -> int:
        """Network namespaces to make."""
        return len(self.nodes) + len(self.storage_nodes) if self.in_namespaces else 0

    def interface(self, node: Node) -> dict[str, str]:
        """Returns the variable with a node's interface to the others: on loopback a node finds neither it nor its address by itself."""
        elsewhere = node.address if node in self.storage_nodes else "lo"
        return {"GNNKIT_INTERFACE": INTERFACE if self.in_namespaces else elsewhere}

    def command(self, node: Node, name: str, words: list[str], variables: Mapping[str, str]) -> Command:
        """Returns a command of one node, which is told where the others are; that of a storage node runs until it is ended.

        Args:
            node: The node.
            name: The command, for messages: "launch.sh".
            words: Its words.
            variables: Its own variables, beside those of every command and ``MASTER_ADDR`` and ``STORAGE_ADDRS``.
        """
        serves = node in self.storage_nodes
        addresses = {"MASTER_ADDR": self.nodes[0].address}
        if self.storage_nodes:
            addresses["STORAGE_ADDRS"] = ",".join(other.address for other in self.storage_nodes)
        environment = {**self.environment, **variables, **addresses, **self.interface(node)}
        what = f"{name} of {'storage ' if serves else ''}node {node.rank}"
        log = self.log(f"{'storage' if serves else 'node'}{node.rank}")
        return Command(what, words, environment, node.folder, log, node.host if self.in_namespaces else None, serves)

    def log(self, name: str) -> Path:
        """Returns the path of a command's log."""
        return self.folder / f"{name}.log"


def set_up(job: TrialSize, directory: Path, plan: LoaderPlan, folder: Path, *, in_namespaces: bool, timeout_s: float) -> JobTrial:
    """Makes the folders of all nodes.

    Args:
        job: The job, in the size in which it is to run.
        directory: Its directory.
        plan: Its plan.
        folder: Where to make them.
        in_namespaces: See ``Trial``.
        timeout_s: How long the job may take.

    Raises:
        PlanError: There are no free ports.
        StoreError: There is no store.
    """
    assert plan.store is not None, "there is a store, or nothing was exported"
    store = Path(plan.store.path)
    placement, written = _placement(job, store), str(read_plan_file(directory / PLAN)["store"]["path"])
    environment = _environment(job, folder, in_namespaces=in_namespaces, timeout_s=timeout_s)
    nodes = []
    for host in range(job.nodes + job.storage_nodes):
        serves = host >= job.nodes
        rank = host - job.nodes if serves else host
        address = host_address(host) if in_namespaces else f"127.0.0.{2 + rank}" if serves else LOOPBACK
        node = Node(host, rank, address, *_places(folder / f"node{host}", written))
        node.folder.mkdir(parents=True)
        _copy_files(directory, node.folder)
        if node.store != store and (serves or not job.storage_nodes):
            _link_store(store, node.store, placement.held(rank))
        here = replace(plan, store=replace(plan.store, path=str(node.store)))
        if plan.placement is not None:
            here = replace(here, placement=placement if job.nodes > 1 else None)
        if "interface" in plan.backend:
            here = replace(here, backend={**plan.backend, "interface": INTERFACE if in_namespaces else None})
        here.save(node.folder / PLAN)
        nodes.append(node)
    return JobTrial(job, folder, tuple(nodes[: job.nodes]), tuple(nodes[job.nodes :]), in_namespaces, environment)


def _places(root: Path, written: str) -> tuple[Path, Path]:
    """Returns a node's folders for the job's directory and for the store: the path in the job's files leads from one to the other.

    Args:
        root: The node's folder.
        written: The store's path in the job's files; an absolute one is the same for every node. What a node fetches from a URL lies
            beside its directory.
    """
    if is_url(written):
        return root / "job", root / "store"
    up = Path(os.path.normpath(written)).parts.count("..")
    folder = root.joinpath(*["above"] * (up - 1), "job")
    return folder, Path(os.path.normpath(folder / written))


def _placement(job: TrialSize, store: Path) -> Placement:
    """Which of the nodes that hold the graph holds which parts, in the size in which the job runs."""
    holders, num_parts = job.storage_nodes or job.nodes, read_manifest(store).num_parts
    if job.placement == "replicate":
        return Placement((tuple(range(num_parts)),) * holders)
    return shares(num_parts, holders, whole_structure=job.placement == "features")


def _copy_files(directory: Path, target: Path) -> None:
    for file in directory.iterdir():
        if file.is_file() and file.name not in (*_LEFT_OUT, PLAN) and file.stat().st_size <= _MOST_BYTES:
            shutil.copy2(file, target)


def _link_store(store: Path, target: Path, held: Held) -> None:
    """Links the files of a store that a node has."""
    for name in [MANIFEST_NAME, *(name for name in read_manifest(store).files if is_held(name, **held))]:
        link_or_copy(store / name, target / name)  # a symbolic link would lead out of the store


def write_command(file: Path, module: str, *words: str) -> None:
    """A command that runs a module with this interpreter.

    Args:
        file: The command's file.
        module: The module.
        *words: Its first arguments.
    """
    command = shlex.join([sys.executable, "-m", module, *words])
    file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    file.chmod(0o755)


def base_environment(folder: Path) -> dict[str, str]:
    """This process's variables, without those that tell a job where it is, and with the commands that a job needs, of this environment.

    Args:
        folder: Made for the commands, in ``bin``, and for temporary files, in ``tmp``.
    """
    (folder / "tmp").mkdir(parents=True)
    (folder / "bin").mkdir()
    for name, module in (("gnnkit", "gnnkit"), ("torchrun", "torch.distributed.run")):
        write_command(folder / "bin" / name, module)
    kept = {name: value for name, value in os.environ.items() if not _TOLD.fullmatch(name)}
    own = str(Path(__file__).parents[3])
    return {
        **kept,
        "PATH": os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(filter(None, [own, os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "GNNKIT_PROGRESS": "off",
        KERNEL_CACHE_VARIABLE: str(kernel_cache_root()),
    }


def stage_command(directory: Path, folder: Path) -> Command:
    """Returns the command that cuts a job's store.

    Args:
        directory: The job's directory.
        folder: Made for what it writes beside the store.
    """
    return Command(STAGE, [f"./{STAGE}"], base_environment(folder), directory, folder / "log", None)


def _environment(job: TrialSize, folder: Path, *, in_namespaces: bool, timeout_s: float) -> dict[str, str]:
    """The variables of every command of a job, which writes its records into a folder of their own."""
    records = folder / "records"
    records.mkdir(parents=True)
    environment = {
        **base_environment(folder),
        VARIABLE: str(records),
        "NNODES": str(job.nodes),
        "NPROC_PER_NODE": str(job.procs_per_node),
        "MAX_RESTARTS": "0",
        "JOIN_TIMEOUT_S": str(int(timeout_s) + 1),
        "PREPARE_TIMEOUT_S": str(int(timeout_s) + 1),
    }
    if job.storage_nodes:
        environment |= {"GNNKIT_TOKEN": secrets.token_hex(24), "SERVERS_PER_NODE": str(job.servers_per_node)}
    if in_namespaces:
        return environment
    first = _free_ports(1 + max(1, job.servers_per_node))
    return environment | {"MASTER_PORT": str(first), "STORAGE_PORT": str(first + 1)}


def _free_ports(count: int) -> int:
    """The first of several free ports in a row, below those that the system gives out by itself."""
    start = secrets.randbelow(_PORTS.stop - _PORTS.start)
    for step in range(0, len(_PORTS), count):
        first = _PORTS[(start + step) % (len(_PORTS) - count)]
        if all(map(_is_free, range(first, first + count))):
            return first
    raise PlanError(f"there are no {count} free ports between {_PORTS.start} and {_PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((LOOPBACK, port))
        return True
    return False
