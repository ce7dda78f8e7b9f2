"""The directory of a server."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tidegate.sandbox.account import Account
from tidegate.sandbox.errors import SandboxError

MINIMUM_FREE_BYTES = 512 * 1024 * 1024
"""Free space that a server needs to start. Databases that run out of space fail in confusing ways."""

_KIND = "kind"
_INITIALISED = "initialised"


def require_space(directory: Path) -> None:
    """Raise if the file system of a directory has too little space for a server."""
    free = shutil.disk_usage(directory).free
    if free < MINIMUM_FREE_BYTES:
        raise SandboxError(
            f"Only {free // 2**20} MiB are free at {directory}, "
            f"and a sandbox server needs {MINIMUM_FREE_BYTES // 2**20} MiB. "
            "Free some space, or point TMPDIR (or directory=) at a larger file system."
        )


@dataclass(frozen=True)
class Workspace:
    """The directory with data, configuration and log of one server.

    The server's user owns the files that it has to write or keep secret.
    """

    path: Path
    account: Account | None
    temporary: bool

    @classmethod
    def temporary_for(cls, kind: str, account: Account | None, *, keep: bool) -> Workspace:
        """Create a temporary directory that the server's user can reach."""
        candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - mkdtemp makes the name
        base = next((it for it in candidates if account is None or account.first_closed(it) is None), candidates[0])
        require_space(base)
        path = Path(tempfile.mkdtemp(prefix=f"tidegate-{kind}-", dir=base))
        path.chmod(0o711)
        (path / _KIND).write_text(kind)
        return cls(path, account, temporary=not keep)

    @classmethod
    def at(cls, directory: Path, kind: str, account: Account | None) -> Workspace:
        """Use the caller's directory, which stays when the server stops."""
        path = directory.absolute()
        if not path.exists():
            path.mkdir(parents=True)
            path.chmod(0o711)
        if account is not None and (closed := account.first_closed(path)) is not None:
            raise SandboxError(
                f"The server runs as user {account.name}, who may not pass through {closed}. "
                f"Allow it (chmod o+x {closed}), or use another directory."
            )
        require_space(path)
        marker = path / _KIND
        if marker.exists():
            if (found := marker.read_text()) != kind:
                raise SandboxError(f"{path} holds the data of a {found} server, not of {kind}; use another directory.")
        elif any(path.iterdir()):
            raise SandboxError(f"{path} is not empty and was not made by the sandbox; use a new directory.")
        else:
            marker.write_text(kind)
        return cls(path, account, temporary=False)

    @property
    def log(self) -> Path:
        """The file that receives all output of the server."""
        return self.path / "server.log"

    @property
    def initialised(self) -> bool:
        """Whether the one-time preparation of the data is complete."""
        return (self.path / _INITIALISED).exists()

    def mark_initialised(self) -> None:
        """Mark the preparation of the data as complete."""
        (self.path / _INITIALISED).touch()

    def fresh_folder(self, name: str) -> Path:
        """Create an empty directory that only the server's user can read."""
        folder = self.path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(folder, self.account.uid, self.account.gid)
        return folder

    def private_file(self, name: str, text: str) -> Path:
        """Write a file that only the server's user can read. Passwords go here, never into arguments."""
        path = self.path / name
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if self.account is not None:
                os.fchown(file.fileno(), self.account.uid, self.account.gid)
            file.write(text)
        return path
