"""A trainer on a host that holds one part: ``hosted.py STORE``; started by test_scripts with torchrun's variables.

Prints the digest of two epochs of its own part's nodes.
"""

from __future__ import annotations

import sys

import torch.distributed as dist

from gnnkit.distributed import DistDataset, DistNeighborLoader, resolve_runtime
from tests.helpers.batches import digest

dist.init_process_group("gloo")
dataset = DistDataset.from_store(sys.argv[1], resolve_runtime().node_rank)
loader = DistNeighborLoader(dataset, [3, 2], batch_size=8, shuffle=True, num_workers=1, seed=4)
sys.stdout.write(f"{[digest(list(loader)) for _ in range(2)]}\n")
dist.barrier()  # the other host may still ask for rows of this one
loader.shutdown()
dist.destroy_process_group()
