"""Tables: records into rows, in bulk, inside the transaction that moves the position."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import ConfigurationError
from tidegate.tables.table import Mode, Table
from tidegate.tables.types import ColumnType

if TYPE_CHECKING:
    from tidegate.tables.csv_format import CsvFormat
    from tidegate.tables.feed import Feed
    from tidegate.tables.format import Format
    from tidegate.tables.json_format import JsonFormat
    from tidegate.tables.layout import Layout
    from tidegate.tables.misfit import DoesNotFit, Misfit
    from tidegate.tables.own_format import OwnFormat
    from tidegate.tables.rows import Rows
    from tidegate.tables.target import Target

__all__ = [
    "ColumnType",
    "CsvFormat",
    "DoesNotFit",
    "Feed",
    "Format",
    "JsonFormat",
    "Layout",
    "Misfit",
    "Mode",
    "OwnFormat",
    "Rows",
    "Table",
    "Target",
]

# These need Arrow and msgspec, which are an extra; a table can be described without.
_MODULES = {
    "CsvFormat": "csv_format",
    "DoesNotFit": "misfit",
    "Feed": "feed",
    "Format": "format",
    "JsonFormat": "json_format",
    "Layout": "layout",
    "Misfit": "misfit",
    "OwnFormat": "own_format",
    "Rows": "rows",
    "Target": "target",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tidegate.tables' has no attribute {name!r}")
    try:
        return getattr(import_module(f"tidegate.tables.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "msgspec"):
            raise
        raise ConfigurationError(
            f"writing records into tables needs {error.name}; run: pip install 'tidegate[tables]'"
        ) from None
