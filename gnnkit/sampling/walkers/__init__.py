"""The walkers, which choose a batch's nodes and edges: one module for each way of sampling."""
