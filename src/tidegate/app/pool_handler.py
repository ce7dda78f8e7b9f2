"""Pool handler: runs a listener's function in a pool of threads; the transaction then writes the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.app.binding import Binding
from tidegate.app.handler import Handler, OnRetry, Prepared, RecordRun, Verdicts, ignore_retry
from tidegate.app.pool import Later, Pool, PoolQueue
from tidegate.app.spec import ListenerSpec
from tidegate.app.writes import carry_out, writes
from tidegate.core.batches import Computed, Tried
from tidegate.core.policies import Again, FailurePolicy
from tidegate.core.records import Record
from tidegate.core.runtime import Runtime
from tidegate.ledger.blame import Blame, fault_of
from tidegate.ledger.threads import THREADS

__all__ = ["PoolHandler"]


_AHEAD = 8  # records of one partition per worker, at least, so that workers stay busy while small batches commit


class PoolHandler(Handler):
    """Computes the records of one listener in a pool, and writes the results in the transaction.

    The failure policy, including its retries, applies to the computing. If the database refuses a write, the policy
    applies without its retries, because computing the record again would give the same result.
    """

    is_apart = False

    def __init__(
        self,
        binding: Binding,
        policy: FailurePolicy,
        group: str,
        on_retry: OnRetry = ignore_retry,
        *,
        is_alone: bool = False,
    ) -> None:
        """``is_alone``: there is no pool, and :meth:`prepare` computes the records on the calling thread."""
        self.name = binding.name
        self._binding = binding
        self._group = group
        self._on_retry = on_retry
        self._is_alone = is_alone
        self._computing = Verdicts(binding.name, policy)
        self._writing = Verdicts(binding.name, self._computing.final)

    def prepare(self, records: Sequence[Record]) -> Prepared:
        """Return the records. What the pool has computed of them comes with the results of earlier attempts."""
        known = {(record.source, record.offset): self.compute(record, 1) for record in records if self._is_alone}
        return _PoolRun(records, self._writing, on_retry=self._on_retry, known=known)

    def queue(self, spec: ListenerSpec, runtime: Runtime = THREADS) -> PoolQueue:
        """Create the pool of one member."""
        workers = spec.workers or 1
        pool = Pool(workers, spec.ordering, self.compute, f"tidegate-{spec.group}-pool", runtime)
        return PoolQueue(pool, spec.batch, ahead=max(spec.batch.count, _AHEAD * workers))

    def compute(self, record: Record, attempt: int) -> Tried:
        """Call the function with a record, and return its result, or what becomes of the record if it failed.

        Raises :class:`Later` to be called again, and :class:`HandlerFailed` to stop the listener.
        """
        binding = self._binding
        try:
            returned = binding.function(*binding.arguments((record, binding.decode(record), None)))
            return Tried(attempt - 1, Computed(writes(returned)))
        except Exception as error:
            failure = error
        verdict = self._computing.verdict(attempt, failure)
        if isinstance(verdict, Again):
            self._on_retry(record, attempt, verdict.after, failure)
            raise Later(verdict.after)
        if verdict is None or fault_of(failure).blame is not Blame.RECORD:  # only a record's fault is given up
            raise self._computing.failed(self._group, record, attempt, failure) from failure
        return Tried(attempt, verdict)


class _PoolRun(RecordRun):
    """Writes the computed results of records; they are the records' values."""

    def _call(self, records: Any, values: Any) -> None:
        carry_out((write for each in values for write in each), self._tx)
