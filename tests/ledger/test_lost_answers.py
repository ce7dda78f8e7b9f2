"""Every operation that changes something, with its connection broken under each of its requests in turn: before the
store is given the request, and after it has answered. Others act in between: they claim, advance, edit, drop and prune.

Each operation takes effect once, and what it returns is true. A server has a proxy before it. SQLite, DuckDB and the
memory ledger have no network: there the COMMIT fails, with the work done or undone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine, text

from tidegate import Fenced, Ledger, Limits, Record, TidegateError
from tidegate.core.journal import Entry, Kind
from tidegate.core.work import Claim
from tidegate.errors import LedgerUnavailable, NotCommitted
from tidegate.ledger import FailedRecord, Outcome, StoredLetter
from tidegate.ledger.memory import MemoryLedger
from tidegate.ledger.open import open_ledger
from tidegate.ledger.sql import schema
from tidegate.ledger.sql.ledger import SqlLedger
from tidegate.ledger.transaction import ConnectionLost, OutcomeUnknown
from tidegate.operate import Operator, target

from .cutting import BreakingConnection, BreakingDuckdbLedger, BreakingMemoryLedger, Cut, Moment, Wire
from .samples import FIRST, SECOND, offsets, span
from .stores import DuckdbStore, MemoryStore, RedisStore, Row, SqlStore, fresh_name

LIMITS = Limits(hold=5.0, lock_wait=10.0)
_numbers = itertools.count()


@dataclass
class Place:
    """A store: ``near`` is a ledger beside it, and ``far`` one whose line to it can be cut."""

    store: Any
    near: Ledger[Any]
    far: Ledger[Any]
    line: Any
    is_like_another: bool = False


@contextmanager
def behind_a_wire(name: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A server, with a proxy before it."""
    server = request.getfixturevalue({"redis": "redis_server"}.get(name, name))
    if name == "redis":
        store: Any = RedisStore(server.url)
        url = server.url
    else:
        store = SqlStore((request.getfixturevalue("postgres") if name == "pgbouncer" else server).url)
        url = store.runtime_url
    store.ledger.create()
    wire = Wire(server.host, server.port)
    store.far_url = wire.url(url)
    with open_ledger(store.far_url, prefix=store.prefix, limits=LIMITS) as far:
        yield Place(store, store.ledger, far, wire, is_like_another=name == "pgbouncer")
    wire.close()
    store.close()


@contextmanager
def in_a_file(folder: Path) -> Iterator[Place]:
    """SQLite."""
    store = SqlStore(f"sqlite:///{folder / 'ledger.db'}")
    store.ledger.create()
    line = SimpleNamespace(cut=None)
    breaking = type("Breaking", (BreakingConnection,), {"line": line})
    engine = create_engine(store.url, connect_args={"factory": breaking})
    yield Place(store, store.ledger, open_ledger(engine, prefix=store.prefix, limits=LIMITS), line)
    engine.dispose()
    store.close()


@contextmanager
def in_a_duckdb_file(folder: Path) -> Iterator[Place]:
    """DuckDB, in this process."""
    store = DuckdbStore(folder / "ledger.duckdb")
    store.ledger.create()
    far = BreakingDuckdbLedger(store.path, prefix=store.prefix, limits=LIMITS)
    yield Place(store, store.ledger, far, far)
    far.close()
    store.close()


@contextmanager
def in_memory() -> Iterator[Place]:
    """The reference."""
    store = MemoryStore()
    far = BreakingMemoryLedger(LIMITS)
    far.__dict__.update({k: v for k, v in vars(store.ledger).items() if k != "limits"})
    yield Place(store, store.ledger, far, far)
    store.close()


