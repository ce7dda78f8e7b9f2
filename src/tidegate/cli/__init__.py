"""The command line."""

from tidegate.cli.codes import ExitCode
from tidegate.cli.main import main

__all__ = ["ExitCode", "main"]
