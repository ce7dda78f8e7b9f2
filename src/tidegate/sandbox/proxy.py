"""A TCP proxy that simulates network faults on request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.lifetime import Lifetime
from tidegate.sandbox.ports import LOOPBACK, free_port
from tidegate.sandbox.relay import Relay
from tidegate.sandbox.trap import Loses, Match, Trap

_Result = TypeVar("_Result")
_CALL_SECONDS = 30.0
_PORT_ATTEMPTS = 5


class Proxy(Lifetime):
    """Passes data between clients and a server, on its own loopback port.

    Every method has taken effect when it returns. The proxy knows nothing of the protocols that pass through it.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target_host = target_host
        self.target_port = target_port
        self.host = LOOPBACK
        self.port = free_port()
        self.lag = 0.0
        self.swallowing = False
        self._traps: list[Trap] = []
        self._relays: dict[asyncio.Task[None], Relay] = {}
        self._listener: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that clients connect to."""
        return self.host, self.port

    @property
    def connections(self) -> int:
        """The number of current connections."""
        return len(self._relays)

    def start(self) -> Self:
        """Start to pass everything through."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)
            self._thread.start()
            try:
                self._call(self._listen_somewhere())
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Drop all connections and close the port."""
        if self._loop is None or self._thread is None:
            return
        self._call(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        self._loop.close()
        self._loop = self._thread = None

    def cut(self) -> None:
        """Drop all connections now and refuse new ones until :meth:`restore`."""
        self._call(self._cut())

    def delay(self, seconds: float) -> None:
        """Delay each piece of data, in each direction, by this many seconds."""
        self._call(self._set(lag=seconds))

    def black_hole(self) -> None:
        """Accept connections and data but pass nothing on, not even a disconnect, until :meth:`restore`."""
        self._call(self._set(swallowing=True))

    def restore(self) -> None:
        """Work normally again. Disarms the traps, and drops connections that lost data in a black hole."""
        self._call(self._restore())

    def swallow_one_reply(self, after: Match) -> Trap:
        """Lose the server's reply to one message, after the server has processed the message.

        This applies to the first connection whose client sends ``after``. The message is passed on, the reply is not,
        and when the server has finished, the client finds the connection closed.
        """
        return self._call(self._arm(Trap(after, Loses.REPLY)))

    def swallow_one_request(self, match: Match) -> Trap:
        """Lose one message: the server never sees it, and both sides find the connection closed."""
        return self._call(self._arm(Trap(match, Loses.REQUEST)))

    def trapped(self, relay: Relay, data: bytes) -> Trap | None:
        """Return the trap that a client's data triggers, and disarm it. Called by the relays."""
        for trap in self._traps:
            if trap.sees(relay, data):
                self._traps.remove(trap)
                return trap
        return None

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._loop is None:
            work.close()
            raise SandboxError("The proxy is not running; start it first.")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    async def _listen_somewhere(self) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                return await self._listen()
            except OSError as error:
                if attempt == _PORT_ATTEMPTS:
                    raise SandboxError(f"The proxy found no port to listen on: {error}.") from error
                self.port = free_port()
        return None

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, self.host, self.port)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:
            writer.transport.abort()
            return
        relay = Relay(self, reader, writer)
        task = asyncio.get_running_loop().create_task(relay.run(self.target_host, self.target_port))
        self._relays[task] = relay
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        relay = self._relays.pop(task)
        for trap in self._traps:
            trap.forget(relay)

    async def _cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            for each in listener.sockets:
                asyncio.get_running_loop().remove_reader(each)
            # asyncio forgets a connection that was accepted just before close(), and its client would wait forever.
            for _ in range(3):
                await asyncio.sleep(0)
            listener.close()
        await self._drop(list(self._relays))

    async def _restore(self) -> None:
        self._traps.clear()
        await self._drop([task for task, relay in self._relays.items() if relay.lossy])
        await self._set(lag=0.0, swallowing=False)

    async def _drop(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set(self, *, lag: float | None = None, swallowing: bool | None = None) -> None:
        self.lag = self.lag if lag is None else lag
        self.swallowing = self.swallowing if swallowing is None else swallowing
        await self._listen()

    async def _arm(self, trap: Trap) -> Trap:
        self._traps.append(trap)
        return trap
