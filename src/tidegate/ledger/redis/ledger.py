"""The ledger on Redis."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from heapq import merge
from importlib.resources import files
from typing import Any, Self, TypeAlias, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from tidegate.core.errors import ConfigurationError, LedgerUnavailable, SchemaError
from tidegate.core.journal import Entry, Kind, in_time
from tidegate.core.letters import ParkedLetter
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Work
from tidegate.core.totals import Totals
from tidegate.ledger.base import Decide, Ledger, Rows
from tidegate.ledger.limits import Limits
from tidegate.ledger.redis import codec
from tidegate.ledger.redis.attempt import Attempt
from tidegate.ledger.redis.codec import GroupRow, Text, field
from tidegate.ledger.redis.errors import Refused, meant
from tidegate.ledger.redis.transaction import Encode, RedisTransaction
from tidegate.ledger.trouble import Conflict, ConnectionLost, NotMoved, OutcomeUnknown, Trouble

__all__ = ["RedisLedger"]

Client: TypeAlias = "redis.Redis | redis.RedisCluster"
T = TypeVar("T")

SCHEMA_VERSION = 2
_DEPLOYMENTS_IN_POSITIONS = b"1"  # the version in which only a position remembered its deployment
_PREFIX = "{tidegate}:"
_PAGE = 1_000
_FIRST_PAGE = 50  # of each of many journals
_KEYS_AT_ONCE = 100
_TURN_MS = 500
_NOT_YOUR_TURN = 2


class RedisLedger(Ledger[RedisTransaction]):
    """Positions in the Redis that the data goes to.

    Every key begins with ``prefix``; its hash tag, the part in braces, keeps the ledger in one slot of a cluster.

    A script compares the whole text of each row with what was read before, which covers offset, epoch and owner, and
    writes what Python made of it. So the transitions are those of :class:`~tidegate.core.positions.Position`, as in
    every other ledger, and no number passes through Lua, which would round it.
    """

    def __init__(self, client: Client, *, prefix: str = _PREFIX, limits: Limits | None = None) -> None:
        super().__init__(limits)
        if isinstance(client, redis.RedisCluster) and not re.match(r"[^{]*\{[^}]+\}", prefix):
            raise ConfigurationError(
                f"the prefix {prefix!r} has no hash tag, so a cluster would scatter the ledger; try {_PREFIX!r}"
            )
        self._client: Any = client  # redis-py types its answers for the asynchronous client as well
        self._encode: Encode = self._client.get_encoder().encode
        self._prefix = prefix.encode()
        self._is_mine = self._is_ready = False
        self._commit, self._read, self._page, self._prune, self._tried, self._drop, self._totals = (
            self._client.register_script(files(__package__).joinpath(f"{name}.lua").read_bytes())
            for name in ("commit", "read", "journal", "prune", "tried", "drop", "totals")
        )

    @classmethod
    def from_url(cls, url: str, *, prefix: str = _PREFIX, limits: Limits | None = None) -> Self:
        """Open the ledger at ``redis://``, ``rediss://`` or ``unix://``; redis-py's options may follow a ``?``."""
        limits = limits or Limits()
        patience = max(limits.lock_wait, 0.1)
        try:
            client = redis.Redis.from_url(
                url,
                socket_timeout=patience,
                socket_connect_timeout=min(patience, 5.0),
                retry=Retry(NoBackoff(), 0),  # the limits say how often things are tried again
            )
        except (ValueError, TypeError):  # its text may quote a part of the password
            raise ConfigurationError(
                "that is not the URL of a Redis, such as redis://user:password@host:6379/0; characters like / # ? @ in "
                "a password have to be percent-encoded"
            ) from None
        ledger = cls(client, prefix=prefix, limits=limits)
        ledger._is_mine = True
        return ledger

    # Opening

    def create(self) -> None:
        """Store the version of the ledger, if there is none. A server that might evict positions is refused."""
        try:
            with self._meant():
                self._check_eviction()
                stored = self._client.get(self._key("schema"))
                if stored is None:
                    self._client.set(self._key("schema"), SCHEMA_VERSION, nx=True)
                    stored = self._client.get(self._key("schema"))
                if _encoded(stored) == _DEPLOYMENTS_IN_POSITIONS:
                    self._adopt_deployments()
                    self._client.set(self._key("schema"), SCHEMA_VERSION)
                    stored = str(SCHEMA_VERSION)
        except ConnectionLost as lost:  # whoever cannot be reached now was never there
            raise LedgerUnavailable(
                f"cannot open the ledger at {self}: {lost}. Is the database running, and are address, user and "
                "password right?"
            ) from lost
        except Trouble as trouble:
            raise trouble.amounts_to(f"cannot open the ledger at {self}") from trouble
        version = _encoded(stored).decode(errors="replace")
        if version != str(SCHEMA_VERSION):
            raise SchemaError(
                f"the ledger at {self} has schema version {version}, this Tidegate knows only up to {SCHEMA_VERSION}; "
                "upgrade Tidegate"
            )
        self._is_ready = True

    def _adopt_deployments(self) -> None:
        """Remember the deployments of the older version, which only positions did; may be done more than once."""
        groups = [codec.as_group("", text).group for text in self._client.hvals(self._key("groups"))]
        for group in groups:
            rows = map(codec.as_position, self._client.hvals(self._key("positions", group)))
            for topic, name in {(row.partition.topic, row.deployment) for row in rows if row.deployment}:
                self._client.hset(self._key("deployments", group), codec.forced_field(topic, name), 0)

    def _check_eviction(self) -> None:
        try:
            memory = self._client.info("memory")
        except ResponseError:  # a login need not have this right
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
        """See :meth:`Ledger.close`. A client that the user passed in stays open."""
        if self._is_mine:
            self._client.close()

    # Reading

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """See :meth:`Ledger.read`."""
        which = "all" if partitions is None else "some"
        args: list[Text] = [self._key("positions", ""), which, _encoded(group), *map(field, partitions or ())]
        state, rows = self._asked(f"reading group {group!r}", lambda: self._read([self._key("groups")], args))
        return _group_state(group, state, rows)

    def read_all(self) -> dict[str, GroupState]:
        """See :meth:`Ledger.read_all`."""
        args = [self._key("positions", "")]
        reply = self._asked("reading all groups", lambda: self._read([self._key("groups")], args))
        states = (_group_state("", state, rows) for state, rows in zip(reply[::2], reply[1::2], strict=True))
        return {state.group: state for state in sorted(states, key=lambda state: state.group)}

    def totals(self) -> list[Totals]:
        """See :meth:`Ledger.totals`."""
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
        """See :meth:`Ledger.journal`. Read page by page, so that a long journal does not hold Redis up."""
        wanted = [None, *sorted(self.read(group).positions)] if partition is None else [partition]
        for some in (wanted[i : i + _KEYS_AT_ONCE] for i in range(0, len(wanted), _KEYS_AT_ONCE)):
            for tp, (start, texts) in zip(some, self._pages(group, [(tp, 0, b"") for tp in some]), strict=True):
                place, page = start, texts
                while page:
                    yield from (codec.as_entry(tp, text) for text in page)
                    following = (tp, place + len(page), page[-1])
                    ((place, page),) = self._pages(group, [following]) if len(page) == _PAGE else ((0, []),)

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """See :meth:`Ledger.newest`."""
        wanted = [None, *sorted(self.read(group).positions)] if partition is None else [partition]
        ends: list[list[Text]] = []
        for some in (wanted[i : i + _KEYS_AT_ONCE] for i in range(0, len(wanted), _KEYS_AT_ONCE)):
            ends += self._ends(group, some, 0, _FIRST_PAGE)
        each = (self._backwards(group, tp, end) for tp, end in zip(wanted, ends, strict=True))
        return merge(*each, key=in_time, reverse=True)

    def _backwards(self, group: str, partition: TopicPartition | None, page: list[Text]) -> Iterator[Entry]:
        """A journal from its last page on, which ``page`` is, to its beginning."""
        taken, size, last = 0, _FIRST_PAGE, None
        while page:
            for text in reversed(page):
                entry = codec.as_entry(partition, text)
                if last is None or entry.seq < last:  # what was appended meanwhile has shifted the pages
                    last = entry.seq
                    yield entry
            taken += len(page)
            (page,) = self._ends(group, [partition], taken, _PAGE) if len(page) == size else ([],)
            size = _PAGE

    def _ends(
        self, group: str, partitions: Sequence[TopicPartition | None], behind: int, size: int
    ) -> list[list[Text]]:
        """As many entries of each journal, before the last ``behind`` ones."""

        def ask() -> list[list[Text]]:
            pipeline = self._client.pipeline(transaction=False)
            for tp in partitions:
                pipeline.lrange(self._journal_key(group, tp), -behind - size, -behind - 1)
            return list(pipeline.execute())

        return self._asked(f"reading the journal of group {group!r}", ask)

    def _pages(
        self, group: str, places: Sequence[tuple[TopicPartition | None, int, Text]]
    ) -> list[tuple[int, list[Text]]]:
        keys = [self._journal_key(group, tp) for tp, _, _ in places]
        args = [_PAGE, *(arg for _, start, before in places for arg in (start, before))]
        return list(self._asked(f"reading the journal of group {group!r}", lambda: self._page(keys, args)))

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[ParkedLetter]:
        """See :meth:`Ledger.dead_letters`."""
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

    def _tries(self, group: str, numbers: list[int]) -> list[tuple[Text | None, Text | None]]:
        """How often each of these letters failed again, and with which error the last time."""
        if not numbers:
            return []
        fields = [f"{number}:{what}" for number in numbers for what in ("attempts", "error")]
        what, key = f"reading the dead letters of group {group!r}", self._key("tries", group)
        found = self._asked(what, lambda: self._client.hmget(key, fields))
        return list(zip(found[::2], found[1::2], strict=True))

    # Writing

    def _change(self, group: str, partitions: list[TopicPartition], decide: Decide) -> None:
        if self._changed_at_once(group, partitions, decide):
            return
        turn, key = secrets.token_hex(8), self._key("turn", group)
        with self._meant():
            granted = self._client.set(key, turn, nx=True, px=_TURN_MS)
            if not granted:  # unless by this very command, whose reply was lost so that the client sent it again
                granted = _encoded(self._client.get(key) or "") == turn.encode()
        if not granted or not self._changed_at_once(group, partitions, decide, turn):
            raise Conflict("other processes keep changing these positions")

    def _changed_at_once(self, group: str, partitions: list[TopicPartition], decide: Decide, turn: str = "") -> bool:
        """Whether nobody else changed the rows between reading and writing."""
        texts = self._texts(group, partitions)
        attempt = Attempt(group, turn)
        for change in decide(_rows(texts)):
            attempt.change(change, texts.get(change.position.partition))
        return not attempt.partitions or self._sent(attempt)[0]

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
        attempt = Attempt(work.group)
        for step in work.steps:
            row = rows.get(step.span.partition)
            if row is None or not row.matches(step):
                raise NotMoved(rows)  # the script will look again, but here the handler has not run in vain
            attempt.change(row.advanced(step, work), texts[row.partition])
        tx = RedisTransaction(work, self._encode)
        yield tx
        moved, answer = self._sent(attempt, tx)
        if not moved:
            raise NotMoved({row.partition: row for row in codec.as_positions(answer)})
        tx.failed = answer

    @contextmanager
    def _detached(self, work: Work) -> Iterator[RedisTransaction]:
        self._ready()
        tx = RedisTransaction(work, self._encode)
        yield tx
        _, tx.failed = self._sent(Attempt(work.group), tx)

    @contextmanager
    def _replaying(self, work: Work, number: int) -> Iterator[RedisTransaction]:
        self._ready()
        with self._meant():
            if not self._client.xrange(self._key("letters", work.group), f"{number}-0", f"{number}-0"):
                raise NotMoved({})  # the script will look again, but here the handler has not run in vain
        tx = RedisTransaction(work, self._encode)
        yield tx
        removed, answer = self._sent(Attempt(work.group, letter=number), tx)
        if not removed:
            raise NotMoved({})
        tx.failed = answer

    def _locked(self, work: Work) -> Rows:
        """A plain read, as nothing is decided on it that a script still on its way could overturn: that one loses its
        compare-and-set against what the caller does next, or comes first and is known by its token then."""
        return _rows(self._texts(work.group, work.partitions))

    def _texts(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Text]:
        self._ready()
        with self._meant():
            found = self._client.hmget(self._key("positions", group), list(map(field, partitions)))
        return {tp: text for tp, text in zip(partitions, found, strict=True) if text is not None}

    def _sent(self, attempt: Attempt, tx: RedisTransaction | None = None) -> tuple[bool, Any]:
        """Run the script: whether it changed the rows, and how many commands failed; or else the rows as they are.

        A client may be set to send it again when the reply is lost. That is safe: the rows' texts name the attempt, or
        a key remembers it, so the script sees that it has run before, and does nothing.
        """
        rows = self._key("groups") if attempt.partitions == [None] else self._key("positions", attempt.group)
        parts = ("letters", "turn", "tries", "deployments")
        keys = [self._key("groups"), rows, *(self._key(kind, attempt.group) for kind in parts)]
        keys += [self._journal_key(attempt.group, tp) for tp in attempt.partitions] or [self._attempt_key(attempt.id)]
        args = attempt.args(tx)
        with self._meant(OutcomeUnknown):
            status, answer = self._commit(keys, args)
        if status == _NOT_YOUR_TURN:
            raise Conflict("another process has its turn at changing this group")
        return bool(status), answer

    def _set_paused(self, group: str, kind: Kind, note: str | None) -> bool:
        self._ready()
        with self._meant():
            text = self._client.hget(self._key("groups"), group.encode())
        row = codec.as_group(group, text)
        paused = kind is Kind.PAUSE
        if row.paused == paused:
            return False
        attempt = Attempt(group)
        entry = Entry(None, row.seq + 1, kind, 0, 0, 0, 0, None, None, note)
        attempt.change_group(GroupRow(group, paused, row.seq + 1), text, entry)
        if not self._sent(attempt)[0]:
            raise Conflict("other processes keep changing this group")
        return True

    def prune(self, older_than: timedelta, group: str | None = None) -> int:
        """See :meth:`Ledger.prune`."""
        what = "pruning the journal"
        age = int(older_than / timedelta(microseconds=1))
        groups = [group] if group is not None else self._groups(what)
        pruned = 0
        for name in groups:
            args: list[Text | int] = [_encoded(name), self._key("journal", ""), age]
            some = 1
            while some:
                keys = [self._key("positions", name), self._attempt_key()]
                some = self._asked(what, partial(self._prune, keys, args))
                pruned += some
        return pruned

    def _groups(self, what: str) -> list[str]:
        stored = self._asked(what, lambda: self._client.hvals(self._key("groups")))
        return [codec.as_group("", text).group for text in stored]

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """See :meth:`Ledger.drop_letters`."""
        numbers = [number for number in ids if number > 0]
        if not numbers:
            return 0
        keys = [*(self._key(kind, group) for kind in ("letters", "tries")), self._attempt_key()]
        return int(self._asked(f"dropping dead letters of group {group!r}", partial(self._drop, keys, numbers)))

    def failed_again(self, parked: ParkedLetter, error: str) -> bool:
        """See :meth:`Ledger.failed_again`. The letters are a stream, whose entries do not change: tries are beside."""
        keys = [*(self._key(kind, parked.group) for kind in ("letters", "tries")), self._attempt_key()]
        args: list[Text | int] = [parked.id, codec.error_text(error)]
        what = f"noting a failed replay of group {parked.group!r}"
        return bool(self._asked(what, lambda: self._tried(keys, args)))

    # Keys and errors

    def _key(self, kind: str, rest: str | bytes | None = None) -> bytes:
        """A key of the ledger. The group comes last, so that it may contain anything."""
        return self._prefix + kind.encode() + (b"" if rest is None else b":" + _encoded(rest))

    def _journal_key(self, group: str, partition: TopicPartition | None) -> bytes:
        return self._key("journal", f"{field(partition)}:{group}")

    def _attempt_key(self, attempt: str | None = None) -> bytes:
        """A key by which a script knows that it has run before: a client may send it again when the reply is lost."""
        return self._key("attempt", attempt or secrets.token_hex(8))

    @contextmanager
    def _meant(self, lost: type[ConnectionLost | OutcomeUnknown] = ConnectionLost) -> Iterator[None]:
        try:
            with meant(str(self), lost):
                yield
        except Refused:
            # After a failover the connections may lead to the old primary still; new ones are given the new one.
            if isinstance(self._client, redis.Redis):
                self._client.connection_pool.disconnect(inuse_connections=False)
            raise

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
    return {tp: codec.as_position(text) for tp, text in texts.items()}


def _group_state(group: str, state: Text, rows: Text) -> GroupState:
    stored = codec.as_group(group, state)
    return GroupState(stored.group, stored.paused, {row.partition: row for row in codec.as_positions(rows)})
