"""Sizing on paper: what a run needs of each node, from sizes, bounds and measured rates; see ``gnnkit plan-capacity``."""
