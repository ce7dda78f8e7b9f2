"""The shape of a table: a text that changes when the table is altered, to detect outdated layouts."""

from __future__ import annotations

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.tables.registry import database_of
from tidegate.tables.table import Table

__all__ = ["look_at_shape", "shape_of"]


def shape_of(conn: Connection, table: Table) -> str | None:
    """Return the table's shape, to compare with its shape later; may be ``None`` if the table does not exist."""
    return database_of(conn).shape(conn, table)


def look_at_shape(engine: Engine, table: Table) -> str | None:
    """Return the table's shape as :func:`shape_of` does, on a connection of its own; raise if it cannot be read."""
    try:
        with engine.connect() as conn:
            return shape_of(conn, table)
    except SQLAlchemyError as error:
        raise database_of(engine).unseen(engine, table, error) from error
