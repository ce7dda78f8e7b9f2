"""Finds Java and checks its version, so that a missing or old Java gives a clear error before a program starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tidegate.errors import ConfigurationError

__all__ = ["find_java"]

_MINIMUM = 17
_ASK_SECONDS = 30.0


def find_java(needed_by: str) -> Path:
    """Return the ``java`` that launchers use: from ``$JAVA_HOME`` if it is set, else from ``PATH``.

    Raises a :class:`ConfigurationError` if there is none or it is too old. ``needed_by`` is the program that needs it.
    """
    advice = f"Install Java {_MINIMUM} or later (Debian package openjdk-17-jre-headless)"
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if not found and home:
        raise ConfigurationError(
            f"{needed_by} needs Java, and JAVA_HOME is {home}, where there is no bin/java. {advice}, and let JAVA_HOME "
            "name its folder, or unset it to use the java on PATH."
        )
    if not found:
        raise ConfigurationError(
            f"{needed_by} needs Java, and there is none on PATH. {advice}, and put it on PATH or set JAVA_HOME."
        )
    version = _version(found)
    if version is None:
        raise ConfigurationError(f"{needed_by} needs Java, and {found} does not report its version. {advice}.")
    if version < _MINIMUM:
        raise ConfigurationError(f"{needed_by} needs Java {_MINIMUM}, and {found} is Java {version}. {advice}.")
    return Path(found)


@cache
def _version(java: str) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - found where launchers look for it
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None
