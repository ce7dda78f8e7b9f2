"""Lines of text, or of JSON, as keys and values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.core.errors import ConfigurationError, TidegateError

__all__ = ["LineReader", "LineRefused"]


class LineRefused(TidegateError):
    """A line that is not what was said it would be; those before it were sent."""


class LineReader:
    """Reads keys and values from lines.

    The value is the line as it is, without its end. The key is what the ``separator`` is behind, or, of JSON, what is
    at the path ``key``: text as it is, anything else as JSON.
    """

    def __init__(self, *, is_json: bool = False, key: str | None = None, separator: str | None = None) -> None:
        if key is not None and not is_json:
            raise ConfigurationError("--key looks into JSON; for plain lines give --separator, or say --json as well")
        if separator is not None and is_json:
            raise ConfigurationError("--separator is for plain lines; in JSON the key is found with --key")
        if separator == "":
            raise ConfigurationError("--separator is empty; say what stands between key and value")
        self._is_json = is_json
        self._path = key.split(".") if key else []
        self._separator = None if separator is None else separator.replace("\\t", "\t").encode()

    def read(self, lines: Iterable[bytes]) -> Iterator[tuple[bytes | None, bytes]]:
        """Each line's key and value; empty lines of JSON are left out."""
        for number, line in enumerate(lines, 1):
            value = line.removesuffix(b"\n").removesuffix(b"\r")
            if self._is_json:
                if value.strip():
                    yield self._json_key(value, number), value
            elif self._separator is None:
                yield None, value
            else:
                key, found, rest = value.partition(self._separator)
                if not found:
                    raise LineRefused(f"line {number} has no separator; the lines before it were sent")
                yield key, rest

    def _json_key(self, line: bytes, number: int) -> bytes | None:
        try:
            content = json.loads(line)
        except ValueError as error:
            where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
            raise LineRefused(f"line {number} is not JSON{where}; the lines before it were sent") from None
        if not self._path:
            return None
        found: Any = content
        for name in self._path:
            if not isinstance(found, dict) or name not in found:
                raise LineRefused(f"line {number} has no {'.'.join(self._path)}; the lines before it were sent")
            found = found[name]
        if found is None:
            return None
        return found.encode() if isinstance(found, str) else json.dumps(found, separators=(",", ":")).encode()
