"""Streams of server-sent events, which keep open pages up to date."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tidegate.web.pages import group_region, overview_region
from tidegate.web.site import Site, site_of

__all__ = ["StreamsEnd", "events"]


_QUIET = 15.0  # seconds without an event, after which a comment keeps the connection alive
_RETRY = 2000  # milliseconds after which a browser reconnects
_MOST_STREAMS = 64

Region = Callable[[Site, Mapping[str, str]], str | None]
_REGIONS: dict[str, Region] = {"overview": overview_region, "group": group_region}


class StreamsEnd:
    """Ends all streams when the server stops; otherwise it would wait for the browsers to disconnect."""

    def __init__(self) -> None:
        self._streams: set[asyncio.Event] = set()
        self.asked = False

    def now(self) -> None:
        """End all streams; must be called on the thread of the event loop."""
        self.asked = True
        self.wake()

    def wake(self) -> None:
        """Make every stream check whether it may go on; must be called on the thread of the event loop."""
        for stream in self._streams:
            stream.set()

    def add(self, stream: asyncio.Event) -> None:
        """Register a stream by the event that wakes it."""
        self._streams.add(stream)

    def remove(self, stream: asyncio.Event) -> None:
        """Remove a stream that has ended."""
        self._streams.discard(stream)

    def __len__(self) -> int:
        return len(self._streams)


async def events(request: Request) -> Response:
    """Stream the changing part of one page: at once, and again whenever it has changed."""
    region, stop = _REGIONS.get(request.path_params["view"]), request.app.state.stop
    if region is None:
        return PlainTextResponse("There is no such stream.\n", 404)
    if len(stop) >= _MOST_STREAMS:
        return PlainTextResponse("There are too many streams already.\n", 503)
    turned = asyncio.Event()
    stop.add(turned)  # here, and not once it begins: several requests could pass the check before that
    site, name = site_of(request), request.cookies.get(site_of(request).rules.cookie)

    def may_go_on() -> bool:
        return not stop.asked and site.sessions.is_open(name)

    stream = _stream(site, region, dict(request.query_params), turned, may_go_on)
    return _Events(stream, lambda: stop.remove(turned))


class _Events(StreamingResponse):
    """A stream that calls ``ended`` however it ends, even if it never began."""

    def __init__(self, content: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _stream(
    site: Site, region: Region, asked: Mapping[str, str], turned: asyncio.Event, may_go_on: Callable[[], bool]
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()

    def turn() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has been closed
            loop.call_soon_threadsafe(turned.set)

    end = site.watch.listen(turn)
    sent = b""
    try:
        yield f"retry: {_RETRY}\n\n"
        while may_go_on():
            turned.clear()
            shown = await run_in_threadpool(region, site, asked)
            if shown is not None and (now := hashlib.sha256(shown.encode()).digest()) != sent:
                sent = now
                yield _event(shown)
            try:
                await asyncio.wait_for(turned.wait(), _QUIET)
            except TimeoutError:
                yield ": still here\n\n"
    finally:
        end()


def _event(html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: page\n{lines}\n"
