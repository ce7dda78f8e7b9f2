"""The destination: the pipeline's table, as the driver has last looked at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.errors import ConfigurationError, LedgerUnavailable
from tidegate.ledger import Ledger, SqlLedger
from tidegate.spark.rows import FixedTable
from tidegate.spark.spec import PipelineSpec
from tidegate.spark.writing import Writing, line_of
from tidegate.tables.layout import Layout
from tidegate.tables.shape import shape_of
from tidegate.tables.target import Target

__all__ = ["Destination"]

T = TypeVar("T")


class Destination:
    """Looks at the table and creates it if asked to, always between transactions."""

    def __init__(self, spec: PipelineSpec, ledger: Ledger[Any]) -> None:
        if not isinstance(ledger, SqlLedger):
            raise ConfigurationError(
                f"pipeline of group {spec.group!r} into table {spec.into}: it needs a ledger in a SQL database, since "
                "rows and positions commit together"
            )
        self.engine = ledger.engine
        self._ledger = ledger
        self._spec = spec
        self._shape: str | None = None
        self.target = self._target()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can write to it: a file of SQLite."""
        return self.engine.dialect.name == "sqlite"

    @property
    def layout(self) -> Layout | None:
        """The table's layout; ``None`` if it is still to be created, from the first rows."""
        return self.target.prepare()

    def look(self) -> None:
        """Look again. A database that is away is told from one that refuses, which would be waited for in vain."""
        try:
            self._look()
        except LedgerUnavailable as error:
            cause = error.__cause__
            if cause is not None and self._ledger.passing(cause, "looking at the table") is None:
                raise ConfigurationError(str(error)) from cause
            raise

    def _look(self) -> None:
        """At the shape first, so that whatever happens in between shows as another one."""
        shape: object = object()
        self._shape = self._shape_now()
        while shape != self._shape:  # a table that was created or altered here is looked at once more
            shape = self._shape
            self.target = self._target()
            layout = self.target.prepare()
            self._shape = self._shape_now()
        if self._spec.is_plain and layout is not None and not self._spec.into.evolve:
            self.target.read([])  # which refuses sources that the table has no columns for

    def made(self, make: Callable[[Target], T]) -> T:
        """Have rows made for the table as it is; once more if the first of them have altered it."""
        known = self.layout
        result = make(self.target)
        if self.layout is not known:
            self.look()
            result = make(self.target)
        return result

    def writing(self) -> Writing:
        """How to write rows that were made for the table since it was looked at."""
        return Writing(self.target.layout, self._shape)

    def fixed(self) -> FixedTable:
        """The table as executors take it."""
        spec = self._spec
        return FixedTable(self.target.layout, spec.form, spec.sources if spec.columns is not None else None)

    def _target(self) -> Target:
        spec = self._spec
        plain = spec.is_plain and spec.columns is not None
        columns = {name: (source.part, *source.path) for name, source in spec.sources.items()} if plain else None
        return Target(self.engine, spec.table, format=spec.form, columns=columns)

    def _shape_now(self) -> str | None:
        try:
            with self.engine.connect() as conn:
                return shape_of(conn, self._spec.into)
        except SQLAlchemyError as error:
            raise LedgerUnavailable(
                f"table {self._spec.into} cannot be looked at: {line_of(error)}; is the database running?"
            ) from error
