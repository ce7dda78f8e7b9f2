"""Payloads on a terminal: whatever bytes a record has, they are shown and never obeyed."""

from __future__ import annotations

import base64

__all__ = ["harmless", "lines_of"]

_MOST_LINES = 200
_LONGEST_LINE = 2000


def harmless(text: str) -> str:
    """A text in one line, with everything escaped that is not printed: control characters, which a terminal would
    obey, and marks that turn the direction of what follows."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def lines_of(content: bytes | None) -> tuple[str, list[str]]:
    """What the bytes are, and lines to show them in: text if they are UTF-8, otherwise base64; cut if they are many."""
    if content is None:
        return "none", []
    try:
        kind, lines = "text", content.decode().split("\n")
    except UnicodeDecodeError:
        encoded = base64.b64encode(content).decode()
        kind, lines = "base64", [encoded[at : at + 76] for at in range(0, len(encoded), 76)]
    shown = [_cut(harmless(line.removesuffix("\r"))) for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        shown.append(f"… and {len(lines) - _MOST_LINES} lines more; --json has all of it")
    return f"{len(content)} byte{'' if len(content) == 1 else 's'}, {kind}", shown


def _cut(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]}… and {len(line) - _LONGEST_LINE} characters more; --json has all of it"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
