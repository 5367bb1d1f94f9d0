"""A rank that is only in its job's process group, and does what its standard input says."""

from __future__ import annotations

import sys

import psutil
import torch

from gnnkit.jobs.environment import find_place
from gnnkit.jobs.process_group import process_group


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    with process_group(find_place(), torch.device("cpu")):
        say("in")
        for line in sys.stdin:
            word = line.strip()
            if word == "reduce":
                ones = torch.ones(1)
                torch.distributed.all_reduce(ones)
                say("sum", int(ones))
            elif word == "listeners":
                connections = psutil.Process().net_connections("inet")
                say(*sorted({c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}))
            elif word == "end":
                break
    say("out")


if __name__ == "__main__":
    main()
