"""Sampling processes: ``python -m gnnkit.cluster.worker``. The loop of ``gnnkit.runtime.worker``, with a way to other hosts."""
