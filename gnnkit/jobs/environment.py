"""A process's place among the ranks of its job, from torchrun, Slurm or Kubernetes, and the device that it computes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnnkit.cluster.hosts import is_loopback, source_address
from gnnkit.errors import PlanError

if TYPE_CHECKING:
    import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ASK_S = 20.0


def check_device(word: str) -> None:
    """Refuses what is no word for a device.

    Raises:
        PlanError: It is none.
    """
    if word not in ("auto", "cpu", "cuda") and not (word.startswith("cuda:") and word[5:].isdigit()):
        raise PlanError(f"unknown device {word!r}", "'auto', 'cpu', 'cuda' or 'cuda:<index>'")


def check_present(word: str) -> None:
    """Refuses a GPU where there is none. CUDA is asked in a way that leaves it to ranks, where the system allows that.

    Raises:
        PlanError: There is none.
    """
    if not word.startswith("cuda"):
        return
    import torch

    if not torch.cuda.device_count():
        raise _absent(word)


def _absent(word: str) -> PlanError:
    text = f"device {word!r} was asked for, but torch finds no CUDA device"
    return PlanError(text, "leave device out, or install a CUDA build of torch")


def choose_device(word: str, place: JobPlace) -> torch.device:
    """The device of a rank.

    CUDA shows a process one slice of a GPU that is divided into several (MIG), so a rank's own is made the only visible one; nothing may
    have used CUDA in this process before.

    Args:
        word: "auto", "cpu", "cuda" or "cuda:<index>". "auto" is the local rank's GPU, or the CPU where there is none.
        place: Where the rank stands.

    Raises:
        PlanError: There is no such device, or fewer GPUs than ranks of this node.
    """
    import torch

    check_device(word)
    if word == "cpu":
        return torch.device("cpu")
    if word in ("auto", "cuda"):
        _show_own_slice(place)
    if not torch.cuda.is_available():
        if word == "auto":
            return torch.device("cpu")
        raise _absent(word)
    count = torch.cuda.device_count()
    # A launcher that gives each rank a GPU of its own shows it that one.
    index = int(word[5:]) if word.startswith("cuda:") else place.local_rank if count > 1 else 0
    if index >= count:
        raise PlanError(
            f"local rank {place.local_rank} is to use GPU {index}, but there are {count} here",
            "start as many ranks on a node as it has GPUs, or run on the CPU: --device cpu",
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _show_own_slice(place: JobPlace) -> None:
    """Makes a local rank's slice of a divided GPU the only one that CUDA shows, where there are several."""
    visible = os.environ.get(VISIBLE)  # empty: no GPU is to be seen
    slices = mig_slices() if visible is None else [name.strip() for name in visible.split(",") if name.strip().startswith("MIG-")]
    if len(slices) > place.local_rank and place.local_world_size > 1:
        os.environ[VISIBLE] = slices[place.local_rank]


