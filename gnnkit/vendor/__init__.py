"""The only importers of ``ogb``, ``graphlearn_torch`` and ``pymetis``, with what is known to be wrong with them."""
