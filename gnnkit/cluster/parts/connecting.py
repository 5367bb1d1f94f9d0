"""The one way to make a connection to a service of another host."""

from __future__ import annotations

from typing import Any

import pyarrow.flight as flight

# A host that vanishes without a word is noticed by pings: one this long after the last byte, answered within this time. Few enough
# pings go out for the service not to take them for a nuisance, because calls are short.
_PING_AFTER_MS, _PING_TIMEOUT_MS = 2000, 2500
_CONNECT_TIMEOUT_MS = 2500
_CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each client
    ("grpc.keepalive_time_ms", _PING_AFTER_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),  # fewer pieces to a message: 5 % of its time
]


def connect(address: str, ca: str | None) -> Any:
    """A ``FlightClient``; it connects with its first call.

    Args:
        address: ``"10.0.0.2:4711"``.
        ca: PEM of the certificates that the service's is checked against; None: the connection is not encrypted.
    """
    if ca is None:
        return flight.FlightClient(f"grpc://{address}", generic_options=_CHANNEL_OPTIONS)
    return flight.FlightClient(f"grpc+tls://{address}", tls_root_certs=ca.encode(), generic_options=_CHANNEL_OPTIONS)
