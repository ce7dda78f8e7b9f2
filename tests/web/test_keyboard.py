"""The page with a keyboard, and as a screen reader is told about it."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from .conftest import Place, Visit, new_group
from .served import Served

FOCUSED = "(() => { const e = document.activeElement; return e.getAttribute('aria-label') || e.innerText || e.name })()"
UNNAMED = """
[...document.querySelectorAll("a, button, input:not([type=hidden]), select, [role=region], [role=img], nav, section")]
  .filter((e) => !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.innerText.trim() ||
                   (e.labels && e.labels.length)))
  .map((e) => e.outerHTML)
"""
RING = "getComputedStyle(document.activeElement).outlineStyle"

CONTRAST = """
(() => {
  const rgb = (text) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = (colour) => {
    const [r, g, b] = [...colour].slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return rgb("white");
  };
  const weak = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility() || e.closest(".hidden-visually, .skip, svg")) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(below(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) weak.push(`${ratio.toFixed(2)} ${e.outerHTML.slice(0, 120)}`);
  }
  return weak;
})()
"""


def walk(page: Page, steps: int) -> list[str]:
    """What has the focus after each press of the tab key; it has to be seen."""
    found = []
    for _ in range(steps):
        page.keyboard.press("Tab")
        found.append(str(page.evaluate(FOCUSED)).strip())
        assert page.evaluate(RING) == "solid"
    return found


def test_everything_is_reached_and_used_by_the_keyboard(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=10)
    place.advance(place.claimed(group, topic), 0, 4)
    page = visit(served, f"?q={group}")
    assert walk(page, 4) == ["Skip to the content", "Tidegate", "Dark theme", "Log out"]
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    assert [name.partition("\n")[0] for name in walk(page, 3)] == ["q", "Worst first", "Find"]
    page.locator(f'tr[data-key="{group}"] a').focus()
    page.keyboard.press("Enter")
    expect(page).to_have_title(re.compile(group))
    page.locator("#content").focus()
    reached = walk(page, 9)
    for wanted in ("Groups", "Pause…", "Rewind…", "Skip…", "Partitions", "Dead letters", "Journal", "1 hour"):
        assert wanted in reached
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="Throughput, table")).to_be_visible()


def test_everything_has_a_name_and_enough_contrast_in_both_themes(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=10)
    place.advance(place.claimed(group, topic), 0, 4)
    letter = place.park(b"x")
    number = place.ledger.dead_letters(letter)[0].id
    page = visit(served)
    for path in ("", f"group?name={group}", f"letter?group={letter}&id={number}", f"journal?group={group}&verify=1"):
        page.goto(served.address + path)
        assert page.locator("h1").count() == 1
        assert page.evaluate(UNNAMED) == []
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            assert page.evaluate(CONTRAST) == [], f"{path}, {theme}"


def test_a_screen_reader_hears_of_a_new_state_and_of_nothing_else(served: Served, place: Place, visit: Visit) -> None:
    group, topic = new_group(), place.topic(records=10)
    claims = place.claimed(group, topic)
    page = visit(served, f"group?name={group}")
    page.locator("[data-live=on]").wait_for()
    expect(page.locator(f'tr[data-key="{topic}/0"] [data-figure=lag]')).to_have_text("10")
    announcer = page.locator("[data-announcer]")
    before = announcer.inner_text()
    place.advance(claims, 0, 4)
    expect(page.locator(f'tr[data-key="{topic}/0"] [data-figure=committed]')).to_have_text("4")
    expect(announcer).to_have_text(before)
    place.ledger.pause(group)
    expect(announcer).to_have_text(f"{group} is paused")
