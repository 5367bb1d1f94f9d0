"""Servers: processes that hold a graph and sample it for trainers, and how trainers reach them.

A server is ``python -m gnnkit.cluster.serving``, started by ``gnnkit.cluster.serving.fleet`` like a sampling process. It owns a
supervisor of sampling processes, which are those of ``Colocated``. Messages to it over its wire:

========== ==================================================================================================================
``setup``  first: what ``gnnkit.cluster.serving.spec.ServerSpec.setup`` gives
``copy``   has the graph's copy in huge pages made; answered with ``graph``
``graph``  such a copy to move over to: its descriptor and ``description``
``revive`` starts sampling processes that are not there
``stop``   ends it
========== ==================================================================================================================

It answers ``listening`` (``address``), ``state`` (what ``ServerLoop.details`` gives, whenever that has changed), ``graph`` (``description``
of the copy, None where there is none, and its descriptor), ``vitals`` (the memory of its workers' ``Vitals``), ``event``
(progress) and ``failed`` with an error like any child.

**Its Unix listener** is ``<folder>/server-<rank>.sock``, a SOCK_SEQPACKET socket. A client says ``join`` (``version``,
``token``, ``client``, ``pid``, ``name``), and is answered ``welcome``, or ``refused`` with an error. After that:

========== ==================================================================================================================
``enlist`` asks for the sampling processes, and starts those that have died again: ``worker`` (``worker``, ``pid``, ``log``)
           comes for each, with a connected socket to it and the memory of its ``Vitals``, and again for one that was started
           again; ``lost`` (``worker``, ``error``, ``again``: whether the server starts another one by itself) says that one has ended
``call``   (``number``, ``name``, ``args``) is answered ``answer`` (``number``, ``value`` or ``error``); see
           ``ServerLoop.answer``; a server on the network answers the same calls over TCP (``Network.call``)
========== ==================================================================================================================

``failed`` says that the server has to end, and why. From the socket to a sampling process on, the server has no part in what a client
does: it is the conversation that ``Colocated`` has with its own processes, but that one which asks for what cannot be is told ``failed``
and let go. A client that closes its connection has left, with everything that it had.
"""
