"""One connection through the proxy."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from tidegate.sandbox.trap import Loses, Trap

_CHUNK = 64 * 1024
_PAUSE_SECONDS = 0.1
"""Seconds of silence after which a client's message is taken to be complete."""


class Conditions(Protocol):
    """The current network faults, which the proxy defines."""

    @property
    def lag(self) -> float:
        """Delay in seconds of each piece of data, in each direction."""

    @property
    def swallowing(self) -> bool:
        """Whether all data is discarded."""

    def trapped(self, relay: Relay, data: bytes) -> Trap | None:
        """Return the trap that a client's data triggers, and disarm it."""


class Relay:
    """Passes bytes between a client and the server until one of them disconnects, or until it is cancelled."""

    def __init__(self, conditions: Conditions, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._conditions = conditions
        self._client_reader = reader
        self._client_writer = writer
        self._trap: Trap | None = None
        self._swallowed = b""
        self.lossy = False
        """Whether data was discarded, so that the two sides can no longer understand each other."""

    async def run(self, host: str, port: int) -> None:
        """Pass data until the end, then close both sides."""
        try:
            if self._conditions.swallowing:
                await self._silence()
            reader, writer = await asyncio.open_connection(host, port)
            try:
                await self._carry(reader, writer)
            finally:
                await _drop(writer)
        except OSError:
            pass  # one side has disconnected; closing tells the other
        finally:
            await _drop(self._client_writer)
        if self._trap is not None:
            self._trap.fire(self._swallowed)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up = asyncio.create_task(self._up(writer))
        try:
            await self._down(reader)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)

    async def _up(self, server: asyncio.StreamWriter) -> None:
        try:
            while data := await self._client_reader.read(_CHUNK):
                await asyncio.sleep(self._conditions.lag)
                if self._conditions.swallowing:
                    self.lossy = True
                    continue
                self._trap = self._conditions.trapped(self, data)
                if self._trap is not None and self._trap.loses is Loses.REQUEST:
                    self._swallowed = data
                    server.transport.abort()
                    return
                server.write(data)
                await server.drain()
                if self._trap is not None:
                    await self._finish(server)
                    break
            if self._conditions.swallowing and self._trap is None:
                await self._silence()
            server.write_eof()
        except OSError:
            server.transport.abort()

    async def _finish(self, server: asyncio.StreamWriter) -> None:
        """Pass on the rest of the trapped message, until the client waits for a reply and the server has sent one.

        That reply may belong to an earlier message. So the server is then told that no more data will come. When it has
        read everything and disconnects in turn, it has processed the whole message.
        """
        while True:
            try:
                data = await asyncio.wait_for(self._client_reader.read(_CHUNK), _PAUSE_SECONDS)
            except TimeoutError:
                if self._swallowed:
                    return
                continue
            if not data:
                return
            server.write(data)
            await server.drain()

    async def _down(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(_CHUNK):
            await asyncio.sleep(self._conditions.lag)
            if self._trap is not None and self._trap.loses is Loses.REPLY:
                self._swallowed += data
            elif self._conditions.swallowing:
                self.lossy = True
            else:
                self._client_writer.write(data)
                await self._client_writer.drain()
        if self._conditions.swallowing and self._trap is None:
            await self._silence()

    async def _silence(self) -> None:
        """Keep each side from noticing that the other has disconnected, until the proxy ends the connection."""
        self.lossy = True
        await asyncio.get_running_loop().create_future()


async def _drop(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
