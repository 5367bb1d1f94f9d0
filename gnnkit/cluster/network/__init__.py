"""The connection layer: requests and their table, values, the TCP wire with its gate, clients and services."""
