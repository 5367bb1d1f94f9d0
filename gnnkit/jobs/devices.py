"""Which device a rank of a node computes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from gnnkit.errors import PlanError
from gnnkit.jobs.environment import Place

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


def choose_device(word: str, place: Place) -> torch.device:
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


def _show_own_slice(place: Place) -> None:
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
