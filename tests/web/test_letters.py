"""Dead letters hold whatever someone sent; a page shows it and does nothing else with it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from .conftest import Place, Visit
from .served import Served

HOSTILE = (
    b"""<script>window.ran = true; alert("x")</script><img src=x onerror="window.ran = true">"><svg onload=alert(1)>"""
    b"""</pre><style>body { display: none }</style>{{ 7 * 7 }}<a href="javascript:window.ran = true">x</a> """
    b"\x00\x1b[31m \xe2\x80\xae"
)


def shown(page: Page) -> str:
    return page.locator("section", has=page.get_by_role("heading", name="Value")).locator("pre").inner_text()


def test_markup_in_a_payload_is_text(served: Served, place: Place, visit: Visit) -> None:
    group = place.park(HOSTILE, error="ValueError: <script>alert(2)</script>", key=HOSTILE)
    page = visit(served, f"letters?group={group}")
    expect(page.get_by_text("<script>alert(2)</script>").first).to_be_visible()
    page.get_by_role("rowheader").get_by_role("link").click()
    text = shown(page)
    assert text.startswith('<script>window.ran = true; alert("x")</script>')
    assert "{{ 7 * 7 }}" in text
    assert "\\u{0}\\u{1b}[31m \\u{202e}" in text
    assert page.evaluate("window.ran") is None
    assert page.locator("pre a, pre img, pre svg").count() == 0
    expect(page.get_by_role("heading", name="Key")).to_be_visible()


def test_a_megabyte_is_shown_in_part_and_downloaded_whole(served: Served, place: Place, visit: Visit) -> None:
    sent = b"<b>" + b"x" * (1 << 20) + "…".encode()
    group = place.park(sent)
    number = place.ledger.dead_letters(group)[0].id
    page = visit(served, f"letter?group={group}&id={number}")
    assert len(shown(page)) < 10_000
    expect(page.get_by_text("Only the first 8.0 KiB of 1.0 MiB are shown.")).to_be_visible()
    assert len(page.content()) < 100_000
    with page.expect_download() as started:
        page.get_by_role("link", name="Download the value").click()
    assert started.value.path().read_bytes() == sent
    answer = served.ask(f"/letter/value?group={group}&id={number}", cookie=served.log_in())
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_what_is_not_utf_8_is_shown_as_bytes(served: Served, place: Place, visit: Visit) -> None:
    group = place.park(b"caf\xe9 <b>\xff\x00")
    number = place.ledger.dead_letters(group)[0].id
    page = visit(served, f"letter?group={group}&id={number}")
    assert shown(page).split()[:5] == ["000000", "63", "61", "66", "e9"]
    expect(page.get_by_text("not UTF-8: shown as bytes")).to_be_visible()


def test_a_tombstone_and_a_letter_that_is_gone_are_said_to_be_so(served: Served, place: Place, visit: Visit) -> None:
    group = place.park(None)
    number = place.ledger.dead_letters(group)[0].id
    page = visit(served, f"letter?group={group}&id={number}")
    expect(page.get_by_text("There is none: a tombstone.")).to_be_visible()
    place.ledger.drop_letters(group, [number])
    cookie = served.log_in()
    for path in (f"/letter?group={group}&id={number}", f"/letter/value?group={group}&id=x", f"/letter/y?group={group}"):
        assert served.ask(path, cookie=cookie).status == 404
