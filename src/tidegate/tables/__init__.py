"""Tables: convert records to rows and write them in bulk, inside the transaction that advances the position."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.errors import ConfigurationError
from tidegate.tables.route import Part, Route
from tidegate.tables.table import Evolution, Mode, Table
from tidegate.tables.types import ColumnType

if TYPE_CHECKING:
    from tidegate.tables.connect_avro import ConnectAvroFormat, DebeziumAvroFormat
    from tidegate.tables.connect_format import ConnectJsonFormat
    from tidegate.tables.csv_format import CsvFormat
    from tidegate.tables.debezium_format import DebeziumFormat
    from tidegate.tables.feed import Feed
    from tidegate.tables.format import Format
    from tidegate.tables.json_format import JsonFormat
    from tidegate.tables.layout import Layout
    from tidegate.tables.own_format import OwnFormat
    from tidegate.tables.rows import DoesNotFit, Misfit, Rows
    from tidegate.tables.schema_format import SchemaFormat
    from tidegate.tables.target import Target

__all__ = [
    "ColumnType",
    "ConnectAvroFormat",
    "ConnectJsonFormat",
    "CsvFormat",
    "DebeziumAvroFormat",
    "DebeziumFormat",
    "DoesNotFit",
    "Evolution",
    "Feed",
    "Format",
    "JsonFormat",
    "Layout",
    "Misfit",
    "Mode",
    "OwnFormat",
    "Part",
    "Route",
    "Rows",
    "SchemaFormat",
    "Table",
    "Target",
]

# Imported on first use: these need Arrow, which is an extra. Describing a table does not need them.
_MODULES = {
    "ConnectAvroFormat": "connect_avro",
    "ConnectJsonFormat": "connect_format",
    "CsvFormat": "csv_format",
    "DebeziumAvroFormat": "connect_avro",
    "DebeziumFormat": "debezium_format",
    "DoesNotFit": "rows",
    "Feed": "feed",
    "Format": "format",
    "JsonFormat": "json_format",
    "Layout": "layout",
    "Misfit": "rows",
    "OwnFormat": "own_format",
    "Rows": "rows",
    "SchemaFormat": "schema_format",
    "Target": "target",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tidegate.tables' has no attribute {name!r}")
    try:
        return getattr(import_module(f"tidegate.tables.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ConfigurationError(
            "writing records into tables needs pyarrow; run: pip install 'tidegate[tables]'"
        ) from None
