"""Pool handler: runs a listener's function for many records at once; the transaction then writes the results."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from tidegate.app.binding import Binding
from tidegate.app.coroutines import CoroutinePool
from tidegate.app.handler import Handler, OnRetry, Prepared, RecordRun, Verdicts, ignore_retry
from tidegate.app.lifespan import Lifespan
from tidegate.app.pool import Lanes, Later, Pool, PoolQueue
from tidegate.app.spec import ListenerSpec
from tidegate.app.writes import carry_out, writes
from tidegate.core.batches import Computed, Tried
from tidegate.core.policies import Again, FailurePolicy
from tidegate.core.records import Record
from tidegate.core.runtime import Runtime
from tidegate.ledger.blame import Blame, fault_of
from tidegate.ledger.threads import THREADS

__all__ = ["CONCURRENCY", "PoolHandler"]


CONCURRENCY = 100
"""How many coroutines of a listener run at once, by default."""


_AHEAD = 8  # records of one partition per worker, at least, so that workers stay busy while small batches commit


class Interrupted(Exception):
    """A coroutine was cancelled by something that it called; counts as a failure of its record."""


class PoolHandler(Handler):
    """Computes the records of one listener in threads or coroutines, and writes the results in the transaction.

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
        lifespan: Lifespan | None = None,
        timeout: float | None = None,
    ) -> None:
        """``is_alone``: there is no pool, and :meth:`prepare` computes the records while its caller waits.

        ``lifespan`` has the event loop for coroutines, and ``timeout`` limits the seconds of each.
        """
        self.name = binding.name
        self._binding = binding
        self._group = group
        self._on_retry = on_retry
        self._is_alone = is_alone
        self._lifespan = lifespan or Lifespan()
        self._timeout = timeout
        self._computing = Verdicts(binding.name, policy)
        self._writing = Verdicts(binding.name, self._computing.final)

    def prepare(self, records: Sequence[Record]) -> Prepared:
        """Return the records. What the pool has computed of them comes with the results of earlier attempts."""
        known = {(record.source, record.offset): self._computed(record) for record in records if self._is_alone}
        return _PoolRun(records, self._writing, on_retry=self._on_retry, known=known)

    def queue(self, spec: ListenerSpec, runtime: Runtime = THREADS) -> PoolQueue:
        """Create the pool of one member."""
        pool: Lanes[Tried]
        if self._binding.is_async:
            most = spec.concurrency or CONCURRENCY
            name = f"{self.name}, group {spec.group!r}"
            pool = CoroutinePool(most, spec.ordering, self.await_one, name, self._lifespan)
        else:
            most = spec.workers or 1
            pool = Pool(most, spec.ordering, self.compute, f"tidegate-{spec.group}-pool", runtime)
        return PoolQueue(pool, spec.batch, ahead=max(spec.batch.count, _AHEAD * most))

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
        return self._judged(record, attempt, failure)

    async def await_one(self, record: Record, attempt: int) -> Tried:
        """Await the function with a record; otherwise as :meth:`compute`."""
        binding, limit = self._binding, asyncio.timeout(self._timeout)
        try:
            async with limit:
                returned = binding.function(*binding.arguments((record, binding.decode(record), None)))
                if inspect.isawaitable(returned):
                    returned = await returned
            return Tried(attempt - 1, Computed(writes(returned)))
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            failure: Exception = Interrupted("something that the handler called has cancelled it")
        except TimeoutError as error:
            failure = TimeoutError(f"no result within {self._timeout:g} s (timeout)") if limit.expired() else error
        except Exception as error:
            failure = error
        return self._judged(record, attempt, failure)

    def _computed(self, record: Record) -> Tried:
        if self._binding.is_async:
            return self._lifespan.run(self.await_one(record, 1))
        return self.compute(record, 1)

    def _judged(self, record: Record, attempt: int, failure: Exception) -> Tried:
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
