"""The proof that an exported job gives the notebook's batches: it runs on this machine, and every batch is compared."""
