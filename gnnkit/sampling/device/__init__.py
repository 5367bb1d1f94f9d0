"""Sampling on a device: what ``docs/development/sampling.md`` specifies, in operations of PyTorch alone.

Batches are equal to the kernels' bit for bit.
"""
