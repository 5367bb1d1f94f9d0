"""A switch of network namespaces that delays and loses packets, for kernels without netem: ``python slow_switch.py DELAY_S LOSS PID...``.

Makes the device ``eth0`` in the namespace of each pid and passes Ethernet frames on between them; ends with its standard input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_MOST_FRAME = 65536
_CLONE_NEWNET = 0x40000000


def tap(pid: str) -> int:
    """A descriptor of the new device ``eth0`` in a process's namespace."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    enter(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI))
    enter(own)
    return device


def enter(space: int) -> None:
    """Moves this process into a namespace, and closes its descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter the namespace")
    os.close(space)


def main() -> None:
    delay_s, loss, *pids = sys.argv[1:]
    ports, chance = [tap(pid) for pid in pids], random.Random(0)
    os.write(1, b"ready\n")
    waiting: list[tuple[float, int, int, bytes]] = []
    poller, count = select.poll(), 0
    for fd in (0, *ports):
        poller.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        timeout_ms = max(0.0, (waiting[0][0] - time.monotonic()) * 1000) if waiting else 1000
        for fd, _ in poller.poll(timeout_ms):
            if fd == 0:
                return
            frame = os.read(fd, _MOST_FRAME)
            for port in ports:
                if port != fd and chance.random() >= float(loss):
                    count += 1
                    heapq.heappush(waiting, (time.monotonic() + float(delay_s), count, port, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, port, frame = heapq.heappop(waiting)
            try:
                os.write(port, frame)
            except OSError:  # the device is down, or its queue is full: one more loss
                continue


if __name__ == "__main__":
    main()
