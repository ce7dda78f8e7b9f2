"""A trial: random records in random cuts through a sink's own code, against the oracle, on the same server."""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from tests.tables.cells import POSTGRES_NEEDS, Cell, Kind
from tests.tables.handlers import sink_handler
from tests.tables.plain import Oracle, Sent
from tests.tables.specs import Spec, random_spec

from tidegate import Record, TidegateError
from tidegate.app.sink import Sink, SinkHandler
from tidegate.core.work import Move, Work
from tidegate.errors import ConfigurationError
from tidegate.ledger import SqlTransaction
from tidegate.tables import Layout
from tidegate.tables.outlet import Outlet

TOPIC = "rule"
WITHOUT = frozenset(os.environ.get("RULE_WITHOUT", "").split(","))
_RUBBISH = (
    b"not JSON",
    b"[]",
    b"null",
    b"",
    b"5",
    b"{}",
    b'{"other": 1}',
    b'{"schema": {}, "payload": {"k": 1, "n": 1}}',
)


class Step(NamedTuple):
    """A record, whether a batch begins with it, and how often that batch is written and rolled back before.

    ``seeds``: the extras of the table are filled before. ``is_given``: it was there before, by somebody's INSERT.
    """

    sent: Sent
    starts: bool = False
    crashes: int = 0
    seeds: bool = False
    is_given: bool = False


@dataclass
class Outcome:
    """What is in the tables, and which records were parked; or why it came to a stop, and in which batch."""

    tables: dict[str, list[Any]] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    stop: tuple[int, int, Exception] | None = None


class Difference(AssertionError):
    """The rule does not hold."""


