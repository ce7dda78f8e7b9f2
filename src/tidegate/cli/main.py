"""The entry point; importing the commands registers them."""

from __future__ import annotations

from tidegate.cli import consume as _consume  # noqa: F401
from tidegate.cli import produce as _produce  # noqa: F401
from tidegate.cli import run as _run  # noqa: F401
from tidegate.cli.root import app

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    app(prog_name="tidegate")
