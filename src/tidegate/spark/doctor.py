"""Checks of a pipeline before it runs. They read the cluster, topics, ledger and tables, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidegate.core.records import TopicPartition
from tidegate.errors import ConfigurationError, LedgerUnavailable
from tidegate.kafka.cluster import Admin
from tidegate.kafka.config import admin_config
from tidegate.ledger import Ledger, SqlLedger
from tidegate.settings import PipelineSettings
from tidegate.spark.kafka_options import kafka_options
from tidegate.tables.registry import database_of
from tidegate.tables.route import Route
from tidegate.tables.table import Table
from tidegate.tables.target import prepare

__all__ = ["checked"]


def checked(settings: PipelineSettings, into: Table | Route, ledger: Ledger[Any]) -> Iterator[str]:
    """Yield a line for each check that passes; raise at the first that fails."""
    kafka = {} if settings.kafka is None else settings.kafka.configuration()
    kafka_options(kafka, settings.group)  # raises for settings that the connector does not support
    admin = Admin(admin_config(kafka))
    known = admin.identities(settings.topics)
    for topic in settings.topics:
        if topic not in known:
            raise ConfigurationError(f"there is no topic {topic!r} on the cluster; create it, or correct the name")
    logs = admin.logs(admin.partitions(settings.topics))
    for topic in settings.topics:
        of_it = {tp: log for tp, log in logs.items() if tp.topic == topic}
        count = sum(log.latest - log.earliest for log in of_it.values())
        yield f"topic {topic}: {len(of_it)} partitions, {count:,} offsets"
    if not isinstance(ledger, SqlLedger):
        raise ConfigurationError(
            "a pipeline writes to a SQL table, so its ledger has to be SQLite, MySQL or PostgreSQL"
        )
    positions = _positions(ledger, settings.group)
    if positions is None:
        yield f"ledger {ledger}: does not exist yet, and will be created"
    else:
        lag = sum(max(0, log.latest - positions.get(tp, log.earliest)) for tp, log in logs.items())
        yield f"ledger {ledger}: group {settings.group!r} has {len(positions)} positions, {lag:,} offsets to go"
    if isinstance(into, Table):
        yield _table(ledger.engine, into, settings)
        return
    for part in into.tables:
        if part.pattern is None:
            yield _table(ledger.engine, part.table, settings)
        else:
            yield f"table {part.table}: records name it"


def _positions(ledger: SqlLedger, group: str) -> dict[TopicPartition, int] | None:
    """Return the positions of the group, or ``None`` if the ledger has no tables yet.

    The tables are looked for first because reading the ledger would create them.
    """
    if not _exists(ledger.engine, f"{ledger.prefix}positions", None, str(ledger)):
        return None
    return {tp: row.next_offset for tp, row in ledger.read(group).positions.items()}


def _table(engine: Engine, table: Table, settings: PipelineSettings) -> str:
    if table.create and not _exists(engine, table.name, table.schema, str(table)):
        return f"table {table}: does not exist yet, and will be created"
    declared = {} if table.evolution.adds else table.columns  # missing columns would be added
    marks = table.of_guard
    if marks is not None and not table.create and not _exists(engine, marks.name, marks.schema, str(marks)):
        raise ConfigurationError(f"there is no table {marks}, which guard_table names; create it, or set create=True")
    layout = prepare(engine, replace(table, create=False, evolve=False, columns=declared, guard_table=None))
    if layout is None:
        raise ConfigurationError(f"table {table} has no columns")
    if not table.evolution.adds and (unknown := [name for name in settings.columns if name not in layout.by_name]):
        raise ConfigurationError(
            f"columns.{unknown[0]}: table {table} has no such column to write to; it has {', '.join(layout.by_name)}"
        )
    return f"table {table}: {len(layout.columns)} columns"


def _exists(engine: Engine, name: str, schema: str | None, what: str) -> bool:
    """Return whether the table exists. Does not create the missing file of a database, as connecting to it would."""
    if (file := database_of(engine).missing_file(engine.url)) is not None:
        if not Path(file).resolve().parent.is_dir():
            raise LedgerUnavailable(f"cannot open {what}: the directory of {file} does not exist")
        return False
    try:
        with engine.connect() as conn:
            return bool(inspect(conn).has_table(name, schema=schema))
    except SQLAlchemyError as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        reason = str(cause).strip().partition("\n")[0]
        raise LedgerUnavailable(
            f"cannot open {what}: {reason}. Is the database running, and are address, user and password right?"
        ) from None