def open_engine(url: str) -> Engine:
    """With foreign keys and savepoints on SQLite, whose driver begins no transaction for those."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def connected(driver: Any, _: Any) -> None:
            driver.isolation_level = None
            driver.execute("PRAGMA foreign_keys = ON")
            driver.execute("PRAGMA synchronous = OFF")
            driver.execute("PRAGMA journal_mode = WAL")

        @event.listens_for(engine, "begin")
        def begun(conn: Connection) -> None:
            conn.exec_driver_sql("BEGIN")

    if engine.dialect.name == "postgresql":
        with engine.begin() as conn:
            for statement in POSTGRES_NEEDS:
                conn.exec_driver_sql(statement)
    return engine


class Twins:
    """Two tables of one definition: the sink's and the oracle's."""

    def __init__(self, engine: Engine, spec: Spec, alter: Callable[[Layout], Layout] | None = None) -> None:
        """``alter``: what the sink takes the table for, if that is not what it is."""
        self.engine = engine
        self.spec = spec
        token = secrets.token_hex(4)
        self.ours, self.plain = f"r{token}a", f"r{token}b"
        for name in (self.ours, self.plain):
            with engine.begin() as conn:
                for statement in spec.definition(name):
                    conn.exec_driver_sql(statement if spec.database == "sqlite" else statement.replace("%", "%%"))
        self.sink = sink_handler(Sink(spec.table(self.ours)), engine)
        if alter is not None:
            assert isinstance(self.sink._outlet, Outlet)
            target = self.sink._outlet.target
            target._layout, target._reader = alter(target.layout), None

    def compare(self, steps: Sequence[Step], expected: Outcome | None = None) -> None:
        """Raise :class:`Difference` if the sink leaves anything else than the oracle."""
        expected = expected or self.expected(steps)
        found = self.found(steps)
        if found.stop is not None:
            start, end, error = found.stop
            if self.spec.has_unnamed_errors and (expected.parked | expected.doubtful).issuperset(range(start, end)):
                return  # a batch of which nothing passes: the rule says to stop
            raise Difference(f"records {start} to {end - 1} stopped it: {type(error).__name__}: {error}") from error
        if why := difference(found, expected):
            raise Difference(why)

    def committed(self, parked: set[int]) -> Outcome:
        """What others have left in the sink's table."""
        with self.engine.connect() as conn:
            return Outcome(self._tables(conn, self.ours), parked)

    def expected(self, steps: Sequence[Step]) -> Outcome:
        with self._transaction() as conn:
            self._check(conn, "IMMEDIATE")  # plain statements are transactions of their own
            oracle, parked, doubtful = Oracle(conn, self.spec, self.plain), set[int](), set[int]()
            for place, step in enumerate(steps):
                if step.seeds:
                    self._seed(conn, self.plain)
                if step.is_given:
                    self._give(conn, self.plain, step)
                    continue
                match oracle.parks(step.sent):
                    case True:
                        parked.add(place)
                    case None:
                        doubtful.add(place)
            return Outcome(self._tables(conn, self.plain), parked, doubtful)

    def found(self, steps: Sequence[Step]) -> Outcome:
        records = [self.record(place, step.sent) for place, step in enumerate(steps)]
        first = sum(step.is_given for step in steps)
        starts = [place for place in range(first, len(steps)) if _begins(steps, place)]
        parked: set[int] = set()
        with self._transaction() as conn:
            self._check(conn, "IMMEDIATE")
            for step in steps[:first]:
                self._give(conn, self.ours, step)
            self._check(conn, "DEFERRED")  # as a transaction of the ledger begins
            for start, end in pairwise([*starts, len(records)]):
                if steps[start].seeds:
                    self._seed(conn, self.ours)
                try:
                    for _ in range(steps[start].crashes):
                        savepoint = conn.begin_nested()
                        write(self.sink, conn, records[start:end])
                        savepoint.rollback()
                    parked |= write(self.sink, conn, records[start:end])
                except (DBAPIError, TidegateError) as error:
                    return Outcome(stop=(start, end, error))
            return Outcome(self._tables(conn, self.ours), parked)

    def _check(self, conn: Connection, when: str) -> None:
        if self.spec.database == "postgres":
            conn.exec_driver_sql(f"SET CONSTRAINTS ALL {when}")

    def _give(self, conn: Connection, name: str, step: Step) -> None:
        Oracle(conn, replace(self.spec, mode="append"), name).parks(step.sent)

    def record(self, offset: int, sent: Sent) -> Record:
        if sent.rubbish is not None:
            return Record(TOPIC, 0, offset, b"1", sent.rubbish, (), 0)
        whole = _object(sent)
        if sent.is_tombstone:
            (first,) = list(sent.cells.values())[:1]
            key = first.json if sent.bare and first is not None else whole
            return Record(TOPIC, 0, offset, key.encode("utf-8", "surrogatepass"), None, (), 0)
        return Record(TOPIC, 0, offset, None, whole.encode("utf-8", "surrogatepass"), (), 0)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self.engine.connect() as conn, conn.begin() as transaction:
            yield conn
            transaction.rollback()

    def _seed(self, conn: Connection, name: str) -> None:
        for extra in self.spec.parts:
            for statement in extra.seed:
                conn.exec_driver_sql(statement.replace("{t}", name))

    def _tables(self, conn: Connection, name: str) -> dict[str, list[Any]]:
        spec = self.spec
        extra = [
            word for each in spec.parts for column in each.columns if (word := column.split()[0]) in ("s", "g", "v")
        ]
        columns = ", ".join([spec.quote(each.name) for each in spec.fields] + extra)
        columns = columns if spec.database == "sqlite" else columns.replace("%", "%%")
        rows = [tuple(row) for row in conn.exec_driver_sql(f"SELECT {columns} FROM {name}")]
        for word in extra:
            at = len(spec.fields) + extra.index(word)
            if word == "v":
                rows = [(*row[:at], row[at] is None, *row[at + 1 :]) for row in rows]
            elif word == "s":
                ranks = {value: rank for rank, value in enumerate(sorted(row[at] for row in rows))}
                rows = [(*row[:at], ranks[row[at]], *row[at + 1 :]) for row in rows]
        found = {"": sorted(map(repr, rows))}
        for each in spec.parts:
            for ending, what in each.tables.items():
                order = " ORDER BY id" if ending == "_audit" else ""
                read = [repr(tuple(row)) for row in conn.exec_driver_sql(f"SELECT {what} FROM {name}{ending}{order}")]
                found[ending] = read if order else sorted(read)
        return found


def write(sink: SinkHandler, conn: Connection, records: list[Record]) -> set[int]:
    """A batch, as a listener writes it; the offsets of the records that were parked."""
    prepared = sink.prepare(records)
    tx = SqlTransaction(Work("rule", (), "token", Move.ADVANCE, None), conn)
    handled = prepared.run(tx)
    return {letter.record.offset for letter in handled.parked}


