"""The class :class:`Pipeline`: Kafka to a DataFrame to a table, in micro-batches. Only the ledger records progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Never, TypeAlias, assert_never

from sqlalchemy import URL, Engine

from tidegate.core.arguments import Accepts, Seconds, argument, refuse_unknown
from tidegate.core.policies import CommitMode, Delivery, OutOfRange, Recreated, Start, StartStrategy, Strategy
from tidegate.core.schemas import SCHEMA_FORMATS
from tidegate.errors import ConfigurationError
from tidegate.kafka.claims import Claimer
from tidegate.kafka.cluster import Admin
from tidegate.kafka.config import admin_config, check_settings, client_config
from tidegate.kafka.registry import RegistryGiven, open_registry
from tidegate.kafka.topics import create_missing_topics
from tidegate.ledger import Ledger, SqlLedger, open_ledger
from tidegate.observe.events import Observer, Observers, ObserversArgument
from tidegate.settings import KafkaSettings, LedgerSettings, PipelineFormat, PipelineSettings
from tidegate.spark.claims import ClaimedTopics, Waiting
from tidegate.spark.driver import Driver, PipelineTable
from tidegate.spark.jobs import SparkJobs
from tidegate.spark.kafka_options import client_settings, kafka_options
from tidegate.spark.loop import Loop, MicroBatches
from tidegate.spark.report import BatchReport, Report
from tidegate.spark.routes import PipelineRoute
from tidegate.spark.session import SparkOptions, check_session, open_session, refuse_remote
from tidegate.spark.spec import PipelineSpec, Transform, ValueFormat
from tidegate.tables.connect_avro import DebeziumAvroFormat
from tidegate.tables.debezium_format import DebeziumFormat
from tidegate.tables.route import IntoArgument, RouteArgument
from tidegate.tables.schema_format import SchemaFormat
from tidegate.tables.types import Declared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Pipeline", "configured", "opened"]


def _spark(given: Any) -> Any:
    refuse_remote(given)
    is_session = hasattr(given, "sparkContext") and hasattr(given, "read")
    return given if (isinstance(given, SparkOptions) or is_session) and not isinstance(given, type) else None


_SparkArgument: TypeAlias = Annotated[Any, Accepts("a SparkSession, or SparkOptions", _spark)]


class Pipeline:
    """Moves the records of topics into a table, or by a route into several, of the database that holds the ledger.

    ``columns`` and ``where`` make one row from each record. ``transform`` makes rows by SQL over ``records``, or by any
    function of a DataFrame. Records that do not parse become dead letters. ``commit`` says what commits together: each
    partition or the whole micro-batch; by default it is chosen from the other arguments. ``collect``: the driver writes
    micro-batches of at most so many records by itself. ``per_batch`` declares that a transform which aggregates is
    meant to see each micro-batch by itself. ``registry`` is the URL of the schema registry, for formats that need one.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        into: RouteArgument,
        *,
        group: str,
        kafka: str | Mapping[str, Any],
        ledger: str | URL | Engine | Ledger[Any],
        format: ValueFormat = PipelineSpec.format,
        key_format: str | SchemaFormat = PipelineSpec.key_format,
        schema: Mapping[str, Declared] | None = None,
        columns: Mapping[str, str] | None = None,
        where: str | None = None,
        transform: Transform | None = None,
        commit: CommitMode | str | None = None,
        delivery: Delivery | str = PipelineSpec.delivery,
        start: StartStrategy | Start | str | datetime | None = None,
        out_of_range: OutOfRange | str = PipelineSpec.out_of_range,
        recreated: Recreated | str = PipelineSpec.recreated,
        max_records: int = PipelineSpec.max_records,
        max_bytes: int = PipelineSpec.max_bytes,
        collect: int = PipelineSpec.collect,
        per_batch: bool = PipelineSpec.per_batch,
        spark: SparkSession | SparkOptions | None = None,
        registry: RegistryGiven | None = None,
        observers: Iterable[Observer] = (),
        on_batch: Callable[[BatchReport], None] | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown("a pipeline", unknown.keys(), signature(Pipeline).parameters.keys() - {"unknown"})
        self.spec = PipelineSpec(
            argument("topics", tuple[str, ...], topics),
            argument("into", IntoArgument, into),
            group,
            format,
            schema,
            columns,
            where,
            transform,
            argument("commit", CommitMode | None, commit),
            argument("delivery", Delivery, delivery),
            StartStrategy() if start is None else argument("start", Strategy, start),
            argument("out_of_range", OutOfRange, out_of_range),
            argument("recreated", Recreated, recreated),
            max_records,
            collect,
            per_batch,
            max_bytes,
            key_format,
            open_registry(registry),
        )
        self._kafka = client_config(kafka)
        check_settings(client_settings(self._kafka))
        kafka_options(self._kafka, self.spec.group)  # raises for settings that Spark's client does not have
        self._given_ledger = ledger
        opened = ledger if isinstance(ledger, Ledger) else open_ledger(ledger)
        _destination(self.spec, opened)  # raises if the ledger is not in a SQL database
        if opened is not ledger:
            opened.close()
        self._given_spark = argument("spark", _SparkArgument | None, spark)
        self._tell = Observers(argument("observers", ObserversArgument, observers))
        self._on_batch = argument("on_batch", Callable[[BatchReport], None] | None, on_batch)
        self._stopping = threading.Event()
        self._ledger: Ledger[Any] | None = None  # set during a run
        self.kafka_settings: KafkaSettings | None = None  # of a pipeline that a file describes

    def run(self, every: str | float = "1s", *, available_now: bool = False, once: bool = False) -> Report:
        """Run micro-batches until :meth:`stop`, one at each interval.

        With ``available_now`` the run ends once everything is read that was there at its beginning; with ``once``,
        after one micro-batch. Raises the error that the pipeline cannot continue after. Everything committed before
        stays committed.
        """
        available_now = argument("available_now", bool, available_now)
        once = argument("once", bool, once)
        if available_now and once:
            raise ConfigurationError("a run is available_now or once, not both")
        interval = argument("every", Seconds, every)
        report = Report(self.spec.group)
        began = time.monotonic()
        given = self._given_ledger
        ledger = self._ledger = given if isinstance(given, Ledger) else open_ledger(given)
        try:
            self._run(ledger, interval, report, available_now=available_now, once=once)
        finally:
            report.seconds = time.monotonic() - began
            self._ledger = None
            ledger.hurry(None)
            if ledger is not self._given_ledger:
                ledger.close()
        return report

    def stop(self) -> None:
        """Finish the current micro-batch, release the partitions and let :meth:`run` return.

        It may be called from a signal handler or another thread. If the ledger does not answer, waits end after 10
        seconds.
        """
        self._stopping.set()
        if self._ledger is not None:
            self._ledger.hurry()

    def _run(self, ledger: Ledger[Any], interval: float, report: Report, *, available_now: bool, once: bool) -> None:
        destination = _destination(self.spec, ledger)
        assert isinstance(ledger, SqlLedger)  # noqa: S101 - _destination() raises otherwise
        commits = Driver(self.spec, ledger, destination, self._tell)
        self._create_topics()
        holding = self._holding(ledger, Admin(admin_config(client_settings(self._kafka))))
        topic_ids = holding.topic_ids()
        waiting = Waiting(self.spec.group, self._stopping, self._tell)
        if not (self._met(ledger, waiting) and waiting.until_done(destination.look)):
            report.stopped = "asked to stop"
            return
        jobs = SparkJobs(self._session(), kafka_options(self._kafka, self.spec.group, topic_ids), self.spec.about)
        batches = MicroBatches(self.spec, jobs, commits, destination)
        waiting.until_done(batches.check)
        loop = Loop(
            *(holding, batches, report, self._stopping, self._tell),
            waiting=waiting,
            most=self.spec.max_records,
            most_bytes=self.spec.max_bytes,
            on_batch=self._on_batch,
        )
        try:
            if once:
                loop.run_once()
            elif available_now:
                loop.run_available()
            else:
                loop.run(interval)
        finally:
            report.positions = dict(holding.positions)
            report.lag = holding.lag
            try:
                holding.release()
            finally:
                commits.close()

    def _create_topics(self) -> None:
        """Create missing topics, if the settings allow that for this cluster."""
        kafka = client_settings(self._kafka)
        if self.kafka_settings is not None and self.kafka_settings.creates_topics_of(kafka):
            create_missing_topics(kafka, self.spec.topics)

    @staticmethod
    def _met(ledger: SqlLedger, waiting: Waiting) -> bool:
        """Create the ledger's tables; wait through an outage only if the ledger has answered before.

        One that has never answered may have a wrong address, so its error is raised at once. Returns whether it
        succeeded.
        """
        if not ledger.is_met:
            ledger.create()
            return True
        return waiting.until_done(ledger.create)

    def _session(self) -> SparkSession:
        given = self._given_spark
        if given is None or isinstance(given, SparkOptions):
            return open_session(given or SparkOptions())
        check_session(given)
        session: SparkSession = given
        return session

    def _holding(self, ledger: Ledger[Any], admin: Admin) -> ClaimedTopics:
        spec = self.spec
        claimer = Claimer(spec.group, ledger, admin, start=spec.start, recreated=spec.recreated)
        return ClaimedTopics(
            *(spec.group, spec.topics, ledger, admin), claimer=claimer, policy=spec.out_of_range, tell=self._tell
        )


