"""Defaults of new columns, checked against their types."""

from __future__ import annotations

from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.tables.checks import problems_of
from tidegate.tables.column import Column
from tidegate.tables.types import ColumnType
from tidegate.tables.values import array_of, array_of_texts

__all__ = ["check_default", "default_value"]


def check_default(kind: ColumnType) -> None:
    """Raise if a default is not a value of its type."""
    default_value(kind)


def default_value(kind: ColumnType) -> Any:
    """Return the default as a Python value; text is parsed like a CSV field. Raises if it does not fit the type."""
    column = Column("", kind.bare, "", takes_nan=False, takes_infinity=False)
    made = array_of_texts([kind.default], column) if isinstance(kind.default, str) else array_of([kind.default], column)
    for why in [*made.problems.values(), *problems_of(made.array, column).values()]:
        raise ConfigurationError(f"the default does not fit {kind}: {why}")
    (value,) = made.array.to_pylist()
    return value