def mig_slices() -> list[str]:
    """The slices of this host's divided GPUs, as ``CUDA_VISIBLE_DEVICES`` names them; none where no GPU is divided."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_ASK_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split("UUID:")[1].strip(" )\n") for line in listed.splitlines() if "UUID: MIG-" in line]


def device_key(device: torch.device) -> str:
    """Tells GPUs of one host apart; the same for slices of one GPU, and empty for the CPU. NCCL wants a GPU for each rank."""
    import torch

    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    numbers = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if None in numbers:  # an older torch: the slice's own name, if it is one, has to do
        return "MIG" if os.environ.get(VISIBLE, "").startswith("MIG-") else str(getattr(properties, "uuid", device.index))
    return "-".join(map(str, numbers))


_LAUNCHER_HINT = "start it with torchrun, srun or as an indexed Job, or unset what is left of another job to run alone"
# Below the ports that systems give out by themselves.
_PORTS = range(15000, 32000)
DEFAULT_PORT = 29500


@dataclass(frozen=True)
class JobPlace:
    """The place of a process in its job.

    Attributes:
        rank: Among all ranks.
        local_rank: Among those of its node.
        node_rank: Its node.
        world_size: Ranks in all.
        local_world_size: Ranks of its node.
        num_nodes: Nodes.
        restarts: How often the job was started again.
        master_addr: Where ranks meet: a name or address of rank 0's node; empty for a single rank.
        master_port: The port there.
        agent_store: Whether torchrun's agent already listens there for the ranks.
    """

    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    num_nodes: int = 1
    restarts: int = 0
    master_addr: str = ""
    master_port: int = DEFAULT_PORT
    agent_store: bool = False

    def __post_init__(self) -> None:
        for name, value, count, of in (
            ("rank", self.rank, self.world_size, "ranks"),
            ("local rank", self.local_rank, self.local_world_size, "ranks of the node"),
            ("node", self.node_rank, self.num_nodes, "nodes"),
        ):
            if not 0 <= value < count:
                raise PlanError(f"this is {name} {value}, but there are {count} {of}; they count from 0", _LAUNCHER_HINT)
        if self.local_world_size > self.world_size or self.num_nodes > self.world_size:
            raise PlanError(
                f"{self.num_nodes} nodes and {self.local_world_size} ranks of this one are more than the job's {self.world_size} ranks",
                _LAUNCHER_HINT,
            )

    def variables(self) -> dict[str, str]:
        """This place as torchrun would say it, for libraries that look there."""
        told = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "GROUP_RANK": self.node_rank,
            "GROUP_WORLD_SIZE": self.num_nodes,
        }
        met = {"MASTER_ADDR": self.master_addr, "MASTER_PORT": str(self.master_port)} if self.master_addr else {}
        return {name: str(value) for name, value in told.items()} | met


def find_place(environment: Mapping[str, str] | None = None) -> JobPlace:
    """The place that this process's launcher has told it; alone, where none has.

    Args:
        environment: Variables; None takes this process's.

    Raises:
        PlanError: A variable is missing or malformed, or two contradict each other; names them.
    """
    told = _Told(os.environ if environment is None else environment)
    if told.has("RANK", "WORLD_SIZE"):
        return _from_torchrun(told)
    # A batch script, and a notebook that it starts, have a SLURM_PROCID too, and are no rank: they run in no step.
    if told.has("SLURM_PROCID") and told.has("SLURM_STEP_ID"):
        return _from_slurm(told)
    if told.has("JOB_COMPLETION_INDEX"):
        rank, nodes = told.number("JOB_COMPLETION_INDEX"), told.number("NNODES", least=1)
        return JobPlace(rank, 0, rank, nodes, 1, nodes, restarts=told.number("GNNKIT_RESTARTS", 0), **_meeting(told, nodes, ""))
    return JobPlace()


def find_job() -> str:
    """Which job this process belongs to, in words: the same each time that a launcher starts the job again."""
    told = _Told(os.environ)
    if told.has("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        return f"Slurm job {told.text('SLURM_ARRAY_JOB_ID')}_{told.text('SLURM_ARRAY_TASK_ID')}"
    if told.has("SLURM_JOB_ID"):
        return f"Slurm job {told.text('SLURM_HET_JOB_ID') or told.text('SLURM_JOB_ID')}"
    if told.has("TORCHELASTIC_RUN_ID"):
        return f"torchrun's job {told.text('TORCHELASTIC_RUN_ID')}"
    return f"process {os.getpid()}"


def find_node(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Which node of how many this process prepares, where it need not be a rank.

    Beside the variables of ranks these are ``NODE_RANK`` and ``NNODES``, as scripts that call torchrun have them.

    Args:
        environment: See ``find_place``.

    Raises:
        PlanError: See ``find_place``.
    """
    told = _Told(os.environ if environment is None else environment)
    if not told.has("NODE_RANK"):
        place = find_place(told.values)
        return place.node_rank, place.num_nodes
    # A range, least to most, is torchrun's; any number of nodes in it gets the same batches.
    node, count = told.number("NODE_RANK"), _Told({"NNODES": told.text("NNODES").rpartition(":")[2]}).number("NNODES", least=1)
    if node >= count:
        raise PlanError(f"NODE_RANK={node}, but NNODES={count}", "nodes count from 0")
    return node, count


