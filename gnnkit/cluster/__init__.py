"""Everything that crosses hosts: part services, servers and clients over TCP and Unix sockets, and the members of a run."""
