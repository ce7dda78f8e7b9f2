"""What the pages show, in a browser."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

from playwright.sync_api import Page, expect

from tidegate.core.records import TopicPartition, query_source
from tidegate.core.work import Span
from tidegate.sandbox.ports import free_port

from .conftest import Place, Visit, new_group
from .served import Served

LIVE = "[data-live=on]"


def figures(page: Page, tp: TopicPartition) -> dict[str, str]:
    """The figures of one partition, as they stand on the page."""
    row = page.locator(f'tr[data-key="{tp.topic}/{tp.partition}"]')
    cells = row.locator("[data-figure]")
    return {cell.get_attribute("data-figure") or "": cell.inner_text() for cell in cells.all()}


def test_the_figures_of_a_group_are_those_of_the_ledger_and_of_kafka(
    served: Served, place: Place, visit: Visit
) -> None:
    group, topic = new_group(), place.topic(records=1234)
    place.advance(place.claimed(group, topic), 0, 1000)
    page = visit(served, f"group?name={group}")
    expect(page.locator("[data-figure=lag]").first).to_have_text("234")
    for tp, row in place.ledger.read(group).positions.items():
        expected = {"committed": f"{row.next_offset:,}", "log-end": "1,234", "lag": "234", "epoch": str(row.epoch)}
        assert figures(page, tp) == expected
        assert page.locator(f'tr[data-key="{tp.topic}/{tp.partition}"] .owner').inner_text() == row.owner
    assert "468" in page.locator("dl.figures").inner_text()


def test_a_commit_appears_without_a_reload(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=50)
    claims = place.claimed(group, topic)
    page = visit(served, f"group?name={group}")
    page.locator(LIVE).wait_for()
    page.evaluate("window.untouched = true")
    page.locator("summary").first.click()
    place.advance(claims, 0, 37)
    committed = page.locator(f'tr[data-key="{topic}/0"] [data-figure=committed]')
    expect(committed).to_have_text("37")
    expect(page.locator(f'tr[data-key="{topic}/0"] [data-figure=lag]')).to_have_text("13")
    assert page.evaluate("window.untouched")
    place.ledger.pause(group)  # the button above is another one now
    expect(page.get_by_role("link", name="Resume…")).to_be_visible()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    expect(page.locator("details").first).to_have_attribute("open", "")


def test_the_overview_has_every_group_and_finds_one(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=10)
    place.advance(place.claimed(group, topic), 0, 4)
    page = visit(served, f"?q={group}")
    row = page.locator(f'tr[data-key="{group}"]')
    expect(row).to_contain_text("12")
    expect(row).to_contain_text(topic)
    expect(row).to_contain_text("2 of 2")
    expect(page.locator("tbody tr")).to_have_count(1)
    later, _ = new_group(), page.goto(served.address + f"?q={topic}")
    place.claimed(later, topic)
    expect(page.locator(f'tr[data-key="{later}"]')).to_be_visible()  # by itself


def test_throughput_and_what_happened_come_from_the_journal(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=100)
    place.advance(place.claimed(group, topic), 0, 60)
    place.ledger.edit(group, {TopicPartition(topic, 0): 10}, note="rewind by ann")
    page = visit(served, f"group?name={group}")
    chart = page.locator("figure").filter(has=page.get_by_role("heading", name="Throughput"))
    expect(chart.locator("path.line")).to_have_attribute("d", re.compile(r"^M[\d. L]+$"))
    expect(chart.get_by_role("img")).to_have_accessible_description(re.compile(r"records/s"))
    page.locator(LIVE).wait_for()
    chart.get_by_role("img").hover()
    expect(chart.locator(".reading")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d: [\d.]+ records/s$"))
    chart.locator("summary").click()
    expect(chart.get_by_role("cell", name="rewind by ann")).to_be_visible()
    page.locator(LIVE).wait_for()
    expect(chart.get_by_role("cell", name=re.compile("^2 times claim"))).to_be_visible()


def test_the_reading_of_a_chart_stays_when_the_page_is_renewed(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=100)
    claims = place.claimed(group, topic)
    place.advance(claims, 0, 60)
    page = visit(served, f"group?name={group}")
    page.locator(LIVE).wait_for()
    chart = page.locator("figure").filter(has=page.get_by_role("heading", name="Throughput")).get_by_role("img")
    chart.hover()
    drawn = chart.get_attribute("data-points")
    place.advance(claims, 60, 61)
    expect(chart).not_to_have_attribute("data-points", drawn or "")
    reading = "chart => chart.matches(':hover') ? chart.closest('figure').querySelector('.reading').textContent : null"
    assert chart.evaluate(reading) != ""


def test_the_journal_is_shown_filtered_and_verified(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=10)
    place.advance(place.claimed(group, topic), 0, 7)
    page = visit(served, f"group?name={group}")
    page.get_by_role("link", name="Journal").click()
    expect(page.locator("tbody tr")).to_have_count(6)  # start, claim and advance of two partitions
    page.get_by_label("Kind").select_option("advance")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").first).to_contain_text("0 → 7")
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text("The journal explains every position: 2 partitions, 6 entries, no break.")).to_be_visible()


def test_a_journal_that_does_not_add_up_is_said_to_be_so(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=10)
    place.advance(place.claimed(group, topic), 0, 7)
    with closing(sqlite3.connect(place.folder / "shop.db")) as db, db:
        db.execute("UPDATE tidegate_positions SET open_end = 6 WHERE consumer_group = ? AND partition_id = 1", [group])
    page = visit(served, f"journal?group={group}&verify=1")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The journal does not add up in 1 of 2 partitions")
    expect(alert.get_by_role("listitem")).to_contain_text(f"{topic}[1], journal entry 3: the journal ends at offset 6")


MEMBER = """
from tidegate import App, Record

