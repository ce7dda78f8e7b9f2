"""Finding the programs of servers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from tidegate.java import runtime
from tidegate.sandbox.errors import SandboxError, as_sandbox_error

SYSTEM_FOLDERS: tuple[str, ...] = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where servers are often installed; an ordinary user's PATH lacks these folders."""


def find_program(name: str, *, package: str, folders: Iterable[str | Path] = ()) -> Path:
    """Return the path of a program: from PATH, the given folders, or the folders of system daemons, in this order."""
    for path in (None, os.pathsep.join(str(folder) for folder in (*folders, *SYSTEM_FOLDERS))):
        if found := shutil.which(name, path=path):
            return Path(found)
    raise SandboxError(
        f"The program {name} was not found. Install the Debian package {package} (apt-get install {package}), "
        f"or your system's equivalent, and make sure that {name} is on PATH."
    )


def find_java(needed_by: str) -> Path:
    """Return the path of a Java that is new enough."""
    with as_sandbox_error():
        return runtime.find_java(needed_by)