def _destination(spec: PipelineSpec, ledger: Ledger[Any]) -> PipelineTable | PipelineRoute:
    return PipelineTable(spec, ledger) if spec.route is None else PipelineRoute(spec, ledger)


def configured(
    settings: PipelineSettings,
    ledger: Ledger[Any],
    *,
    observers: Iterable[Observer] = (),
    on_batch: Callable[[BatchReport], None] | None = None,
) -> Pipeline:
    """Return the pipeline that the settings describe, on the ledger that :func:`opened` returned."""
    kafka = {} if settings.kafka is None else settings.kafka.configuration()
    if "bootstrap.servers" not in kafka:
        raise ConfigurationError(
            'no broker is named; write kafka = "host:9092" in the pipeline\'s file or in tidegate.toml, or set '
            "TIDEGATE_KAFKA"
        )
    run = settings.run
    pipeline = Pipeline(
        settings.topics,
        settings.target(),
        group=settings.group,
        kafka=kafka,
        ledger=ledger,
        format=_format(settings),
        key_format=settings.key_format.value,
        registry=settings.registry,
        schema=settings.schema or None,
        columns=settings.columns or None,
        where=settings.where,
        transform=settings.sql,
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
            master=settings.spark.master,
            connector=settings.spark.connector,
            conf=settings.spark.conf,
            name=settings.spark.name or f"tidegate {settings.group}",
        ),
        observers=observers,
        on_batch=on_batch,
    )
    pipeline.kafka_settings = settings.kafka
    return pipeline


