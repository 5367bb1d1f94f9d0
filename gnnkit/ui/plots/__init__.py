"""Pictures: matplotlib figures of batches, stores, epochs and footprints. matplotlib is imported when the first one is drawn."""
