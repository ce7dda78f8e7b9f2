"""The transaction on a SQL store."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, CursorResult, Executable

from tidegate.core.spans import Work
from tidegate.ledger.transaction import Transaction

__all__ = ["SqlTransaction"]


class SqlTransaction(Transaction):
    """The SQLAlchemy connection on which the positions have just been advanced.

    Everything that is written through ``connection`` commits with them. Only the ledger can commit: the store refuses
    it to the handler.
    """

    def __init__(self, work: Work, connection: Connection) -> None:
        super().__init__(work)
        self.connection = connection

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Run a SQLAlchemy statement; ``parameters`` as for ``Connection.execute``."""
        return self.connection.execute(statement, parameters)

    def _savepoint(self) -> AbstractContextManager[object]:
        return self.connection.begin_nested()
