"""A loader's plan as the files of a cluster's job, and the proof that they give the same batches."""
