"""The broker's jars, fetched once and kept outside of the repository."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.programs import find_java
from tidegate.sandbox.workspace import require_space

KAFKA_VERSION = "4.3.1"
_FETCH_SECONDS = 900.0
_TAIL_LINES = 15

# Kafka logs through SLF4J 1.7 and its own dependencies bring no binding: without slf4j-simple it would be mute.
_IVY_MODULE = f"""<ivy-module version="2.0">
  <info organisation="tidegate" module="sandbox"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
  </dependencies>
</ivy-module>
"""


def cache_directory() -> Path:
    """Where downloads are kept: ``$TIDEGATE_CACHE``, else ``tidegate`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if chosen := os.environ.get("TIDEGATE_CACHE"):
        return Path(chosen)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "tidegate"
    return Path.home() / ".cache" / "tidegate"


def kafka_jars() -> Path:
    """Return the directory with the broker's jars; the first call on a machine downloads about 44 MB."""
    cache = cache_directory()
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    java, ivy = find_java(), _find_ivy()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        require_space(cache)
        with _locked(cache / f"{jars.name}.lock"):
            if not jars.is_dir():
                _fetch(java, ivy, jars)
    except OSError as error:
        raise SandboxError(
            f"The jars of Kafka cannot be stored in {cache}: {error}. "
            "Set TIDEGATE_CACHE to a directory that you can write to."
        ) from error
    return jars


def _find_ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec and spec.submodule_search_locations) or ():
        if found := sorted(Path(location, "jars").glob("ivy-2.*.jar")):
            return found[-1]
    raise SandboxError(
        "The jars of Kafka are fetched by the Ivy that ships inside PySpark, which is not installed. "
        'Install the extra: pip install "tidegate[spark]".'
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(java: Path, ivy: Path, target: Path) -> None:
    """Download next to the target and rename, so that a directory of that name is always complete."""
    for abandoned in target.parent.glob(f"{target.name}.partial-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
    try:
        module = staging / "ivy.xml"
        module.write_text(_IVY_MODULE)
        pattern = f"{staging}/jars/[artifact]-[revision](-[classifier]).[ext]"
        command = [str(java), "-jar", str(ivy), "-cache", str(staging / "ivy"), "-ivy", str(module)]
        if settings := os.environ.get("TIDEGATE_IVY_SETTINGS"):
            command += ["-settings", settings]
        try:
            result = subprocess.run(  # noqa: S603 - java, found on PATH
                [*command, "-confs", "default", "-retrieve", pattern],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_FETCH_SECONDS,
                check=False,
            )
            output, status = result.stdout, str(result.returncode)
        except subprocess.TimeoutExpired as error:
            output, status = _text(error.stdout), f"no end after {_FETCH_SECONDS:g} s"
        jars = staging / "jars"
        if status != "0" or not (jars / f"kafka_2.13-{KAFKA_VERSION}.jar").exists():
            tail = "\n".join([line for line in output.splitlines() if line.strip()][-_TAIL_LINES:])
            raise SandboxError(
                f"The jars of Kafka {KAFKA_VERSION} could not be fetched (Ivy: {status}). "
                "The first start needs the network; behind a mirror, set TIDEGATE_IVY_SETTINGS to an Ivy settings file."
                f" The end of what Ivy said:\n{tail}"
            )
        jars.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
