"""The transaction passed to a handler, the limits and retries of ledger operations, and the internal errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from tidegate.core.arguments import Answer, Count, Hold, LockWait, Retention, convert_arguments
from tidegate.core.policies import Backoff
from tidegate.core.positions import Position
from tidegate.core.records import FailedRecord, TopicPartition
from tidegate.core.runtime import Runtime
from tidegate.core.work import Advance, Span, Work
from tidegate.errors import (
    ConfigurationError,
    HeldTooLong,
    LedgerBusy,
    LedgerConflict,
    LedgerError,
    LedgerUnavailable,
    WritesRefused,
)
from tidegate.ledger.once import Once
from tidegate.ledger.threads import THREADS

__all__ = [
    "NOT_KNOWN",
    "Attempts",
    "Conflict",
    "ConnectionLost",
    "DoneBefore",
    "HeldIdle",
    "Limits",
    "LockWaitOver",
    "NoTransaction",
    "NoWrites",
    "NotMoved",
    "Outcome",
    "OutcomeUnknown",
    "Patience",
    "Result",
    "Retriable",
    "Steps",
    "Transaction",
    "Turns",
]


NOT_KNOWN = "it is not known whether this was done, so look before you do it again"


class Retriable(Exception):
    """Base class of failures that a retry may resolve."""

    def amounts_to(self, what: str) -> LedgerError:
        """Return the public error to raise once the retries are used up; ``what`` names the operation."""
        raise NotImplementedError


class Conflict(Retriable):
    """A deadlock, a serialization failure, or a row inserted twice at once: rolled back, may be retried at once."""

    def amounts_to(self, what: str) -> LedgerError:
        """Return :class:`LedgerConflict`."""
        return LedgerConflict(f"{what}: conflicts with other transactions went on ({self}); nothing was written")


class LockWaitOver(Retriable):
    """The lock was not acquired in time."""

    def amounts_to(self, what: str) -> LedgerError:
        """Return :class:`LedgerBusy`; its message names the lock, and the holder if the store can tell."""
        return LedgerBusy(f"{what}: {self}; nothing was written. Is another process frozen inside a transaction?")


class ConnectionLost(Retriable):
    """The connection broke before COMMIT was sent, so nothing was committed."""

    def amounts_to(self, what: str) -> LedgerError:
        """Return :class:`LedgerUnavailable`, which says that nothing was written."""
        return LedgerUnavailable(f"{what}: {self}; nothing was written")


class NoWrites(Retriable):
    """The store takes no writes at present: it is read-only, as after a failover, or full. Nothing was written.

    It is retried only once, on another connection, because more retries would run the handler for nothing. The caller
    waits instead, as it does for an unavailable store.
    """

    def amounts_to(self, what: str) -> LedgerError:
        """Return :class:`WritesRefused`."""
        return WritesRefused(f"{what}: the database takes no writes at present: {self}; nothing was written")


class HeldIdle(ConnectionLost):
    """The server ended a transaction that was idle for longer than the limit ``hold``.

    It is retried once, because the process may have been frozen for a while. The second time is the handler's fault.
    """

    def __init__(self, reason: str, seconds: float, hold: float) -> None:
        super().__init__(reason)
        self.seconds = seconds
        self.hold = hold

    def amounts_to(self, what: str) -> LedgerError:
        """Return :class:`HeldTooLong`, which names the limit."""
        return HeldTooLong(what, "Do less in one transaction", seconds=self.seconds, hold=self.hold)


class OutcomeUnknown(Retriable):
    """The connection broke after COMMIT was sent, so the commit may or may not have taken effect."""

    def amounts_to(self, what: str) -> LedgerError:
        """Return :class:`LedgerUnavailable`, which says that the outcome is unknown."""
        return LedgerUnavailable(
            f"{what}: the connection broke during COMMIT and the ledger has not answered since ({self}); {NOT_KNOWN}"
        )


class DoneBefore(Exception):
    """An earlier attempt at the same change took effect, but its answer was lost."""


class NotMoved(Exception):
    """The compare-and-set did not match every row; ``rows`` are the present rows, read under their locks.

    In a replay, it means that the dead letter is gone.
    """

    def __init__(self, rows: Mapping[TopicPartition, Position]) -> None:
        super().__init__("the compare-and-set did not match")
        self.rows = dict(rows)


_WAITS = Backoff(0.004, 2.0, 0.3)  # upper bounds of the wait between two attempts
_FIRST_SPELL = 10.0  # seconds
_LONGEST_SPELL = 120.0
_LOOK_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits, in seconds, that keep a frozen process from blocking the others and the journal from growing for ever.

    ``hold``: how long a transaction may be idle while it holds locks, before the database ends it. After half of it,
    listeners commit what they have handled. ``lock_wait``: how long an operation waits for a lock, and how long it
    retries; at least ``hold``, so that a waiting process outlasts a frozen lock holder. ``attempts``: the maximum
    number of attempts within that time. ``answer``: how long a statement waits for its answer on a connection that
    looks alive, before the connection is dropped; longer than ``lock_wait``, so that a statement that waits for a lock
    is not mistaken for an unanswered one. ``retention``: how long consumers keep the journal's entries; 0 keeps them
    for ever.
    """

    hold: Hold = 10.0
    lock_wait: LockWait = 15.0
    attempts: Count = 100
    answer: Answer = 60.0
    retention: Retention = 7 * 86_400.0

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.hold > self.lock_wait:
            raise ConfigurationError(
                f"lock_wait ({self.lock_wait} s) has to be at least as long as hold ({self.hold} s)"
            )
        if self.answer <= self.lock_wait:
            raise ConfigurationError(
                f"answer ({self.answer} s) has to be longer than lock_wait ({self.lock_wait} s), or a statement that "
                "waits for a lock would be taken for one that is never answered"
            )


