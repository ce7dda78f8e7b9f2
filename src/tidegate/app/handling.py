"""Handling: a handler over the records of one transaction, and what happens to those that it fails on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, assert_never

from sqlalchemy.exc import StatementError

from tidegate.app.binding import Binding
from tidegate.app.blame import database_error
from tidegate.app.decoding import DecodingError
from tidegate.app.writes import NotWritable
from tidegate.core.errors import TidegateError
from tidegate.core.letters import Letter
from tidegate.core.records import Record, TopicPartition
from tidegate.core.recovery import Again, Fail, FailurePolicy, Park, Retry, StepOver, Stop, decide
from tidegate.core.tries import NO_TRIES, Computed, Done, Tried, Tries
from tidegate.kafka.topic_to_topic import NotSendable
from tidegate.ledger.transaction import Transaction

__all__ = ["Handled", "HandlerFailed", "Handling", "OnRetry", "Postponed", "Skipped", "described", "tell_nobody"]

SHORT = 0.05
"""Seconds that one transaction may wait for other attempts, in all. Such a wait holds nobody up, and costs less than to
run the good records of the batch again; for a longer one the transaction is ended."""

OnRetry: TypeAlias = Callable[[Record, int, float, Exception], object]
"""Told the record, the attempts so far, the seconds to wait and the error, before a record is tried again."""

_LONGEST_TEXT = 1000
_OF_THE_HANDLER = (NotSendable, NotWritable)


def tell_nobody(*_: object) -> None:
    """An ``on_retry`` for those who do not want to know."""


class HandlerFailed(TidegateError):
    """A handler failed on a record, and the policy says to stop: nothing of the transaction is committed.

    The error of the handler is the ``__cause__``. Of a batch that was not narrowed down, ``offset`` is the first one.
    """

    def __init__(
        self, message: str, *, function: str, group: str, partition: TopicPartition, offset: int, attempts: int
    ) -> None:
        super().__init__(message)
        self.function = function
        self.group = group
        self.partition = partition
        self.offset = offset
        self.attempts = attempts


class Postponed(Exception):
    """A record is to be tried again ``after`` so many seconds: nothing of the transaction is committed until then.

    ``tries`` is what was found out about all of its records, for the next run.
    """

    def __init__(self, partition: TopicPartition, offset: int, after: float, tries: Tries) -> None:
        super().__init__(f"{partition} offset {offset} is to be tried again in {after:g} s")
        self.partition = partition
        self.offset = offset
        self.after = after
        self.tries = tries


class Skipped(NamedTuple):
    """A record that was stepped over, and why."""

    record: Record
    note: str


class Handled(NamedTuple):
    """What became of the records, once the transaction has committed: for observers."""

    processed: int
    skipped: tuple[Skipped, ...]
    parked: tuple[Letter, ...]


class Handling:
    """Runs a bound handler inside a transaction of the ledger, as its policy says.

    A record that cannot be decoded, or that the handler fails on, is retried, skipped or parked by itself; the others
    are processed in their order, and all of it commits together. A batch is tried as a whole first, and then narrowed
    down to its bad records, so the handler may be called with parts of it. Errors of the database are no record's fault
    (see :mod:`tidegate.app.blame`): they pass through, for the ledger to run the transaction again or to stop.

    It keeps nothing between runs, so that threads may share one, and the ledger may run it again. A wait for another
    attempt that is not a short one ends the run with :class:`Postponed`, whose ``tries`` the next run is given.
    """

    def __init__(
        self,
        binding: Binding,
        policy: FailurePolicy | None = None,
        *,
        narrows: bool = False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """``narrows``: find the bad record of a batch even if the policy is to stop, so that the error can name it."""
        self.binding = binding
        self.policy = policy or Fail()
        self.narrows = narrows
        self.sleep = sleep
        final = self.policy
        while isinstance(final, Retry):
            final = final.then
        self.final = final

    def verdict(self, attempts: int, error: Exception) -> Again | StepOver | Park | None:
        """What becomes of a record that failed; ``None`` stops the listener. No decoding gets better by another try.

        A handler that returns what cannot be used does so with every record: that is no fault of this one.
        """
        if isinstance(error, _OF_THE_HANDLER):
            return None
        decision = decide(self.final if isinstance(error, DecodingError) else self.policy, attempts, error)
        match decision:
            case Again():
                return decision
            case StepOver():
                return StepOver(f"skipped after {described(error)}")
            case Park():
                return Park(described(error), attempts)
            case Stop():
                return None
            case other:
                assert_never(other)

    def failed(self, group: str, record: Record, attempts: int, error: Exception, among: int = 1) -> HandlerFailed:
        """What to stop with; ``among`` so many records from this one on, if which of them it was is not known."""
        where = f"{record.source} offset {record.offset}"
        if among > 1:
            where = f"one of {among} records from {where} on"
        if isinstance(error, DecodingError):
            what = f"the value cannot be decoded: {error}"
        else:
            what = f"the handler failed{f' {attempts} times' if attempts > 1 else ''} with {described(error)}"
        name = self.binding.name
        way_out = "" if isinstance(error, _OF_THE_HANDLER) else ", or let on_error park or skip such records"
        return HandlerFailed(
            f"{name}, group {group!r}, {where}: {what}. The position stays in front of it; mend the handler{way_out}",
            function=name,
            group=group,
            partition=record.source,
            offset=record.offset,
            attempts=attempts,
        )

    def prepare(self, records: Sequence[Record], *, on_retry: OnRetry) -> Callable[[Any, Tries], Handled]:
        """:meth:`run` for these records."""

        def process(tx: Any, tries: Tries) -> Handled:
            return self.run(records, tx, tries, on_retry=on_retry)

        return process

    def run(
        self, records: Sequence[Record], tx: Transaction, tries: Tries = NO_TRIES, *, on_retry: OnRetry = tell_nobody
    ) -> Handled:
        """Handle the records; to be called by the handler of :meth:`Ledger.transact`, and as often as that is."""
        return _Run(self, records, tx, tries, on_retry).handled()


class _Run:
    """One run over the records of one transaction."""

    def __init__(
        self, handling: Handling, records: Sequence[Record], tx: Transaction, tries: Tries, on_retry: OnRetry
    ) -> None:
        self._handling = handling
        self._on_retry = on_retry
        self._binding = handling.binding
        self._tx = tx
        self._all = records
        self._records = list(records)  # those that are to be handled, and can be decoded
        self._values: list[Any] = self._records
        self._places: Sequence[int] = range(len(records))  # where those are among all
        self._given_up: dict[int, StepOver | Park] = {}  # by their places
        self._done: set[int] = set()  # those that were processed and cannot be undone
        self._failures: dict[int, int] = {}  # attempts that failed
        self._waited = 0.0
        if tries:
            self._know(tries)

    def _know(self, tries: Tries) -> None:
        places, values = list[int](), list[Any]()
        for place, record in enumerate(self._all):
            failed, settled = tries.get((record.source, record.offset), (0, None))
            if failed and not isinstance(settled, Computed):  # what was computed has not been written before
                self._failures[place] = failed
            match settled:
                case Done():
                    self._done.add(place)
                case StepOver() | Park():
                    self._given_up[place] = settled
                case Computed() | None:
                    places.append(place)
                    values.append(record if settled is None else settled.writes)
                case other:
                    assert_never(other)
        self._places, self._values = places, values
        self._records = [self._all[place] for place in places]

    def handled(self) -> Handled:
        self._decode()
        if isinstance(self._handling.policy, Fail) and not self._handling.narrows:
            self._run_straight()
        elif self._binding.is_batch:
            self._narrow_down()
        else:
            for index in range(len(self._records)):
                self._settle(index, self._attempt(index, index + 1, self._values[index : index + 1]))
        return self._given_up_in_order() if self._given_up else Handled(len(self._all), (), ())

    def _decode(self) -> None:
        decoding = self._binding.decoding
        if decoding is None:
            return
        try:
            self._values = list(map(decoding, self._records))
        except DecodingError:
            self._decode_one_by_one()

    def _decode_one_by_one(self) -> None:
        pending, places = self._places, list[int]()
        self._records, self._values, self._places = [], [], places
        for place in pending:
            record = self._all[place]
            try:
                value = self._binding.decode(record)
            except DecodingError as error:
                failure = error
            else:
                self._records.append(record)
                self._values.append(value)
                places.append(place)
                continue
            self._pass_on_if_databases(failure)  # a decoder may have asked one
            self._decide(place, 1, failure)

    def _run_straight(self) -> None:
        """Without savepoints: the first error ends it all."""
        records = self._records
        call = self._binding.call
        record, among = None, 1
        try:
            if not self._binding.is_batch:
                for record, value in zip(records, self._values, strict=True):
                    call(record, value, self._tx)
            elif records:
                record, among = records[0], len(records)
                call(list(records), self._values, self._tx)
            return
        except Exception as error:
            failure = error
        self._pass_on_if_databases(failure)
        assert record is not None  # noqa: S101  # nothing else can have failed
        raise self._failed(record, 1, failure, among) from failure

    def _narrow_down(self) -> None:
        """Halve what fails until it is one record, the first half first: so the order is kept."""
        pending = list(self._parts())[::-1]
        while pending:
            start, end, values = pending.pop()
            error = self._attempt(start, end, values)
            if end - start == 1:
                self._settle(start, error)
            elif error is not None:
                middle = (start + end) // 2
                pending += [(middle, end, None), (start, middle, None)]

    def _parts(self) -> Iterator[tuple[int, int, list[Any] | None]]:
        """All records and their values as one, except that those which have failed before go by themselves."""
        bounds = {0, len(self._records)}
        for index, place in enumerate(self._places):
            if place in self._failures:
                bounds |= {index, index + 1}
        for start, end in pairwise(sorted(bounds)):
            yield start, end, self._values[start:end]

    def _attempt(self, start: int, end: int, values: list[Any] | None = None) -> Exception | None:
        """Run the handler in a savepoint; what it raised, if that may be the fault of a record.

        After the first attempt values are decoded again, for the handler may have changed those that it was given.
        """
        records = self._records[start:end]
        try:
            with self._tx.savepoint():
                if values is None and self._binding.decoding is not None:
                    values = list(map(self._binding.decoding, records))
                elif values is None:
                    values = self._values[start:end]
                if self._binding.is_batch:
                    self._binding.call(records, values, self._tx)
                else:
                    self._binding.call(records[0], values[0], self._tx)
        except Exception as error:
            failure = error
        else:
            if not self._tx.undoes:
                self._done.update(self._places[start:end])
            return None
        self._pass_on_if_databases(failure)
        return failure

    def _settle(self, index: int, error: Exception | None) -> None:
        """Go on with one record until it is processed, given up as the policy says, or to be tried again later."""
        place, record = self._places[index], self._records[index]
        while error is not None:
            attempts = self._failures[place] = self._failures.get(place, 0) + 1
            again = self._decide(place, attempts, error)
            if again is None:
                return
            self._on_retry(record, attempts, again.after, error)
            self._waited += again.after
            if self._waited > SHORT:
                raise Postponed(record.source, record.offset, again.after, self._tries())
            self._handling.sleep(again.after)
            error = self._attempt(index, index + 1)

    def _tries(self) -> Tries:
        """What is known by now; what was processed counts only where it is not undone."""
        known: dict[int, Done | StepOver | Park] = dict.fromkeys(self._done, Done()) | self._given_up
        return {
            (self._all[place].source, self._all[place].offset): Tried(self._failures.get(place, 0), known.get(place))
            for place in self._failures.keys() | known.keys()
        }

    def _decide(self, place: int, attempts: int, error: Exception) -> Again | None:
        """Note what becomes of a record; or say when to try again, which no decoding gets better by."""
        verdict = self._handling.verdict(attempts, error)
        if isinstance(verdict, Again):
            return verdict
        if verdict is None:
            raise self._failed(self._all[place], attempts, error) from error
        self._given_up[place] = verdict
        return None

    def _given_up_in_order(self) -> Handled:
        """Park at the end and in the order of the records, whether they failed in decoding or in the handler."""
        skipped, parked = [], []
        for place, noted in sorted(self._given_up.items()):
            match noted:
                case StepOver(note):
                    skipped.append(Skipped(self._all[place], note))
                case Park(error, attempts):
                    parked.append(Letter(self._all[place], error, attempts))
                case other:
                    assert_never(other)
        for letter in parked:
            self._tx.park(letter)
        return Handled(len(self._all) - len(skipped) - len(parked), tuple(skipped), tuple(parked))

    @staticmethod
    def _pass_on_if_databases(error: Exception) -> None:
        if (fault := database_error(error)) is not None:
            raise fault

    def _failed(self, record: Record, attempts: int, error: Exception, among: int = 1) -> HandlerFailed:
        return self._handling.failed(self._tx.work.group, record, attempts, error, among)


def described(error: BaseException) -> str:
    """An error for a dead letter or a log: of the database's only the first line, as the rest quotes parameters."""
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    text = str(cause.args[1]) if len(cause.args) > 1 and isinstance(cause.args[0], int) else str(cause)
    if isinstance(error, StatementError):
        text = text.strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:_LONGEST_TEXT]}"
