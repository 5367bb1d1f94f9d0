"""Scripts that drive other loaders. They run under the interpreter in which those are installed and import nothing of gnnkit.

Each ends with one line of JSON. Arrays are read from the folder that ``gnnkit.bench.graph.BenchGraph.arrays`` makes.
"""
