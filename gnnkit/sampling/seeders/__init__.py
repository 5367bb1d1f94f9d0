"""The seeders, which find the seeds of a batch: one module for each kind of inputs."""