def _from_torchrun(told: _Told) -> JobPlace:
    rank, world_size = told.number("RANK"), told.number("WORLD_SIZE", least=1)
    if told.has("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        local_rank, local_size = told.number("LOCAL_RANK"), told.number("LOCAL_WORLD_SIZE", least=1)
        nodes = told.number("GROUP_WORLD_SIZE", -(-world_size // local_size), least=1)
        node = told.number("GROUP_RANK", rank // local_size)
    else:  # PyTorchJob: a pod is a node of one rank
        local_rank, local_size, nodes, node = 0, 1, world_size, rank
    return JobPlace(
        rank,
        local_rank,
        node,
        world_size,
        local_size,
        nodes,
        restarts=told.number("TORCHELASTIC_RESTART_COUNT", 0) + told.number("SLURM_RESTART_COUNT", 0) + told.number("GNNKIT_RESTARTS", 0),
        **_meeting(told, world_size, ""),
        agent_store=told.text("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _from_slurm(told: _Told) -> JobPlace:
    rank = told.number("SLURM_PROCID")
    world_size = told.number("SLURM_STEP_NUM_TASKS" if told.has("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS", 1, least=1)
    nodes = told.number("SLURM_STEP_NUM_NODES" if told.has("SLURM_STEP_NUM_NODES") else "SLURM_NNODES", 1, least=1)
    node, local_rank = told.number("SLURM_NODEID", 0), told.number("SLURM_LOCALID", 0)
    counts = _tasks_of_nodes(told) or [-(-world_size // nodes)] * nodes
    if len(counts) != nodes or sum(counts) != world_size:
        counts = [-(-world_size // nodes)] * nodes
    if node >= nodes:
        raise PlanError(f"SLURM_NODEID={node}, but SLURM_NNODES={nodes}", "nodes count from 0")
    names = told.text("SLURM_STEP_NODELIST") or told.text("SLURM_JOB_NODELIST") or told.text("SLURM_NODELIST")
    first, second = [*_hosts(names), "", ""][:2]
    first = first or told.text("SLURM_LAUNCH_NODE_IPADDR")
    if node == 0 and second and is_loopback(source_address(first)):
        # Debian's hosts file has a host's own name at 127.0.1.1: the address is that of the interface that leads to the other nodes.
        first = source_address(second) or first
    return JobPlace(
        rank,
        local_rank,
        node,
        world_size,
        counts[node],
        nodes,
        restarts=told.number("SLURM_RESTART_COUNT", 0),
        **_meeting(told, world_size, "127.0.0.1" if nodes == 1 else first, _PORTS[told.number("SLURM_JOB_ID", 0) % len(_PORTS)]),
    )


def _tasks_of_nodes(told: _Told) -> list[int]:
    """Tasks of each node from ``"2(x3),1"``; empty where it is not said."""
    name = "SLURM_STEP_TASKS_PER_NODE" if told.has("SLURM_STEP_TASKS_PER_NODE") else "SLURM_TASKS_PER_NODE"
    counts: list[int] = []
    for item in filter(None, told.text(name).split(",")):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", item)
        if match is None:
            raise PlanError(f"{name}={told.text(name)!r} is no list of numbers of tasks", "for example 2(x3),1; srun sets it")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _hosts(names: str) -> Iterator[str]:
    """``node03``, ``node04``, ``node11`` and ``other`` of ``"node[03-04,11],other"``."""
    for before, numbers, after in re.findall(r"([^\[,]+)(?:\[([^\]]*)\]([^,]*))?", names):
        for item in numbers.split(","):
            first, _, last = item.partition("-")
            many = range(int(first), int(last) + 1) if first.isdigit() and last.isdigit() else ()
            yield from [f"{before}{number:0{len(first)}}{after}" for number in many] or [before + item + after]


def _meeting(told: _Told, world_size: int, default: str, port: int = DEFAULT_PORT) -> dict[str, Any]:
    """Returns the address and the port at which ranks meet; empty for a single rank."""
    address = told.text("MASTER_ADDR") or default
    if world_size == 1:
        return {}
    if not address:
        raise PlanError(f"MASTER_ADDR is not set, and {world_size} ranks have to meet somewhere", "export MASTER_ADDR, rank 0's node")
    port = told.number("MASTER_PORT", port, least=1)
    if port > 65535:
        raise PlanError(f"MASTER_PORT={port} is no port", "ports go up to 65535")
    return {"master_addr": address, "master_port": port}


@dataclass(frozen=True)
class _Told:
    """Variables, read as what they have to be."""

    values: Mapping[str, str]

    def has(self, *names: str) -> bool:
        """Whether they are set; all of them or none.

        Raises:
            PlanError: Some are, and some are not.
        """
        missing = [name for name in names if not self.text(name)]
        if missing and len(missing) < len(names):
            there = [f"{name}={self.text(name)}" for name in names if name not in missing]
            raise PlanError(f"{' and '.join(there)} is in the environment, but {' and '.join(missing)} is not", _LAUNCHER_HINT)
        return not missing

    def text(self, name: str) -> str:
        """A variable's value; empty where it is not set."""
        return self.values.get(name, "").strip()

    def number(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """A variable as a whole number.

        Raises:
            PlanError: It is none, or too small; or it is not set and there is no default.
        """
        text = self.text(name)
        if not text and default is not None:
            return default
        if not text:
            raise PlanError(f"{name} is not set", _LAUNCHER_HINT)
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise PlanError(f"{name}={text!r} in the environment is no whole number of at least {least}", _LAUNCHER_HINT)
        return int(text)
