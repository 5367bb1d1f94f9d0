"""The devices that batches are brought to, or made on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gnnkit.errors import PlanError

if TYPE_CHECKING:
    import torch

Device: TypeAlias = "torch.device | str | int"


def resolve_device(device: Any) -> torch.device | None:
    """The device that a user names, or None for batches that stay where they are.

    Raises:
        PlanError: It does not exist here.
    """
    if device is None:
        return None
    import torch

    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise PlanError(f"unknown device {device!r}", "'cpu', 'cuda' or 'cuda:<index>'") from error
    if resolved.type == "cpu":
        return None
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise PlanError(
                f"device {device!r} was asked for, but torch finds no CUDA device", "leave device out, or install a CUDA build of torch"
            )
        index = torch.cuda.current_device() if resolved.index is None else resolved.index
        if index >= torch.cuda.device_count():
            raise PlanError(f"device {device!r} was asked for, but there are {torch.cuda.device_count()} CUDA devices")
        return torch.device("cuda", index)
    return resolved


def cache_device(device: Any) -> torch.device | None:
    """The device that features are cached on: where batches are, or are copied to; None where the user names none."""
    if device is None:
        return None
    import torch

    return resolve_device(device) or torch.device("cpu")


def device_for(backend: Any, device: Any) -> Any:
    """The device of a loader's batches: where its backend makes them, or the one that the user names.

    Raises:
        PlanError: The two differ.
    """
    made_on = getattr(backend, "device", None)
    if made_on is None or (device is not None and cache_device(device) == cache_device(made_on)):
        return device
    if device is not None:
        raise PlanError(
            f"device={str(device)!r}, and backend={backend} makes batches on {made_on!r}", "leave device out: it follows the backend"
        )
    return made_on


def device_of(data: Any) -> torch.device | None:
    """The device that tensors of a ``Data`` or ``HeteroData`` lie on; None where all are in memory."""
    import torch

    found = {value.device for store in data.stores for value in store.values() if isinstance(value, torch.Tensor)}
    return next((device for device in sorted(found, key=str) if device.type != "cpu"), None)
