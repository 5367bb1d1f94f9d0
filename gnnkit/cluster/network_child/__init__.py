"""The network child: a process of the trainer that speaks to servers of other hosts on its behalf; the trainer opens no connection.

One program, ``python -m gnnkit.cluster.network_child``, started like a sampling process by ``client.NetworkChild`` or as one by
``gnnkit.backends.server_pool.ReceiverPool``. Messages to it over its wire:

=========== =================================================================================================================
``servers`` first: ``addresses`` (the first that answers is asked), ``token``, ``ca`` (PEM or None), ``client`` (the trainer's id),
            ``outlines`` (folder), and ``membership``: of servers that were joined before, or None. Then it joins them, with ``stays``
            (whether it says that the trainer is there) and ``join_timeout_s``: it answers ``waiting`` (``text``, ``there``, ``total``)
            while servers are missing, ``joined`` (``membership``, ``outline``) once it has joined, or ``refused`` (``error``)
``call``    ``number``, ``rank``, ``name``, ``args`` (``gnnkit.cluster.network.codec``), ``timeout_s``; answered with ``answer``
            (``number``, ``value`` or ``error``)
``setup``   makes it a sampling process, whose batches the servers walk (``receiver``): all that follows is said to one.
            Beside what such a process is told: ``again``, whether a server that is gone is waited for
``stop``    ends it
=========== =================================================================================================================
"""
