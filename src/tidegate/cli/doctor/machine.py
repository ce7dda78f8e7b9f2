"""Checks of this machine: what is installed."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec

from tidegate.core.errors import ConfigurationError
from tidegate.core.findings import Finding
from tidegate.java.runtime import find_java

__all__ = ["check_extra", "check_java", "check_spark", "check_versions"]


def check_versions() -> Finding:
    """What somebody who helps will ask first."""
    client = version("confluent-kafka")
    return Finding.ok(
        "versions", f"tidegate {version('tidegate')}, Python {platform.python_version()}, confluent-kafka {client}"
    )


def check_extra(extra: str, module: str, needed_for: str) -> Finding | None:
    """A package that something which is set up here needs."""
    if find_spec(module) is not None:
        return None
    said = f"{needed_for} needs the package {module}, which is not installed"
    return Finding.fault("packages", said, f"run: pip install 'tidegate[{extra}]'")


def check_java(*, is_needed: bool) -> Finding:
    """Java, for pipelines and for the sandbox."""
    try:
        return Finding.ok("java", str(find_java("a pipeline")))
    except ConfigurationError as error:
        said, _, advice = str(error).partition(". ")
        if is_needed:
            return Finding.fault("java", said, advice)
        return Finding.warning("java", f"{said}; listeners do without it, pipelines and the sandbox do not", advice)


def check_spark() -> Iterator[Finding]:
    """What a pipeline needs beside Java."""
    missing = check_extra("spark", "pyspark", "a pipeline")
    yield missing or Finding.ok("packages", f"pyspark {version('pyspark')}")
