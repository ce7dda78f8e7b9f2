"""The pages that change a group: a form, a preview of the change, and its execution."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidegate.app.replay import Replay, ReplayOutcome
from tidegate.core.masks import masked
from tidegate.errors import ChangeRefused, LedgerUnavailable, TidegateError
from tidegate.operate.edits import Action, EditPreview, PausePreview, target
from tidegate.operate.letters import LetterAction, LetterPreview, letter_preview
from tidegate.web.pages import unknown_group
from tidegate.web.security import valid_csrf
from tidegate.web.site import Site, form_of, page, session_of, site_of

__all__ = ["carry_out", "change", "preview", "preview_letters"]


_LONGEST_NAME = 80
_LONGEST_REASON = 500
_MOST_PARTITIONS = 100_000
_RANGE = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?")


@dataclass(frozen=True)
class _Asked:
    """The content of a submitted form."""

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
        """The user that the journal records."""
        return f"dashboard ({self.name})" if self.name else "dashboard"


@dataclass(frozen=True)
class _Confirmation:
    """A preview that waits for its confirmation, with the form it was made from."""

    asked: _Asked
    preview: EditPreview | PausePreview = field(repr=False)


def change(request: Request) -> Response:
    """Show the form for a change."""
    site = site_of(request)
    if not site.rules.allow_changes:
        return _read_only(request)
    try:
        asked = _Asked.of(request.query_params)
    except ChangeRefused as refusal:
        return page(request, "error.html", 404, heading="No such change", message=str(refusal))
    return unknown_group(request, asked.group) or _form(request, asked)


async def preview(request: Request) -> Response:
    """Show what the change would do, without changing anything."""
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
    kept = session_of(request).keep(_Confirmation(asked, found))
    return page(request, "preview.html", group=asked.group, tab="", asked=asked, preview=found, kept=kept)


def _previewed(site: Site, asked: _Asked) -> EditPreview | PausePreview:
    operator = site.operator
    if asked.action is Action.PAUSE:
        return operator.pause(asked.group)
    if asked.action is Action.RESUME:
        return operator.resume(asked.group)
    if not asked.place:
        raise ChangeRefused("enter the target: an offset, -N or +N, earliest, latest, or a time with its zone")
    move = operator.rewind if asked.action is Action.REWIND else operator.skip
    return move(asked.group, asked.topic, target(asked.place), partitions=_numbers(asked.partitions), force=asked.force)


async def carry_out(request: Request) -> Response:
    """Execute the change that a preview of this session showed; each preview can be executed once."""
    said = await form_of(request)
    session = session_of(request)
    if not valid_csrf(session, said.get("csrf")):
        return _stale_form(request)
    kept = session.take(said.get("preview", ""))
    if isinstance(kept, LetterPreview):
        return await run_in_threadpool(_carry_out_letters, request, kept)
    if not isinstance(kept, _Confirmation):
        message = "That preview was carried out already, or is too old. Nothing was changed now."
        return page(request, "error.html", 409, heading="Look again", message=message)
    return await run_in_threadpool(_carry_out, request, kept)


def _carry_out(request: Request, kept: _Confirmation) -> Response:
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
    except LedgerUnavailable as error:  # the form needs the ledger for the topics of the group, so show an error page
        return page(request, "error.html", 503, heading="The ledger did not answer", message=_line(error))
    except TidegateError as error:
        return _form(request, asked, _line(error), 409)
    site.watch.look()
    session_of(request).note = told
    return RedirectResponse(f"/group?{urlencode({'name': asked.group})}", 303)


_TOO_MANY_DIGITS = 19  # for the number of a letter
_REPLAY_SECONDS = 20.0  # a request replays for so long, and then says how many letters are left


async def preview_letters(request: Request) -> Response:
    """Show which dead letters would be dropped or replayed, without changing anything."""
    said = await form_of(request)
    if not valid_csrf(session_of(request), said.get("csrf")):
        return _stale_form(request)
    return await run_in_threadpool(_preview_letters, request, said)


def _preview_letters(request: Request, fields: Mapping[str, str]) -> Response:
    site, group, number = site_of(request), fields.get("group", ""), fields.get("id", "")
    try:
        action = LetterAction(fields.get("what", ""))
    except ValueError:
        message = "there is no such change; dead letters can be dropped and replayed"
        return page(request, "error.html", 404, heading="No such change", message=message)
    if not (number.isdecimal() and len(number) < _TOO_MANY_DIGITS) if "id" in fields else "kind" not in fields:
        message = "The form does not name any dead letters."  # never all of them by mistake
        return page(request, "error.html", 422, heading="Nothing was changed", message=message)
    try:
        found = letter_preview(
            site.ledger,
            action,
            group,
            number=int(number) if number else None,
            kind=fields.get("kind"),
            known=site.replay(group).check if action is LetterAction.REPLAY else lambda topic: None,
        )
    except LedgerUnavailable:
        raise
    except TidegateError as error:
        return page(request, "error.html", 422, heading="Nothing was changed", message=_line(error))
    kept = session_of(request).keep(found)
    return page(request, "letters_preview.html", group=group, tab="letters", preview=found, kept=kept)


def _carry_out_letters(request: Request, preview: LetterPreview) -> Response:
    site, asked = site_of(request), len(preview.ids)
    try:
        if preview.action is LetterAction.DROP:
            told = _letters(site.ledger.drop_letters(preview.group, preview.ids), "dropped", asked)
        else:
            told = _replayed(site.replay(preview.group), preview)
    except LedgerUnavailable as error:
        return page(request, "error.html", 503, heading="The ledger did not answer", message=_line(error))
    site.watch.look()
    session_of(request).note = told
    return RedirectResponse(f"/letters?{urlencode({'group': preview.group})}", 303)


def _replayed(replay: Replay, preview: LetterPreview) -> str:
    """Replay the letters one by one, each in its own transaction, and report the result."""
    until, outcomes, trouble = time.monotonic() + _REPLAY_SECONDS, Counter[ReplayOutcome](), ""
    for number in preview.ids:
        if time.monotonic() > until:
            break
        try:
            outcomes[replay.one(number).outcome] += 1
        except TidegateError as error:  # not the fault of the record: the next letter would fail as well
            trouble = f" Then it ended: {_line(error)}"
            break
    told = _letters(outcomes[ReplayOutcome.REPLAYED], "replayed", outcomes[ReplayOutcome.REPLAYED])
    if outcomes[ReplayOutcome.FAILED]:
        told += f" {outcomes[ReplayOutcome.FAILED]:,} failed again and stay, with their new errors."
    if outcomes[ReplayOutcome.GONE]:
        told += f" {outcomes[ReplayOutcome.GONE]:,} had already been removed."
    left = len(preview.ids) - outcomes.total()
    return told + trouble + (f" {left:,} were not tried yet." if left else "")


def _letters(count: int, done: str, asked: int) -> str:
    gone = f" {asked - count:,} had already been removed." if asked > count else ""
    return f"{count:,} dead {'letter was' if count == 1 else 'letters were'} {done}.{gone}"


def _form(request: Request, asked: _Asked, problem: str | None = None, status: int = 200) -> Response:
    state = site_of(request).ledger.read(asked.group)
    topics = sorted({tp.topic for tp in state.positions})
    return page(request, "change.html", status, group=asked.group, tab="", asked=asked, topics=topics, problem=problem)


def _numbers(text: str) -> set[int] | None:
    """Parse partition numbers and ranges such as ``0, 3, 5-7``; ``None`` stands for all of them."""
    if not text.strip():
        return None
    numbers: set[int] = set()
    named = 0
    for part in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        if (found := _RANGE.fullmatch(part)) is None:
            raise ChangeRefused(f"{part!r} is not a partition; write numbers and ranges, such as 0, 3, 5-7, or nothing")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ChangeRefused(f"{part!r} is not a range of partitions: it ends before it begins")
        named += last - first + 1
        if named > _MOST_PARTITIONS:
            raise ChangeRefused(f"a change can name {_MOST_PARTITIONS:,} partitions at most; leave them out for all")
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
