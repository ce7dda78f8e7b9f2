"""Who gets in, and who may change something."""

from __future__ import annotations

import re

import pytest
from starlette.types import Receive, Scope, Send

from tidegate.errors import ConfigurationError
from tidegate.ledger import open_ledger
from tidegate.web.security import Guard, GuardRules, Sessions, Token

from .conftest import CHOSEN, Place
from .served import Served

PAGES = [
    "/",
    "/group?name=x",
    "/letters?group=x",
    "/letter?group=x&id=1",
    "/letter/value?group=x&id=1",
    "/journal?group=x",
]


@pytest.mark.parametrize("path", [*PAGES, "/events/overview", "/change?group=x&what=pause", "/nowhere"])
def test_nothing_is_shown_without_a_session(read_only: Served, path: str) -> None:
    assert read_only.ask(path, headers={"Accept": "*/*"}).status == 401
    shown = read_only.ask(path)
    assert (shown.status, shown.headers["location"]) == (303, "/login")
    assert read_only.ask(path, cookie=f"tidegate-{read_only.host.rpartition(':')[2]}=made-up").status == 303


def test_a_wrong_token_opens_nothing(read_only: Served) -> None:
    for wrong in ("", "x", read_only.token[:-1], read_only.token + "x"):
        answer = read_only.ask("/login", form={"token": wrong})
        assert answer.status == 403
        assert "set-cookie" not in answer.headers


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(read_only: Served) -> None:
    cookie = read_only.ask("/login", form={"token": read_only.token}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert read_only.token.lower() not in cookie


def test_a_session_that_was_ended_is_over(read_only: Served) -> None:
    cookie = read_only.log_in()
    assert read_only.ask("/", cookie=cookie).status == 200
    assert read_only.ask("/logout", cookie=cookie, form={"csrf": read_only.csrf(cookie)}).status == 303
    assert read_only.ask("/", cookie=cookie).status == 303


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[bad"])
def test_a_foreign_host_is_refused_before_anything_else(read_only: Served, host: str) -> None:
    cookie = read_only.log_in()
    for path in ("/", "/login", "/static/dashboard.css"):
        assert read_only.ask(path, cookie=cookie, headers={"Host": host}).status in {400, 421}


def test_names_of_this_machine_are_its_own(read_only: Served) -> None:
    port = read_only.host.rpartition(":")[2]
    for host in ("localhost", f"localhost:{port}", "127.0.0.1:9999"):
        assert read_only.ask("/login", headers={"Host": host}).status == 200


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1"])
def test_a_change_from_another_origin_is_refused(served: Served, origin: str | None) -> None:
    cookie = served.log_in()
    form = {"csrf": served.csrf(cookie), "group": "x", "what": "pause"}
    for path in ("/change", "/execute", "/login", "/logout"):
        assert served.ask(path, cookie=cookie, form=form, headers={"Origin": origin}).status == 403
    assert served.ask("/", cookie=cookie).status == 200


def test_a_change_that_a_browser_calls_foreign_is_refused(served: Served) -> None:
    cookie = served.log_in()
    form = {"csrf": served.csrf(cookie), "group": "x", "what": "pause"}
    assert served.ask("/change", cookie=cookie, form=form, headers={"Sec-Fetch-Site": "same-site"}).status == 403


def test_a_change_without_the_sessions_own_mark_is_refused(served: Served, place: Place) -> None:
    group = place.park(b"x")
    cookie, other = served.log_in(), served.log_in()
    for csrf in ("", "x", served.csrf(other)):
        answer = served.ask("/change", cookie=cookie, form={"csrf": csrf, "group": group, "what": "pause"})
        assert (answer.status, "nothing was changed" in answer.text) == (403, True)
        assert served.ask("/execute", cookie=cookie, form={"csrf": csrf, "preview": "x"}).status == 403
    assert not place.ledger.read(group).paused


def test_a_preview_belongs_to_its_session_and_is_carried_out_once(served: Served, place: Place) -> None:
    group = place.park(b"x")
    cookie, other = served.log_in(), served.log_in()
    csrf = served.csrf(cookie)
    shown = served.ask("/change", cookie=cookie, form={"csrf": csrf, "group": group, "what": "pause"})
    kept = re.search(r'name="preview" value="([^"]+)"', shown.text)
    assert kept
    stolen = {"csrf": served.csrf(other), "preview": kept[1]}
    assert served.ask("/execute", cookie=other, form=stolen).status == 409
    assert not place.ledger.read(group).paused
    assert served.ask("/execute", cookie=cookie, form={"csrf": csrf, "preview": kept[1]}).status == 303
    assert place.ledger.read(group).paused
    assert served.ask("/execute", cookie=cookie, form={"csrf": csrf, "preview": kept[1]}).status == 409


def test_a_read_only_dashboard_refuses_changes(read_only: Served, place: Place) -> None:
    group = place.park(b"x")
    cookie = read_only.log_in()
    form = {"csrf": read_only.csrf(cookie), "group": group, "what": "pause"}
    for path in ("/change", "/execute"):
        answer = read_only.ask(path, cookie=cookie, form=form)
        assert (answer.status, "--allow-changes" in answer.text) == (403, True)
    assert read_only.ask(f"/change?group={group}&what=pause", cookie=cookie).status == 403
    assert "Pause" not in read_only.ask(f"/group?name={group}", cookie=cookie).text
    assert not place.ledger.read(group).paused


@pytest.mark.parametrize("path", [*PAGES, "/login", "/static/dashboard.js", "/nowhere"])
def test_every_answer_tells_the_browser_to_be_careful(read_only: Served, path: str) -> None:
    headers = read_only.ask(path, cookie=read_only.log_in()).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_a_body_larger_than_a_form_is_refused(served: Served) -> None:
    cookie = served.log_in()
    form = {"csrf": served.csrf(cookie), "group": "x" * 70_000, "what": "pause"}
    assert served.ask("/change", cookie=cookie, form=form).status == 403


def test_a_token_that_was_chosen_is_not_printed(read_only: Served) -> None:
    assert read_only.log_in()
    assert "/login" in read_only.printed
    assert CHOSEN not in read_only.printed + read_only.log


def test_a_token_that_was_chosen_too_short_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="at least 16 characters") as refused:
        Token("hunter2")
    assert "hunter2" not in str(refused.value) + repr(Token("hunter2-hunter2-hunter2"))


def test_an_error_that_nobody_expected_is_told_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("cannot connect to postgresql://shop:hunter2@db/shop")

    rules = GuardRules.of("127.0.0.1", 1, (), allow_changes=False)
    scope = {"type": "http", "path": "/static/x", "method": "GET", "headers": [(b"host", b"localhost")]}
    running = Guard(app, rules, Sessions())(scope, None, None)  # type: ignore[arg-type]
    with pytest.raises(StopIteration):  # it ended, and let nothing out
        running.send(None)  # type: ignore[attr-defined]
    assert "postgresql://shop:***@db/shop" in caplog.text
    assert "hunter2" not in caplog.text


def test_every_address_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="--allow-host"):
        GuardRules.of("0.0.0.0", 8600, (), allow_changes=False)
    assert GuardRules.of("0.0.0.0", 8600, ["Shop.example:443"], allow_changes=False).hosts >= {"shop.example"}
    assert "localhost" not in GuardRules.of("10.1.2.3", 8600, (), allow_changes=False).hosts


def test_the_password_of_a_ledger_is_not_part_of_its_name() -> None:
    with open_ledger("postgresql+psycopg://shop:hunter2@db/shop") as ledger:
        assert str(ledger) == "postgresql://db/shop"
