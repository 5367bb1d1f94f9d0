"""Stores and tables at URLs: fetched and put by a child process that has fsspec, kept in the cache folder.

The child is ``python -m gnnkit.cluster.urls.transfer``, started like a sampling process for as long as something is fetched or put. It
reads credentials as fsspec does, from its environment and the files of the libraries. Messages to it over its wire:

========== ==================================================================================================================
``read``   ``url``; answered with the file's bytes in memory
``write``  ``url`` and the bytes in memory
``find``   ``url`` of a file, a folder or a glob; answered with ``files``: url, size, version
``get``    ``files``: url, path, size, crc32 and version, the last two None where they are not known
``put``    ``files``: url, path, size, crc32
``remove`` ``urls``
``stop``   ends it
========== ==================================================================================================================

It answers each with ``done`` or with ``refused`` (``error``, and ``unreachable``: whether it is the network that is to blame); ``moved``
(``bytes``) says how far a ``get`` or ``put`` is. What ``get`` has received lies beside its place in ``<name>.part``, with which the next
one goes on; a file is at its place once it is all there, its checksum has been compared, and it is on the disk.
"""
