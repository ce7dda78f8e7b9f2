"""Storage engines of MySQL and MariaDB, not all of which have transactions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

__all__ = ["without_transactions"]

# Each table as a constant: MariaDB opens every table of the database unless it is told one.
_ONE = (
    "SELECT t.table_name, t.engine FROM information_schema.tables AS t "
    "LEFT JOIN information_schema.engines AS e ON e.engine = t.engine "
    "WHERE t.table_schema = :schema AND t.table_name = :name{} AND t.engine IS NOT NULL "
    "AND COALESCE(e.transactions, 'NO') <> 'YES'"
)


def without_transactions(conn: Connection, names: Sequence[str], schema: str | None = None) -> dict[str, str]:
    """Those of the tables whose engine has no transactions, each with its engine; a view has none."""
    schema = schema or conn.exec_driver_sql("SELECT DATABASE()").scalar()
    query = " UNION ALL ".join(_ONE.format(place) for place in range(len(names)))
    found = conn.execute(text(query), {"schema": schema, **{f"name{at}": name for at, name in enumerate(names)}})
    return {str(name): str(engine) for name, engine in found}
