"""axe-core, the accessibility checker: fetched once by npm, checked against its hash, and run in a page."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path

from playwright.sync_api import Page

from tidegate.java.cache import cache_directory, made_once

VERSION = "4.10.3"
SHA512 = "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg=="
RUN = "() => axe.run({resultTypes: ['violations']}).then((found) => found.violations)"


def violations(page: Page) -> list[str]:
    """What axe-core objects to on the page as it is now, one line for each rule."""
    page.evaluate(_source())
    return [
        f"{each['id']}: {each['help']}: {'; '.join(str(node['target']) for node in each['nodes'][:5])}"
        for each in page.evaluate(RUN)
    ]


@cache
def _source() -> str:
    return made_once(cache_directory() / f"axe-core-{VERSION}", _fetched).joinpath("axe.min.js").read_text()


def _fetched(staging: Path) -> Path:
    npm = shutil.which("npm")
    assert npm, "npm is needed here, to fetch axe-core"
    subprocess.run([npm, "pack", "--silent", f"axe-core@{VERSION}"], cwd=staging, check=True, timeout=300)
    archive = staging / f"axe-core-{VERSION}.tgz"
    assert hashlib.sha512(archive.read_bytes()).digest() == base64.b64decode(SHA512), "that is another axe-core"
    with tarfile.open(archive) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        target = staging / "axe"
        target.mkdir()
        (target / "axe.min.js").write_bytes(script.read())
    return target
