"""The pages of changes: a form, a preview of what it would do, and then the change itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidegate.core.errors import TidegateError
from tidegate.operate.errors import ChangeRefused
from tidegate.operate.preview import Action, EditPreview, PausePreview
from tidegate.operate.target import target
from tidegate.settings import masked
from tidegate.web.form import form_of
from tidegate.web.guard import valid_csrf
from tidegate.web.site import Site, page, session_of, site_of

__all__ = ["carry_out", "change", "preview"]

_LONGEST_NAME = 80
_LONGEST_REASON = 500
_MOST_PARTITIONS = 100_000
_RANGE = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?")


@dataclass(frozen=True)
class _Asked:
    """What a form says."""

    action: Action
    group: str
    topic: str = ""
    partitions: str = ""
    place: str = ""
    force: bool = False
    name: str = ""
    reason: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> _Asked:
        text = {key: value.strip() if key != "group" else value for key, value in fields.items()}
        try:
            action = Action(text.get("what", ""))
        except ValueError:
            raise ChangeRefused("there is no such change; known are rewind, skip, pause and resume") from None
        return cls(
            action,
            text.get("group", ""),
            text.get("topic", ""),
            text.get("partitions", ""),
            text.get("place", ""),
            bool(text.get("force")),
            text.get("name", "")[:_LONGEST_NAME],
            text.get("reason", "")[:_LONGEST_REASON],
        )

    @property
    def user(self) -> str:
        """Whom the journal names."""
        return f"dashboard ({self.name})" if self.name else "dashboard"


@dataclass(frozen=True)
class _Kept:
    """A preview, with whom and why, until it is confirmed."""

    asked: _Asked
    preview: EditPreview | PausePreview = field(repr=False)


def change(request: Request) -> Response:
    """The form."""
    site = site_of(request)
    if not site.rules.allow_changes:
        return _read_only(request)
    try:
        asked = _Asked.of(request.query_params)
    except ChangeRefused as refusal:
        return page(request, "error.html", 404, heading="No such change", message=str(refusal))
    return _form(request, asked)


async def preview(request: Request) -> Response:
    """What the change would do. Nothing is changed."""
    said = await form_of(request)
    if not valid_csrf(session_of(request), said.get("csrf")):
        return _stale_form(request)
    return await run_in_threadpool(_preview, request, said)


def _preview(request: Request, fields: Mapping[str, str]) -> Response:
    asked = None
    try:
        asked = _Asked.of(fields)
        found = _previewed(site_of(request), asked)
    except TidegateError as error:
        if asked is None:
            return page(request, "error.html", 404, heading="No such change", message=str(error))
        return _form(request, asked, _line(error), 422)
    kept = session_of(request).keep(_Kept(asked, found))
    return page(request, "preview.html", group=asked.group, tab="", asked=asked, preview=found, kept=kept)


def _previewed(site: Site, asked: _Asked) -> EditPreview | PausePreview:
    operator = site.operator
    if asked.action is Action.PAUSE:
        return operator.pause(asked.group)
    if asked.action is Action.RESUME:
        return operator.resume(asked.group)
    if not asked.place:
        raise ChangeRefused("say where to: an offset, -N or +N, earliest, latest, or a time with its zone")
    move = operator.rewind if asked.action is Action.REWIND else operator.skip
    return move(asked.group, asked.topic, target(asked.place), partitions=_numbers(asked.partitions), force=asked.force)


async def carry_out(request: Request) -> Response:
    """Do what a preview of this session showed, once."""
    said = await form_of(request)
    session = session_of(request)
    if not valid_csrf(session, said.get("csrf")):
        return _stale_form(request)
    kept = session.take(said.get("preview", ""))
    if not isinstance(kept, _Kept):
        message = "That preview was carried out already, or is too old. Nothing was changed now."
        return page(request, "error.html", 409, heading="Look again", message=message)
    return await run_in_threadpool(_carry_out, request, kept)


def _carry_out(request: Request, kept: _Kept) -> Response:
    site, asked = site_of(request), kept.asked
    try:
        if isinstance(kept.preview, EditPreview):
            done = site.operator.execute(kept.preview, user=asked.user, reason=asked.reason or None)
            moved = f"{len(done.shifts):,} {'position was' if len(done.shifts) == 1 else 'positions were'} moved"
            told = f"{asked.action.value.capitalize()}: {moved}, {done.records:,} offsets in all."
        else:
            changed = site.operator.set_paused(kept.preview, user=asked.user, reason=asked.reason or None)
            state = "paused" if asked.action is Action.PAUSE else "running"
            told = f"The group is {state}." if changed else f"The group was {state} already."
    except TidegateError as error:
        return _form(request, asked, _line(error), 409)
    site.watch.look()
    session_of(request).note = told
    return RedirectResponse(f"/group?{urlencode({'name': asked.group})}", 303)


def _form(request: Request, asked: _Asked, problem: str | None = None, status: int = 200) -> Response:
    state = site_of(request).ledger.read(asked.group)
    topics = sorted({tp.topic for tp in state.positions})
    return page(request, "change.html", status, group=asked.group, tab="", asked=asked, topics=topics, problem=problem)


def _numbers(text: str) -> set[int]:
    """Partition numbers as people write them: ``0, 3, 5-7``; none means all."""
    numbers: set[int] = set()
    for part in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        if (found := _RANGE.fullmatch(part)) is None:
            raise ChangeRefused(f"{part!r} is no partition; write numbers and ranges, such as 0, 3, 5-7, or nothing")
        first, last = int(found[1]), int(found[2] or found[1])
        if not 0 <= last - first < _MOST_PARTITIONS:
            raise ChangeRefused(f"{part!r} is no range of partitions")
        numbers.update(range(first, last + 1))
    return numbers


def _line(error: TidegateError) -> str:
    return masked(" ".join(str(error).split()))


def _stale_form(request: Request) -> Response:
    message = "This form was not made for your session, so nothing was changed. Go back, reload the page and try again."
    return page(request, "error.html", 403, heading="Nothing was changed", message=message)


def _read_only(request: Request) -> Response:
    message = "This dashboard is read-only. To allow changes, start it with --allow-changes."
    return page(request, "error.html", 403, heading="Read-only", message=message)
