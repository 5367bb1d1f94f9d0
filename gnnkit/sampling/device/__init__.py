"""Sampling on a device: what ``docs/sampling.md`` specifies, in operations of PyTorch alone, equal to the kernels' batches bit for bit."""
