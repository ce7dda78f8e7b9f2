"""Programs from Debian packages, unpacked into the cache without installing them on the system."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.java.cache import cache_directory, made_once
from tidegate.sandbox.account import Account
from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.workspace import require_space

__all__ = ["Unpacked", "unpack"]

ROOTS_CACHE = Path("/var/cache/tidegate")
"""Where root unpacks programs for another user, since other users may not enter root's home."""

_SUITE = "sid"
_RELEASES = ("stable", "oldstable", "testing", "unstable", _SUITE)
_ARCHIVE = re.compile(r"^'(?P<address>.+)/dists/(?P<suite>[^/']+)/main/", re.MULTILINE)
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SECONDS = 600.0
_TAIL_LINES = 15


@dataclass(frozen=True)
class Unpacked:
    """A folder with programs and all libraries that they need, including the C library."""

    root: Path

    def command(self, program: str) -> list[str | Path]:
        """Return the command that runs a program with the libraries of the folder instead of the system's."""
        loaders = sorted(self.root.glob("usr/lib/*/ld-linux*.so.*"))
        if not loaders:
            raise SandboxError(f"{self.root} has no program loader; remove that folder, and it is fetched again.")
        return [loaders[0], "--library-path", loaders[0].parent, self.root / program]


def unpack(package: str, accounts: Sequence[str]) -> Unpacked:
    """Return a package of Debian's suite sid with all its dependencies. The first call on a machine downloads it.

    ``accounts`` are the users that its server runs as when this process is root; they can read the folder.
    """
    target = _cache(accounts) / package
    if not target.is_dir():
        require_space(next(path for path in target.parents if path.exists()))
    try:
        return Unpacked(made_once(target, lambda staging: _Apt(staging).unpack(package)))
    except OSError as error:
        raise SandboxError(
            f"{package} cannot be unpacked into {target.parent}: {error}. "
            "Set TIDEGATE_CACHE to a directory that you can write to."
        ) from error


def _cache(accounts: Sequence[str]) -> Path:
    cache = cache_directory()
    account = Account.to_drop_to(accounts)
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    if account is None or (closed := account.first_closed(existing)) is None:
        return cache
    if "TIDEGATE_CACHE" in os.environ:
        raise SandboxError(
            f"The server runs as user {account.name}, who may not pass through {closed}. "
            f"Allow it (chmod o+x {closed}), or set TIDEGATE_CACHE to another directory."
        )
    return ROOTS_CACHE


class _Apt:
    """Runs apt with its lists, downloads and an empty system in one folder. The real system is not changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for path in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "root"):
            (folder / path).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "root").chmod(0o755)

    def unpack(self, package: str) -> Path:
        missing = [program for program in ("apt-get", "apt-config", "dpkg-deb") if shutil.which(program) is None]
        if missing:
            raise self._failure(package, f"it is fetched from Debian by {', '.join(missing)}, not found on PATH")
        archive = self._archive()
        if archive is None:
            raise self._failure(package, "apt's sources name no archive of a Debian release")
        environment = {**os.environ, "LC_ALL": "C", "APT_CONFIG": str(self._configuration(archive))}
        self._run(package, ["apt-get", "update", "--error-on=any"], environment)
        self._run(package, ["apt-get", "install", "--yes", "--download-only", package], environment)
        root = self._folder / "root"
        for file in sorted((self._folder / "cache/archives").glob("*.deb")):
            self._run(package, ["dpkg-deb", "--extract", str(file), str(root)], environment)
        return root

    def _archive(self) -> str | None:
        """Return the address of Debian's archive from the machine's own apt sources."""
        listed = _called(["apt-get", "update", "--print-uris"], {**os.environ, "LC_ALL": "C"})
        releases = (*_RELEASES, platform.freedesktop_os_release().get("VERSION_CODENAME"))
        found = (match for match in _ARCHIVE.finditer(listed.stdout) if match["suite"] in releases)
        return next((match["address"] for match in found), None)

    def _configuration(self, archive: str) -> Path:
        folder = self._folder
        signed = f" [signed-by={_KEYRING}]" if _KEYRING.exists() else ""
        (folder / "etc/sources.list").write_text(f"deb{signed} {archive} {_SUITE} main\n")
        # Use the machine's network settings, such as a proxy, but not its apt hooks.
        acquire = _called(["apt-config", "dump", "Acquire"], os.environ).stdout
        own = {
            "Dir": folder,
            "Dir::State": folder / "state",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "Dir::Etc": folder / "etc",
            "Dir::Etc::trusted": "/etc/apt/trusted.gpg",
            "Dir::Etc::trustedparts": "/etc/apt/trusted.gpg.d",
            "Dir::Etc::netrc": "/etc/apt/auth.conf",
            "Dir::Etc::netrcparts": "/etc/apt/auth.conf.d",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::Check-Valid-Until": "false",  # a mirror may lag behind
        }
        text = acquire + "".join(f'{name} "{value}";\n' for name, value in own.items())
        configuration = folder / "apt.conf"
        configuration.write_text(text)
        return configuration

    def _run(self, package: str, command: list[str], environment: Mapping[str, str]) -> None:
        done = _called(command, environment)
        if done.returncode != 0:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-_TAIL_LINES:]
            what = f"{' '.join(command[:2])} ended with {done.returncode}"
            raise self._failure(package, what, "\n".join(["The end of its output:", *lines]))

    @staticmethod
    def _failure(package: str, what: str, told: str = "") -> SandboxError:
        return SandboxError(
            f"{package} could not be fetched: {what}. The first start on a machine needs Debian's tools and the "
            f"network; or install {package} as a system package, so that nothing has to be fetched. {told}".rstrip()
        )


def _called(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - apt and dpkg, looked up on PATH
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", f"no end after {_SECONDS:g} s")
