"""Measures gnnkit against the loaders that people use today, on the same graph, in one run.

options       what to measure
graph         the graph, as .npy files for the peers and as stores for gnnkit
process       a measurement is a process of its own, whose memory is watched from outside
contenders    which processes there are; the peers' scripts lie in tools/peers of the checkout and know nothing of gnnkit
lines         who is compared with whom, and the figures to reach; more in job_lines; line is what one of them looks like
rows          what is computed from the measurements
namespaces    several hosts on one
memory_groups processes that may use no more than so much memory
footprint     what processes occupy, by what it is for
processors    how busy processors are
table         how it is shown
tasks         gnnkit's own measurements; more in (host|server|serving|device|disk|advice|job)_tasks

Nothing is imported here: every `gnnkit` command knows the options, and none but `gnnkit bench` needs what measures.
"""
