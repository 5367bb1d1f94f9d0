"""What runs: limits of the host, memory for batches and graphs, opened graphs."""
