"""Takes the pictures: `python -m tools.screenshots [--seconds 240] [--into docs/images]`."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from .shop import LEDGER, shop

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"wide": (1280, 860), "narrow": (390, 844)}
THEMES = ("light", "dark")
LARGEST = 150 * 1024


def main() -> None:
    """Open a shop, wait until there is something to see, and go through the views."""
    options = argparse.ArgumentParser(prog="python -m tools.screenshots", description=main.__doc__)
    options.add_argument("--seconds", type=float, default=240, help="how long the shop is open before")
    options.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    asked = options.parse_args()
    asked.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, shop(Path(folder)) as opened:
        token = secrets.token_urlsafe()
        command = [sys.executable, "-m", "tidegate.cli", "dashboard", "--port", "0", "--allow-changes"]
        variables = {
            "TIDEGATE_LEDGER": f"sqlite:///{LEDGER}",
            "TIDEGATE_KAFKA": opened.bootstrap,
            "TIDEGATE_DASHBOARD_TOKEN": token,
        }
        with subprocess.Popen(  # noqa: S603 - our own program
            command, cwd=folder, env=os.environ | variables, stdout=subprocess.PIPE, text=True
        ) as server:
            address = first_line(server).split()[-1].removesuffix("login")
            time.sleep(asked.seconds * 0.6)
            opened.trouble()
            time.sleep(asked.seconds * 0.4)
            take(address, token, asked.into)
            server.terminate()


def take(address: str, token: str, into: Path) -> None:
    """All views, light and dark, wide and narrow."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for theme in THEMES:
            for size in SIZES:
                page = opened_page(browser, address, token, dark=theme == "dark", size=size)
                for name, path in VIEWS.items():
                    view(page, address + path, name)
                    file = into / f"{name}-{theme}-{size}.png"
                    page.screenshot(path=file)
                    sys.stdout.write(f"{file.name}: {file.stat().st_size} bytes\n")
                    if file.stat().st_size > LARGEST:
                        sys.exit(f"{file} is larger than {LARGEST} bytes")
                page.context.close()
        browser.close()


VIEWS = {
    "overview": "",
    "group": "group?name=billing",
    "dead-letter": "letter?group=receipts&id=1",
    "journal": "journal?group=search-index&kind=notable&verify=1",
    "rewind": "change?group=billing&what=rewind",
}


def first_line(server: subprocess.Popen[str]) -> str:
    """What the dashboard says when it is there."""
    return server.stdout.readline() if server.stdout else ""


def opened_page(browser: Browser, address: str, token: str, *, dark: bool, size: str) -> Page:
    """A logged-in page."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.goto(f"{address}login#{token}")
    page.wait_for_url(address)
    return page


def view(page: Page, address: str, name: str) -> None:
    """Go to a view; the one of a rewind is filled in and previewed."""
    page.goto(address)
    if name in {"overview", "group"}:
        page.locator("[data-live=on]").wait_for()
        page.locator("path.line" if name == "group" else ".spark").first.wait_for()
    if name == "rewind":
        page.get_by_label("To", exact=True).fill("-500")
        page.get_by_label("Your name").fill("nora")
        page.get_by_label("Reason").fill("prices were wrong until noon")
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Rewind now").wait_for()


if __name__ == "__main__":
    main()
