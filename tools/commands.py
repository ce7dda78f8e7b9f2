"""Write docs/commands.md: every command and option, as the program itself describes them."""

from __future__ import annotations

from pathlib import Path

import typer.cli
import typer.main
from click import Context

from tidegate.cli import main as _  # noqa: F401 - registers the commands
from tidegate.cli.root import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = "# Commands\n\nMade from the program's own `--help` by `make docs`. What they are for: [cli.md](cli.md).\n"


def reference() -> str:
    """The whole page."""
    command = typer.main.get_command(app)
    text = typer.cli.get_docs_for_click(obj=command, ctx=Context(command, info_name="tidegate"), name="tidegate")
    body = text.partition("\n")[2]
    return HEAD + "\n".join(line.rstrip() for line in body.splitlines()).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference())
