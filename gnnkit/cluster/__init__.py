"""What crosses hosts: part services, servers and their clients over Arrow Flight and Unix sockets, and who belongs to a run."""
