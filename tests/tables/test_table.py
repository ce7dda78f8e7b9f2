"""A table's description is checked when it is written down, and needs no extra."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tidegate import ConfigurationError
from tidegate.tables import ColumnType, Mode, Table


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mode": "upsert"}, "mode 'upsert' needs key="),
        ({"mode": "accumulate"}, "mode 'accumulate' needs key="),
        ({"mode": "merge"}, "mode: expected one of 'append', 'upsert', 'accumulate', 'ignore', 'update', not 'merge'"),
        ({"key": ("a", "a")}, "names a column twice"),
        ({"add": "n"}, "goes with mode='accumulate' only"),
        ({"mode": "accumulate", "key": "a", "add": "a"}, "'a' is in the key"),
        ({"mode": "accumulate", "key": "a", "add": "n", "columns": {"n": str}}, "'n' is text; only numbers"),
        ({"tombstones": "delete"}, "mode 'append' has no row for a tombstone"),
        ({"create": True, "key": "a", "columns": {"b": int}}, "needs the type of 'a'"),
        ({"columns": {"a": "number"}}, "column 'a': there is no column type 'number'; known are boolean"),
        ({"columns": {"a": "text(5,2)"}}, "there is no column type"),
        ({"columns": {"a": "decimal(2,5)"}}, "scale: expected at most 2, the precision, not 5"),
        ({"columns": {"a": set}}, "there is no column type for set"),
        ({"key": ""}, "cannot be the name"),
        ({"schema": ""}, "cannot be the name of a schema"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Table("orders", **options)


@pytest.mark.parametrize(
    ("declared", "meant"),
    [
        (bool, "boolean"),
        (int, "integer"),
        (float, "double"),
        (Decimal, "decimal"),
        (str, "text"),
        (bytes, "bytes"),
        (date, "date"),
        (datetime, "timestamp"),
        (dict, "json"),
        (list, "json"),
        ("Decimal( 12 , 2 )", "decimal(12,2)"),
        ("TEXT", "text"),
    ],
)
def test_types_are_declared_by_name_or_as_in_python(declared: Any, meant: str) -> None:
    assert str(ColumnType.of(declared)) == meant
    assert ColumnType.of(ColumnType.of(declared)) == ColumnType.of(meant)


def test_a_key_of_one_column_may_be_a_string() -> None:
    table = Table("orders", key="id", mode="upsert")
    assert (table.key, table.mode) == (("id",), Mode.UPSERT)
    assert table == Table("orders", key=["id"], mode=Mode.UPSERT)


def test_upsert_deletes_on_tombstones_unless_told_otherwise() -> None:
    assert Table("t", key="a", mode="upsert").deletes
    assert not Table("t", key="a", mode="upsert", tombstones="ignore").deletes
    assert not Table("t", key="a", mode="accumulate").deletes
    assert not Table("t").deletes


def test_without_the_extra_a_table_can_be_described_and_using_it_says_what_is_missing() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
import tidegate
from tidegate.tables import Table, Mode
tidegate.Table("orders", key="id", mode="upsert", columns={"id": int})
try:
    from tidegate.tables import Target
except tidegate.ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'tidegate[tables]'" in done.stdout
