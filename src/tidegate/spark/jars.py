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
    jars = Jars(
        f"spark/{coordinate.replace(':', '_')}",
        (coordinate,),
        needed_by="Spark 4",
        excluded="org.apache.hadoop",  # Spark brings it along, and the connector asks for another copy of its 50 MB
        otherwise="Without any, fetch them elsewhere and give their paths, separated by commas, instead of the name. ",
    )
    return sorted(jars.fetched(settings, unless=_is_sparks_own).glob("*.jar"))


def _is_sparks_own(jar: Path) -> bool:
    return _artifact(jar) in {_artifact(own) for own in pyspark_jars().glob("*.jar")}


def _artifact(jar: Path) -> str:
    match = _VERSIONED.fullmatch(jar.name)
    return match["name"] if match else jar.stem
