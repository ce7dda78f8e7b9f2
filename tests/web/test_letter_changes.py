"""Dead letters on the page: how many there are, and replay and drop with a preview, once."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tidegate.core.records import FailedRecord, Record, TopicPartition
from tidegate.core.work import Span
from tidegate.ledger import Ledger, open_ledger

from .conftest import CHOSEN, Visit
from .served import Served

APP = """
from sqlalchemy import text
from tidegate import App, Record, Transaction

app = App(kafka="localhost:1", ledger="{url}")

@app.listener("orders", group="billing")
def bill(record: Record, tx: Transaction) -> None:
    if record.value == b"bad":
        raise ValueError("no")
    tx.execute(text("INSERT INTO bills (at) VALUES (:at)"), {{"at": record.offset}})
"""
GOOD, BAD = 5, 2


class Shop:
    """A dashboard with the app that letters are replayed to."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder / 'shop.db'}"
        self.ledger: Ledger[object] = open_ledger(url)
        self.ledger.create()
        assert self.ledger.engine is not None
        with self.ledger.engine.begin() as conn:
            conn.exec_driver_sql("CREATE TABLE bills (at INTEGER)")
        tp = TopicPartition("orders", 0)
        letters = [
            FailedRecord(Record("orders", 0, number, None, b"good"), f"KeyError: 'customer {number}'")
            for number in range(GOOD)
        ]
        letters += [FailedRecord(Record("orders", 0, GOOD + n, None, b"bad"), "ValueError: no") for n in range(BAD)]
        self.ledger.transact(
            self.ledger.claim("billing", [tp]), [Span(tp, 0, 9, 9)], lambda tx: [tx.park(each) for each in letters]
        )
        module = f"shop_{secrets.token_hex(4)}"
        (folder / f"{module}.py").write_text(APP.format(url=url))
        self.served = Served.start(
            folder,
            *("--no-kafka", "--allow-changes", "--app", f"{module}:app"),
            TIDEGATE_LEDGER=url,
            TIDEGATE_DASHBOARD_TOKEN=CHOSEN,
        )
        self.served.token = CHOSEN

    def bills(self) -> list[int]:
        assert self.ledger.engine is not None
        with self.ledger.engine.begin() as conn:
            return [at for (at,) in conn.exec_driver_sql("SELECT at FROM bills ORDER BY at")]

    def left(self) -> list[bytes | None]:
        return [parked.letter.record.value for parked in self.ledger.dead_letters("billing")]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(tmp_path)
    yield opened
    opened.served.close()
    opened.ledger.close()


def test_letters_are_counted_grouped_replayed_and_dropped(shop: Shop, visit: Visit) -> None:
    page = visit(shop.served)
    expect(page.locator("dl.figures div", has_text="Dead letters").locator("dd")).to_have_text("7")
    page.locator("tbody tr").get_by_role("link", name="7", exact=True).click()
    expect(page.get_by_role("navigation", name="Of this group").locator("b")).to_have_text("7")
    row = page.locator("tr", has_text="KeyError: …")
    expect(row).to_contain_text("5")
    row.get_by_role("button", name="Replay…").click()
    expect(page.get_by_text("5 dead letters are")).to_be_visible()
    assert shop.bills() == [], "a preview changes nothing"
    page.get_by_role("button", name="Replay now").click()
    expect(page.get_by_role("status").first).to_contain_text("5 dead letters were replayed.")
    assert (shop.bills(), shop.left()) == ([0, 1, 2, 3, 4], [b"bad", b"bad"])
    page.locator("tr", has_text="ValueError: no").first.get_by_role("button", name="Replay…").click()
    page.get_by_role("button", name="Replay now").click()
    expect(page.get_by_role("status").first).to_contain_text("2 failed again and stay")
    page.locator("tr", has_text="ValueError: no").first.get_by_role("button", name="Drop…").click()
    page.get_by_role("button", name="Drop now").click()
    expect(page.get_by_text("2 dead letters were dropped.")).to_be_visible()
    assert (shop.bills(), shop.left()) == ([0, 1, 2, 3, 4], [])


