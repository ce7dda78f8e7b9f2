"""Payloads, cut and made harmless."""

from __future__ import annotations

import pytest

from tidegate.web.templates import Payload, _number, visible


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"plain", "text", "plain"),
        ("caf\u00e9\n\tx".encode(), "text", "caf\u00e9\n\tx"),
        (b"a\x00b\r\x1b[2J\x7f", "text", "a\\u{0}b\\u{d}\\u{1b}[2J\\u{7f}"),
        ("\u202eevil\u200b\u2028".encode(), "text", "\\u{202e}evil\\u{200b}\\u{2028}"),
        (b"\xff\xfeA", "hex", "000000  ff fe 41" + " " * 39 + "  \u00b7\u00b7A"),
    ],
)
def test_a_payload_is_text_or_a_dump(value: bytes | None, form: str, shown: str) -> None:
    payload = Payload.of(value)
    assert (payload.form, payload.shown) == (form, shown)
    assert not payload.is_cut


def test_a_long_text_is_cut_between_characters() -> None:
    payload = Payload.of("\u00e9".encode() * 100_000)
    assert payload.shown == "\u00e9" * 8192
    assert (payload.size, payload.shown_bytes, payload.is_cut) == (200_000, 16_384, True)


def test_a_long_dump_is_cut() -> None:
    payload = Payload.of(b"\xff" * 5000)
    assert (len(payload.shown.splitlines()), payload.shown_bytes, payload.is_cut) == (64, 1024, True)


def test_an_offset_is_shown_to_the_last_digit() -> None:
    assert _number((1 << 63) - 1) == "9,223,372,036,854,775,807"
    assert _number(1234.5) == "1,234"


def test_an_emoji_stays_what_it_is() -> None:
    assert visible("order \U0001f4e6") == "order \U0001f4e6"