def difference(found: Outcome, expected: Outcome) -> str | None:
    if found.parked - expected.doubtful != expected.parked:
        return f"parked {sorted(found.parked)}, expected {sorted(expected.parked)}"
    if found.tables != expected.tables:
        return f"stored\n  {found.tables}\nexpected\n  {expected.tables}"
    return None


def told_difference(twins: Twins, steps: Sequence[Step], found: Outcome, expected: Outcome) -> str | None:
    why = difference(found, expected)
    return why and told(twins, steps, Difference(why))


def _begins(steps: Sequence[Step], place: int) -> bool:
    step = steps[place]
    return step.starts or step.seeds or place == 0 or steps[place - 1].is_given


def _object(sent: Sent) -> str:
    fields = [
        f"{json.dumps(sent.names.get(name, name))}: {'null' if cell is None else cell.json}"
        for name, cell in sent.cells.items()
    ]
    return "{" + ", ".join([*fields, *([sent.extra] if sent.extra else [])]) + "}"


class Generator:
    """Random records for a table."""

    def __init__(self, rng: random.Random, spec: Spec) -> None:
        self._rng = rng
        self._spec = spec

    def steps(self, most: int = 9) -> list[Step]:
        rng, spec = self._rng, self._spec
        pools = {each.name: self._pool(each.kind, each.name in spec.key) for each in spec.fields}
        if "r" in pools:
            pools["r"] = pools["k"]
        count = rng.randrange(1, most + 1)
        seeds_at = rng.randrange(count) if any(each.seed for each in spec.parts) else None
        given = rng.randrange(1, 5) if spec.mode == "update" or rng.random() < 0.4 else 0
        there = [Step(self._sent(pools), is_given=True) for _ in range(given)]
        there = [step for step in there if not step.sent.is_tombstone]
        return there + [Step(self._sent(pools), seeds=place == seeds_at) for place in range(count)]

    def cut(self, steps: Sequence[Step], chance: float) -> list[Step]:
        """In other batches, some of them written twice."""
        rng = self._rng
        return [
            step
            if step.is_given
            else step._replace(starts=rng.random() < chance, crashes=rng.randrange(1, 3) if rng.random() < 0.1 else 0)
            for step in steps
        ]

    def _pool(self, kind: Kind, in_key: bool) -> list[Cell]:
        rng = self._rng
        cells = [each for each in kind.cells if "conversions" not in WITHOUT or not each.is_converted]
        cells = cells or list(kind.cells)
        return rng.sample(cells, min(len(cells), rng.randrange(2, 5) if in_key else 4))

    def _sent(self, pools: dict[str, list[Cell]]) -> Sent:
        rng, spec = self._rng, self._spec
        if "rubbish" not in WITHOUT and rng.random() < 0.03:
            return Sent(rubbish=rng.choice(_RUBBISH))
        if rng.random() < (0.2 if spec.on_tombstone == "delete" else 0.02):
            cells: dict[str, Cell | None] = {name: self._cell(name, pools) for name in spec.key}
            if any(cell is not None and "\\ud800" in cell.json for cell in cells.values()):
                return self._sent(pools)  # such a key is not JSON: whether it is a text that looks like it, who knows
            (first,) = list(cells.values())[:1]
            bare = len(cells) == 1 and first is not None and _is_bare(first) and rng.random() < 0.5
            return Sent(cells, is_tombstone=True, bare=bare)
        cells = {}
        for each in spec.fields:
            lacks = "lacks" not in WITHOUT and rng.random() < (0.02 if each.name in spec.key else 0.2)
            if not lacks:
                cells[each.name] = self._cell(each.name, pools)
        if not cells:
            return Sent(rubbish=b"{}")
        names = {
            name: name.swapcase()
            for name in cells
            if "names" not in WITHOUT and name.isascii() and rng.random() < 0.02 and name.swapcase() not in spec.by_name
        }
        return Sent(cells, names, extra='"unknown field": 1' if rng.random() < 0.1 else "")

    def _cell(self, name: str, pools: dict[str, list[Cell]]) -> Cell | None:
        rng, kind = self._rng, self._spec.by_name[name].kind
        in_key = name in self._spec.key
        if "nulls" not in WITHOUT and rng.random() < (0.01 if in_key else 0.08):
            return None
        if kind.bad and "bad" not in WITHOUT and rng.random() < 0.04:
            return rng.choice(kind.bad)
        return rng.choice(pools[name])


