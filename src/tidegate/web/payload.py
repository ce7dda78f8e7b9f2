"""Payloads, as they may be shown: a dead letter holds whatever someone sent."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

__all__ = ["Payload"]

_MOST_CHARACTERS = 8_192
_MOST_BYTES = 1_024
_IN_A_ROW = 16
# Controls could hide or reorder what stands beside them: category Cc, Cf (bidirectional overrides, zero width),
# lone surrogates and the separators that end a line.
_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True)
class Payload:
    """A key or a value, cut to what a page can hold. ``form`` is ``text``, ``hex``, ``empty`` or ``null``."""

    form: str
    shown: str
    size: int
    shown_bytes: int

    @property
    def is_cut(self) -> bool:
        """Whether there is more of it than is shown."""
        return self.shown_bytes < self.size

    @classmethod
    def of(cls, value: bytes | None) -> Payload:
        """Text if it is UTF-8, and otherwise a dump."""
        if value is None:
            return cls("null", "", 0, 0)
        if not value:
            return cls("empty", "", 0, 0)
        try:
            text = value.decode()
        except UnicodeDecodeError:
            head = value[:_MOST_BYTES]
            return cls("hex", _dump(head), len(value), len(head))
        head_text = text[:_MOST_CHARACTERS]
        return cls("text", visible(head_text), len(value), len(head_text.encode()))


def visible(text: str) -> str:
    """A text with its control characters written out; lines and tabs stay what they are."""
    return "".join(map(_visible, text)) if not (text.isascii() and text.isprintable()) else text


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _ESCAPED:
        return character
    return f"\\u{{{ord(character):x}}}"


def _dump(value: bytes) -> str:
    rows = []
    for start in range(0, len(value), _IN_A_ROW):
        row = value[start : start + _IN_A_ROW]
        numbers = " ".join(f"{byte:02x}" for byte in row)
        text = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        rows.append(f"{start:06x}  {numbers:<{_IN_A_ROW * 3 - 1}}  {text}")
    return "\n".join(rows)
