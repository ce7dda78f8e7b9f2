"""Finding the programs of the servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tidegate.sandbox.errors import SandboxError

SYSTEM_FOLDERS: tuple[str, ...] = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Servers are often installed where an ordinary user's PATH does not look."""

MINIMUM_JAVA = 17
JAVA_PACKAGE = "openjdk-17-jre-headless"


def find_program(name: str, *, package: str, folders: Iterable[str | Path] = ()) -> Path:
    """Return the path of a program: on PATH, else in the given folders, else where system daemons are."""
    for path in (None, os.pathsep.join(str(folder) for folder in (*folders, *SYSTEM_FOLDERS))):
        if found := shutil.which(name, path=path):
            return Path(found)
    raise SandboxError(
        f"The program {name} was not found. Install the Debian package {package} (apt-get install {package}), "
        f"or your system's equivalent, and make sure that {name} is on PATH."
    )


def find_java() -> Path:
    """Return the path of a Java that is new enough: ``$JAVA_HOME`` first, then PATH."""
    advice = (
        f"Install Java {MINIMUM_JAVA} or later (Debian package {JAVA_PACKAGE}), and put it on PATH or set JAVA_HOME."
    )
    home = os.environ.get("JAVA_HOME")
    found = (home and shutil.which("java", path=str(Path(home, "bin")))) or shutil.which("java")
    if not found:
        raise SandboxError(f"Java was not found, and Kafka needs it. {advice}")
    version = _java_version(found)
    if version is None:
        raise SandboxError(f"{found} does not say which version of Java it is. {advice}")
    if version < MINIMUM_JAVA:
        raise SandboxError(f"{found} is Java {version}, and Kafka 4 needs {MINIMUM_JAVA}. {advice}")
    return Path(found)


@cache
def _java_version(java: str) -> int | None:
    try:
        result = subprocess.run(  # noqa: S603 - found on PATH
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(match.group(1)) if match else None
