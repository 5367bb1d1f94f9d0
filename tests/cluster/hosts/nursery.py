"""Trainers on call: a process that has imported what takes long, and forks a trainer for whoever asks.

It reads requests from a Unix socket: JSON ``{"environment": ..., "pid": of the namespace's holder or None}`` with three descriptors, which
become the trainer's standard streams; it answers with the trainer's pid, and ``{"wait": pid}`` with its exit status.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import socket
import sys

_CLONE_NEWNET = 0x40000000


def serve(end: socket.socket) -> bool:
    """Answers requests until the other side goes away; True in a trainer."""
    while True:
        text, fds, _, _ = socket.recv_fds(end, 1 << 16, 3)
        if not text:
            return False
        request = json.loads(text)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            end.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            become(fds, **request)
            return True
        for fd in fds:
            os.close(fd)
        end.send(json.dumps(pid).encode())


def become(fds: list[int], environment: dict[str, str], pid: int | None) -> None:
    """Makes this process the trainer."""
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    if pid is not None:
        libc, space = ctypes.CDLL(None, use_errno=True), os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        if libc.setns(space, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the namespace")
        os.close(space)
    sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)


def skip_teardown() -> None:
    """The last thing that happens at the end of a process: taking a forked interpreter apart copies all of its memory, for nothing."""
    sys.stdout.flush()
    os._exit(1 if hasattr(sys, "last_type") else 0)


if __name__ == "__main__":
    atexit.register(skip_teardown)  # the first one registered is the last one called
    import torch.distributed  # noqa: F401
    import torch_geometric.data  # noqa: F401

    import gnnkit.backends.pool_stream  # noqa: F401
    from tests.cluster.hosts import agent

    with socket.socket(fileno=int(sys.argv[1])) as requests:
        is_trainer = serve(requests)
    if is_trainer:
        agent.main()
