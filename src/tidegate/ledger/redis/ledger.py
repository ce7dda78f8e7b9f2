"""The ledger in Redis: :class:`RedisLedger`, and :class:`Attempt`, the arguments of its commit script."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import merge
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from tidegate.core.arguments import Label, argument
from tidegate.core.findings import Clock, Finding
from tidegate.core.journal import HISTORY, OPEN_FOR, Bucket, Entry, Kind, bucket_begin, in_time
from tidegate.core.positions import Change, GroupState, Position, Totals, forced_starts, with_rows
from tidegate.core.records import LetterHead, Record, StoredLetter, TopicPartition
from tidegate.core.work import Work
from tidegate.errors import ConfigurationError, LedgerUnavailable, SchemaError
from tidegate.ledger.ledger import Decide, Ledger, Rows
from tidegate.ledger.letters import LETTER_HEAD
from tidegate.ledger.once import Once
from tidegate.ledger.redis import codec
from tidegate.ledger.redis.codec import (
    GroupRow,
    Text,
    entry_text,
    field,
    forced_field,
    group_text,
    letter_text,
    microseconds,
    position_text,
    record_text,
)
from tidegate.ledger.redis.connection import ERRORS, RefusedNow, meaning, watch_connections
from tidegate.ledger.redis.transaction import Encode, RedisTransaction
from tidegate.ledger.transaction import (
    Conflict,
    ConnectionLost,
    DoneBefore,
    Limits,
    NotMoved,
    OutcomeUnknown,
    Retriable,
)

__all__ = ["Attempt", "RedisLedger"]


_OPEN_FOR = OPEN_FOR // timedelta(microseconds=1)
_MOST_ARGUMENTS = 1_000_000  # Redis 6 reads 1,048,576 in one command


class _Row(NamedTuple):
    """The commit script's arguments for one row: ``lines`` are its journal entries, ``mark`` how they are stored."""

    field: Text
    before: Text
    after: str
    lines: str
    mark: str


class Attempt:
    """One attempt at changing rows: the new text of each row, the text that it replaces, and the journal entries.

    Every text contains the attempt's id, so that the script recognizes its own work if a client sends it twice.
    ``once`` is the change that this attempt belongs to; the script sets a key for it. An advance has none. ``turn`` is
    the turn that the caller holds, if any. ``letter`` is the dead letter that is replayed, if any.
    """

    def __init__(self, group: str, once: Once[Any] | None = None, *, turn: str = "", letter: int | None = None) -> None:
        self.group = group
        self.once = once
        self._letter = "" if letter is None else str(letter)
        self.partitions: list[TopicPartition | None] = []
        self._turn = turn
        self._id = secrets.token_hex(8)
        self._rows: list[_Row] = []
        self._since: list[int] = []
        self._buckets: list[tuple[int, Bucket]] = []
        self._forced: set[tuple[str, str]] = set()

    def change(self, change: Change, before: Text | None) -> None:
        """Add the change of a position to the attempt; ``before`` is the text as it was read."""
        self._forced |= forced_starts([change])
        row, entries = change.position, change.entries
        if row.open is not None and change.opens:
            row = row._replace(open=row.open._replace(since=None))  # stands for the time at which the script runs
        if row.open is not None and (change.opens or change.extends):
            entries = (*entries, row.open.entry(row))
        opened = microseconds(row.open.since) if row.open is not None and change.extends else None
        if opened is not None:
            self._since.append(opened)
        elif change.past is not None:
            self._buckets.append((len(self._rows) + 1, change.past))
        self.partitions.append(row.partition)
        text, lines = position_text(row, self._id), "\n".join(map(entry_text, entries))
        self._rows.append(_Row(field(row.partition), before or "", text, lines, "." if opened is None else "+"))

    def change_group(self, row: GroupRow, before: Text | None, entry: Entry) -> None:
        """Add the change of the group's own row to the attempt; ``before`` is the text as it was read."""
        self.partitions.append(None)
        self._rows.append(_Row(self.group.encode(), before or "", group_text(row, self._id), entry_text(entry), "."))

    def is_plain(self, tx: RedisTransaction | None) -> bool:
        """Return whether this is an advance that stores positions and entries and nothing else, as most are."""
        return self.once is None and not self._buckets and (tx is None or not (tx.letters or tx.commands))

    def args(self, tx: RedisTransaction | None, history: bytes, days: int, remembered: int) -> list[Text | int]:
        """Return the arguments of the commit script, with the letters and commands of ``tx``.

        ``history`` is the prefix of the coarse history's keys, which are kept for ``days``. The attempt's own key is
        kept for ``remembered`` milliseconds.
        """
        *columns, marks = zip(*self._rows, strict=True) if self._rows else [()] * len(_Row._fields)
        args: list[Text | int] = [self._turn, len(self._rows), "".join(marks)]
        args += (max(self._since), min(self._since) + _OPEN_FOR) if self._since else ("", "")
        args += chain.from_iterable(columns)
        if not self.is_plain(tx):
            # An advance moves rows that were claimed, so the group is stored.
            new_group = "" if self.once is None else group_text(GroupRow(self.group), self._id)
            args += (remembered, self._letter, self.group.encode(), new_group, history, days)
            args.append(len(self._buckets))
            args += chain.from_iterable((number, past.begin, past.records) for number, past in self._buckets)
            args.append(len(self._forced))
            args += (forced_field(*forced) for forced in sorted(self._forced))
            args += _data_args(tx) if tx else (0, 0, "", "")
        if len(args) > _MOST_ARGUMENTS:
            raise ConfigurationError(f"{len(args)} words are too many for one script of Redis; use smaller batches")
        return args


