"""Partition directories of graphlearn-torch 0.2.4, read and written.

Such a directory is made of pickles, which is why reading one is always an explicit call. Nothing in it is run: tensors are
loaded as weights only, and every other pickle may hold plain values. Importing this package imports torch.
"""

from gnnkit.storage.glt_format.read import GltPartitionSource
from gnnkit.storage.glt_format.write import write_glt_partitions

__all__ = ["GltPartitionSource", "write_glt_partitions"]
