"""Golden outputs: what a command prints is compared with a file beside this one.

Times and other things that differ from run to run are to be replaced before. After a change that is meant, renew the
files by running the tests with ``RENEW_GOLDEN=1`` in the environment, and read the difference before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).with_name("golden")
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?")


def timeless(text: str) -> str:
    """The text with every time replaced by one of the same length."""
    return TIME.sub(lambda found: "<time>".ljust(len(found[0]), "-"), text)


def check_golden(name: str, text: str) -> None:
    """Compare a text with the file of that name."""
    file = FOLDER / name
    if os.environ.get("RENEW_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.exists(), f"there is no {file}; run the test with RENEW_GOLDEN=1 to make it"
    assert text == file.read_text(encoding="utf-8"), f"it is not what {file.name} has; see {__name__} on renewing it"
