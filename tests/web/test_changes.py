"""Changes on the page: a preview, then the change, and its line in the journal."""

from __future__ import annotations

from playwright.sync_api import expect

from tidegate.core.journal import Kind
from tidegate.core.records import TopicPartition

from .conftest import Place, Visit, new_group
from .served import Served


def test_a_rewind_from_the_form_to_the_journal(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=100)
    claims = place.claimed(group, topic)
    place.advance(claims, 0, 80)
    page = visit(served, f"group?name={group}")
    page.get_by_role("link", name="Rewind…").click()
    page.get_by_label("Partitions").fill("0")
    page.get_by_label("To", exact=True).fill("-30")
    page.get_by_label("Your name").fill("Ann <b>")
    page.get_by_label("Reason").fill("prices were wrong")
    page.get_by_role("button", name="Preview").click()
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text(f"{topic}[0]")
    expect(row).to_contain_text("50")
    expect(row).to_contain_text(claims[TopicPartition(topic, 0)].owner)
    assert place.ledger.read(group).positions[TopicPartition(topic, 0)].next_offset == 80
    page.get_by_role("button", name="Rewind now").click()
    expect(page.get_by_text("Rewind: 1 position was moved, 30 offsets in all.")).to_be_visible()
    expect(page.locator(f'tr[data-key="{topic}/0"] [data-figure=committed]')).to_have_text("50")
    expect(page.locator(f'tr[data-key="{topic}/1"] [data-figure=committed]')).to_have_text("80")
    expect(page.locator(f'tr[data-key="{topic}/0"]')).to_contain_text("Rewound")
    (edit,) = [entry for entry in place.ledger.journal(group) if entry.kind is Kind.EDIT]
    assert (edit.start, edit.end, edit.note) == (80, 50, "rewind by dashboard (Ann <b>): prices were wrong")
    assert place.ledger.verify(group).ok
    page.get_by_role("link", name="Journal").click()
    expect(page.get_by_text("rewind by dashboard (Ann <b>): prices were wrong")).to_be_visible()


def test_a_skip_and_what_makes_no_sense(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=100)
    place.advance(place.claimed(group, topic), 0, 80)
    page = visit(served, f"change?group={group}&what=skip")
    for wrong, told in (
        ("4711", "is beyond it"),
        ("-5", "nothing to skip"),
        ("tomorrow", "is not a position in a log"),
    ):
        page.get_by_label("To", exact=True).fill(wrong)
        with page.expect_response("**/change") as answered:
            page.get_by_role("button", name="Preview").click()
        assert answered.value.status == 422
        expect(page.get_by_role("alert")).to_contain_text(told)
        expect(page.get_by_label("To", exact=True)).to_have_value(wrong)
    page.get_by_label("To", exact=True).fill("latest")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Skip now").click()
    expect(page.locator(f'tr[data-key="{topic}/1"] [data-figure=committed]')).to_have_text("100")


def test_positions_that_moved_since_the_preview_are_not_moved_again(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=100)
    claims = place.claimed(group, topic)
    place.advance(claims, 0, 20)
    page = visit(served, f"change?group={group}&what=skip")
    page.get_by_label("To", exact=True).fill("50")
    page.get_by_role("button", name="Preview").click()
    place.advance(claims, 20, 70)
    with page.expect_response("**/execute") as answered:
        page.get_by_role("button", name="Skip now").click()
    assert answered.value.status == 409
    expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
    assert {row.next_offset for row in place.ledger.read(group).positions.values()} == {70}


def test_pause_and_resume_change_the_page_by_themselves(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=10)
    place.advance(place.claimed(group, topic), 0, 10)
    page = visit(served, f"group?name={group}")
    page.get_by_role("link", name="Pause…").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Pause now").click()
    expect(page.get_by_role("link", name="Resume…")).to_be_visible()
    assert place.ledger.read(group).paused
    page.locator("[data-live=on]").wait_for()
    place.ledger.resume(group)
    expect(page.get_by_role("link", name="Pause…")).to_be_visible()  # nobody has reloaded it
