"""Why a sampling process ended, as far as the system says."""

from __future__ import annotations

import contextlib
import signal

from gnnkit.host import memory_kills
from gnnkit.runtime.vitals import Signs


def describe_end(returncode: int | None) -> str:
    """An exit status in words: "was killed by SIGSEGV"."""
    if returncode is None:
        return "closed its connection"
    if returncode >= 0:
        return f"ended with status {returncode}"
    name = str(-returncode)
    with contextlib.suppress(ValueError):
        name = signal.Signals(-returncode).name
    return f"was killed by {name}"


def explain_end(returncode: int | None, signs: Signs, kills_before: int | None, advice: str) -> tuple[str, str]:
    """What is known about the cause, and what to do.

    Args:
        returncode: The exit status as ``Popen`` gives it.
        signs: What the process last showed.
        kills_before: ``memory_kills`` when the process was started.
        advice: What to do where the cause is not known.
    """
    memory = f"it occupied {signs.rss / 1e6:.0f} MB when it was last seen" if signs.rss else "its memory is not known"
    if returncode == -signal.SIGKILL:
        kills = memory_kills()
        if kills is not None and kills_before is not None and kills > kills_before:
            text = f"the kernel killed {kills - kills_before} process(es) of this memory group meanwhile because memory ran out; {memory}"
            return text, "lower num_workers, batch_size, num_neighbors or memory_budget, or raise the memory limit of this container"
        return f"no kill for lack of memory was counted meanwhile, so somebody killed it; {memory}", advice
    if returncode == -signal.SIGBUS:
        return f"mapped memory was gone: a store's file was cut, a disk failed, or shared memory is full; {memory}", (
            "gnnkit info --verify names damaged files; a container's limit of memory counts shared memory, too"
        )
    return memory, advice