app = App()

@app.listener({topic!r}, group={group!r})
def take(record: Record) -> None:
    pass
"""


def test_members_are_asked_how_far_they_have_read(place: Place, visit: Visit) -> None:
    group, topic, port = new_group(), place.topic(records=1234), free_port()
    (place.folder / "member.py").write_text(MEMBER.format(topic=topic, group=group))
    environ = {"TIDEGATE_LEDGER": place.url, "TIDEGATE_KAFKA__BOOTSTRAP": place.bootstrap}
    command = [sys.executable, "-m", "tidegate.cli", "run", "member:app", "--metrics-port", str(port)]
    with subprocess.Popen(command, cwd=place.folder, env={**os.environ, **environ}) as member:
        served = Served.start(place.folder, "--member", f"127.0.0.1:{port}", **environ)
        try:
            page = visit(served, f"group?name={group}")
            for partition in (0, 1):
                row = page.locator(f'tr[data-key="{topic}/{partition}"]')
                expect(row.locator("[data-label=Current]")).to_have_text("1,234")
                expect(row.locator("[data-figure=committed]")).to_have_text("1,234")
        finally:
            served.close()
            member.terminate()


def test_without_kafka_the_page_says_so_and_shows_what_the_ledger_has(
    read_only: Served, place: Place, visit: Visit
) -> None:
    group = new_group()
    place.advance(place.claimed(group, "no-such-topic"), 0, 4711)
    page = visit(read_only, f"group?name={group}")
    expect(page.get_by_text("Kafka was not asked").first).to_be_visible()
    expect(page.locator('tr[data-key="no-such-topic/0"] [data-figure=committed]')).to_have_text("4,711")
    expect(page.locator('tr[data-key="no-such-topic/0"] [data-figure=lag]')).to_have_text("\N{EN DASH}")


def test_a_name_that_is_none_is_a_page_that_says_so(read_only: Served, visit: Visit) -> None:
    answer = read_only.ask("/group?name=%3Cscript%3Ealert(1)%3C/script%3E", cookie=read_only.log_in())
    assert answer.status == 404
    assert "<script>alert" not in answer.text
    assert "The ledger has no group" in answer.text


def test_a_narrow_screen_needs_no_sideways_scrolling(served: Served, place: Place, visit: Visit) -> None:
    width = 320
    group, topic = new_group() + "-with-a-long-name-that-goes-on-and-on-and-on", place.topic(records=10)
    place.advance(place.claimed(group, topic), 0, 4)
    page = visit(served, viewport={"width": width, "height": 800})
    for path in (f"?q={group}", f"group?name={group}", f"journal?group={group}", f"change?group={group}&what=rewind"):
        page.goto(served.address + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_light_and_dark_follow_the_system_until_someone_chooses(served: Served, visit: Visit) -> None:
    page = visit(served, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Dark theme").click()
    light = page.evaluate(background)
    assert light != dark
    page.reload()
    assert page.evaluate(background) == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate(background) == dark


def test_the_token_leaves_no_trace_in_the_address(served: Served, visit: Visit) -> None:
    page = visit(served)
    assert page.url == served.address
    assert served.token not in page.content()
    page.go_back()
    assert served.token not in page.url


def test_the_page_works_without_scripts(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=10)
    place.advance(place.claimed(group, topic), 0, 4)
    cookie = served.log_in()
    shown = served.ask(f"/group?name={group}", cookie=cookie).text
    assert re.search(r'data-figure="committed">4<', shown)
    assert "Rewind…" in shown


def test_a_query_is_shown_with_its_number_and_without_a_lag(served: Served, place: Place, visit: Visit) -> None:
    group, query = new_group(), query_source("6ba189b4-386e-4d8e-b1fc-1c868ca3979c")
    claims = place.ledger.claim(group, [query])
    place.ledger.transact(claims, [Span(query, 0, 1, 5, "digest")])
    page = visit(served, f"group?name={group}")
    shown = figures(page, query)
    assert (shown["committed"], shown["epoch"]) == ("1", "1")
    assert not re.search(r"\d", shown["lag"] + shown["log-end"])
    page.locator(LIVE).wait_for()
    place.ledger.transact(claims, [Span(query, 1, 2, 5, "other")])
    expect(page.locator(f'tr[data-key="{query.topic}/0"] [data-figure=committed]')).to_have_text("2")
    page = visit(served)
    row = page.locator("tr", has_text=group)
    expect(row).to_contain_text("OK")
    expect(row).to_contain_text(query.topic)
