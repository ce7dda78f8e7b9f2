"""The entry point of the command line."""

from __future__ import annotations

from tidegate.cli.options import app

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    app(prog_name="tidegate")