class Patience:
    """The retry budget of one operation."""

    def __init__(
        self,
        limits: Limits,
        what: object,
        unknown: OutcomeUnknown | None = None,
        *,
        conflicts: int | None = None,
        runtime: Runtime = THREADS,
    ) -> None:
        """``unknown``: the unknown outcome that the operation has to find out. ``conflicts``: give up at the conflict
        with this number, if the limits have not ended the retries before."""
        self.conflicts = 0
        self._most_conflicts = conflicts
        self._limits = limits
        self._what = what
        self._deadline: float | None = None
        self._tries = self._idle = 0
        self._unknown = unknown
        self._runtime = runtime

    def found_out(self) -> None:
        """Note that no attempt so far took effect, so no outcome is unknown any more."""
        self._unknown = None

    def again(self, trouble: Retriable) -> None:
        """Wait a little and return if the operation may be retried; otherwise raise the public error of ``trouble``."""
        now = self._runtime.monotonic()
        if self._deadline is None:  # counted from the first failure: a handler may take as long as it likes
            self._deadline = now + self._limits.lock_wait
        self._tries += 1
        if isinstance(trouble, OutcomeUnknown):
            self._unknown = trouble
        over = now >= self._deadline or self._tries >= self._limits.attempts
        if isinstance(trouble, Conflict):
            self.conflicts += 1
            over = over or self.conflicts == self._most_conflicts
        self._idle += isinstance(trouble, HeldIdle)
        refused = isinstance(trouble, NoWrites) and self._tries > 1  # a second connection may reach the new primary
        if over or refused or self._idle > 1 or isinstance(trouble, LockWaitOver):
            # Once an outcome was unknown, the error must not say that nothing was written.
            error = (self._unknown or trouble).amounts_to(str(self._what))
            if isinstance(error, LedgerConflict):
                error.conflicts = self.conflicts
            raise error from trouble
        self._runtime.sleep(self._runtime.random().random() * _WAITS.after(self._tries))


class Turns:
    """Tells which groups take turns at present: transactions of their members then run one after the other.

    A conflict begins a spell of turns for its group. After the spell, transactions run in parallel again. If another
    conflict follows soon, the next spell is twice as long. If conflicts went on during a spell, turns did not help,
    because transactions outside the group caused them; the next spell is then as short as the first.
    """

    def __init__(self, clock: Callable[[], float] = THREADS.monotonic) -> None:
        self._clock = clock
        self._spells: dict[str, _Spell] = {}
        self._look_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def taken_by(self, group: str) -> bool:
        """Return whether a transaction of this group has to wait for its turn."""
        spell = self._spells.get(group)
        return spell is not None and self._clock() < spell.until

    def should_look(self, group: str) -> bool:
        """Return whether it is time to check if other members of the group take turns.

        This is true every half second, but not for some time after a conflict in this process,
        which shows the same.
        """
        now = self._clock()
        with self._lock:
            spell = self._spells.get(group)
            if now < self._look_at.get(group, now) or (spell is not None and now < spell.until + _LONGEST_SPELL):
                return False
            self._look_at[group] = now + _LOOK_EVERY
            return True

    def conflicted(self, group: str, *, in_turn: bool) -> None:
        """Note a conflict of a transaction of this group; ``in_turn``: the transaction had its turn."""
        with self._lock:
            now, spell = self._clock(), self._spells.get(group)
            if in_turn:
                if spell is not None:
                    self._spells[group] = _Spell(spell.length, spell.until, helped=False)
            elif spell is None or now >= spell.until:
                is_soon = spell is not None and spell.helped and now < spell.until + spell.length
                length = min(2 * spell.length, _LONGEST_SPELL) if spell is not None and is_soon else _FIRST_SPELL
                self._spells[group] = _Spell(length, now + length)

    def missed(self, group: str) -> None:
        """Note that a turn did not come in time; end the spell."""
        with self._lock:
            self._spells.pop(group, None)


@dataclass(frozen=True, slots=True)
class _Spell:
    """A time during which a group takes turns: ``length`` seconds, ``until`` that time."""

    length: float
    until: float
    helped: bool = True


