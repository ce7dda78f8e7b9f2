"""A pipeline without a program: the one that a pipeline file describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, assert_never

from tidegate.core.errors import ConfigurationError
from tidegate.core.start import StartStrategy
from tidegate.ledger import Ledger, Limits, open_ledger
from tidegate.observe.observer import Observer
from tidegate.settings import LedgerSettings, PipelineFormat, PipelineSettings
from tidegate.spark.pipeline import Pipeline
from tidegate.spark.report import BatchReport
from tidegate.spark.session import DEFAULT_CONNECTOR, SparkOptions
from tidegate.tables.described import table_of

__all__ = ["configured", "opened"]


def configured(
    said: PipelineSettings,
    ledger: Ledger[Any],
    *,
    observers: Iterable[Observer] = (),
    on_batch: Callable[[BatchReport], None] | None = None,
) -> Pipeline:
    """The pipeline that the settings describe, with the ledger that :func:`opened` gives."""
    kafka = {} if said.kafka is None else said.kafka.configuration()
    if "bootstrap.servers" not in kafka:
        raise ConfigurationError(
            'no broker is named; write kafka = "host:9092" in the pipeline\'s file or in tidegate.toml, or set '
            "TIDEGATE_KAFKA"
        )
    run = said.run
    return Pipeline(
        said.topics,
        table_of(said.into),
        group=said.group,
        kafka=kafka,
        ledger=ledger,
        format=_format(said),
        schema=said.schema or None,
        columns=said.columns or None,
        where=said.where,
        transform=said.sql,
        commit=None if run.commit is None else run.commit.value,
        delivery=run.delivery,
        start=StartStrategy(run.start, run.deployment),
        out_of_range=run.out_of_range,
        recreated=run.recreated,
        max_records=run.max_records,
        max_bytes=run.max_bytes,
        collect=run.collect,
        per_batch=run.per_batch,
        spark=SparkOptions(
            master=said.spark.master,
            connector=said.spark.connector or DEFAULT_CONNECTOR,
            conf=said.spark.conf,
            name=said.spark.name or f"tidegate {said.group}",
        ),
        observers=observers,
        on_batch=on_batch,
    )


def opened(said: LedgerSettings | None) -> Ledger[Any]:
    """The ledger that the settings name; whoever opens it closes it."""
    if said is None or said.url is None:
        raise ConfigurationError(
            'no ledger is named; write ledger = "postgresql+psycopg://…" in the pipeline\'s file or in tidegate.toml, '
            "or set TIDEGATE_LEDGER"
        )
    limits = Limits(said.limits.hold, said.limits.lock_wait, said.limits.attempts)
    return open_ledger(said.url, prefix=said.prefix, limits=limits)


def _format(said: PipelineSettings) -> Any:
    match said.format:
        case PipelineFormat.JSON | PipelineFormat.TEXT | PipelineFormat.BYTES:
            return said.format.value
        case PipelineFormat.CSV:
            from tidegate.tables import CsvFormat  # noqa: PLC0415 - needs an extra

            return CsvFormat(said.fields, delimiter=said.delimiter)
        case other:
            assert_never(other)
