"""Training jobs: where a rank stands, its process group, its checkpoints, and calling the user's function in it."""