def _data_args(tx: RedisTransaction) -> Iterator[Text | int]:
    yield len(tx.letters)
    yield from map(letter_text, tx.letters)
    if not (commands := tx.commands):
        yield from (0, "", "")
        return
    first = tx.work.steps[0].span
    yield len(commands)
    yield str(tx.work).encode("ascii", "backslashreplace")
    yield record_text(Record(*first.partition, first.start))
    for words, record in commands:
        yield record_text(record) if record else ""
        yield len(words)
        yield from words


Client: TypeAlias = "redis.Redis | redis.RedisCluster"
T = TypeVar("T")

SCHEMA_VERSION = 3
_DEPLOYMENTS_IN_POSITIONS = b"1"  # the version that stored deployments only in positions
_NOTHING_OPEN = b"2"  # the version in which every advance had its own journal entry
_PREFIX = "{tidegate}:"
_PAGE = 1_000
_FIRST_PAGE = 50  # entries of each journal, because there may be many journals
_KEYS_AT_ONCE = 100
_TURN_MS = 500
_NOT_YOUR_TURN = 2
_TIME_OVER = 3
_TRIES = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400
_REMEMBERED_MS = 600_000
_VOID = b"void"


class _TimeOver(Exception):
    """By the clock of Redis, an open entry is too old to be extended; nothing was changed."""

    def __init__(self, now: datetime) -> None:
        super().__init__("an entry of the journal is open for too long")
        self.now = now


class _Page(NamedTuple):
    """A page of a journal, and the text of its position at the same moment."""

    start: int
    entries: list[Text]
    is_last: bool
    position: Text | None


