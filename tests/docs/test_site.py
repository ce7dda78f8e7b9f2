"""The site builds without a broken link, and its list of commands is the program's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.commands import PAGE, with_reference

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def test_the_list_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text() == with_reference(PAGE.read_text()), "run: make docs"


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(config.replace("site_dir: build/site", "site_dir: site"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("zensical")), "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in (tmp_path / "site").glob("*.html")} >= pages


def test_links_between_pages_lead_somewhere() -> None:
    lost = [
        f"{page.name}: {target}"
        for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
        for target in LINK.findall(page.read_text())
        if not (page.parent / target.partition("#")[0]).exists()
    ]
    assert not lost, "\n".join(lost)
