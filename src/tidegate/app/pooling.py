"""Pooling: a handler that computes in a pool, and whose results the transaction writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.app.binding import Binding
from tidegate.app.blame import database_error
from tidegate.app.commit import Process
from tidegate.app.computing import Computing
from tidegate.app.handling import Handling, OnRetry, tell_nobody
from tidegate.app.pool import Later, Pool
from tidegate.app.spec import ListenerSpec
from tidegate.app.writes import carry_out, writes
from tidegate.core.errors import ConfigurationError
from tidegate.core.records import Record
from tidegate.core.recovery import Again, Fail
from tidegate.core.tries import Computed, Tried
from tidegate.ledger.transaction import Transaction

__all__ = ["Pooling"]

_AHEAD = 8  # records of one partition for each worker, at least, so that none is idle while small batches commit


class Pooling:
    """How one listener computes, and how what it computed is written.

    The policy holds for the computing, retries included. What the database then says about a write is the end of that
    record's tries: computing it again would give the same.
    """

    def __init__(self, handling: Handling) -> None:
        binding = handling.binding
        if binding.wants_transaction or binding.is_batch:
            raise ConfigurationError(
                f"cannot bind {binding.name}: with workers=… it computes outside of the transaction, many "
                "records at once. Let it take one record or its value, and return what to write"
            )
        self._computing = handling
        self.handling = Handling(_writing(binding), handling.final)

    def open(self, spec: ListenerSpec, on_retry: OnRetry) -> Computing:
        """The pool of one member."""
        compute = self._compute(spec.group, on_retry)
        workers = spec.workers or 1
        pool = Pool(workers, spec.ordering, compute, f"tidegate-{spec.group}-pool")
        return Computing(pool, spec.batch, ahead=max(spec.batch.count, _AHEAD * workers))

    def strict(self, group: str, records: Sequence[Record]) -> Process:
        """Compute on records that are replayed, here and now; what it returns writes the results.

        The first failure raises :class:`~tidegate.app.handling.HandlerFailed`.
        """
        alone = Pooling(Handling(self._computing.binding, Fail()))
        compute = alone._compute(group, tell_nobody)
        tries = {(record.source, record.offset): compute(record, 1) for record in records}
        write = alone.handling.prepare(records, on_retry=tell_nobody)
        return lambda tx, _: write(tx, tries)

    def _compute(self, group: str, on_retry: OnRetry) -> Callable[[Record, int], Tried]:
        handling, binding = self._computing, self._computing.binding

        def compute(record: Record, attempt: int) -> Tried:
            try:
                returned = binding.invoke((record, binding.decode(record), _NO_TRANSACTION))
                return Tried(attempt - 1, Computed(writes(returned)))
            except Exception as error:
                failure = error
            verdict = handling.verdict(attempt, failure)
            if isinstance(verdict, Again):
                on_retry(record, attempt, verdict.after, failure)
                raise Later(verdict.after)
            if verdict is None or database_error(failure) is not None:  # that one is no fault of the record
                raise handling.failed(group, record, attempt, failure) from failure
            return Tried(attempt, verdict)

        return compute


_NO_TRANSACTION: Any = None  # no parameter asks for it


def _writing(computing: Binding) -> Binding:
    """A batch handler that writes what was computed."""

    def write(given: tuple[Any, Any, Transaction]) -> None:
        _, computed, tx = given
        carry_out((write for each in computed for write in each), tx)

    return Binding(computing.function, computing.name, True, None, None, write)
