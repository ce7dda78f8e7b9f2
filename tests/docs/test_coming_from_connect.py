"""The page for users of JDBC sink connectors has an answer for each property that such a connector has."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-connect.md").read_text()

CONFLUENT = [
    "connection.url",
    "connection.attempts",
    "connection.backoff.ms",
    "insert.mode",
    "batch.size",
    "delete.enabled",
    "table.types",
    "table.name.format",
    "pk.mode",
    "pk.fields",
    "fields.whitelist",
    "db.timezone",
    "date.timezone",
    "auto.create",
    "auto.evolve",
    "quote.sql.identifiers",
    "max.retries",
    "retry.backoff.ms",
    "mssql.",
    "trim.sensitive.log",
    "dialect.name",
    "replace.null.with.default",
    "timestamp.precision.mode",
]
AIVEN = ["table.name.normalize", "topics.to.tables.mapping"]
DEBEZIUM = [
    "connection.pool.",
    "use.time.zone",
    "delete.enabled",
    "truncate.enabled",
    "primary.key.mode",
    "primary.key.fields",
    "quote.identifiers",
    "schema.evolution",
    "collection.name.format",
    "dialect.postgres.postgis.schema",
    "dialect.sqlserver.identity.insert",
    "batch.size",
    "use.reduction.buffer",
    "column.naming.style",
    "collection.naming.style",
    "field.include.list",
    "field.exclude.list",
    "flush.max.retries",
    "flush.retry.delay.ms",
    "hibernate.",
]
CONNECT = [
    "topics",
    "topics.regex",
    "tasks.max",
    "errors.tolerance",
    "errors.retry.timeout",
    "errors.deadletterqueue.",
    "errors.log.enable",
    "consumer.override.",
]


@pytest.mark.parametrize("name", sorted({*CONFLUENT, *AIVEN, *DEBEZIUM, *CONNECT}))
def test_a_property_has_its_counterpart(name: str) -> None:
    assert f"`{name}" in PAGE
