"""The Java that Spark will run on: found, and looked at, before Spark fails in its own words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tidegate.core.errors import ConfigurationError

__all__ = ["MINIMUM_JAVA", "find_java"]

MINIMUM_JAVA = 17
_ASK_SECONDS = 20.0


def find_java() -> Path:
    """The ``java`` that Spark's launcher takes: that of ``$JAVA_HOME`` if it is set, else the one on ``PATH``."""
    advice = f"Install Java {MINIMUM_JAVA} or later (Debian package openjdk-17-jre-headless)"
    home = os.environ.get("JAVA_HOME")
    if home:
        found = shutil.which("java", path=str(Path(home, "bin")))
        if not found:
            raise ConfigurationError(
                f"Spark needs Java, and JAVA_HOME is {home}, where there is no bin/java. {advice}, and let JAVA_HOME "
                "name its folder, or unset it to use the java on PATH."
            )
    else:
        found = shutil.which("java")
        if not found:
            raise ConfigurationError(
                f"Spark needs Java, and there is none on PATH. {advice}, and put it on PATH or set JAVA_HOME."
            )
    version = _version(found)
    if version is None:
        raise ConfigurationError(f"Spark needs Java, and {found} does not say which version it is. {advice}.")
    if version < MINIMUM_JAVA:
        raise ConfigurationError(f"Spark 4 needs Java {MINIMUM_JAVA}, and {found} is Java {version}. {advice}.")
    return Path(found)


@cache
def _version(java: str) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - found where Spark looks for it
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None
