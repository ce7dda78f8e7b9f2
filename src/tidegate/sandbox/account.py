"""The system user that a server runs as."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.sandbox.errors import SandboxError


@dataclass(frozen=True)
class Account:
    """A system user to run a server as, because the server refuses to run as root."""

    name: str
    uid: int
    gid: int

    @classmethod
    def to_drop_to(cls, names: Sequence[str]) -> Account | None:
        """Return the first of the named users that exists, or ``nobody``; None if this process is not root."""
        if os.geteuid() != 0 or not names:
            return None
        for name in (*names, "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, entry.pw_uid, entry.pw_gid)
        raise SandboxError(
            f"The server refuses to run as root and none of the users {', '.join(names)}, nobody exists."
        )

    def can_enter(self, directory: Path) -> bool:
        """Return whether the user may pass through a directory, by its permission bits."""
        status = directory.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)

    def first_closed(self, directory: Path) -> Path | None:
        """Return the outermost directory on the path that the user may not pass through; ``None`` if there is none."""
        resolved = directory.resolve()
        for step in (*reversed(resolved.parents), resolved):
            if not self.can_enter(step):
                return step
        return None
