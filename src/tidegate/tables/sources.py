"""Where the values of a column come from: a field of the record's value or key, or what Kafka knows of the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import Kind
from tidegate.core.errors import ConfigurationError
from tidegate.core.texts import is_text

__all__ = ["Mapped", "Source", "sources_of"]

_PARTS = ("value", "key", "headers", "topic", "partition", "offset", "timestamp")
_NESTED = ("value", "key", "headers")


def _mapped(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, Mapping) or not given:
        return None
    for column, path in given.items():
        is_path = is_text(path) or (isinstance(path, Sequence) and path and all(map(is_text, path)))
        if not (is_text(column) and column.strip()) or not is_path:
            raise ConfigurationError(f"column {column!r}: a source is text, such as 'value.id', or a list of names")
    sources_of(given)
    return dict(given)


Mapped: TypeAlias = Annotated[
    Mapping[str, str | Sequence[str]],
    Kind("a mapping from columns to their sources, such as {'id': 'value.id'}", _mapped),
]
"""For each column its path: ``"value.address.city"``, ``"key"``, ``"offset"``; in parts if a name has a dot in it."""


class Source(NamedTuple):
    """One part of a record, and the way down into it; no way means the part as a whole."""

    part: str
    path: tuple[str, ...] = ()

    @property
    def is_field(self) -> bool:
        """Whether it is a field of the value, which a format has to find."""
        return self.part == "value" and bool(self.path)

    def __str__(self) -> str:
        return ".".join((self.part, *self.path))


def sources_of(mapped: Mapped) -> dict[str, Source]:
    """The sources that a user has written down for columns."""
    return {column: _parsed(column, path) for column, path in mapped.items()}


def _parsed(column: str, written: str | Sequence[str]) -> Source:
    part, *path = written.split(".") if isinstance(written, str) else written
    if part not in _PARTS:
        raise ConfigurationError(
            f"column {column!r} cannot come from {'.'.join((part, *path))!r}: a source begins with one of "
            f"{', '.join(_PARTS)}, as in 'value.{part}'"
        )
    if path and part not in _NESTED:
        raise ConfigurationError(f"column {column!r}: {part} has nothing inside of it")
    if part == "headers" and len(path) > 1:
        raise ConfigurationError(
            f"column {column!r}: the value of a header is taken as a whole, as 'headers.{path[0]}'"
        )
    if not all(path):
        raise ConfigurationError(f"column {column!r}: the path {'.'.join((part, *path))!r} has an empty name in it")
    return Source(part, tuple(path))
