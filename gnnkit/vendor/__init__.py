"""The only importers of ``ogb`` and ``graphlearn_torch``, with what is known to be wrong with them."""
