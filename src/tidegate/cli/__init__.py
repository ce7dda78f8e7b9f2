"""The command line: ``tidegate`` and its commands."""

from tidegate.cli.main import main
from tidegate.cli.options import ExitCode

__all__ = ["ExitCode", "main"]
