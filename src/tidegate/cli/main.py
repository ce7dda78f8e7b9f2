"""The entry point; importing the commands registers them."""

from __future__ import annotations

from tidegate.cli import config as _config  # noqa: F401
from tidegate.cli import consume as _consume  # noqa: F401
from tidegate.cli import dashboard as _dashboard  # noqa: F401
from tidegate.cli import dead_letters as _dead_letters  # noqa: F401
from tidegate.cli import doctor as _doctor  # noqa: F401
from tidegate.cli import groups as _groups  # noqa: F401
from tidegate.cli import journal as _journal  # noqa: F401
from tidegate.cli import pausing as _pausing  # noqa: F401
from tidegate.cli import pipeline as _pipeline  # noqa: F401
from tidegate.cli import positions as _positions  # noqa: F401
from tidegate.cli import produce as _produce  # noqa: F401
from tidegate.cli import run as _run  # noqa: F401
from tidegate.cli import status as _status  # noqa: F401
from tidegate.cli import topics as _topics  # noqa: F401
from tidegate.cli import verify as _verify  # noqa: F401
from tidegate.cli.root import app

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    app(prog_name="tidegate")
