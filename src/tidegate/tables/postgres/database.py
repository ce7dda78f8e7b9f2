"""PostgreSQL, as a database that tables can be in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect, text
from sqlalchemy.exc import DBAPIError

from tidegate.errors import LedgerDenied
from tidegate.tables.column import Column
from tidegate.tables.database import StageStatements, TableDatabase
from tidegate.tables.layout import Facts, Layout
from tidegate.tables.links import Links
from tidegate.tables.names import Names
from tidegate.tables.postgres.columns import alteration_of, postgres_columns, type_written
from tidegate.tables.postgres.facts import postgres_facts, postgres_links, postgres_shapes
from tidegate.tables.postgres.writer import PostgresWriter, conflict_clause, judge_now
from tidegate.tables.rights import rights_of
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType

__all__ = ["PostgresDatabase"]

_LONGEST = 63  # bytes of a name; longer ones are cut
_SYSTEM = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
_BROKEN_REFERENCE = ("23503", "23001")  # foreign_key_violation; restrict_violation, of ON DELETE RESTRICT
_REFUSED_COLUMN = ("42", "54")  # classes of SQLSTATE: an invalid definition, and too many columns
_REFUSED_ALTERATION = ("0A", "22", "23", "2B", "42", "54", "55000")  # classes, and a state: all that is not passing
_OWNS = text("SELECT current_user, pg_has_role(relowner, 'MEMBER') FROM pg_class WHERE oid = to_regclass(:name)")
_DENIED = re.compile(r"permission denied for (\w+) (.+)")
_GRANTS = {"sequence": "USAGE", "function": "EXECUTE", "type": "USAGE", "schema": "USAGE"}
_POLICY = "ExecWithCheckOptions"  # a row refused by a policy has the same error code as a missing right


class PostgresStages(StageStatements):
    """Statements for staging tables on PostgreSQL."""

    names = Names('"', bound=True)

    def created(self, stage: Table, layout: Layout, extra: str) -> str:
        """Return the statement that creates a staging table.

        It is UNLOGGED: after a crash of the server the table is empty, which the row count detects.
        """
        target = self.names.table(layout.table)
        kept = "INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING GENERATED"
        return f"CREATE UNLOGGED TABLE {self.names.table(stage)} (LIKE {target} {kept}, {extra})"

    def limited(self, seconds: int) -> str:
        """Return the statement that limits the waits for locks, until the transaction ends."""
        return f"SET LOCAL lock_timeout = '{seconds}s'"

    def inserted(self, layout: Layout, names: Sequence[str], query: str) -> str:
        """Return an INSERT of a query's rows; it handles rows whose key exists as the mode asks."""
        listed, conflict = self.names.listed(names), conflict_clause(layout, names)
        return f"INSERT INTO {self.names.table(layout.table)} AS t ({listed}) {query}{conflict}"

    def updated(self, layout: Layout, names: Sequence[str], query: str) -> str:
        """Return an UPDATE of the rows that have the keys of a query's rows."""
        quote = self.names.quote
        same = " AND ".join(
            f"t.{quote(name)} = r.{quote(name)}{self.compared(layout.by_name[name])}" for name in layout.table.key
        )
        changes = ", ".join(f"{quote(name)} = r.{quote(name)}" for name in names if name not in layout.table.key)
        return f"UPDATE {self.names.table(layout.table)} AS t SET {changes} FROM ({query}) AS r WHERE {same}"

    def compared(self, column: Column) -> str:
        """Return the cast that makes a column of the key compare as the key's index does."""
        return column.compared.replace("%", "%%") if column.folds else ""

    def run_each(self, conn: Connection, statement: str, parameters: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement once for each tuple of parameters, in order; psycopg does not wait for each answer."""
        conn.exec_driver_sql(statement, list(parameters))

    def check_at_once(self, conn: Connection, layout: Layout) -> None:
        """Make the deferrable constraints of the target table check each statement."""
        judge_now(conn, layout)


class PostgresDatabase(TableDatabase):
    """PostgreSQL."""

    names = Names('"')
    writer = PostgresWriter
    stages = PostgresStages()

    def overlong(self, name: str) -> str | None:
        """Return how long a name is and may be, if it is too long: PostgreSQL would cut it silently."""
        length = len(name.encode())
        return f"{length} bytes, and there may be {_LONGEST}" if length > _LONGEST else None

    def _misnamed(self, name: str) -> str | None:
        if self.overlong(name) is not None:
            return f"PostgreSQL has no column with a name of more than {_LONGEST} bytes"
        return "PostgreSQL has a system column of this name" if name in _SYSTEM else None

    def _boolean(self, value: bool) -> str:
        return str(value).lower()

    def _binary(self, value: bytes) -> str:
        return f"decode('{value.hex()}', 'hex')"

    def _text(self, value: str) -> str:
        doubled = value.replace("'", "''")
        return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in value else f"'{doubled}'"

    def columns(self, conn: Connection, table: Table) -> Sequence[Column]:
        """Return the table's columns in order; none if the table does not exist."""
        return postgres_columns(conn, table)

    def written(self, kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
        """Return the SQL type of a new column."""
        return type_written(kind)

    def most_digits(self, dialect: Dialect) -> tuple[int, int] | None:
        """Return how many digits a column of decimals may declare, and how many after the point."""
        return 1000, 1000

    def facts(self, conn: Connection, table: Table, columns: Sequence[Column]) -> Facts:
        """Return the facts about a table; raise if rows cannot be written to it unchanged."""
        return postgres_facts(conn, table, columns)

    def shape(self, conn: Connection, table: Table) -> str | None:
        """Return the table's shape, as the ids of all objects that it consists of."""
        return postgres_shapes(conn, [table])[0]

    def has_shape(self, conn: Connection, table: Table, shape: str | None, *, is_written: bool) -> bool:
        """Whether the table still has the shape; checked after the write only."""
        return not is_written or postgres_shapes(conn, [table]) == [shape]

    def first_altered(
        self, conn: Connection, known: Sequence[tuple[Table, str | None]], *, is_written: bool
    ) -> int | None:
        """Return the place of the first table that has another shape now; all are read by one query."""
        shapes = postgres_shapes(conn, [table for table, _ in known]) if is_written else []
        return next((place for place, shape in enumerate(shapes) if shape != known[place][1]), None)

    def links(self, conn: Connection, table: Table) -> Links | None:
        """Return what the table has to do with others; ``None`` if it does not exist."""
        return postgres_links(conn, table)

    def breaks_reference(self, error: BaseException) -> bool:
        """Whether a foreign key refused a row."""
        return getattr(getattr(error, "orig", error), "sqlstate", None) in _BROKEN_REFERENCE

    def refuses_column(self, error: DBAPIError) -> bool:
        """Whether PostgreSQL refused a new column for its name, or because the table has too many."""
        return str(getattr(error.orig, "sqlstate", None) or "").startswith(_REFUSED_COLUMN)

    @contextmanager
    def alone(self, conn: Connection, table: Table) -> Iterator[None]:
        """Lock the table until the transaction ends; raise if the login may not alter it."""
        name = self.names.table(table)
        login, may_alter = conn.execute(_OWNS, {"name": name}).one()
        if not may_alter:
            owner = self.names.quote(login)
            raise LedgerDenied(
                f"table {table}: the login {owner} may not alter it, which evolve needs; run ALTER TABLE {name} OWNER "
                f"TO {owner}, or leave widen and nullable out"
            )
        conn.exec_driver_sql(f"LOCK TABLE {self.stages.names.table(table)} IN ACCESS EXCLUSIVE MODE")
        yield

    def alteration(self, conn: Connection, table: Table, old: Column, new: Column) -> str:
        """Return the statement that alters a column."""
        return alteration_of(conn, table, old, new)

    def refuses_alteration(self, error: DBAPIError) -> bool:
        """Whether PostgreSQL refused to alter a column: a view, a rule or a partition key needs it as it is."""
        return str(getattr(error.orig, "sqlstate", None) or "").startswith(_REFUSED_ALTERATION)

    def _is_for_rights(self, error: BaseException) -> bool:
        diagnosis = getattr(getattr(error, "orig", error), "diag", None)
        return getattr(diagnosis, "source_function", None) != _POLICY

    def _grant(self, table: Table, reason: str, login: str) -> str:
        """Return the GRANT for the object that the message names; for all objects if it names none, or the schema."""
        named = _DENIED.search(reason)
        if named is not None and named.groups() != ("schema", table.schema or "public"):
            return self._grant_on(named[1], named[2], table)
        needed = "USAGE, CREATE" if table.create else "USAGE"
        on_schema = f"GRANT {needed} ON SCHEMA {self.names.quote(table.schema or 'public')} TO {login}, "
        ownership = "ownership of the table for evolve, " if table.evolution.alters else ""
        return on_schema + ownership + self._grant_on("table", table.name, table)

    def _grant_on(self, kind: str, name: str, table: Table) -> str:
        if name == table.name:
            return f"GRANT {', '.join(rights_of(table))} ON {self.names.table(table)}"
        return f"GRANT {_GRANTS.get(kind, 'of the right')} ON {kind.upper()} {self.names.quote(name)}"
