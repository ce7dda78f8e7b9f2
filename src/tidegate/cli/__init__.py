"""The command line: ``tidegate`` and its commands."""

from __future__ import annotations

from tidegate.cli.options import ExitCode, app

__all__ = ["ExitCode", "main"]


def main() -> None:
    """Run the command line."""
    app(prog_name="tidegate")
