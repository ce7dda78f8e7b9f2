"""The pages of dead letters."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidegate.core.letters import ParkedLetter
from tidegate.web.payload import Payload
from tidegate.web.site import page, site_of

__all__ = ["letter", "letter_part", "letters"]

_AT_ONCE = 25  # they are read with their payloads
_LARGEST_NUMBER = (1 << 63) - 1


def letters(request: Request) -> Response:
    """The dead letters of a group, in the order in which they were parked."""
    group, after = request.query_params.get("group", ""), _number(request, "after")
    found = site_of(request).ledger.dead_letters(group, after=after, limit=_AT_ONCE + 1)
    shown, more = found[:_AT_ONCE], len(found) > _AT_ONCE
    return page(request, "letters.html", group=group, tab="letters", letters=shown, more=more, after=after)


def letter(request: Request) -> Response:
    """One dead letter, with what was sent."""
    parked = _parked(request)
    if parked is None:
        return _gone(request)
    record = parked.letter.record
    return page(
        request,
        "letter.html",
        group=parked.group,
        tab="letters",
        parked=parked,
        key=Payload.of(record.key),
        value=Payload.of(record.value),
        headers=[(name, Payload.of(value)) for name, value in record.headers],
    )


def letter_part(request: Request) -> Response:
    """The key or the value as it was sent, to be kept in a file: nothing that a browser would open itself."""
    parked, part = _parked(request), request.path_params["part"]
    if parked is None or part not in {"key", "value"}:
        return _gone(request)
    record = parked.letter.record
    content = record.key if part == "key" else record.value
    name = f"{record.topic}-{record.partition}-{record.offset}-{part}.bin"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content or b"", media_type="application/octet-stream", headers=headers)


def _parked(request: Request) -> ParkedLetter | None:
    return site_of(request).ledger.dead_letter(request.query_params.get("group", ""), _number(request, "id"))


def _gone(request: Request) -> Response:
    message = "That dead letter is not there: it was replayed or dropped, or its address is wrong."
    return page(request, "error.html", 404, heading="No such dead letter", message=message)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    return min(int(text), _LARGEST_NUMBER) if text.isdecimal() and len(text) < 20 else 0
