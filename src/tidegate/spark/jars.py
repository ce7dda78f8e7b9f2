"""Jars by their Maven coordinates: fetched once by the Ivy that Spark itself uses, and kept outside of the project."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tidegate.core.errors import ConfigurationError
from tidegate.spark.java import find_java

__all__ = ["jars_of"]

_FETCH_SECONDS = 600.0
_TAIL_LINES = 12
_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")
_VERSIONED = re.compile(r"(?P<name>.+?)-\d.*\.jar")

# Spark brings Hadoop along; the connector asks for a newer copy of the same 50 MB.
_MODULE = """<ivy-module version="2.0">
  <info organisation="tidegate" module="spark"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org={org} name={name} rev={version} conf="default->default"/>
    <exclude org="org.apache.hadoop"/>
  </dependencies>
</ivy-module>
"""


def jars_of(coordinate: str, settings: str | None = None) -> list[Path]:
    """The jars of ``group:artifact:version`` and of what it needs, without those that Spark has already.

    The first call on a machine downloads them into ``$TIDEGATE_CACHE`` (else ``tidegate`` in ``$XDG_CACHE_HOME`` or
    ``~/.cache``); later calls ask nobody. ``settings`` is an Ivy settings file, ``$TIDEGATE_IVY_SETTINGS`` by default.
    """
    if not _COORDINATE.fullmatch(coordinate):
        raise ConfigurationError(f"{coordinate!r} is no Maven coordinate; write it as group:artifact:version")
    cache = _cache()
    folder = cache / "spark" / coordinate.replace(":", "_")
    if not folder.is_dir():
        find_java()
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_name(f"{folder.name}.lock")):
                if not folder.is_dir():
                    _fetch(coordinate, folder, settings or os.environ.get("TIDEGATE_IVY_SETTINGS"))
        except OSError as error:
            raise ConfigurationError(
                f"The jars of {coordinate} cannot be stored in {cache}: {error}. "
                "Set TIDEGATE_CACHE to a directory that you can write to."
            ) from error
    return sorted(folder.glob("*.jar"))


def _cache() -> Path:
    if chosen := os.environ.get("TIDEGATE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"


def _sparks_own() -> Path:
    """The folder of the jars inside PySpark."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec and spec.submodule_search_locations) or ():
        if (jars := Path(location, "jars")).is_dir():
            return jars
    raise ConfigurationError("Pipelines need PySpark; run: pip install 'tidegate[spark]'")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(coordinate: str, target: Path, settings: str | None) -> None:
    """Download next to the target and rename, so that a directory of that name is always complete."""
    own = _sparks_own()
    for abandoned in target.parent.glob(f"{target.name}.partial-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
    try:
        org, name, version = coordinate.split(":")
        module = staging / "ivy.xml"
        module.write_text(_MODULE.format(org=quoteattr(org), name=quoteattr(name), version=quoteattr(version)))
        status, output = _run_ivy(next(own.glob("ivy-2.*.jar")), staging, module, settings)
        jars = staging / "jars"
        if status != "0" or not (jars / f"{name}-{version}.jar").exists():
            tail = "\n".join([line for line in output.splitlines() if line.strip()][-_TAIL_LINES:])
            raise ConfigurationError(
                f"The jars of {coordinate} could not be fetched (Ivy: {status}). The first start on a machine needs "
                "the network; behind a mirror, set TIDEGATE_IVY_SETTINGS to an Ivy settings file; without any, fetch "
                f"them elsewhere and give their paths, separated by commas, instead of the name.\nIvy said:\n{tail}"
            )
        present = {_artifact(jar) for jar in own.glob("*.jar")}
        for jar in jars.glob("*.jar"):
            if _artifact(jar) in present:
                jar.unlink()
        jars.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run_ivy(ivy: Path, staging: Path, module: Path, settings: str | None) -> tuple[str, str]:
    pattern = f"{staging}/jars/[artifact]-[revision](-[classifier]).[ext]"
    command = [str(find_java()), "-jar", str(ivy), "-cache", str(staging / "ivy"), "-ivy", str(module)]
    command += ["-settings", settings] if settings else []
    try:
        result = subprocess.run(  # noqa: S603 - java, found where Spark looks for it
            [*command, "-confs", "default", "-types", "jar", "bundle", "-retrieve", pattern],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        return f"no end after {_FETCH_SECONDS:g} s", output if isinstance(output, str) else output.decode(
            errors="replace"
        )
    return str(result.returncode), result.stdout


def _artifact(jar: Path) -> str:
    match = _VERSIONED.fullmatch(jar.name)
    return match["name"] if match else jar.stem
