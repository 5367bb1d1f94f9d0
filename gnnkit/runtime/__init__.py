"""Everything that runs on one host: supervisor, scheduler, workers, rings, memory of graphs, and runs."""
