"""The part of the Kafka protocol that shows whether a broker is ready."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_METADATA = 3
_VERSION = 1
_NO_TOPICS = struct.pack(">i", 0)


@dataclass(frozen=True)
class Brokers:
    """What a broker reports about its cluster: the ids of the brokers that serve requests, and of the controller."""

    ids: frozenset[int]
    controller: int


def brokers_known_to(host: str, port: int, timeout: float = 5.0) -> Brokers:
    """Ask a broker for the brokers that it knows. Raises ``OSError`` while it does not answer."""
    body = struct.pack(">hhih", _METADATA, _VERSION, 1, -1) + _NO_TOPICS
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (length,) = struct.unpack(">i", _exactly(connection, 4))
        return _parse(_exactly(connection, length))


def _parse(answer: bytes) -> Brokers:
    try:
        (count,) = struct.unpack_from(">i", answer, 4)
        at = 8
        ids = set()
        for _ in range(count):
            (node,) = struct.unpack_from(">i", answer, at)
            at = _skip_string(answer, at + 4) + 4  # the host, then the port
            at = _skip_string(answer, at)  # the rack
            ids.add(node)
        (controller,) = struct.unpack_from(">i", answer, at)
    except struct.error as error:
        raise ConnectionError("the answer is not that of a Kafka broker") from error
    return Brokers(frozenset(ids), controller)


def _skip_string(answer: bytes, at: int) -> int:
    length: int = struct.unpack_from(">h", answer, at)[0]
    return at + 2 + max(0, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        chunk = connection.recv(length - len(data))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        data += chunk
    return data
