"""The ledger's tables, and the steps by which one version of them becomes the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
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
)
from sqlalchemy.dialects import mysql

from tidegate.core.errors import ConfigurationError
from tidegate.core.names import DEPLOYMENT_BYTES, GROUP_BYTES, TOPIC_LENGTH

__all__ = ["BY_PARTITION", "DEPLOYMENTS_IN_POSITIONS", "STEPS", "Layout", "Tables", "tables"]

BY_PARTITION = "by_partition"

_MYSQL: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "default_charset": "utf8mb4"}.items()
}


@dataclass(frozen=True)
class Tables:
    """The tables of one ledger; ``sentinel`` exists only where the store needs it."""

    schema: Table
    groups: Table
    positions: Table
    journal: Table
    dead_letters: Table
    deployments: Table
    sentinel: Table | None

    @property
    def all(self) -> list[Table]:
        """Those that exist in this store."""
        parts = (self.schema, self.positions, self.groups, self.journal, self.dead_letters, self.deployments)
        return [*parts, *([] if self.sentinel is None else [self.sentinel])]


@dataclass(frozen=True)
class Layout:
    """What differs between stores in how their tables are laid out.

    Names are compared byte for byte, which is what ``collation`` is for. Positions have their partition as the primary
    key, or, if they are numbered, as another unique key. The journal is numbered by the store; where a number can be
    the second part of a primary key, that is its only index.
    """

    collation: str | None = None
    sentinel: bool = False
    numbered_positions: bool = False
    numbered_parts: bool = False


def tables(prefix: str, layout: Layout) -> Tables:
    """Define the tables under a prefix."""
    if not prefix.isidentifier() or len(prefix) > 40:
        raise ConfigurationError(f"the table prefix {prefix!r} has to be letters, digits and '_', at most 40 of them")
    meta = MetaData()
    collation = layout.collation

    def text(length: int) -> String:
        return String(length, collation=collation)

    def table(name: str, *items: Any) -> Table:
        # Letters are numbered, and no number is given twice. Journal entries are numbered too, but the newest is never
        # pruned, so that SQLite needs no table of its own to remember it. The other tables are their primary keys.
        options: dict[str, Any] = {
            "sqlite_with_rowid": name in ("journal", "dead_letters"),
            "sqlite_autoincrement": name == "dead_letters",
            # Each change of a position writes its row anew: on the same page, and past the index, if there is room.
            "postgresql_with": {"fillfactor": 50} if name == "positions" else {},
        }
        return Table(prefix + name, meta, *items, **_MYSQL, **options)

    time = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    blob = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    long_text = Text().with_variant(mysql.LONGTEXT(collation=collation), "mysql", "mariadb")

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
        # Always empty: an advance, or a letter that is being replayed, points to a row that is not there, and only the
        # ledger takes that back before it commits.
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
        ),
        positions=table("positions", *position),
        # Numbered by the store, so that entries are appended, never inserted between others. Numbers have the order
        # of seq within a partition: its entries are written under the lock of its row (a group's: of its group), and a
        # statement that starts later gets higher numbers: from a sequence without a cache, from InnoDB's counter, or
        # because they follow the highest one in the table. Pruning and verify rely on it.
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
            PrimaryKeyConstraint("consumer_group", "id")
            if layout.numbered_parts
            else Index(f"{prefix}journal_by_group", "consumer_group", "id"),
        ),
        dead_letters=table("dead_letters", *letter),
        # Every deployment that has forced its start in a topic, for ever: going back to an old one forces nothing.
        deployments=table(
            "deployments",
            Column("consumer_group", text(GROUP_BYTES), primary_key=True),
            Column("topic", text(TOPIC_LENGTH), primary_key=True),
            Column("deployment", text(DEPLOYMENT_BYTES), primary_key=True),
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


DEPLOYMENTS_IN_POSITIONS = 2
"""Up to this version, a position's row remembered the last deployment that had forced it, and nothing else did."""

STEPS: tuple[Callable[[Tables], list[Table]], ...] = (_positions, _dead_letters, _deployments)
"""What each version added; the version of a ledger is how many of these it has."""
