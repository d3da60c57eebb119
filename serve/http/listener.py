"""The socket that the service listens on."""

import socket


def listen(host: str, port: int) -> socket.socket:
    """Open a TCP socket for a server; uvicorn would end the process where that fails.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # Connections inherit it. asyncio sets it only where the socket names TCP as its protocol, and
    # without it the second part of an answer waits 40 ms for the acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