def _is_bare(cell: Cell) -> bool:
    return (isinstance(cell.bound, str) and cell.json[:1] == '"') or cell.json.isdigit()


def shrunk(twins: Twins, steps: Sequence[Step]) -> tuple[list[Step], Difference]:
    """The fewest records, fields and batches that still break the rule."""
    failing, why = list(steps), _difference(twins, steps)
    assert why is not None
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(failing):
            found = _difference(twins, candidate)
            if found is not None:
                failing, why, smaller = candidate, found, True
                break
    return failing, why


def _smaller(steps: Sequence[Step]) -> Iterator[list[Step]]:
    if len(steps) > 1:
        for place in range(len(steps)):
            yield [*steps[:place], *steps[place + 1 :]]
    for place, step in enumerate(steps):
        for other in (step._replace(crashes=0), step._replace(starts=False), step._replace(seeds=False)):
            if other != step:
                yield [*steps[:place], other, *steps[place + 1 :]]
        for name in step.sent.cells:
            if step.sent.is_tombstone or len(step.sent.cells) == 1 or "lacks" in WITHOUT:
                continue
            cells = {other: cell for other, cell in step.sent.cells.items() if other != name}
            yield [*steps[:place], step._replace(sent=step.sent._replace(cells=cells)), *steps[place + 1 :]]


def _difference(twins: Twins, steps: Sequence[Step]) -> Difference | None:
    try:
        twins.compare(steps)
    except Difference as error:
        return error
    return None


def told(twins: Twins, steps: Sequence[Step], why: Difference) -> str:
    lines = [f"{twins.spec}", ""]
    for place, step in enumerate(steps):
        record = twins.record(place, step.sent)
        if step.is_given:
            lines.append("  given:")
        elif _begins(steps, place):
            lines.append(f"  batch{' (rolled back first)' * bool(step.crashes)}{' (seeded)' * step.seeds}:")
        lines.append(f"    key {record.key!r} value {record.value!r}")
    return "\n".join([*lines, str(why)])


@dataclass
class Search:
    """Many trials on one database, by a seed."""

    engine: Engine
    database: str
    seed: str = "0"
    alter: Callable[[Layout], Layout] | None = None
    chances: Sequence[float] = (0.0, 0.4, 1.0)
    shrinks: bool = True
    refused: int = 0
    cases: int = 0

    def run(self, tables: int, sequences: int) -> list[str]:
        """What was found: for each table at most one story."""
        return [story for number in range(tables) for story in self.table(number, sequences)]

    def table(self, number: int, sequences: int, spec: Spec | None = None) -> list[str]:
        rng = random.Random(f"{self.database} {self.seed} {number}")
        spec = spec or random_spec(rng, self.database)
        try:
            twins = Twins(self.engine, spec, self.alter)
        except ConfigurationError as error:
            self.refused += 1
            if not may_be_refused(spec):
                return [f"seed {self.seed}, table {number}: {spec}\nrefused: {error}"]
            return []
        generator = Generator(rng, spec)
        for _ in range(sequences):
            steps = generator.steps()
            expected = twins.expected(steps)
            for chance in self.chances:
                cut = generator.cut(steps, chance)
                self.cases += 1
                try:
                    twins.compare(cut, expected)
                except Difference as found:
                    fewest, why = shrunk(twins, cut) if self.shrinks else (cut, found)
                    return [f"seed {self.seed}, table {number}: {told(twins, fewest, why)}"]
        return []


def may_be_refused(spec: Spec) -> bool:
    """What the docs refuse: on MySQL and MariaDB a second unique index, if clashes on it would update another row."""
    return spec.database in ("mysql", "mariadb") and spec.has_second_key and spec.mode != "append"


def database_of(url: str) -> str:
    """Which of the four it is: MySQL and MariaDB have the same addresses."""
    if not url.startswith("mysql"):
        return "sqlite" if url.startswith("sqlite") else "postgres"
    engine = create_engine(url)
    try:
        with engine.connect() as conn:
            return "mariadb" if "MariaDB" in str(conn.exec_driver_sql("SELECT VERSION()").scalar()) else "mysql"
    finally:
        engine.dispose()


__all__ = [
    "Difference",
    "Generator",
    "Search",
    "Step",
    "Twins",
    "database_of",
    "open_engine",
    "told",
    "told_difference",
    "write",
]
