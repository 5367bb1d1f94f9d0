"""The part service: neighbours and rows of this host's parts, for the sampling processes of other hosts.

One process per host, ``python -m gnnkit.cluster.parts``, started like a sampling process:
``ChildProcess(rank, log, vitals_fd, SupervisorOptions(1, threads, module="gnnkit.cluster.parts"))``. Messages to it over its wire:

========== ==================================================================================================================
``setup``  first: ``store`` (path), ``fingerprint``, ``held`` (``gnnkit.plan.Held``: the parts that it serves), ``ip`` and ``port`` to
           listen on (0: any free port), ``token``, ``host`` (this one's number), ``graph`` (description of a shared copy, whose
           descriptor comes with the message, or None)
``graph``  a shared copy to move over to: its descriptor and ``description``
``attend`` ``peers``, ``{"<host>": address}``: the services that this host needs; they are told so (``gnnkit.cluster.membership``)
``stop``   ends it, once it has said goodbye to them
========== ==================================================================================================================

It answers ``ready`` with its ``port``, or ``failed`` with an error like any child, e.g. where the address cannot be listened on; ``here``
and ``bye`` pass on what other hosts say, and ``refused`` tells the ``address`` of a client that came with another token, once for each.

A sampling process's setup message carries ``hosts``: None on one host, else ``{"self": h, "held": what this host has,
"peers": {"<host>": {"address": "10.0.0.2:4711", "parts": [1]}}, "token": ..., "timeout_s": ..., "start_timeout_s": ...}``.

A request is answered from the request alone, so it may be asked again: a service that was started again at the same address is
simply used again. One batch asks each host once a hop and once for rows. Rows are asked for when the walk is over: sending what is known
with the last hop's request would save one round trip of a batch; measured with 2 ms a round trip and four batches in flight, that
was no faster, because processors and not round trips are what two hosts are short of.
"""
