"""A SQL store, once it has been met."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.ledger.sql.dialect import Dialect
from tidegate.ledger.sql.schema import Tables
from tidegate.ledger.sql.statements import Statements

__all__ = ["Store"]


class Store(NamedTuple):
    """What is known of it then: its kind, and the tables and statements that go with that."""

    dialect: Dialect
    tables: Tables
    statements: Statements
