"""Measures gnnkit against the loaders that people use today, on the same graph, in one run.

options       what to measure
process       a measurement is a process of its own, whose memory is watched from outside, and how busy processors are
contenders    which processes there are, and the graph, as .npy files for the peers and as stores for gnnkit; the peers' scripts lie in
              tools/peers of the checkout and know nothing of gnnkit
lines         who is compared with whom, the figures to reach, and what is computed from the measurements
namespaces    several hosts on one
memory_groups processes that may use no more than so much memory
report        how it is run and shown
tasks         gnnkit's own measurements; more in cluster_tasks, limit_tasks and kinds

``make bench ARGS="--rows seeds-pyg"`` and ``python -m tools.bench`` run it; ``gnnkit bench`` measures a user's machine alone.
"""
