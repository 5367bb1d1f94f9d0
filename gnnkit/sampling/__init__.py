"""Random stream, kernels and samplers: from a batch key to a sampled subgraph and on to PyG."""
