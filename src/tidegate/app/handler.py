"""Handlers: the interface of what a listener does with its records, the failure policy, and handlers of functions."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias, assert_never

from tidegate.app.binding import Binding
from tidegate.app.decoder import Decoding, DecodingError
from tidegate.app.writes import NotWritable
from tidegate.core.batches import NO_TRIES, Computed, Done, Refused, Tried, Tries
from tidegate.core.policies import Again, Fail, FailurePolicy, Park, Retry, StepOver, Stop, decide
from tidegate.core.records import FailedRecord, Record, Records, TopicPartition
from tidegate.errors import ListenerStopped, TidegateError
from tidegate.kafka.consumer import no_collection
from tidegate.kafka.offsets import NotSendable
from tidegate.ledger.blame import Blame, described, fault_of
from tidegate.ledger.transaction import Transaction

__all__ = [
    "FunctionHandler",
    "Handled",
    "Handler",
    "HandlerFailed",
    "OnRetry",
    "Outdated",
    "Over",
    "Postponed",
    "Prepared",
    "RecordRun",
    "SkippedRecord",
    "Verdicts",
    "go_on",
    "ignore_retry",
    "never",
    "stopped_by",
]


SHORT = 0.05
"""Seconds that one transaction may wait for retries, in total. So short a wait blocks nothing, and costs less than
handling the good records of the batch again. For a longer wait the transaction is rolled back."""

Over: TypeAlias = Callable[[int], bool]
"""Called before each call of the handler with the number of its records; returns whether to stop here, provided that
some records are handled already."""

OnRetry: TypeAlias = Callable[[Record, int, float, Exception], object]
"""Called before a record is retried, with the record, the attempts so far, the seconds to wait and the error."""

_OF_THE_HANDLER = (NotSendable, NotWritable)
_IN_DOUBT = (
    ". No other record passed in its transaction, so that the database may be at fault, and no record is given up"
)


def ignore_retry(*_: object) -> None:
    """Do nothing: an ``on_retry`` that ignores retries."""


def go_on() -> None:
    """Do nothing: a ``check`` that ends nothing."""


def never(_: int) -> bool:
    """Return ``False``: the ``over`` of work that must not stop part way."""
    return False


class HandlerFailed(TidegateError):
    """A handler failed on a record, and the policy is to stop: its transaction is rolled back.

    If the handler takes no transaction, the records before the failed one are committed, and not handled again. The
    ``__cause__`` is the error of the handler. If it is not known which record of a batch failed, ``offset`` is the
    first one. ``has_moved``: the position is already past the record, because delivery is at most once.
    """

    def __init__(
        self,
        message: str,
        advice: str,
        *,
        function: str,
        group: str,
        partition: TopicPartition,
        offset: int,
        attempts: int,
    ) -> None:
        super().__init__(message)
        self.advice = advice
        self.has_moved = False
        self.function = function
        self.group = group
        self.partition = partition
        self.offset = offset
        self.attempts = attempts

    def __str__(self) -> str:
        where = _MOVED if self.has_moved else _STAYS
        return f"{super().__str__()}. {where}; {self.advice}"


_STAYS = "The position stays in front of it"
_MOVED = "At most once, the position has moved already: it is not handled again, nor are those of its batch behind it"


def stopped_by(error: Exception, name: str, group: str) -> ListenerStopped | None:
    """Return the public error for a database's error that stops a listener; ``None`` for every other error.

    The text of SQLAlchemy's errors quotes the statement, which may be Tidegate's own, and does not name the listener.
    """
    if isinstance(error, TidegateError) or fault_of(error).blame is Blame.RECORD:
        return None
    return ListenerStopped(
        f"{name}, group {group!r}: the database refused with {described(error)}. That is no record's fault, so none is "
        "parked or skipped; fix what the error names (a trigger, a table, a statement), and start again"
    )


class Postponed(Exception):
    """A record is retried ``after`` so many seconds; the transaction is rolled back.

    ``tries`` holds the results so far of all records of the transaction, for the next run.
    """

    def __init__(self, partition: TopicPartition, offset: int, after: float, tries: Tries) -> None:
        super().__init__(f"{partition} offset {offset} will be retried in {after:g} s")
        self.partition = partition
        self.offset = offset
        self.after = after
        self.tries = tries


class Outdated(Exception):
    """The work that was prepared before the transaction is no longer valid: nothing is committed, prepare it again."""


class SkippedRecord(NamedTuple):
    """A record that was skipped, and why."""

    record: Record
    note: str


class Handled(NamedTuple):
    """The outcome of a run over records; it holds once the transaction has committed.

    The last ``left`` records were not handled: either time was up, or a handler without a transaction failed with
    ``error``.
    """

    processed: int
    skipped: tuple[SkippedRecord, ...]
    parked: tuple[FailedRecord, ...]
    left: int = 0
    error: Exception | None = None


class Prepared(Protocol):
    """Records that are ready to be handled in a transaction."""

    def run(self, tx: Transaction, tries: Tries = NO_TRIES, over: Over = never) -> Handled:
        """Handle the records in a transaction. Every attempt at the transaction calls it again.

        ``tries`` are the results of earlier transactions. Raises :class:`Postponed` if a retry needs more than a short
        wait; its ``tries`` are passed to the next run. Raises :class:`Outdated` if the records have to be prepared
        again.
        """


class Handler(Protocol):
    """What a listener does with its records: a function, a sink, or a function in a pool.

    It keeps no state between batches, so that the threads of a listener may share it.
    """

    name: str
    """Its name in error messages."""
    is_apart: bool
    """Whether it runs outside the transaction: before it, or after it if delivery is at most once."""

    def look_up(self, records: Sequence[Record], check: Callable[[], None] = go_on) -> None:
        """Ask other servers for what the records need, before anything else is done with them.

        ``check`` is called before each request, and may raise to end this. Raises
        :class:`~tidegate.errors.RegistryUnavailable`: then the records are handed out again later.
        """
        return

    def prepare(self, records: Sequence[Record]) -> Prepared:
        """Prepare records, before the transaction opens."""


class Verdicts:
    """What the failure policy of a handler says about failed records, and the errors that stop its listener."""

    def __init__(self, name: str, policy: FailurePolicy | None = None) -> None:
        """``name`` is the handler's name in error messages. The default policy is to stop."""
        self.name = name
        self.policy = policy or Fail()
        final = self.policy
        while isinstance(final, Retry):
            final = final.then
        self.final = final

    def verdict(self, attempts: int, error: Exception) -> Again | StepOver | Park | None:
        """Return what to do with a failed record; ``None`` stops the listener. Decoding errors are never retried.

        A handler that returns an unusable value does so for every record, so that is never the record's fault.
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

    def failed(
        self, group: str, record: Record, attempts: int, error: Exception, *, among: int = 1, doubt: str = ""
    ) -> HandlerFailed:
        """Return the error that stops the listener.

        ``among``: the failed record is one of so many from this one on, and it is not known which. ``doubt``: why no
        record is considered at fault.
        """
        where = f"{record.source} offset {record.offset}"
        if among > 1:
            where = f"one of {among} records from {where} on"
        if isinstance(error, DecodingError):
            what = f"the value cannot be decoded: {error}"
        else:
            what = f"the handler failed{f' {attempts} times' if attempts > 1 else ''} with {described(error)}"
        way_out = "" if doubt or isinstance(error, _OF_THE_HANDLER) else ", or let on_error park or skip such records"
        return HandlerFailed(
            f"{self.name}, group {group!r}, {where}: {what}{doubt}",
            f"fix the handler{way_out}",
            function=self.name,
            group=group,
            partition=record.source,
            offset=record.offset,
            attempts=attempts,
        )


class RecordRun(ABC):
    """Handles the records of one batch, and applies the failure policy. Each kind of handler has a subclass.

    A record that cannot be decoded, or that the handler fails on, is retried, skipped or parked on its own. The other
    records are processed in order, and everything commits together. A batch is first tried as a whole, and then halved
    until its bad records are found, so the handler may be called with parts of a batch.

    Errors of the database are not a record's fault (see :mod:`tidegate.ledger.blame`): they are raised, and the ledger
    retries the transaction or stops. An uncertain error counts as the record's fault if another record succeeds in the
    same transaction; if none does, it stops the listener.

    A run may end before all records are handled. In a transaction that cannot roll back (``undoes`` is false), the
    error that ended the run is returned as :attr:`Handled.error`, so that the records before it can be committed.
    """

    is_batch = True
    """Whether one call takes many records."""
    narrows = False
    """Whether to find the bad record of a batch even if the policy is to stop, so that the error can name it."""
    is_alone = False
    """Whether to try each record of a batch alone from the start, because a failed attempt has effects that remain."""
    decoding: Decoding | None = None
    """Decodes the value of each record; ``None`` if values are not needed, or are known from the preparation."""

    def __init__(
        self,
        records: Sequence[Record],
        verdicts: Verdicts,
        *,
        on_retry: OnRetry,
        known: Tries = NO_TRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """``known``: the results of records that are settled by the preparation."""
        self._all = records
        self._verdicts = verdicts
        self._on_retry = on_retry
        self._known = known
        self._sleep = sleep

    @abstractmethod
    def _call(self, records: Any, values: Any) -> None:
        """Handle some records in the transaction: lists of records and values, or one of each if not ``is_batch``."""

    def _undecoded(self) -> Sequence[Any]:
        """Return the values of all records, before any is decoded."""
        return self._all

    def _check(self, *, is_written: bool) -> None:  # noqa: B027 - most handlers have nothing to check
        """Raise if what was prepared is outdated; called before the records are handled, and after."""

    def run(self, tx: Transaction, tries: Tries = NO_TRIES, over: Over = never) -> Handled:
        """Handle the records in a transaction; see :meth:`Prepared.run`."""
        self._begin(tx, over)
        self._check(is_written=False)
        try:
            if self._known or tries:
                # What is known of a record now counts more: the table may have been altered since it was tried.
                self._know({**tries, **self._known})
            ended: Exception | None = None
            try:
                if self.is_batch:
                    self._decode()
                if isinstance(self._verdicts.policy, Fail) and not self.narrows:
                    self._straight()
                elif self.is_batch:
                    self._narrow_down()
                else:
                    self._one_by_one()
                if self._is_doubtful:
                    place, error = next(iter(self._doubts.items()))
                    raise self._failed(self._all[place], self._failures[place], error, doubt=_IN_DOUBT) from error
            except Exception as error:
                if tx.undoes:
                    raise
                ended = error
            return self._outcome(self._at_place(), ended)
        finally:
            self._check(is_written=True)

    def _begin(self, tx: Transaction, over: Over) -> None:
        self._tx = tx
        self._over = over
        self._records = self._all  # the records to handle; without those that cannot be decoded
        self._values: Sequence[Any] = self._undecoded()
        self._places: Sequence[int] = range(len(self._all))  # the index in _all of each of _records
        self._given_up: dict[int, StepOver | Park] = {}  # by index in _all, as are the next three
        self._done: set[int] = set()  # processed, and cannot be rolled back
        self._failures: dict[int, int] = {}  # the number of failed attempts
        self._doubts: dict[int, Exception] = {}  # errors of given-up records that may be the database's fault
        self._has_passed = False  # whether a record has been processed
        self._waited = 0.0
        self._at = 0  # all of _records before this index are settled

    def _know(self, tries: Tries) -> None:
        places, values, refused = list[int](), list[Any](), dict[int, Exception]()
        for place, record in enumerate(self._all):
            failed, settled = tries.get((record.source, record.offset), (0, None))
            if failed and not isinstance(settled, Computed):  # a failed computation is not a failed write
                self._failures[place] = failed
            match settled:
                case Done():
                    self._done.add(place)
                case StepOver() | Park():
                    self._given_up[place] = settled
                case Refused(error):
                    refused[place] = error
                case Computed() | None:
                    places.append(place)
                    values.append(self._values[place] if settled is None else settled.writes)
                case other:
                    assert_never(other)
        self._leave(places, values)
        for place, error in refused.items():
            self._refused_alone(place, self._failures.get(place, 0) + 1, error)

    def _refused_alone(self, place: int, attempts: int, error: Exception) -> None:
        """Apply the policy to a record whose COMMIT was refused; a retry needs a new transaction."""
        record = self._all[place]
        self._failures[place] = attempts
        again = self._decide(place, attempts, error)
        if again is not None:
            self._on_retry(record, attempts, again.after, error)
            raise Postponed(record.source, record.offset, again.after, self._tries())

    @property
    def _is_doubtful(self) -> bool:
        """Whether a record failed with an uncertain error, and none has succeeded so far."""
        return bool(self._doubts) and not self._has_passed

    def _at_place(self) -> int:
        """Return how many records are settled, counted from the first one."""
        return self._places[self._at] if self._at < len(self._places) else len(self._all)

    def _decode(self) -> None:
        """Decode all values of a batch. Handlers of single records decode each one just before it is handled."""
        if self.decoding is None:
            return
        try:
            self._values = list(map(self.decoding, self._records))
        except DecodingError:
            self._decode_one_by_one(self.decoding)

    def _decode_one_by_one(self, decoding: Decoding) -> None:
        places, values = list[int](), list[Any]()
        for place in self._places:
            try:
                value = decoding(self._all[place])
            except DecodingError as error:
                failure = error
            else:
                places.append(place)
                values.append(value)
                continue
            if (fault := fault_of(failure)).blame is not Blame.RECORD:  # a custom decoder may use a database
                raise fault.error
            self._decide(place, 1, failure)
        self._leave(places, values)

    def _leave(self, places: list[int], values: list[Any]) -> None:
        """Handle no more than the records at these places, which have these values."""
        self._places, self._values = places, values
        all_ = self._all
        self._records = all_.at(places) if isinstance(all_, Records) else [all_[place] for place in places]

    def _straight(self) -> None:
        """Handle the records without savepoints; the first error ends the run."""
        records = self._records
        if not records:
            return
        self._over(len(records))
        try:
            self._call(list(records), self._values)
        except Exception as error:
            failure = error
        else:
            self._at = len(records)
            return
        self._raise_if_databases(failure)
        raise self._failed(records[0], 1, failure, among=len(records)) from failure

    def _one_by_one(self) -> None:
        for index in range(len(self._records)):
            self._at = index
            if self._is_over(1) and index > 0:
                return
            self._settle(index, self._attempt(index, index + 1))
        self._at = len(self._records)

    def _is_over(self, records: int) -> bool:
        """Return whether to stop here. Not while a later record may still show whose fault an error was."""
        return self._over(records) and not self._is_doubtful

    def _narrow_down(self) -> None:
        """Halve a failing batch until the bad record is alone. The first half goes first, which keeps the order."""
        pending = list(self._parts())[::-1]
        while pending:
            start, end, values = pending.pop()
            self._at = start
            if self._is_over(end - start) and start > 0:
                return
            error = self._attempt(start, end, values)
            if end - start == 1:
                if error is not None and start > 0 and self._ends_before(self._records[start], error):
                    return
                self._settle(start, error)
            elif error is not None:
                middle = (start + end) // 2
                pending += [(middle, end, None), (start, middle, None)]
        self._at = len(self._records)

    def _ends_before(self, record: Record, error: Exception) -> bool:
        """Whether to commit the records before a failed one first."""
        return False

    def _parts(self) -> Iterator[tuple[int, int, Sequence[Any] | None]]:
        """Return ranges of records with their values: one range, except that records that failed before go alone."""
        bounds = set(range(len(self._records) + 1)) if self.is_alone else {0, len(self._records)}
        for index, place in enumerate(self._places) if self._failures else ():
            if place in self._failures:
                bounds |= {index, index + 1}
        for start, end in pairwise(sorted(bounds)):
            yield start, end, self._values[start:end]

    def _attempt(self, start: int, end: int, values: Sequence[Any] | None = None) -> Exception | None:
        """Run the handler in a savepoint; return its error if that may be the fault of a record, raise it otherwise.

        If ``values`` are not passed, they are decoded. Each retry decodes them again, because the handler may have
        changed them.
        """
        records = self._records[start:end]
        try:
            with self._tx.savepoint():
                if values is None and self.decoding is not None:
                    values = list(map(self.decoding, records))
                elif values is None:
                    values = self._values[start:end]
                if self.is_batch:
                    self._call(records, values)
                else:
                    self._call(records[0], values[0])
        except Exception as error:
            failure = error
        else:
            self._has_passed = True
            if not self._tx.undoes:
                self._done.update(self._places[start:end])
            return None
        self._raise_if_databases(failure)
        return failure

    def _settle(self, index: int, error: Exception | None) -> None:
        """Retry a record until it is processed, the policy gives it up, or it is postponed."""
        place, record = self._places[index], self._records[index]
        while error is not None:
            attempts = self._failures[place] = self._failures.get(place, 0) + 1
            again = self._decide(place, attempts, error)
            if again is None:
                if fault_of(error).blame is Blame.UNCERTAIN:
                    self._doubts[place] = error
                return
            self._on_retry(record, attempts, again.after, error)
            self._waited += again.after
            if self._waited > SHORT:
                raise Postponed(record.source, record.offset, again.after, self._tries())
            self._sleep(again.after)
            error = self._attempt(index, index + 1)

    def _tries(self) -> Tries:
        """Return the results so far. Processed records count only if they are not rolled back.

        While it is open whose fault an uncertain error was, its record is not settled.
        """
        known: dict[int, Done | StepOver | Park] = dict.fromkeys(self._done, Done()) | self._given_up
        if self._is_doubtful:
            known = {place: settled for place, settled in known.items() if place not in self._doubts}
        return {
            (self._all[place].source, self._all[place].offset): Tried(self._failures.get(place, 0), known.get(place))
            for place in self._failures.keys() | known.keys()
        }

    def _decide(self, place: int, attempts: int, error: Exception) -> Again | None:
        """Record that a failed record is skipped or parked, or return when to retry it; raises if the policy stops."""
        verdict = self._verdicts.verdict(attempts, error)
        if isinstance(verdict, Again):
            return verdict
        if verdict is None:
            raise self._failed(self._all[place], attempts, error) from error
        self._given_up[place] = verdict
        return None

    def _outcome(self, settled: int, error: Exception | None) -> Handled:
        """Park the given-up records among the first ``settled`` ones, in order, and return the outcome.

        Parking happens at the end, so that letters are in offset order whether decoding or the handler failed.
        """
        left = len(self._all) - settled
        if not self._given_up:
            return Handled(settled, (), (), left, error)
        skipped, parked = [], []
        for place, noted in sorted(self._given_up.items()):
            if place >= settled:
                break
            match noted:
                case StepOver(note):
                    skipped.append(SkippedRecord(self._all[place], note))
                case Park(why, attempts):
                    parked.append(FailedRecord(self._all[place], why, attempts))
                case other:
                    assert_never(other)
        for letter in parked:
            self._tx.park(letter)
        return Handled(settled - len(skipped) - len(parked), tuple(skipped), tuple(parked), left, error)

    def _raise_if_databases(self, error: Exception) -> None:
        """Raise the error if it is the database's fault.

        An uncertain error is not raised yet: the other records of the transaction will show whose fault it is. That
        needs a rollback, so without one (``undoes`` is false) it is raised too.
        """
        fault = fault_of(error)
        if fault.blame is Blame.DATABASE or (fault.blame is Blame.UNCERTAIN and not self._tx.undoes):
            raise fault.error

    def _failed(
        self, record: Record, attempts: int, error: Exception, *, among: int = 1, doubt: str = ""
    ) -> HandlerFailed:
        return self._verdicts.failed(self._tx.work.group, record, attempts, error, among=among, doubt=doubt)


class FunctionHandler(Handler):
    """Runs a user's function on records, one by one or in batches, inside the transaction or apart from it."""

    def __init__(
        self,
        binding: Binding,
        policy: FailurePolicy | None = None,
        *,
        on_retry: OnRetry = ignore_retry,
        is_apart: bool = False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """``is_apart``: the function runs outside the transaction."""
        self.name = binding.name
        self.is_apart = is_apart
        self._binding = binding
        self._verdicts = Verdicts(binding.name, policy)
        self._on_retry = on_retry
        self._sleep = sleep

    def look_up(self, records: Sequence[Record], check: Callable[[], None] = go_on) -> None:
        """Ask the schema registry for the schemas of the records; ``check`` is called before each request."""
        if self._binding.decoding is not None:
            self._binding.decoding.look_up(records, check)

    def prepare(self, records: Sequence[Record]) -> Prepared:
        """Return the records; values are decoded when they are handled."""
        with no_collection():
            made = list(records)
        return _FunctionRun(self._binding, made, self._verdicts, on_retry=self._on_retry, sleep=self._sleep)


class _FunctionRun(RecordRun):
    def __init__(
        self,
        binding: Binding,
        records: Sequence[Record],
        verdicts: Verdicts,
        *,
        on_retry: OnRetry,
        sleep: Callable[[float], object],
    ) -> None:
        super().__init__(records, verdicts, on_retry=on_retry, sleep=sleep)
        self._binding = binding
        self.is_batch = binding.is_batch
        self.decoding = binding.decoding

    def _call(self, records: Any, values: Any) -> None:
        binding = self._binding
        returned = binding.function(*binding.arguments((records, values, self._tx)))
        if returned is not None:
            self._tx.returned(returned)

    def _straight(self) -> None:
        if self.is_batch:
            super()._straight()
            return
        function, arguments, decoding = self._binding.function, self._binding.arguments, self.decoding
        tx, over = self._tx, self._over
        at = 0
        try:
            for record in self._records:
                if over(1) and at > 0:
                    break
                returned = function(*arguments((record, decoding and decoding(record), tx)))
                if returned is not None:
                    tx.returned(returned)
                at += 1
        except Exception as error:
            failure = error
        else:
            return
        finally:
            self._at = at
        self._raise_if_databases(failure)
        raise self._failed(self._records[at], 1, failure) from failure