def opened(settings: LedgerSettings | None) -> Ledger[Any]:
    """Open the ledger that the settings name. The caller closes it."""
    if settings is None or settings.url is None:
        raise ConfigurationError(
            'no ledger is named; write ledger = "postgresql+psycopg://…" in the pipeline\'s file or in tidegate.toml, '
            "or set TIDEGATE_LEDGER"
        )
    return open_ledger(settings.url, prefix=settings.prefix, limits=settings.limits)


def _format(settings: PipelineSettings) -> Any:
    match settings.format:
        case PipelineFormat.JSON | PipelineFormat.TEXT | PipelineFormat.BYTES:
            return settings.format.value
        case PipelineFormat.CONNECT_JSON | PipelineFormat.CONNECT_AVRO:
            return settings.format.value
        case PipelineFormat.AVRO | PipelineFormat.PROTOBUF | PipelineFormat.JSON_SCHEMA:
            return SchemaFormat(SCHEMA_FORMATS[settings.format.value], settings.flatten)
        case PipelineFormat.DEBEZIUM:
            return DebeziumFormat(decimals=settings.decimals, placeholder=settings.placeholder)
        case PipelineFormat.DEBEZIUM_AVRO:
            return DebeziumAvroFormat(placeholder=settings.placeholder)
        case PipelineFormat.CSV:
            from tidegate.tables import CsvFormat  # noqa: PLC0415 - needs an extra

            return CsvFormat(
                settings.fields, delimiter=settings.delimiter, header=settings.header, nulls=settings.nulls
            )
        case other:
            assert_never(other)
