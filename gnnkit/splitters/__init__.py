"""Splits of nodes and edges into training, validation and test."""

from gnnkit.splitters.splitting import Split, cut, split_links, split_nodes, split_sizes

__all__ = ["Split", "cut", "split_links", "split_nodes", "split_sizes"]
