"""The jars that a session gets beside Spark's own."""

from __future__ import annotations

import re
from pathlib import Path

from tidegate.core.errors import ConfigurationError
from tidegate.java.jars import Jars, pyspark_jars

__all__ = ["jars_of"]

_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")
_VERSIONED = re.compile(r"(?P<name>.+?)-\d.*\.jar")


def jars_of(coordinate: str, settings: str | None = None) -> list[Path]:
    """The jars of ``group:artifact:version`` and of what it needs, without those that Spark has already."""
    if not _COORDINATE.fullmatch(coordinate):
        raise ConfigurationError(f"{coordinate!r} is no Maven coordinate; write it as group:artifact:version")
    # Spark brings Hadoop along; the connector asks for a newer copy of the same 50 MB.
    jars = Jars(f"spark/{coordinate.replace(':', '_')}", (coordinate,), "Spark 4", excluded="org.apache.hadoop")
    return sorted(jars.fetched(settings, unless=_is_sparks_own).glob("*.jar"))


def _is_sparks_own(jar: Path) -> bool:
    return _artifact(jar) in {_artifact(own) for own in pyspark_jars().glob("*.jar")}


def _artifact(jar: Path) -> str:
    match = _VERSIONED.fullmatch(jar.name)
    return match["name"] if match else jar.stem
