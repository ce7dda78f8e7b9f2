"""Downloads jars and archives by their Maven coordinates, with Apache Ivy, which this package contains; caches them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from tidegate.errors import ConfigurationError
from tidegate.java.cache import cache_directory, made_once
from tidegate.java.downloads import downloading
from tidegate.java.runtime import find_java

__all__ = ["Jars", "pyspark_jars"]

_IVY = Path(__file__).with_name("ivy-2.5.3.jar")
_CENTRAL = (
    "<ivysettings><settings defaultResolver='central'/><resolvers><ibiblio name='central' m2compatible='true'/>"
    "</resolvers></ivysettings>"
)
_FETCH_SECONDS = 900.0
_TAIL_LINES = 15
_FOUND = re.compile(r"\s+found \S+#")
_SIZE = re.compile(r"\.* \(([1-9]\d*)kB\)$")


def pyspark_jars() -> Path:
    """Return the folder of PySpark's jars; raises if PySpark is not installed."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec and spec.submodule_search_locations) or ():
        if (jars := Path(location, "jars")).is_dir():
            return jars
    raise ConfigurationError("Pipelines need PySpark, which is not installed; run: pip install 'tidegate[spark]'")


@dataclass(frozen=True)
class Jars:
    """A set of jars to download, with their dependencies.

    ``folder`` is their folder inside the cache. ``coordinates`` are ``group:artifact:version``. ``needed_by`` names the
    program that needs them, for errors about Java. ``excluded`` is a group whose jars are left out. ``archive`` is the
    classifier of a ``tar.gz`` that already holds all dependencies: it is downloaded instead of jars, and unpacked.
    ``spare`` takes the place of a dependency of its name that cannot be found. ``otherwise`` is advice in the error
    message for a machine without a network.
    """

    folder: str
    coordinates: tuple[str, ...]
    needed_by: str
    excluded: str | None = None
    archive: str | None = None
    spare: str | None = None
    otherwise: str = ""

    def fetched(self, settings: str | None = None, *, unless: Callable[[Path], bool] = lambda _: False) -> Path:
        """Return the folder with all jars. The first call on a machine downloads them; later calls need no network.

        ``settings`` is an Ivy settings file, by default ``$TIDEGATE_IVY_SETTINGS``. Jars for which ``unless`` returns
        true are left out.
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
        jars = staging / "jars"
        _, name, version = self.coordinates[0].split(":")
        file = f"{name}-{version}-{self.archive}.tar.gz" if self.archive else f"{name}-{version}.jar"
        settings = str(_without_poms(staging, settings)) if self.archive else settings
        with downloading(f"{name} {version}") as tell:
            status, output = self._run_ivy(staging, settings, tell)
            if self.spare is not None and _is_missed(self.spare, output):
                status, output = self._run_ivy(staging, settings, tell, self.spare)
            if status != "0" or not (jars / file).exists():
                tail = "\n".join([line for line in output.splitlines() if line.strip()][-_TAIL_LINES:])
                raise ConfigurationError(
                    f"The jars of {self.coordinates[0]} could not be fetched (Ivy: {status}). The first start on a "
                    "machine needs the network; behind a mirror, set TIDEGATE_IVY_SETTINGS to an Ivy settings file. "
                    f"{self.otherwise}The end of Ivy's output:\n{tail}"
                )
        if self.archive:
            unpacked = staging / "unpacked"
            with tarfile.open(jars / file) as archive:
                archive.extractall(unpacked, filter="data")
            return unpacked
        for jar in filter(unless, jars.glob("*.jar")):
            jar.unlink()
        return jars

    def _run_ivy(
        self, staging: Path, settings: str | None, tell: Callable[[str], None], spare: str | None = None
    ) -> tuple[str, str]:
        module = staging / "ivy.xml"
        module.write_text(self._module(spare))
        pattern = f"{staging}/jars/[artifact]-[revision](-[classifier]).[ext]"
        command = [str(find_java(self.needed_by)), "-jar", str(_IVY), "-cache", str(staging / "ivy")]
        command += ["-settings", settings] if settings else []
        command += ["-ivy", str(module), "-confs", "default", "-types", "jar", "bundle", "tar.gz", "-retrieve", pattern]
        with subprocess.Popen(  # noqa: S603 - java, found where launchers look for it
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as ivy:
            began = time.monotonic()
            limit = threading.Timer(_FETCH_SECONDS, ivy.kill)
            limit.start()
            try:
                output = _followed(ivy, tell)
                code = ivy.wait()
            except BaseException:
                ivy.kill()
                raise
            finally:
                limit.cancel()
        is_late = code < 0 and time.monotonic() - began >= _FETCH_SECONDS
        return f"no end after {_FETCH_SECONDS:g} s" if is_late else str(code), output

    def _module(self, spare: str | None) -> str:
        """Return the Ivy module file that lists the dependencies, one of them replaced by the spare one."""
        lines = []
        for coordinate in self.coordinates:
            org, name, version = map(quoteattr, coordinate.split(":"))
            whole = f" transitive='false'><artifact name={name} type='tar.gz' ext='tar.gz' m:classifier="
            what = f"{whole}{quoteattr(self.archive)}/></dependency>" if self.archive else "/>"
            lines.append(f"<dependency org={org} name={name} rev={version} conf='default->default'{what}")
        lines += [f"<exclude org={quoteattr(self.excluded)}/>"] if self.excluded else []
        if spare is not None:
            org, name, version = map(quoteattr, spare.split(":"))
            lines.append(f"<override org={org} module={name} rev={version}/>")
        return (
            "<ivy-module version='2.0' xmlns:m='http://ant.apache.org/ivy/maven'>"
            "<info organisation='tidegate' module='jars'/>"
            f"<configurations><conf name='default'/></configurations><dependencies>{''.join(lines)}</dependencies>"
            "</ivy-module>"
        )


def _without_poms(staging: Path, given: str | None) -> Path:
    """Write Ivy settings that ignore POMs, because the POM of an archive may have a parent that was never published.

    They are the given settings, or else those of Maven Central, except that Maven repositories use no POMs.
    """
    if given is None:
        root = ElementTree.fromstring(_CENTRAL)  # noqa: S314 - our own text
    else:
        try:
            root = ElementTree.parse(given).getroot()  # noqa: S314 - the user's own file
        except ElementTree.ParseError as error:
            raise ConfigurationError(f"{given} is not an Ivy settings file: {error}") from None
        folder = str(Path(given).parent.absolute())  # the new file is elsewhere, and paths may be relative to the old
        root.insert(0, ElementTree.Element("property", name="ivy.settings.dir", value=folder))
    for resolver in root.iter("ibiblio"):
        resolver.set("usepoms", "false")
    written = staging / "settings.xml"
    written.write_text(ElementTree.tostring(root, encoding="unicode"))
    return written


def _is_missed(coordinate: str, output: str) -> bool:
    """Whether Ivy says that no release of this dependency, or not the right one, could be found."""
    org, name, _ = coordinate.split(":")
    return re.search(rf"{re.escape(f'{org}#{name};')}\S+: not found", output) is not None


def _followed(ivy: subprocess.Popen[str], tell: Callable[[str], None]) -> str:
    """Return all that Ivy prints, and tell how many jars it has found and downloaded meanwhile."""
    lines, found, done, kilobytes = [], 0, 0, 0
    for line in ivy.stdout or ():
        lines.append(line)
        if _FOUND.match(line):
            found += 1
            tell(f"{found} jars found")
        elif size := _SIZE.match(line):
            done, kilobytes = done + 1, kilobytes + int(size[1])
            tell(f"{done} of {found} jars, {kilobytes / 1000:.1f} MB")
    return "".join(lines)
