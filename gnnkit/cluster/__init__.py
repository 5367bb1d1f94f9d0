"""Everything that crosses hosts: part services, servers and clients over Arrow Flight and Unix sockets, and the members of a run."""
