"""The choice of a format, checked without what reading it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from tidegate.core.arguments import Kind
from tidegate.core.texts import is_text

if TYPE_CHECKING:
    from tidegate.tables.format import Format
    from tidegate.tables.own_format import RowFunction

__all__ = ["FormatArgument", "FormatChoice"]

FormatChoice: TypeAlias = "str | Format | RowFunction"
"""``"json"``, a format, or a function that makes rows of a record."""


def _format(given: Any) -> Any:
    if is_text(given):
        return given if given == "json" else None
    is_format = hasattr(given, "reader") and hasattr(given, "infer")
    return given if (is_format or callable(given)) and not isinstance(given, type) else None


FormatArgument: TypeAlias = Annotated[Any, Kind("'json', CsvFormat([…]) or a function of a Record", _format, ("json",))]
"""A :data:`FormatChoice` as an argument."""
