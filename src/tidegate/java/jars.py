"""Jars by their Maven coordinates: fetched once by the Ivy inside PySpark, and kept outside of the project."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tidegate.core.errors import ConfigurationError
from tidegate.java.cache import cache_directory, made_once
from tidegate.java.runtime import find_java

__all__ = ["Jars", "pyspark_jars"]

_FETCH_SECONDS = 900.0
_TAIL_LINES = 15


def pyspark_jars() -> Path:
    """The folder of the jars inside PySpark."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec and spec.submodule_search_locations) or ():
        if (jars := Path(location, "jars")).is_dir():
            return jars
    raise ConfigurationError(
        "Jars are fetched by the Ivy that ships inside PySpark, which is not installed; run: pip install "
        "'tidegate[spark]'"
    )


@dataclass(frozen=True)
class Jars:
    """``group:artifact:version`` of what is wanted, and what it needs comes along; without whole groups, if excluded.

    ``folder`` is where they are kept, below the cache; ``otherwise``, what to do on a machine without a network.
    """

    folder: str
    coordinates: tuple[str, ...]
    needed_by: str
    excluded: str | None = None
    otherwise: str = ""

    def fetched(self, settings: str | None = None, *, unless: Callable[[Path], bool] = lambda _: False) -> Path:
        """The directory that holds them all; the first call on a machine downloads them, later ones ask nobody.

        ``settings`` is an Ivy settings file, ``$TIDEGATE_IVY_SETTINGS`` by default; ``unless`` picks jars to leave out.
        """
        target = cache_directory() / self.folder
        if target.is_dir():
            return target
        find_java(self.needed_by)
        wanted = settings or os.environ.get("TIDEGATE_IVY_SETTINGS")
        try:
            return made_once(target, lambda staging: self._fetch(staging, wanted, unless))
        except OSError as error:
            raise ConfigurationError(
                f"The jars of {self.coordinates[0]} cannot be stored in {cache_directory()}: {error}. "
                "Set TIDEGATE_CACHE to a directory that you can write to."
            ) from error

    def _fetch(self, staging: Path, settings: str | None, unless: Callable[[Path], bool]) -> Path:
        status, output = self._run_ivy(staging, settings)
        jars = staging / "jars"
        _, name, version = self.coordinates[0].split(":")
        if status != "0" or not (jars / f"{name}-{version}.jar").exists():
            tail = "\n".join([line for line in output.splitlines() if line.strip()][-_TAIL_LINES:])
            raise ConfigurationError(
                f"The jars of {self.coordinates[0]} could not be fetched (Ivy: {status}). The first start on a "
                "machine needs the network; behind a mirror, set TIDEGATE_IVY_SETTINGS to an Ivy settings file. "
                f"{self.otherwise}The end of what Ivy said:\n{tail}"
            )
        for jar in filter(unless, jars.glob("*.jar")):
            jar.unlink()
        return jars

    def _run_ivy(self, staging: Path, settings: str | None) -> tuple[str, str]:
        module = staging / "ivy.xml"
        module.write_text(self._module())
        ivy = next(pyspark_jars().glob("ivy-2.*.jar"))
        pattern = f"{staging}/jars/[artifact]-[revision](-[classifier]).[ext]"
        command = [str(find_java(self.needed_by)), "-jar", str(ivy), "-cache", str(staging / "ivy")]
        command += ["-settings", settings] if settings else []
        command += ["-ivy", str(module), "-confs", "default", "-types", "jar", "bundle", "-retrieve", pattern]
        try:
            result = subprocess.run(  # noqa: S603 - java, found where launchers look for it
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
            return f"no end after {_FETCH_SECONDS:g} s", output
        return str(result.returncode), result.stdout

    def _module(self) -> str:
        """What is wanted, in the words of Ivy."""
        lines = []
        for coordinate in self.coordinates:
            org, name, version = map(quoteattr, coordinate.split(":"))
            lines.append(f"<dependency org={org} name={name} rev={version} conf='default->default'/>")
        lines += [f"<exclude org={quoteattr(self.excluded)}/>"] if self.excluded else []
        return (
            "<ivy-module version='2.0'><info organisation='tidegate' module='jars'/>"
            f"<configurations><conf name='default'/></configurations><dependencies>{''.join(lines)}</dependencies>"
            "</ivy-module>"
        )