class Transaction:
    """The transaction passed to a handler. Each store's subclass adds the methods that write data."""

    undoes = True
    """Whether a rollback undoes what the handler did; false only for :class:`NoTransaction`."""
    failed = 0
    """How many commands the store refused and parked when it committed, as Redis does."""
    in_turn = False
    """Whether other members of the group wait for their turn until this transaction ends."""

    def __init__(self, work: Work, *, advances: bool = False) -> None:
        """``advances``: the transaction moves the positions."""
        self.work = work
        self.letters: list[FailedRecord] = []
        self._steps: tuple[Advance, ...] = work.steps if advances else ()

    @property
    def steps(self) -> tuple[Advance, ...]:
        """The steps that this transaction advances: those of its work, or fewer after :meth:`cut`."""
        return self._steps

    def cut(self, spans: Iterable[Span]) -> None:
        """Advance only the given spans: what was handled so far commits, and the rest is read again.

        Each span begins where the planned one does and ends there or earlier. A partition that is left out does not
        move. A later call replaces an earlier one.
        """
        if not self._steps:
            raise ConfigurationError(
                f"{self.work}: this transaction moves no position, so that there is nothing to cut"
            )
        self._steps = self.work.cut(spans)

    def park(self, letter: FailedRecord) -> None:
        """Park a failed record: this transaction stores it as a dead letter if it commits."""
        self.letters.append(letter)

    def returned(self, value: object) -> None:
        """Receive what the handler returned, if that is not ``None``. Ignored here; a subclass may use it."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo only the block, including its letters, if it raises: for work that may fail without ending the
        transaction. Savepoints may be nested.
        """
        parked = len(self.letters)
        try:
            with self._savepoint():
                yield
        except BaseException:
            del self.letters[parked:]
            raise

    def _savepoint(self) -> AbstractContextManager[object]:
        """Open a savepoint for the data; each store implements it."""
        raise NotImplementedError


class NoTransaction(Transaction):
    """The stand-in for a handler that takes no transaction: nothing is undone, and letters are parked later."""

    undoes = False

    def _savepoint(self) -> AbstractContextManager[None]:
        return nullcontext()


class Outcome(Enum):
    """How a piece of work ended."""

    COMMITTED = "committed"
    ALREADY_DONE = "already done"


class Result(NamedTuple):
    """How a piece of work ended: its outcome, the number of attempts, and how many COMMITs were not answered.

    ``spans`` is what was advanced: the requested spans, unless the handler cut them. ``conflicts`` counts the attempts
    that failed by a conflict with another transaction. ``in_turn``: other members of the group waited for their turn
    meanwhile.
    """

    outcome: Outcome
    attempts: int
    unknown_outcomes: int
    spans: tuple[Span, ...] = ()
    conflicts: int = 0
    in_turn: bool = False


Steps: TypeAlias = tuple[Advance, ...]


class Attempts:
    """The attempts at one transaction. Each is a ``with`` block of this object, until there is a ``result``.

    The block opens the transaction, sets ``tx`` and runs the handler. Its end tells how the attempt ended: it sets the
    result, waits before the next attempt, or raises.
    """

    def __init__(
        self,
        patience: Patience,
        settle: Callable[[NotMoved, Sequence[Steps]], tuple[Span, ...]],
        once: Once[Any] | None = None,
    ) -> None:
        """``settle`` is called when the rows did not match. It raises if the work was not done before; otherwise it
        returns the spans that were advanced, given the steps of each attempt whose COMMIT was not answered. With
        ``once``, the store recognizes an earlier attempt by its id. Without it, rows that already moved were moved by
        an unanswered attempt, if there was one.
        """
        self.result: Result | None = None
        self.tx: Transaction | None = None
        self._patience = patience
        self._settle = settle
        self._once = once
        self._count = 0
        self._unknown: list[Steps] = []

    def __enter__(self) -> None:
        self._count += 1
        self.tx = None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            assert self.tx is not None  # noqa: S101 - the block sets it
            self._end(Outcome.COMMITTED, tuple(step.span for step in self.tx.steps), in_turn=self.tx.in_turn)
        elif isinstance(error, DoneBefore):
            self._end(Outcome.COMMITTED)
        elif isinstance(error, NotMoved):
            is_mine = self._unknown and self._once is None
            spans = self._settle(error, self._unknown)
            self._end(Outcome.COMMITTED if is_mine else Outcome.ALREADY_DONE, spans)
        elif isinstance(error, Retriable):
            if isinstance(error, OutcomeUnknown):
                self._unknown.append(() if self.tx is None else self.tx.steps)
                if self._once is not None:
                    self._once.unknown = True
            self._patience.again(error)
        else:
            return False
        return True

    def _end(self, outcome: Outcome, spans: tuple[Span, ...] = (), *, in_turn: bool = False) -> None:
        conflicts = self._patience.conflicts
        self.result = Result(outcome, self._count, len(self._unknown), spans, conflicts, in_turn)