@pytest.fixture(
    scope="module", params=["memory", "sqlite", "duckdb", "mariadb", "mysql", "postgres", "pgbouncer", "redis"]
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Every store."""
    match request.param:
        case "memory":
            opened = in_memory()
        case "sqlite":
            opened = in_a_file(tmp_path_factory.mktemp("lost"))
        case "duckdb":
            opened = in_a_duckdb_file(tmp_path_factory.mktemp("lost"))
        case server:
            opened = behind_a_wire(server, request)
    with opened as made:
        yield made


@pytest.fixture(scope="module", params=["mariadb", "mysql", "postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Every store that is a server."""
    with behind_a_wire(request.param, request) as made:
        yield made


@dataclass
class Case:
    """One run of one operation, on a group of its own."""

    place: Place
    group: str = field(default_factory=lambda: f"group-{next(_numbers)}")
    others: list[Any] = field(default_factory=list)
    """What came of what the others did."""

    @property
    def near(self) -> Ledger[Any]:
        return self.place.near

    @property
    def far(self) -> Ledger[Any]:
        return self.place.far

    def claimed(self, *, at: int = 0, by: Ledger[Any] | None = None) -> dict[Any, Claim]:
        """A claim of the first partition."""
        claims = (by or self.near).claim(self.group, [FIRST], at)
        self.others.append(claims)
        return claims

    def another_takes_over(self, records: int = 30) -> None:
        claims = self.claimed()
        start = claims[FIRST].position
        self.near.transact(claims, [span(start, start + records)])

    def parked(self, count: int = 1) -> list[StoredLetter]:
        def park(tx: Any) -> None:
            for number in range(count):
                tx.park(FailedRecord(Record(*FIRST, number), "no"))

        self.near.transact(self.claimed(), [span(0, count)], park)
        return self.near.dead_letters(self.group)

    def entries(self, *kinds: Kind) -> list[Entry]:
        return [entry for entry in self.near.journal(self.group) if entry.kind in kinds]

    def written(self) -> int:
        return sum(row.payload == self.group for row in self.place.store.rows())

    @property
    def position(self) -> int:
        return offsets(self.near, self.group)[FIRST]


Act = Callable[[], Any]
Check = Callable[[Any], object]
Operation = Callable[[Case], tuple[Act, Act, Check]]
"""Given a case: the operation, what others do meanwhile, and what has to hold for what the operation returned."""


def claim(case: Case) -> tuple[Act, Act, Check]:
    case.claimed(at=100)

    def check(claims: dict[Any, Claim]) -> None:
        mine = [entry for entry in case.entries(Kind.CLAIM) if entry.owner == claims[FIRST].owner]
        assert [(entry.epoch, entry.end) for entry in mine] == [(claims[FIRST].epoch, claims[FIRST].position)]
        assert len(case.entries(Kind.CLAIM)) == len(case.others) + 1

    return lambda: case.far.claim(case.group, [FIRST]), case.another_takes_over, check


def claim_of_a_new_topic(case: Case) -> tuple[Act, Act, Check]:
    def check(claims: dict[Any, Claim]) -> None:
        assert set(claims) == {FIRST, SECOND}
        assert len(case.entries(Kind.START)) == 2
        assert sum(entry.owner == claims[SECOND].owner for entry in case.entries(Kind.CLAIM)) == 2

    def act() -> Any:
        return case.far.claim(case.group, [FIRST, SECOND], lambda tps: dict.fromkeys(tps, 7), deployment="v1")

    return act, lambda: case.claimed(at=3), check


def reclaim(case: Case) -> tuple[Act, Act, Check]:
    claims = case.claimed()
    case.near.edit(case.group, {FIRST: 50})

    def check(reclaimed: Any) -> None:
        assert reclaimed.owners == {}
        assert case.near.read(case.group).positions[FIRST].claim(case.group) == reclaimed.claims[FIRST]
        assert len(case.entries(Kind.CLAIM)) == 2

    return lambda: case.far.reclaim(claims), lambda: None, check


def reclaim_among_others(case: Case) -> tuple[Act, Act, Check]:
    claims = case.claimed()
    case.near.edit(case.group, {FIRST: 50})

    def check(reclaimed: Any) -> None:
        owners = [entry.owner for entry in case.entries(Kind.CLAIM)][1:]
        others = [claims[FIRST].owner for claims in case.others[1:]]
        if FIRST in reclaimed.claims:
            assert owners == [reclaimed.claims[FIRST].owner, *others]
            assert not reclaimed.owners
        else:
            assert owners == others == [reclaimed.owners[FIRST]]

    return lambda: case.far.reclaim(claims), case.another_takes_over, check


def release(case: Case) -> tuple[Act, Act, Check]:
    claims = case.claimed()

    def check(released: set[Any]) -> None:
        assert [entry.owner for entry in case.entries(Kind.RELEASE)] == [claims[tp].owner for tp in released]
        last = case.others[-1][FIRST]
        assert case.near.read(case.group).positions[FIRST].owner == (None if last is claims[FIRST] else last.owner)

    return lambda: case.far.release(claims), case.another_takes_over, check


def edit(case: Case) -> tuple[Act, Act, Check]:
    case.claimed(at=100)

    def check(edited: Any) -> None:
        (entry,) = case.entries(Kind.EDIT)
        assert (edited[FIRST].next_offset, edited[FIRST].epoch) == (entry.end, entry.epoch) == (150, entry.epoch)
        ahead = [claims for claims in case.others[1:] if claims[FIRST].position == 150]
        assert case.position == (180 if ahead else 150)

    return lambda: case.far.edit(case.group, {FIRST: 150}), case.another_takes_over, check


def skip_by_an_operator(case: Case) -> tuple[Act, Act, Check]:
    case.claimed(at=100)
    operator = Operator(case.far, None)
    preview = operator.skip(case.group, FIRST.topic, target("150"), force=True)

    def check(done: Any) -> None:
        (entry,) = case.entries(Kind.EDIT)
        (shift,) = done.shifts
        assert (shift.old, shift.new) == (entry.start, entry.end)
        assert case.position == (180 if case.others[-1][FIRST].position == 150 else 150)

    return lambda: operator.execute(preview, user="ann"), case.another_takes_over, check


def pause(case: Case) -> tuple[Act, Act, Check]:
    case.claimed()

    def meanwhile() -> None:
        if case.near.read(case.group).paused:
            case.others.append(case.near.resume(case.group, note="another"))
        else:
            case.near.pause(case.group, note="another")

    def check(changed: bool) -> None:
        mine = [entry for entry in case.entries(Kind.PAUSE) if entry.note == "mine"]
        assert len(mine) == changed
        assert case.near.read(case.group).paused is (len(case.others) == 1)

    return lambda: case.far.pause(case.group, note="mine"), meanwhile, check


def resume(case: Case) -> tuple[Act, Act, Check]:
    case.claimed()
    case.near.pause(case.group)

    def meanwhile() -> None:
        if case.near.read(case.group).paused:
            case.near.resume(case.group, note="another")
        else:
            case.others.append(case.near.pause(case.group, note="another"))

    def check(changed: bool) -> None:
        mine = [entry for entry in case.entries(Kind.RESUME) if entry.note == "mine"]
        assert len(mine) == changed
        assert case.near.read(case.group).paused is (len(case.others) == 2)

    return lambda: case.far.resume(case.group, note="mine"), meanwhile, check


def _replay(case: Case) -> tuple[StoredLetter, Act]:
    (parked,) = case.parked()
    row = Row(*FIRST, 0, case.group)
    return parked, lambda: case.far.replay(parked, lambda tx: case.place.store.write(tx, row))


def replay(case: Case) -> tuple[Act, Act, Check]:
    _, act = _replay(case)

    def check(result: Any) -> None:
        assert result.outcome is Outcome.COMMITTED
        assert case.written() == 1
        assert case.near.dead_letters(case.group) == []

    return act, lambda: None, check


def replay_while_another_drops(case: Case) -> tuple[Act, Act, Check]:
    parked, act = _replay(case)

    def check(result: Any) -> None:
        assert (result.outcome is Outcome.COMMITTED) is (case.written() == 1)
        assert case.near.dead_letters(case.group) == []

    return act, lambda: case.near.drop_letters(case.group, [parked.id]), check


def drop(case: Case) -> tuple[Act, Act, Check]:
    first, second, _ = (parked.id for parked in case.parked(3))

    def check(dropped: int) -> None:
        assert dropped + sum(case.others[1:]) == 2
        assert len(case.near.dead_letters(case.group)) == 1

    def meanwhile() -> None:
        case.others.append(case.near.drop_letters(case.group, [second]))

    return lambda: case.far.drop_letters(case.group, [first, second]), meanwhile, check


def failed_again(case: Case) -> tuple[Act, Act, Check]:
    (parked,) = case.parked()

    def meanwhile() -> None:
        (now,) = case.near.dead_letters(case.group)
        case.others.append(now.letter.attempts)
        case.near.failed_again(parked, "another")

    def check(is_there: bool) -> None:
        assert is_there
        (now,) = case.near.dead_letters(case.group)
        others = len(case.others) - 1
        landed = others and case.others[-1] > parked.letter.attempts
        assert now.letter.attempts == parked.letter.attempts + 1 + others
        assert now.letter.error == ("another" if landed else "mine")

    return lambda: case.far.failed_again(parked, "mine"), meanwhile, check


def prune(case: Case) -> tuple[Act, Act, Check]:
    for start in range(3):
        case.near.transact(case.claimed(), [span(start, start + 1)])
    case.others.clear()
    before = len(list(case.near.journal(case.group)))

    def check(pruned: int) -> None:
        assert pruned + sum(case.others) == before - len(list(case.near.journal(case.group))) > 0

    def meanwhile() -> None:
        case.others.append(case.near.prune(timedelta(0), case.group))

    return lambda: case.far.prune(timedelta(0), case.group), meanwhile, check


def begin_pruning(case: Case) -> tuple[Act, Act, Check]:
    case.claimed()
    case.others.clear()
    hour = timedelta(hours=1)

    def meanwhile() -> None:
        case.others.append(case.near.begin_pruning(case.group, hour))

    def check(begins: bool) -> None:
        assert begins + sum(case.others) == 1, "one of them prunes, and the others leave it to that one"
        assert not case.near.begin_pruning(case.group, hour)

    return lambda: case.far.begin_pruning(case.group, hour), meanwhile, check


def _advance_and_park(case: Case, tx: Any) -> None:
    case.place.store.write(tx, Row(*FIRST, 0, case.group))
    tx.park(FailedRecord(Record(*FIRST, 1), "no"))


def _effects(case: Case) -> int:
    """How often the work was done: by its row, its letter and its advance."""
    advances = [entry for entry in case.entries(Kind.ADVANCE) if (entry.partition, entry.start) == (FIRST, 0)]
    letters = case.near.dead_letters(case.group)
    assert case.written() == len(letters) == sum(entry.end == 10 for entry in advances)
    return len(letters)


def transact(case: Case) -> tuple[Act, Act, Check]:
    claims = case.claimed()

    def check(result: Any) -> None:
        assert (result.outcome, result.spans) == (Outcome.COMMITTED, (span(0, 10),))
        assert _effects(case) == 1

    def meanwhile() -> None:
        case.near.transact(case.near.claim(case.group, [SECOND]), [span(0, 1, SECOND)])
        case.near.pause(case.group)

    return lambda: case.far.transact(claims, [span(0, 10)], partial(_advance_and_park, case)), meanwhile, check


def transact_while_another_takes_over(case: Case) -> tuple[Act, Act, Check]:
    claims = case.claimed()

    def act() -> str:
        try:
            return case.far.transact(claims, [span(0, 10)], partial(_advance_and_park, case)).outcome.value
        except Fenced as error:
            return str(error)

    def check(told: str) -> None:
        starts = [heirs[FIRST].position for heirs in case.others[1:]]
        assert _effects(case) == (starts != [0])
        if "Nothing was written" in told:
            assert starts == [0]
        elif told != Outcome.COMMITTED.value:
            assert "it is not known whether this was committed" in told

    return act, case.another_takes_over, check


def a_block(case: Case) -> tuple[Act, Act, Check]:
    claims = case.claimed()

    def act() -> bool:
        try:
            with case.far.transaction(claims, [span(0, 10)]) as tx:
                _advance_and_park(case, tx)
        except NotCommitted:
            return False
        return True

    def check(is_done: bool) -> None:
        assert _effects(case) == is_done

    return act, lambda: case.near.pause(case.group), check


OPERATIONS: list[Operation] = [
    claim,
    claim_of_a_new_topic,
    reclaim,
    reclaim_among_others,
    release,
    edit,
    skip_by_an_operator,
    pause,
    resume,
    replay,
    replay_while_another_drops,
    drop,
    failed_again,
    prune,
    begin_pruning,
    transact,
    transact_while_another_takes_over,
    a_block,
]
FEW = {claim, edit, pause, replay}
"""One of each kind: several rows, one row, a group, and a handler's data."""


def broken_everywhere(
    place: Place, operation: Operation, moment: Moment, *, far: Ledger[Any] | None = None, for_good: bool = False
) -> Iterator[tuple[Case, Callable[[], Any], Check]]:
    """A run of the operation for each of its requests, which breaks the connection, and one that is left alone."""
    place = place if far is None else replace(place, far=far)
    for request in itertools.count(1):
        case = Case(place)
        act, meanwhile, check = operation(case)
        if request == 1 or for_good:  # or else the attempt after the break has left a connection
            place.far.pause("warm-up")
        alone = for_good or moment is Moment.LATE
        place.line.cut = cut = Cut(request, moment, (lambda: None) if alone else meanwhile, for_good)
        try:
            yield case, act, check
        finally:
            place.line.cut = None
        assert cut.error is None, f"request {request}: {cut.error!r}"
        verified = place.near.verify(case.group)
        assert verified.ok, f"request {request}: {verified.breaks}"
        if not cut.fired:
            assert request > 1
            return


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_an_operation_takes_effect_once_and_tells_the_truth_wherever_its_connection_breaks(
    place: Place, operation: Operation, moment: Moment
) -> None:
    if place.is_like_another and operation not in FEW:
        pytest.skip("behind PgBouncer it is PostgreSQL still")
    for _, act, check in broken_everywhere(place, operation, moment):
        check(act())


@pytest.mark.parametrize("operation", [edit, replay], ids=lambda operation: operation.__name__)
def test_a_request_that_arrives_when_nobody_waits_for_it_any_more_changes_nothing_twice(
    server: Place, operation: Operation
) -> None:
    for _, act, check in broken_everywhere(server, operation, Moment.LATE):
        check(act())


def test_on_an_engine_of_the_users_it_is_the_same(server: Place) -> None:
    """There the connection is given its settings back after COMMIT, and a break under that is no failure."""
    if isinstance(server.store, RedisStore):
        pytest.skip("Redis has no engine")
    engine = create_engine(server.store.far_url)
    far = open_ledger(engine, prefix=server.store.prefix, limits=LIMITS)
    for _, act, check in broken_everywhere(server, edit, Moment.AFTER, far=far):
        check(act())
    for case, _, _ in broken_everywhere(server, claim, Moment.AFTER, far=far):
        claims = case.far.claim(case.group, [SECOND])
        row = Row(*SECOND, 0, case.group)
        result = case.far.transact(claims, [span(0, 1, SECOND)], lambda tx, row=row: server.store.write(tx, row))
        assert (result.outcome, case.written()) == (Outcome.COMMITTED, 1)
    engine.dispose()


@pytest.mark.parametrize("operation", [edit, replay, prune], ids=lambda operation: operation.__name__)
def test_an_operation_that_gives_up_says_that_nothing_was_done_only_if_that_is_so(
    server: Place, operation: Operation
) -> None:
    impatient = Limits(hold=5.0, lock_wait=10.0, attempts=2)
    said: set[str] = set()
    with open_ledger(server.store.far_url, prefix=server.store.prefix, limits=impatient) as far:
        for case, act, _ in broken_everywhere(server, operation, Moment.AFTER, far=far, for_good=True):
            before = state(case)
            try:
                act()
            except TidegateError as error:
                told = str(error)
            else:
                told = "done"
            server.line.mend()
            if pruned := re.match(r"(\d+) journal entries were pruned", told):
                assert len(list(case.near.journal(case.group))) == len(before[0]) - int(pruned[1]), told
            elif "nothing was written" in told:
                assert state(case) == before, told
                said.add("not done")
            elif "it is not known whether this was done" in told:
                said.add("not known")
            else:
                said.add(told)
    assert {"done", "not known"} <= said <= {"done", "not done", "not known"}


def test_an_attempt_that_finds_out_that_the_one_before_was_not_carried_out_says_so() -> None:
    class Unlucky(MemoryLedger):
        troubles: ClassVar = [OutcomeUnknown("no answer"), ConnectionLost("gone"), ConnectionLost("gone")]

        def _store(self, *_: Any) -> None:
            raise self.troubles.pop(0)

    ledger = Unlucky(Limits(attempts=2))
    with pytest.raises(LedgerUnavailable, match="nothing was written"):
        ledger.edit("billing", {FIRST: 7})
    ledger.troubles[:] = [ConnectionLost("gone"), OutcomeUnknown("no answer")]
    with pytest.raises(LedgerUnavailable, match="it is not known whether this was done"):
        ledger.edit("billing", {FIRST: 7})


def state(case: Case) -> tuple[list[Entry], Any, Any, int]:
    """All that an operation may change."""
    entries = list(case.near.journal(case.group))
    return entries, case.near.read(case.group), case.near.dead_letters(case.group), case.written()


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.chaos), 8])
def test_tables_are_made_once_and_whole_wherever_the_connection_breaks(
    server: Place, stride: int, moment: Moment
) -> None:
    through = server.line.url(server.store.url)
    begin = 1 if stride == 1 or moment is Moment.BEFORE else 1 + stride // 2
    for request in itertools.count(begin, stride):
        prefix = f"{{{fresh_name()}}}:" if isinstance(server.store, RedisStore) else fresh_name()
        with open_ledger(server.store.url, prefix=prefix) as near, open_ledger(through, prefix=prefix) as far:
            server.line.cut = cut = Cut(request, moment, near.create)
            try:
                far.create()
            except LedgerUnavailable as error:
                assert "cannot open the ledger" in str(error)
                far.create()
            finally:
                server.line.cut = None
            assert cut.error is None, f"request {request}: {cut.error!r}"
            claims = far.claim("billing", [FIRST])
            assert near.transact(claims, [span(0, 1)]).outcome is Outcome.COMMITTED
            if isinstance(near, SqlLedger):
                with near.engine.connect() as conn:
                    versions = (
                        conn.execute(text(f"SELECT version FROM {prefix}schema ORDER BY version")).scalars().all()
                    )
                assert versions == list(range(1, len(schema.STEPS) + 1))
        if not cut.fired:
            return


@pytest.mark.parametrize("name", ["sqlite", "mariadb", "mysql", "postgres"])
def test_what_nobody_can_be_trying_any_more_is_forgotten(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if name == "sqlite" else request.getfixturevalue(name).url
    prefix = fresh_name()
    with open_ledger(url, prefix=prefix) as first:
        assert isinstance(first, SqlLedger)
        first.claim("billing", [FIRST])
        days_ago = "datetime('now', '-4 days')" if name == "sqlite" else "CURRENT_TIMESTAMP - INTERVAL '4' DAY"
        with first.engine.begin() as conn:
            conn.execute(text(f"INSERT INTO {prefix}changes (id, at) VALUES ('old', {days_ago})"))
        with open_ledger(url, prefix=prefix) as second:
            second.pause("billing")
        with first.engine.connect() as conn:
            kept = conn.execute(text(f"SELECT id FROM {prefix}changes")).scalars().all()
    assert len(kept) == 2, "the claim and the pause"
    assert "old" not in kept