def test_a_preview_of_letters_is_carried_out_once_and_by_its_session_only(shop: Shop) -> None:
    served = shop.served
    cookie, other = served.log_in(), served.log_in()
    csrf = served.csrf(cookie)
    form = {"csrf": csrf, "group": "billing", "what": "replay", "kind": "KeyError: …"}
    kept = re.search(r'name="preview" value="([^"]+)"', served.ask("/letters", cookie=cookie, form=form).text)
    assert kept
    stolen = {"csrf": served.csrf(other), "preview": kept[1]}
    assert served.ask("/execute", cookie=other, form=stolen).status == 409
    assert served.ask("/execute", cookie=cookie, form={"csrf": csrf, "preview": kept[1]}).status == 303
    assert served.ask("/execute", cookie=cookie, form={"csrf": csrf, "preview": kept[1]}).status == 409
    assert shop.bills() == [0, 1, 2, 3, 4]
    again = served.ask("/letters", cookie=cookie, form=form)
    assert (again.status, "no such dead letters" in again.text) == (422, True)
    assert served.ask("/letters", cookie=cookie, form={**form, "csrf": "x"}).status == 403
    assert served.ask("/letters", cookie=cookie, form={**form, "what": "burn"}).status == 404


def test_without_an_app_letters_can_only_be_dropped(served: Served, place: object) -> None:
    group = place.park(b"x")  # type: ignore[attr-defined]
    cookie = served.log_in()
    shown = served.ask(f"/letters?group={group}", cookie=cookie).text
    assert "Drop…" in shown and "Replay…" not in shown
    form = {"csrf": served.csrf(cookie), "group": group, "what": "replay", "kind": "ValueError: no"}
    answer = served.ask("/letters", cookie=cookie, form=form)
    assert (answer.status, "--app" in answer.text) == (422, True)


def test_a_form_that_does_not_say_which_letters_means_none(shop: Shop) -> None:
    served = shop.served
    cookie = served.log_in()
    form = {"csrf": served.csrf(cookie), "group": "billing", "what": "drop"}
    for which in ({}, {"id": ""}, {"id": "-1"}, {"id": "x"}, {"id": "9" * 19}, {"id": "9" * 5_000}, {"kind": ""}):
        answer = served.ask("/letters", cookie=cookie, form=form | which)
        assert (answer.status, "Nothing was changed" in answer.text) == (422, True), which


def test_letters_without_an_error_are_a_kind_of_their_own(shop: Shop) -> None:
    tp = TopicPartition("orders", 0)
    letter = FailedRecord(Record("orders", 0, 9, None, b"quiet"), "")
    shop.ledger.transact(shop.ledger.claim("billing", [tp]), [Span(tp, 9, 10, 1)], lambda tx: tx.park(letter))
    served = shop.served
    cookie = served.log_in()
    form = {"csrf": served.csrf(cookie), "group": "billing", "what": "drop", "kind": ""}
    preview = served.ask("/letters", cookie=cookie, form=form)
    assert preview.status == 200
    assert "<strong>1</strong> dead letter is" in preview.text


def test_letters_of_an_unknown_group_are_an_error(read_only: Served) -> None:
    answer = read_only.ask("/letters?group=nobody", cookie=read_only.log_in())
    assert (answer.status, "no group" in answer.text) == (404, True)


UNKNOWN = ("nobody", "", "%00", "x" * 300, "%ED%A0%80")


@pytest.mark.parametrize("group", UNKNOWN)
def test_pages_of_an_unknown_group_are_an_error(shop: Shop, group: str) -> None:
    cookie = shop.served.log_in()
    for path in ("/group?name=", "/letters?group=", "/journal?group=", "/change?what=rewind&group="):
        answer = shop.served.ask(path + group, cookie=cookie)
        assert (answer.status, "no group" in answer.text) == (404, True), path
    assert shop.served.ask(f"/letter?id=1&group={group}", cookie=cookie).status == 404
    assert shop.served.log.count("\n") <= 1, "it only says that Kafka is not asked"


def test_a_group_without_positions_is_none_that_is_unknown(shop: Shop) -> None:
    shop.ledger.pause("early")
    shop.ledger.resume("early")
    answer = shop.served.ask("/group?name=early", cookie=shop.served.log_in())
    assert (answer.status, "no stored positions" in answer.text) == (200, True)