class RedisLedger(Ledger[RedisTransaction]):
    """A ledger that keeps positions in the same Redis as the data.

    Every key begins with ``prefix``. Its hash tag, the part in braces, keeps the whole ledger in one slot of a cluster.

    The commit script compares the whole text of each row with the text that was read before, which covers offset, epoch
    and owner, and then writes the new text that Python computed. So the transitions are those of
    :class:`~tidegate.core.positions.Position`, as in every other ledger, and the script never converts an offset to a
    Lua number, which would round it.
    """

    transaction_class = RedisTransaction

    def __init__(self, client: Client, *, prefix: str = _PREFIX, limits: Limits | None = None) -> None:
        super().__init__(limits)
        argument("client", redis.Redis | redis.RedisCluster, client)
        prefix = argument("prefix", Label, prefix)
        if isinstance(client, redis.RedisCluster) and not re.match(r"[^{]*\{[^}]+\}", prefix):
            raise ConfigurationError(
                f"the prefix {prefix!r} has no hash tag, so a cluster would scatter the ledger; try {_PREFIX!r}"
            )
        self._client: Any = client  # redis-py types its answers for the asynchronous client as well
        self._encode: Encode = self._client.get_encoder().encode
        self._prefix = prefix.encode()
        self._is_mine = self._is_ready = False
        self._commit, self._read, self._page, self._prune, self._tried, self._drop, self._totals = (
            self._script(name) for name in ("commit", "read", "journal", "prune", "tried", "drop", "totals")
        )
        self._past = self._script("history")
        self._heads = self._script("letters")
        self._history_key = self._key("history", "")
        self._group_keys: dict[str, list[bytes]] = {}  # keys of the commit script, cached for every commit
        retention = self.limits.retention
        # The coarse history is kept at least as long as the journal; with a retention of 0, for ever.
        self._history_days = math.ceil(max(retention, HISTORY.total_seconds()) / _DAY) if retention else 0
        # The keys of attempts expire later than any operation is retried.
        self._remembered = int(_REMEMBERED_MS + 2_000 * self.limits.lock_wait)

    def _script(self, name: str) -> Any:
        return self._client.register_script(files(__package__).joinpath(f"{name}.lua").read_bytes())

    @classmethod
    def from_url(cls, url: str, *, prefix: str = _PREFIX, limits: Limits | None = None) -> Self:
        """Open the ledger at ``redis://``, ``rediss://`` or ``unix://``; redis-py's options may follow a ``?``."""
        limits = argument("limits", Limits | None, limits) or Limits()
        patience = max(limits.lock_wait, 0.1)
        try:
            client = redis.Redis.from_url(
                argument("url", Label, url),
                socket_timeout=patience,
                socket_connect_timeout=min(patience, 5.0),
                socket_keepalive=True,
                retry=Retry(NoBackoff(), 0),  # the ledger itself retries, as its limits say
            )
            pool = client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # an unknown option fails here, not at each connection
            parts = urlsplit(url)
            number = parts.path.strip("/")
            if parts.scheme != "unix" and number and not number.isdecimal():
                raise ValueError("redis-py uses database 0 if the path is no number")
        except (ValueError, TypeError):  # its text may quote a part of the password
            raise ConfigurationError(
                "url: not the URL of a Redis, such as redis://user:password@host:6379/0, where 0 is the number of the "
                "database; characters like / # ? @ in a password have to be percent-encoded, and options behind a ? "
                "have to be those of redis-py"
            ) from None
        ledger = cls(client, prefix=prefix, limits=limits)
        ledger._is_mine = True
        watch_connections(client.connection_pool, ledger._watch)
        return ledger

    # Opening

    def create(self) -> None:
        """Store the schema version if there is none, or upgrade it. Raise for a server that might evict positions."""
        cannot = f"cannot open the ledger at {self}"
        try:
            stored = self._patiently(cannot, self._stored_version) if self._is_ready else self._stored_version()
        except ConnectionLost as lost:  # at the first connection, the address or login is probably wrong
            raise LedgerUnavailable(
                f"{cannot}: {str(lost).rstrip('.')}. Is the database running, and are address, user and password right?"
            ) from lost
        except Retriable as trouble:
            raise trouble.amounts_to(cannot) from trouble
        version = _encoded(stored).decode(errors="replace")
        if version != str(SCHEMA_VERSION):
            raise SchemaError(
                f"the ledger at {self} has schema version {version}, this Tidegate knows only up to {SCHEMA_VERSION}; "
                "upgrade Tidegate"
            )
        self._is_ready = True

    def _stored_version(self) -> Any:
        with self._meant():
            self._check_eviction()
            stored = self._client.get(self._key("schema"))
            if stored is None:
                self._client.set(self._key("schema"), SCHEMA_VERSION, nx=True)
                stored = self._client.get(self._key("schema"))
            if _encoded(stored) == _DEPLOYMENTS_IN_POSITIONS:
                self._adopt_deployments()
            if _encoded(stored) in (_DEPLOYMENTS_IN_POSITIONS, _NOTHING_OPEN):
                self._client.set(self._key("schema"), SCHEMA_VERSION)
                stored = str(SCHEMA_VERSION)
            return stored

    def _adopt_deployments(self) -> None:
        """Copy the deployments that an older version stored only in positions. Safe to call more than once."""
        groups = [codec.as_group("", text).group for text in self._client.hvals(self._key("groups"))]
        for group in groups:
            rows = map(codec.as_position, self._client.hvals(self._key("positions", group)))
            for topic, name in {(row.partition.topic, row.deployment) for row in rows if row.deployment}:
                self._client.hset(self._key("deployments", group), codec.forced_field(topic, name), 0)

    def _check_eviction(self) -> None:
        try:
            memory = self._client.info("memory")
        except ResponseError:  # the login may lack this privilege
            return
        policy = str(memory.get("maxmemory_policy"))
        if memory.get("maxmemory") and policy.startswith("allkeys"):
            raise ConfigurationError(
                f"Redis at {self} evicts any key when it is full (maxmemory-policy {policy}), positions included, and "
                "records would be processed again; set the policy to noeviction or to a volatile one"
            )

    def _ready(self) -> None:
        if not self._is_ready:
            self.create()

    def close(self) -> None:
        """Close the client if the ledger created it; a client that the user passed in stays open."""
        if self._is_mine:
            self._client.close()

    # Reading

    def examine(self, now: Clock) -> Iterator[Finding]:
        """Yield the findings of ``tidegate doctor`` about Redis."""
        from tidegate.ledger.redis.doctor import examine_redis  # noqa: PLC0415 - it imports this module

        return examine_redis(self, now)

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """Read in one script whether a group is paused, and its stored positions: all, or those of ``partitions``."""
        which = "all" if partitions is None else "some"
        args: list[Text] = [self._key("positions", ""), which, _encoded(group), *map(field, partitions or ())]
        state, rows = self._asked(f"reading group {group!r}", lambda: self._read([self._key("groups")], args))
        return _group_state(group, state, rows)

    def read_all(self) -> dict[str, GroupState]:
        """Read the state of every group in the ledger, in one script."""
        args = [self._key("positions", "")]
        reply = self._asked("reading all groups", lambda: self._read([self._key("groups")], args))
        states = (_group_state("", state, rows) for state, rows in zip(reply[::2], reply[1::2], strict=True))
        return {state.group: state for state in sorted(states, key=lambda state: state.group)}

    def totals(self) -> list[Totals]:
        """Return the totals of every group and topic, in order; Redis adds them up, for 100 groups at a time."""
        what = "adding up the positions"
        rows = (codec.as_group("", text) for text in self._asked(what, lambda: self._client.hvals(self._key("groups"))))
        groups = sorted(rows)
        found: list[Totals] = []
        for some in (groups[i : i + _KEYS_AT_ONCE] for i in range(0, len(groups), _KEYS_AT_ONCE)):
            keys = [self._key("positions", row.group) for row in some]
            for row, totals in zip(some, self._asked(what, partial(self._totals, keys)), strict=True):
                found += codec.as_totals(row, totals)
        return found

    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate over the journal of a group or of one of its partitions, each partition's entries oldest first.

        It is read in pages, so that a long journal does not block Redis.
        """
        wanted = [None, *sorted(self.read(group).positions)] if partition is None else [partition]
        return (item for item in self._followed(group, wanted) if isinstance(item, Entry))

    def _evidence(self, group: str) -> Iterator[Entry | Position]:
        return self._followed(group, sorted(self.read(group).positions))

    def _followed(self, group: str, partitions: Sequence[TopicPartition | None]) -> Iterator[Entry | Position]:
        """Yield the entries of each partition, and then its position as it was when the last page was read."""
        for some in (partitions[i : i + _KEYS_AT_ONCE] for i in range(0, len(partitions), _KEYS_AT_ONCE)):
            for tp, first in zip(some, self._pages(group, [(tp, 0, 0) for tp in some]), strict=True):
                page, before = first, 0
                while page.entries:
                    entries = [codec.as_entry(tp, text) for text in page.entries]
                    yield from entries
                    if page.is_last or entries[-1].seq <= before:  # the latter only if the keys were tampered with
                        break
                    before = entries[-1].seq
                    (page,) = self._pages(group, [(tp, page.start + len(entries), before)])
                if page.position is not None:
                    yield codec.as_position(page.position)

    def history(self, group: str, since: datetime) -> list[Bucket]:
        """Return how many records a group has advanced since then, over all partitions, in buckets of ten minutes."""
        begin = bucket_begin(since)
        fields = [field(tp) for tp in sorted(self.read(group).positions)]
        stored: Counter[int] = Counter()
        rows: list[Position] = []
        what, keys = f"reading the history of group {group!r}", [self._key("positions", group)]
        for some in (fields[i : i + _KEYS_AT_ONCE] for i in range(0, len(fields), _KEYS_AT_ONCE)):
            args = [self._key("history", ""), _encoded(group), begin // _DAY, int(time.time()) // _DAY + 1, *some]
            for row, *found in self._asked(what, partial(self._past, keys, args)):
                rows += [] if row is None else [codec.as_position(row)]
                for bucket, records in zip(found[::2], found[1::2], strict=True):
                    stored[int(bucket)] += int(records)
        return with_rows(stored, rows, begin)

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate backwards, page by page, over the journal of a group or of one of its partitions."""
        wanted = [None, *sorted(self.read(group).positions)] if partition is None else [partition]
        ends: list[list[Text]] = []
        for some in (wanted[i : i + _KEYS_AT_ONCE] for i in range(0, len(wanted), _KEYS_AT_ONCE)):
            ends += self._ends(group, some, 0, _FIRST_PAGE)
        each = (self._backwards(group, tp, end) for tp, end in zip(wanted, ends, strict=True))
        return merge(*each, key=in_time, reverse=True)

    def _backwards(self, group: str, partition: TopicPartition | None, page: list[Text]) -> Iterator[Entry]:
        """Iterate backwards over one journal; ``page`` is its last page."""
        taken, size, last = 0, _FIRST_PAGE, None
        while page:
            for text in reversed(page):
                entry = codec.as_entry(partition, text)
                if last is None or entry.seq < last:  # entries appended meanwhile shift the pages, which then overlap
                    last = entry.seq
                    yield entry
            taken += len(page)
            (page,) = self._ends(group, [partition], taken, _PAGE) if len(page) == size else ([],)
            size = _PAGE

    def _ends(
        self, group: str, partitions: Sequence[TopicPartition | None], behind: int, size: int
    ) -> list[list[Text]]:
        """Return up to ``size`` entries of each journal, those just before its last ``behind`` entries."""

        def ask() -> list[list[Text]]:
            pipeline = self._client.pipeline(transaction=False)
            for tp in partitions:
                pipeline.lrange(self._journal_key(group, tp), -behind - size, -behind - 1)
            return list(pipeline.execute())

        return self._asked(f"reading the journal of group {group!r}", ask)

    def _pages(self, group: str, places: Sequence[tuple[TopicPartition | None, int, int]]) -> list[_Page]:
        """Return a page of each journal; a place is the partition, the expected index, and the ``seq`` before it."""
        keys = [self._key("positions", group), *(self._journal_key(group, tp) for tp, _, _ in places)]
        args = [_PAGE, *(arg for tp, start, before in places for arg in (field(tp), start, before))]
        found = self._asked(f"reading the journal of group {group!r}", lambda: self._page(keys, args))
        return [_Page(start, entries, bool(is_last), row) for start, entries, is_last, row in found]

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[StoredLetter]:
        """Return up to ``limit`` dead letters of a group in the order they were parked, with ids above ``after``."""
        first = f"{max(after, 0) + 1}-0"
        found = self._asked(
            f"reading the dead letters of group {group!r}",
            lambda: self._client.xrange(self._key("letters", group), first, "+", count=limit) if limit > 0 else [],
        )
        numbers = [int(_encoded(number).partition(b"-")[0]) for number, _ in found]
        tries = self._tries(group, numbers)
        return [
            codec.as_letter(number, group, next(iter(letter.values())), tried)
            for number, (_, letter), tried in zip(numbers, found, tries, strict=True)
        ]

    def letter_heads(
        self, group: str, *, after: int = 0, limit: int = 100, most: int = LETTER_HEAD
    ) -> list[LetterHead]:
        """Return the beginnings of dead letters, in the order of :meth:`dead_letters`; a script cuts them."""
        keys = [self._key(kind, group) for kind in ("letters", "tries")]
        args = [f"{max(after, 0) + 1}-0", max(limit, 0), *codec.head_sizes(most)]
        found = self._asked(f"reading the dead letters of group {group!r}", lambda: self._heads(keys, args))
        return [codec.as_head(group, row, most) for row in found]

    def count_letters(self) -> dict[str, int]:
        """Return how many dead letters each group has; groups without any are left out."""
        what = "counting dead letters"
        texts = self._asked(what, lambda: self._client.hvals(self._key("groups")))
        groups = sorted(codec.as_group("", text).group for text in texts)

        def count() -> list[int]:
            pipeline = self._client.pipeline(transaction=False)
            for group in groups:
                pipeline.xlen(self._key("letters", group))
            return list(pipeline.execute())

        return {group: found for group, found in zip(groups, self._asked(what, count), strict=True) if found}

    def _tries(self, group: str, numbers: list[int]) -> list[tuple[Text | None, Text | None]]:
        """Return how many replays of each letter failed, and the error of the last one."""
        if not numbers:
            return []
        fields = [f"{number}:{what}" for number in numbers for what in ("attempts", "error")]
        what, key = f"reading the dead letters of group {group!r}", self._key("tries", group)
        found = self._asked(what, lambda: self._client.hmget(key, fields))
        return list(zip(found[::2], found[1::2], strict=True))

    # Writing

    def _change(self, once: Once[T], group: str, partitions: list[TopicPartition], decide: Decide[T]) -> T:
        if self._known(once) is not None or self._changed_at_once(once, group, partitions, decide):
            return once.result
        turn, key = secrets.token_hex(8), self._key("turn", group)
        with self._meant():
            granted = self._client.set(key, turn, nx=True, px=_TURN_MS)
            if not granted:  # the client may have sent this command twice because the first reply was lost
                granted = _encoded(self._client.get(key) or "") == turn.encode()
        if not granted or not self._changed_at_once(once, group, partitions, decide, turn):
            raise Conflict("other processes keep changing these positions")
        return once.result

    def _changed_at_once(
        self, once: Once[T], group: str, partitions: list[TopicPartition], decide: Decide[T], turn: str = ""
    ) -> bool:
        """Read, decide and write once; return whether it succeeded: no other process changed the rows in between."""
        texts = self._texts(group, partitions)
        attempt = Attempt(group, once, turn=turn)
        changes, once.result = decide(_rows(texts))
        for change in changes:
            attempt.change(change, texts.get(change.position.partition))
        return not attempt.partitions or self._sent(attempt)[0]

    def _known(self, once: Once[Any]) -> int | None:
        """Return the number of failed commands that an unanswered attempt left in its key, if it took effect.

        Otherwise return ``None``, and make sure that the attempt never takes effect, even if its script is still on the
        way: its key is set to void, and the next attempt gets another id.
        """
        self._ready()
        if not once.unknown:
            return None
        key = self._attempt_key(once)
        with self._meant():
            self._client.set(key, _VOID, nx=True, px=self._remembered)
            left = _encoded(self._client.get(key) or _VOID)
        if left != _VOID:
            return int(left)
        once.anew()
        return None

    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        self._ready()
        with self._meant():
            fields = map(_encoded, self._client.hkeys(self._key("deployments", group)))
            found = (stored.decode().partition(":") for stored in fields)
            return frozenset(topic for topic, _, name in found if name == deployment)

    @contextmanager
    def _open(self, work: Work) -> Iterator[RedisTransaction]:
        texts = self._texts(work.group, work.partitions)
        rows = _rows(texts)
        if not all((row := rows.get(step.span.partition)) and row.matches(step) for step in work.steps):
            raise NotMoved(rows)  # the script checks again, but failing here avoids running the handler in vain
        tx = RedisTransaction(work, self._encode, advances=True)
        yield tx
        moved, answer = self._advanced_to(tx, rows, texts)
        if not moved:
            raise NotMoved({row.partition: row for row in codec.as_positions(answer)})
        tx.failed = answer

    def _advanced_to(self, tx: RedisTransaction, rows: Rows, texts: Mapping[TopicPartition, Text]) -> tuple[bool, Any]:
        """Send the transaction's moves. If an open entry turns out to be too old, the script returns its time, and the
        moves are computed again with it."""
        steps = {step.span.partition: step for step in tx.steps}
        now: datetime | None = None
        for _ in range(_TRIES):
            attempt = Attempt(tx.work.group)
            for tp, row in sorted(rows.items()):
                at = now or row.updated_at or _EPOCH
                change = row.advanced(steps[tp], tx.work, at) if tp in steps else row.left(tx.work)
                attempt.change(change, texts[tp])
            try:
                return self._sent(attempt, tx)
            except _TimeOver as over:
                now = over.now
        raise Conflict("the clock of Redis jumps")

    @contextmanager
    def _detached(self, work: Work) -> Iterator[RedisTransaction]:
        self._ready()
        tx = RedisTransaction(work, self._encode)
        yield tx
        _, tx.failed = self._sent(Attempt(work.group, Once[None](str(work))), tx)

    @contextmanager
    def _replaying(self, once: Once[RedisTransaction], work: Work, number: int) -> Iterator[RedisTransaction]:
        if (failed := self._known(once)) is not None:
            once.result.failed = failed
            raise DoneBefore
        with self._meant():
            if not self._client.xrange(self._key("letters", work.group), f"{number}-0", f"{number}-0"):
                raise NotMoved({})  # the script checks again, but failing here avoids running the handler in vain
        tx = once.result = RedisTransaction(work, self._encode)
        yield tx
        removed, answer = self._sent(Attempt(work.group, once, letter=number), tx)
        if not removed:
            raise NotMoved({})
        tx.failed = answer

    def _locked(self, work: Work) -> Rows:
        """Read the rows without a lock, which Redis does not have.

        A script may still be on the way, but it cannot overturn what the caller decides: either the caller's next
        change comes first and the script's compare-and-set fails, or the script comes first and its token shows that.
        """
        return _rows(self._texts(work.group, work.partitions))

    def _texts(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Text]:
        self._ready()
        with self._meant():
            found = self._client.hmget(self._key("positions", group), list(map(field, partitions)))
        return {tp: text for tp, text in zip(partitions, found, strict=True) if text is not None}

    def _sent(self, attempt: Attempt, tx: RedisTransaction | None = None) -> tuple[bool, Any]:
        """Run the commit script. Returns true and the number of failed commands, or false and the present rows.

        A client may be set to send the script again when the reply is lost. That is safe: a key marks the attempt, or
        the texts of the rows contain its id, so the script sees that it has run before and does nothing.
        """
        positions, turn, *others = self._keys_of(attempt.group)
        if attempt.partitions == [None]:  # the row of the group itself
            positions = others[0]
        keys = [positions, turn, *(self._journal_key(attempt.group, tp) for tp in attempt.partitions)]
        keys += [] if attempt.is_plain(tx) else others
        keys += [] if attempt.once is None else [self._attempt_key(attempt.once)]
        args = attempt.args(tx, self._history_key, self._history_days, self._remembered)
        with self._meant(OutcomeUnknown):
            status, answer = self._commit(keys, args)
        if status == _TIME_OVER:
            raise _TimeOver(codec.as_time(answer))
        if status == _NOT_YOUR_TURN:
            raise Conflict("another process has its turn at changing this group")
        return bool(status), answer

    def _set_paused(self, once: Once[bool], group: str, kind: Kind, note: str | None) -> bool:
        if self._known(once) is not None:
            return once.result
        with self._meant():
            text = self._client.hget(self._key("groups"), group.encode())
        row = codec.as_group(group, text)
        paused = kind is Kind.PAUSE
        once.result = row.paused != paused
        if once.result:
            attempt = Attempt(group, once)
            entry = Entry(None, row.seq + 1, kind, 0, 0, 0, 0, None, None, note)
            attempt.change_group(GroupRow(group, paused, row.seq + 1), text, entry)
            if not self._sent(attempt)[0]:
                raise Conflict("other processes keep changing this group")
        return once.result

    def begin_pruning(self, group: str, every: timedelta) -> bool:
        """Return whether to prune a group's journal now, and if so, note that pruning begins."""
        key, milliseconds = self._key("pruned", group), max(1, every // timedelta(milliseconds=1))
        name = f"beginning to prune the journal of group {group!r}"
        mine = secrets.token_hex(8).encode()  # by which a repeat recognizes that the command before it took effect

        def begin() -> bool:
            return (
                bool(self._client.set(key, mine, nx=True, px=milliseconds))
                or _encoded(self._client.get(key) or "") == mine
            )

        return self._asked(name, begin)

    def _delete_entries(self, older_than: timedelta, group: str | None) -> int:
        """Delete old journal entries and return how many. The keys of the coarse history expire on their own."""
        age = int(older_than / timedelta(microseconds=1))
        groups = [group] if group is not None else self._groups("prune the journal")
        with self._pruning() as pruned:
            for name in groups:
                args: list[Text | int] = [_encoded(name), self._key("journal", ""), age]
                what, keys = f"prune the journal of group {name!r}", [self._key("positions", name)]
                while some := self._run_once(what, self._prune, keys, args):
                    pruned.append(some)
        return sum(pruned)

    def _groups(self, what: str) -> list[str]:
        stored = self._asked(what, lambda: self._client.hvals(self._key("groups")))
        return [codec.as_group("", text).group for text in stored]

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """Delete dead letters and return how many were deleted."""
        numbers = [number for number in ids if number > 0]
        if not numbers:
            return 0
        keys = [self._key(kind, group) for kind in ("letters", "tries")]
        return self._run_once(f"drop dead letters of group {group!r}", self._drop, keys, numbers)

    def failed_again(self, parked: StoredLetter, error: str) -> bool:
        """Note that a replay failed: count an attempt and store the new error. Returns whether the letter exists.

        The letters are a stream, whose entries cannot change; failed replays are kept in a hash beside it.
        """
        keys = [self._key(kind, parked.group) for kind in ("letters", "tries")]
        args: list[Text | int] = [parked.id, codec.error_text(error)]
        return bool(self._run_once(f"note a failed replay of group {parked.group!r}", self._tried, keys, args))

    def _run_once(self, what: str, script: Any, keys: Sequence[bytes], args: Sequence[Text | int]) -> int:
        """Run a script that stores its result in a key, so that it does nothing if it is sent again."""
        once = Once[int](what)

        def run() -> int:
            self._ready()
            with self._meant(OutcomeUnknown):
                return int(script([self._attempt_key(once), *keys], [self._remembered, *args]))

        return self._once(once, run)

    # Keys and errors

    def _key(self, kind: str, rest: str | bytes | None = None) -> bytes:
        """Return a key of the ledger. The group comes last, so that its name may contain anything."""
        return self._prefix + kind.encode() + (b"" if rest is None else b":" + _encoded(rest))

    def _keys_of(self, group: str) -> list[bytes]:
        """Return the commit script's keys of a group, apart from its journals."""
        if group not in self._group_keys:
            of_group = (self._key(kind, group) for kind in ("positions", "turn", "letters", "tries", "deployments"))
            positions, turn, letters, *others = of_group
            self._group_keys[group] = [positions, turn, self._key("groups"), letters, *others]
        return self._group_keys[group]

    def _journal_key(self, group: str, partition: TopicPartition | None) -> bytes:
        return self._key("journal", f"{field(partition)}:{group}")

    def _attempt_key(self, once: Once[Any]) -> bytes:
        """Return the key by which a script recognizes that it has run before."""
        return self._key("attempt", once.id)

    @contextmanager
    def _meant(self, lost: type[ConnectionLost | OutcomeUnknown] = ConnectionLost) -> Iterator[None]:
        if self._watch.is_over:
            raise LedgerUnavailable(
                f"the ledger at {self} has not answered for {self._watch.silence:.0f} s, and this process is "
                "shutting down"
            )
        began = time.monotonic()
        try:
            yield
        except ERRORS as error:
            meant = meaning(error, str(self), lost)
            if isinstance(meant, RefusedNow):
                self._watch.heard()
                # After a failover, open connections may still lead to the old primary; new ones reach the new primary.
                if isinstance(self._client, redis.Redis):
                    self._client.connection_pool.disconnect(inuse_connections=False)
            elif isinstance(meant, ConnectionLost | OutcomeUnknown):
                self._watch.unheard(began)
            raise meant from error
        self._watch.heard()

    def _asked(self, what: str, ask: Callable[[], T]) -> T:
        def understood() -> T:
            self._ready()
            with self._meant():
                return ask()

        return self._patiently(what, understood)

    def __str__(self) -> str:
        options = self._client.get_connection_kwargs()
        if "path" in options:
            return f"unix://{options['path']}"
        port = f":{options['port']}" if "port" in options else ""
        return f"redis://{options.get('host', '')}{port}/{options.get('db') or 0}"


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _rows(texts: Mapping[TopicPartition, Text]) -> dict[TopicPartition, Position]:
    together = b"[" + b",".join(map(_encoded, texts.values())) + b"]"  # one parse instead of many
    return dict(zip(texts, codec.as_positions(together), strict=True))


def _group_state(group: str, state: Text, rows: Text) -> GroupState:
    stored = codec.as_group(group, state)
    return GroupState(stored.group, stored.paused, {row.partition: row for row in codec.as_positions(rows)})
