"""Dead letters on a SQL store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, TextClause

from tidegate.core.errors import TransactionBroken
from tidegate.core.letters import ParkedLetter
from tidegate.core.spans import Work
from tidegate.ledger.base import Ledger
from tidegate.ledger.sql.codec import as_letter, error_text
from tidegate.ledger.sql.store import Store
from tidegate.ledger.sql.transaction import SqlTransaction
from tidegate.ledger.trouble import NotMoved

__all__ = ["ENDED", "SqlLetters"]

ENDED = (
    "the handler ended the transaction that it was given (by COMMIT, ROLLBACK, a statement that commits by itself, by "
    "closing the connection, or by swallowing an error that had ended it); nothing was committed. Leave the "
    "transaction to Tidegate, and run statements that may fail inside `with tx.savepoint():`"
)


class SqlLetters(Ledger[SqlTransaction]):
    """The part of a SQL ledger that lists, drops and replays dead letters."""

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[ParkedLetter]:
        """See :meth:`Ledger.dead_letters`."""
        store = self._store()
        rows = self._query(store.statements.letters, {"group": group, "after": after, "limit": limit})
        return [as_letter(group, row, store.dialect.time) for row in rows]

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """See :meth:`Ledger.drop_letters`."""
        keys = [{"group": group, "id": number} for number in ids]
        return self._run_for_each("drop dead letters", self._store().statements.drop_letter, keys)

    def failed_again(self, parked: ParkedLetter, error: str) -> bool:
        """See :meth:`Ledger.failed_again`."""
        told = {"group": parked.group, "id": parked.id, "error": error_text(error)}
        return self._run_for_each("note a failed replay", self._store().statements.letter_failed, [told]) == 1

    @contextmanager
    def _replaying(self, work: Work, number: int) -> Iterator[SqlTransaction]:
        statements, key = self._store().statements, {"group": work.group, "id": number}
        with self._session() as conn:
            with self._own_errors():
                if conn.execute(statements.hold_letter, key).first() is None:
                    raise NotMoved({})
            with self._handled(conn, work) as tx:
                yield tx
            with self._own_errors():
                if conn.execute(statements.remove_letter, key).rowcount != 1:
                    raise TransactionBroken(f"{work}: {ENDED}")

    # What the rest of the ledger has

    @abstractmethod
    def _store(self) -> Store:
        """The store, with tables that fit."""

    @abstractmethod
    def _query(self, statement: TextClause, parameters: dict[str, Any]) -> list[Any]:
        """What a statement finds."""

    @abstractmethod
    def _run_for_each(self, what: str, statement: TextClause, parameters: list[dict[str, Any]]) -> int:
        """Run a statement once for each of the parameters, in one transaction; how many rows it changed."""

    @abstractmethod
    def _session(self, work: Work | None = None) -> AbstractContextManager[Connection]:
        """A transaction that commits at the end of the block."""

    @abstractmethod
    def _handled(self, conn: Connection, work: Work) -> AbstractContextManager[SqlTransaction]:
        """The handler's part of a transaction, and the letters that it parked."""

    @abstractmethod
    def _own_errors(self) -> AbstractContextManager[None]:
        """Say what an error of the ledger's own statements means."""
