"""One connection through a proxy."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from tidegate.sandbox.trap import Loses, Trap

_CHUNK = 64 * 1024
_PAUSE_SECONDS = 0.1
"""A client that has been silent for so long after a message has sent all of it."""


class Conditions(Protocol):
    """What the network is like at present."""

    @property
    def lag(self) -> float:
        """Seconds by which each piece of data is late, in each direction."""

    @property
    def swallowing(self) -> bool:
        """Whether everything disappears."""

    def trapped(self, relay: Relay, data: bytes) -> Trap | None:
        """Return the trap that a client's data springs, which is thereby used up."""


class Relay:
    """Carries bytes between a client and the server until one of them leaves, or until it is cancelled."""

    def __init__(self, conditions: Conditions, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._conditions = conditions
        self._client_reader = reader
        self._client_writer = writer
        self._trap: Trap | None = None
        self._swallowed = b""
        self.lossy = False
        """Whether something was swallowed, so that the two sides can no longer understand each other."""

    async def run(self, host: str, port: int) -> None:
        """Carry until the end, then leave both sides."""
        try:
            if self._conditions.swallowing:
                await self._silence()
            reader, writer = await asyncio.open_connection(host, port)
            try:
                await self._carry(reader, writer)
            finally:
                await _drop(writer)
        except OSError:
            pass  # one side has left, and closing is how the other learns of it
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
            if self._conditions.swallowing:
                await self._silence()
            server.write_eof()
        except OSError:
            server.transport.abort()

    async def _finish(self, server: asyncio.StreamWriter) -> None:
        """Pass on what belongs to the trapped message, until the client awaits an answer and the server has given one.

        The answer may be to an earlier message. So the server is then told that no more will come: once it has read to
        the end of what it was sent and hangs up in turn, all of it is done.
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
        """Keep one side from learning that the other has gone, until the proxy ends it."""
        self.lossy = True
        await asyncio.get_running_loop().create_future()


async def _drop(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
