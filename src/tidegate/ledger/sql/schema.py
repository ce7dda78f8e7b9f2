"""The ledger's tables, and the upgrade steps from one schema version to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
)
from sqlalchemy.schema import CreateColumn
from sqlalchemy.types import TypeEngine

from tidegate.core.records import DEPLOYMENT_BYTES, GROUP_BYTES, TOPIC_LENGTH

__all__ = ["BY_PARTITION", "DEPLOYMENTS_IN_POSITIONS", "STEPS", "SchemaLayout", "Tables", "add_columns", "tables"]

BY_PARTITION = "by_partition"


@dataclass(frozen=True)
class Tables:
    """The tables of one ledger; ``sentinel`` exists only in databases that need it."""

    schema: Table
    groups: Table
    positions: Table
    journal: Table
    dead_letters: Table
    deployments: Table
    history: Table
    changes: Table
    sentinel: Table | None

    @property
    def all(self) -> list[Table]:
        """All tables that exist in this database."""
        parts = (self.schema, self.positions, self.groups, self.journal, self.dead_letters, self.deployments)
        return [*parts, self.history, self.changes, *([] if self.sentinel is None else [self.sentinel])]


@dataclass(frozen=True)
class SchemaLayout:
    """How the table layout of a database differs from the others.

    ``collation`` compares names byte for byte. ``sentinel`` adds the sentinel table and the foreign keys to it.
    Positions have the partition as their primary key or, with ``numbered_positions``, a number as primary key and the
    partition as another unique key. The database numbers the journal's entries. With ``numbered_parts``, where a
    generated number can be the second column of a primary key, that primary key is the journal's only index.
    ``options`` returns SQLAlchemy's options for a table, given its name without the prefix: options of one database
    only, because SQLAlchemy imports the dialect of each database that it is given options for.
    """

    collation: str | None = None
    sentinel: bool = False
    numbered_positions: bool = False
    numbered_parts: bool = False
    time: TypeEngine[Any] = field(default_factory=lambda: DateTime(timezone=True))
    blob: TypeEngine[Any] = field(default_factory=LargeBinary)
    long_text: TypeEngine[Any] = field(default_factory=Text)
    options: Callable[[str], Mapping[str, Any]] = lambda _: {}


def tables(prefix: str, layout: SchemaLayout) -> Tables:
    """Define the tables, whose names begin with ``prefix``."""
    meta = MetaData()
    collation = layout.collation

    def text(length: int) -> String:
        return String(length, collation=collation)

    def table(name: str, *items: Any) -> Table:
        return Table(prefix + name, meta, *items, **layout.options(name))

    time, blob, long_text = layout.time, layout.blob, layout.long_text

    def number(*, key: bool = True) -> Column[int]:
        kind = BigInteger().with_variant(Integer, "sqlite")
        return Column("id", kind, Identity(), primary_key=key, autoincrement=True)

    def partition() -> list[Column[Any]]:
        return [
            Column("consumer_group", text(GROUP_BYTES), nullable=False),
            Column("topic", text(TOPIC_LENGTH), nullable=False),
            Column("partition_id", Integer, nullable=False),
        ]

    position: list[Any] = [
        *partition(),
        Column("next_offset", BigInteger, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("owner", text(255)),
        Column("commit_token", text(64)),
        Column("seq", BigInteger, nullable=False),
        Column("cluster_id", text(255)),
        Column("topic_id", text(255)),
        Column("deployment", text(DEPLOYMENT_BYTES)),
        Column("updated_at", time, nullable=False),
        # The last journal entry while advances extend it, and the records not yet written to the coarse history.
        Column("open_seq", BigInteger),
        Column("open_start", BigInteger),
        Column("open_end", BigInteger),
        Column("open_records", BigInteger),
        Column("open_epoch", BigInteger),
        Column("open_owner", text(255)),
        Column("open_since", time),
        Column("bucket", BigInteger),
        Column("bucket_records", BigInteger),
    ]
    same_partition = ("consumer_group", "topic", "partition_id")
    letter: list[Any] = [
        number(),
        *partition(),
        Column("record_offset", BigInteger, nullable=False),
        Column("record_key", blob),
        Column("record_value", blob),
        Column("record_timestamp", BigInteger),
        Column("headers", long_text, nullable=False),
        Column("error", long_text, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("at", time, nullable=False),
        Index(f"{prefix}dead_letters_by_group", "consumer_group", "id"),
    ]
    if layout.numbered_positions:
        position += [number(), UniqueConstraint(*same_partition, name=BY_PARTITION)]
    else:
        position += [PrimaryKeyConstraint(*same_partition)]
    guard = None
    if layout.sentinel:
        # This table is always empty. An advance, or a letter under replay, points to a row that does not exist, so
        # COMMIT fails; only the ledger removes the reference before it commits.
        guard = table("sentinel", Column("id", SmallInteger, primary_key=True, autoincrement=False))
        for guarded in (position, letter):
            guarded += [
                Column("sentinel", SmallInteger),
                ForeignKeyConstraint(
                    ["sentinel"],
                    [guard.c.id],
                    name=prefix + "only_the_ledger_commits",
                    deferrable=True,
                    initially="DEFERRED",
                ),
            ]
    return Tables(
        schema=table("schema", Column("version", Integer, primary_key=True, autoincrement=False)),
        groups=table(
            "groups",
            Column("consumer_group", text(GROUP_BYTES), primary_key=True),
            Column("paused", Boolean, nullable=False),
            Column("seq", BigInteger, nullable=False),
            Column("updated_at", time, nullable=False),
            Column("pruned_at", time),
        ),
        positions=table("positions", *position),
        # The database numbers the entries, so that they are appended and never inserted between others. Within a
        # partition, numbers have the order of seq, and pruning relies on that: the entries of a partition are written
        # under the lock of its row (those of a group under the lock of the group's row), and a later statement gets
        # higher numbers. They come from a sequence without a cache (PostgreSQL), from InnoDB's counter (MySQL), or
        # follow the highest number in the table (SQLite).
        journal=table(
            "journal",
            number(key=not layout.numbered_parts),
            *partition(),
            Column("seq", BigInteger, nullable=False),
            Column("kind", text(16), nullable=False),
            Column("start_offset", BigInteger, nullable=False),
            Column("end_offset", BigInteger, nullable=False),
            Column("records", BigInteger, nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("owner", text(255)),
            Column("commit_token", text(64)),
            Column("note", long_text),
            Column("at", time, nullable=False),
            Column("since", time),
            PrimaryKeyConstraint("consumer_group", "id")
            if layout.numbered_parts
            else Index(f"{prefix}journal_by_group", "consumer_group", "id"),
        ),
        dead_letters=table("dead_letters", *letter),
        # Every deployment that has ever forced its start in a topic, so that going back to an old one forces nothing.
        deployments=table(
            "deployments",
            Column("consumer_group", text(GROUP_BYTES), primary_key=True),
            Column("topic", text(TOPIC_LENGTH), primary_key=True),
            Column("deployment", text(DEPLOYMENT_BYTES), primary_key=True),
            Column("at", time, nullable=False),
        ),
        # One row per partition and bucket of ten minutes (in seconds since 1970); more only if a clock was set back.
        history=table(
            "history",
            number(),
            *partition(),
            Column("bucket", BigInteger, nullable=False),
            Column("records", BigInteger, nullable=False),
            Index(f"{prefix}history_by_bucket", "consumer_group", "bucket"),
        ),
        # The ids of changes of the last days. After a lost answer, a retry finds out here that the change took effect.
        changes=table(
            "changes",
            Column("id", text(32), primary_key=True),
            Column("at", time, nullable=False),
        ),
        sentinel=guard,
    )


def _positions(new: Tables) -> list[Table]:
    sentinel = [] if new.sentinel is None else [new.sentinel]
    return [new.schema, new.groups, *sentinel, new.positions, new.journal]


def _dead_letters(new: Tables) -> list[Table]:
    return [new.dead_letters]


def _deployments(new: Tables) -> list[Table]:
    return [new.deployments]


def _history_and_changes(new: Tables) -> list[Table]:
    return [new.history, new.changes]


DEPLOYMENTS_IN_POSITIONS = 2
"""The last schema version in which deployments were stored only in the rows of positions, each with its latest one."""

STEPS: tuple[Callable[[Tables], list[Table]], ...] = (_positions, _dead_letters, _deployments, _history_and_changes)
"""Functions that return the tables each schema version added; the number of these steps is the latest version."""


def add_columns(conn: Connection, table: Table) -> None:
    """Add the missing columns to a table of an older version. Safe to call more than once."""
    present = {column["name"] for column in inspect(conn).get_columns(table.name)}
    for column in table.columns:
        if column.name not in present:
            name = conn.dialect.identifier_preparer.format_table(table)
            conn.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {CreateColumn(column).compile(conn)}")
