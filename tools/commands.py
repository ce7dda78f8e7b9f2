"""Write the last section of docs/cli.md: every command and option, as the program itself describes them."""

from __future__ import annotations

import re
from pathlib import Path

import typer.cli
import typer.main
from click import Context

from tidegate.cli.options import with_every_command

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = "## All commands\n\nMade from the program's own `--help` by `make docs`.\n"


def reference() -> str:
    """The section, with its commands as headings of the third level and their commands of the fourth."""
    command = typer.main.get_command(with_every_command())
    text = typer.cli.get_docs_for_click(obj=command, ctx=Context(command, info_name="tidegate"), name="tidegate")
    body = re.sub(r"^##", "###", text.partition("\n")[2], flags=re.MULTILINE)
    return HEAD + "\n".join(line.rstrip() for line in body.splitlines()).rstrip() + "\n"


def with_reference(page: str) -> str:
    """The page with its last section made anew."""
    return page.partition(HEAD.partition("\n")[0])[0] + reference()


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text()))
