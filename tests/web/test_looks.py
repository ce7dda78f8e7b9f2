"""How the page looks and reacts: in a real browser, in light and dark, wide and narrow."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from .axe import violations
from .conftest import Place, Visit, new_group
from .served import Served

NARROW = {"viewport": {"width": 390, "height": 844}}


def box(element: Locator) -> dict[str, float]:
    found = element.bounding_box()
    assert found is not None
    return dict(found)


def figure(page: Page, name: str) -> Locator:
    return page.locator("dl.figures div", has_text=name).locator("dd")


@pytest.fixture(scope="module")
def groups(place: Place) -> dict[str, str]:
    """A group that has finished, one that left records behind, one that is at work, and one with dead letters."""
    topic = place.topic(records=100)
    found = {name: new_group() for name in ("finished", "left", "working")}
    finished = place.claimed(found["finished"], topic)
    place.advance(finished, 0, 100)
    place.ledger.release(finished)
    left = place.claimed(found["left"], topic)
    place.advance(left, 0, 40)
    place.ledger.release(left)
    place.advance(place.claimed(found["working"], topic), 0, 100)
    return {**found, "letters": place.park(b"x", "ValueError: 'x' is no number, and " + "so on " * 60)}


def test_only_a_group_that_needs_attention_is_said_to_need_it(
    served: Served, visit: Visit, groups: dict[str, str]
) -> None:
    page = visit(served, f"?q={groups['finished']}")
    row = page.locator("tbody tr")
    expect(row).to_contain_text("Idle")
    expect(row.locator(".is-stopped")).to_have_count(0)
    page = visit(served, f"?q={groups['left']}")
    expect(page.locator("tbody tr")).to_contain_text("Stopped")
    idle, stalled = (
        page.evaluate(
            "name => { const made = document.createElement('span'); made.className = `state is-${name}`; "
            "document.body.append(made); return getComputedStyle(made).color }",
            name,
        )
        for name in ("idle", "stalled")
    )
    looks = page.locator("tbody .state").evaluate("it => getComputedStyle(it).color")
    assert looks == stalled != idle


def test_the_reading_stays_while_the_page_is_updated(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=500)
    claims = place.claimed(group, topic)
    place.advance(claims, 0, 100)
    page = visit(served, f"group?name={group}")
    chart = page.locator("figure", has_text="Lag").locator(".chart")
    expect(chart).to_be_visible()
    chart.hover()
    reading = page.locator("figure", has_text="Lag").locator(".reading")
    expect(reading).to_contain_text("records")
    page.evaluate(
        "() => { window.emptied = 0; const told = [...document.querySelectorAll('figure')]"
        ".find((it) => it.textContent.includes('Lag')).querySelector('.reading');"
        "new MutationObserver(() => { window.emptied += !told.textContent })"
        ".observe(told, {childList: true, characterData: true, subtree: true}) }"
    )
    for end in (200, 300):
        place.advance(claims, end - 100, end)
        expect(page.locator(f'tr[data-key="{topic}/0"] [data-figure=committed]')).to_have_text(str(end))
    expect(reading).to_contain_text("records")
    assert page.evaluate("window.emptied") == 0
    page.mouse.move(1, 1)
    expect(reading).to_have_text("")


def test_the_axis_has_its_unit_and_marks_are_above_the_line(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=100)
    claims = place.claimed(group, topic)
    place.advance(claims, 0, 100)
    page = visit(served, f"group?name={group}")
    lag = page.locator("figure", has_text="Lag").locator(".chart")
    expect(lag.locator("text", has_text="records")).to_have_count(1)
    mark, line = box(lag.locator(".mark circle").first), box(lag.locator(".grid").last)
    assert mark["y"] + mark["height"] <= line["y"] + line["height"] + 1, "the top of the axis is below the marks"


def test_the_list_is_filtered_while_someone_types(served: Served, visit: Visit, groups: dict[str, str]) -> None:
    page = visit(served)
    field = page.get_by_label("Find a group or topic")
    field.press_sequentially(groups["left"])
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text(groups["left"])
    expect(field).to_be_focused()
    expect(field).to_have_value(groups["left"])
    assert f"q={groups['left']}" in page.url
    field.fill("")
    expect(page.locator("tbody tr").nth(1)).to_be_visible()


@pytest.mark.parametrize("what", ["rewind", "pause"])
def test_the_fields_of_a_form_line_up(served: Served, visit: Visit, groups: dict[str, str], what: str) -> None:
    page = visit(served, f"change?group={groups['working']}&what={what}")
    for pair in page.locator(".pair").all():
        first, second = (box(field) for field in pair.locator("input, select").all())
        assert first["y"] == pytest.approx(second["y"], abs=1)
        assert first["height"] == pytest.approx(second["height"], abs=2)


def test_an_error_uses_the_width_that_there_is(served: Served, visit: Visit, groups: dict[str, str]) -> None:
    page = visit(served, f"letters?group={groups['letters']}")
    error = page.locator('td[data-label="Error"] .cell-cut')
    assert box(error)["width"] > 0.4 * box(page.locator("main"))["width"]
    assert not error.evaluate("it => it.scrollWidth > it.clientWidth"), "nothing of it is cut off"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{}, NARROW], ids=["wide", "narrow"])
def test_axe_finds_no_violation(
    served: Served, visit: Visit, groups: dict[str, str], scheme: str, size: dict[str, Any]
) -> None:
    page = visit(served, color_scheme=scheme, **size)
    letter = f"letters?group={groups['letters']}"
    paths = (
        *("", f"group?name={groups['working']}", f"group?name={groups['left']}", letter),
        *(f"journal?group={groups['left']}", f"change?group={groups['working']}&what=rewind", "nowhere"),
    )
    found = {}
    for path in paths:
        page.goto(served.address + path)
        if wrong := violations(page):
            found[path] = wrong
    page.goto(served.address + letter)
    page.locator('th a[href^="/letter?"]').first.click()
    page.wait_for_url("**/letter?*")
    expect(page.locator("h1")).to_be_visible()
    if wrong := violations(page):
        found["letter"] = wrong
    assert not found
