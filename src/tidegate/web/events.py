"""Streams that keep pages up to date: server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from tidegate.web.group_page import group_region
from tidegate.web.overview_page import overview_region
from tidegate.web.site import Site, site_of

__all__ = ["Stop", "events"]

_QUIET = 15.0  # seconds after which a comment shows that the stream is alive
_RETRY = 2000  # milliseconds after which a browser comes again
_MOST_STREAMS = 64

Region = Callable[[Site, Mapping[str, str]], str | None]
_REGIONS: dict[str, Region] = {"overview": overview_region, "group": group_region}


class Stop:
    """Ends the streams when the server is to stop; otherwise it would wait for browsers to go away."""

    def __init__(self) -> None:
        self._streams: set[asyncio.Event] = set()
        self.asked = False

    def now(self) -> None:
        """End all streams; called in the server's thread."""
        self.asked = True
        for stream in self._streams:
            stream.set()

    def add(self, stream: asyncio.Event) -> None:
        """A stream that listens."""
        self._streams.add(stream)

    def remove(self, stream: asyncio.Event) -> None:
        """A stream that has ended."""
        self._streams.discard(stream)

    def __len__(self) -> int:
        return len(self._streams)


async def events(request: Request) -> Response:
    """The stream of one page: its changing part as it is now, and again whenever it has changed."""
    region, stop = _REGIONS.get(request.path_params["view"]), request.app.state.stop
    if region is None:
        return PlainTextResponse("There is no such stream.\n", 404)
    if len(stop) >= _MOST_STREAMS:
        return PlainTextResponse("There are too many streams already.\n", 503)
    stream = _stream(site_of(request), region, dict(request.query_params), stop)
    return StreamingResponse(stream, media_type="text/event-stream")


async def _stream(site: Site, region: Region, asked: Mapping[str, str], stop: Stop) -> AsyncIterator[str]:
    loop, turned = asyncio.get_running_loop(), asyncio.Event()

    def turn() -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped meanwhile
            loop.call_soon_threadsafe(turned.set)

    end = site.watch.listen(turn)
    stop.add(turned)
    sent = b""
    try:
        yield f"retry: {_RETRY}\n\n"
        while not stop.asked:
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
        stop.remove(turned)


def _event(html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: page\n{lines}\n"
