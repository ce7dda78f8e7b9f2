"""The settings of sinks: records into tables, without a line of Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from tidegate.core.arguments import Label, convert_arguments
from tidegate.core.columns import TypeWord
from tidegate.core.errors import ConfigurationError
from tidegate.settings.masking import Masked
from tidegate.settings.on_error import OnError

__all__ = ["IntoSettings", "SinkFormat", "SinkSettings", "TableMode"]


class TableMode(StrEnum):
    """What a record does to the table."""

    APPEND = "append"
    UPSERT = "upsert"
    ACCUMULATE = "accumulate"


class SinkFormat(StrEnum):
    """How the values of records are written."""

    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True, repr=False)
class IntoSettings(Masked):
    """The table that records go into; ``types`` declares columns."""

    table: Label
    schema: Label | None = None
    key: tuple[str, ...] = ()
    mode: TableMode = TableMode.APPEND
    create: bool = False
    evolve: bool = False
    types: Mapping[Label, TypeWord] = field(default_factory=dict)
    add: tuple[str, ...] = ()
    delete: bool | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)
        for name in ("key", "add"):
            if not all(column.strip() for column in getattr(self, name)):
                raise ConfigurationError(f"{name}: expected names of columns, and one of them is empty")
        if self.mode is not TableMode.APPEND and not self.key:
            raise ConfigurationError(f"mode = \"{self.mode}\" needs 'key', the columns that tell rows apart")

    def shown(self) -> dict[str, Any]:
        """All of it: names of columns are no secrets, though one of them is called the key."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True, repr=False)
class SinkSettings(Masked):
    """One sink. ``columns`` says where columns come from; ``fields`` are those of a line of CSV."""

    topics: tuple[str, ...]
    into: IntoSettings
    group: Label | None = None
    format: SinkFormat = SinkFormat.JSON
    fields: tuple[str, ...] = ()
    columns: Mapping[Label, Label] = field(default_factory=dict)
    on_error: OnError = OnError.DEAD_LETTER

    def __post_init__(self) -> None:
        convert_arguments(self)
        if not self.topics:
            raise ConfigurationError("'topics' is empty; name one, several, or a pattern that begins with ^")
        if any(topic.startswith("^") for topic in self.topics) and len(self.topics) > 1:
            raise ConfigurationError("'topics' is either one pattern that begins with ^, or names")
        if (self.format is SinkFormat.CSV) != bool(self.fields):
            raise ConfigurationError("'fields' names the fields of a line of CSV: it goes with format = \"csv\"")

    def shown(self) -> dict[str, Any]:
        """All of it: there is no secret in it."""
        plain = ("topics", "group", "format", "fields", "columns", "on_error")
        return {name: getattr(self, name) for name in plain} | {"into": self.into.shown()}
