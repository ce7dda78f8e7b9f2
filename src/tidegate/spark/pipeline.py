"""The pipeline: Kafka to a DataFrame to a table, micro-batch by micro-batch, with the ledger as the only truth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Never, TypeAlias

from sqlalchemy import URL, Engine

from tidegate.core.arguments import Kind, Seconds, argument, refuse_unknown
from tidegate.core.delivery import CommitMode, Delivery
from tidegate.core.errors import ConfigurationError
from tidegate.core.recovery import OutOfRange, Recreated
from tidegate.core.start import Start, StartStrategy, Strategy
from tidegate.kafka.admin import Admin
from tidegate.kafka.claimer import Claimer
from tidegate.kafka.config import admin_config, check_settings, client_config
from tidegate.ledger import Ledger, SqlLedger, open_ledger
from tidegate.observe.observer import Observer, Observers, ObserversArgument
from tidegate.spark.committing import Commits
from tidegate.spark.destination import Destination
from tidegate.spark.holding import Holding
from tidegate.spark.kafka_options import client_settings, kafka_options
from tidegate.spark.loop import Loop
from tidegate.spark.microbatch import MicroBatches
from tidegate.spark.report import BatchReport, Report
from tidegate.spark.session import SparkOptions, check_session, open_session
from tidegate.spark.spec import PipelineSpec, Transform, ValueFormat
from tidegate.spark.waiting import Waiting
from tidegate.tables.table import Table, TableArgument
from tidegate.tables.types import Declared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Pipeline"]


def _spark(given: Any) -> Any:
    is_session = hasattr(given, "sparkContext") and hasattr(given, "read")
    return given if (isinstance(given, SparkOptions) or is_session) and not isinstance(given, type) else None


_SparkArgument: TypeAlias = Annotated[Any, Kind("a SparkSession, or SparkOptions", _spark)]


class Pipeline:
    """Moves the records of topics into a table of the database that holds the ledger.

    Rows are made of ``columns`` and ``where``, one from each record; or by ``transform``: SQL over ``records``, or any
    function of a DataFrame. Records that do not parse are dead letters. ``commit`` says what commits together, and is
    chosen by itself if it is left out. ``collect``: a micro-batch of at most so many records is written by the driver.
    ``per_batch`` declares that a transform which aggregates is meant for each micro-batch by itself.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        into: Table | str,
        *,
        group: str,
        kafka: str | Mapping[str, Any],
        ledger: str | URL | Engine | Ledger[Any],
        format: ValueFormat = "json",
        schema: Mapping[str, Declared] | None = None,
        columns: Mapping[str, str] | None = None,
        where: str | None = None,
        transform: Transform | None = None,
        commit: CommitMode | str | None = None,
        delivery: Delivery | str = Delivery.EXACTLY_ONCE,
        start: StartStrategy | Start | str | datetime | None = None,
        out_of_range: OutOfRange | str = OutOfRange.STOP,
        recreated: Recreated | str = Recreated.STOP,
        max_records: int = 200_000,
        max_bytes: int = 256 << 20,
        collect: int = 10_000,
        per_batch: bool = False,
        spark: SparkSession | SparkOptions | None = None,
        observers: Iterable[Observer] = (),
        on_batch: Callable[[BatchReport], None] | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown("a pipeline", unknown.keys(), signature(Pipeline).parameters.keys() - {"unknown"})
        self.spec = PipelineSpec(
            argument("topics", tuple[str, ...], topics),
            argument("into", TableArgument, into),
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
        )
        self._kafka = client_config(kafka)
        check_settings(client_settings(self._kafka))
        kafka_options(self._kafka, self.spec.group)  # which refuses what Spark's client cannot be told
        self._given_ledger = ledger
        opened = ledger if isinstance(ledger, Ledger) else open_ledger(ledger)
        Destination(self.spec, opened)  # which refuses a ledger without tables
        if opened is not ledger:
            opened.close()
        self._given_spark = argument("spark", _SparkArgument | None, spark)
        self._tell = Observers(argument("observers", ObserversArgument, observers))
        self._on_batch = argument("on_batch", Callable[[BatchReport], None] | None, on_batch)
        self._stopping = threading.Event()

    def run(self, every: str | float = "1s", *, available_now: bool = False, once: bool = False) -> Report:
        """Run micro-batches: one every so often until :meth:`stop`; or until all is read that is there now; or one.

        Raises what the pipeline cannot go on after. Whatever was committed before stays committed.
        """
        available_now = argument("available_now", bool, available_now)
        once = argument("once", bool, once)
        if available_now and once:
            raise ConfigurationError("a run is available_now or once, not both")
        interval = argument("every", Seconds, every)
        report = Report(self.spec.group)
        began = time.monotonic()
        given = self._given_ledger
        ledger = given if isinstance(given, Ledger) else open_ledger(given)
        try:
            self._run(ledger, interval, report, available_now=available_now, once=once)
        finally:
            report.seconds = time.monotonic() - began
            if ledger is not self._given_ledger:
                ledger.close()
        return report

    def stop(self) -> None:
        """Finish the micro-batch under way, release and return; from a signal handler or another thread."""
        self._stopping.set()

    def _run(self, ledger: Ledger[Any], interval: float, report: Report, *, available_now: bool, once: bool) -> None:
        destination = Destination(self.spec, ledger)
        assert isinstance(ledger, SqlLedger)  # noqa: S101 - or there is no destination
        commits = Commits(self.spec, ledger, destination, self._tell)
        holding = self._holding(ledger, Admin(admin_config(client_settings(self._kafka))))
        topic_ids = holding.topic_ids()
        waiting = Waiting(self.spec.group, self._stopping, self._tell)
        if not (self._met(ledger, waiting) and waiting.until_done(destination.look)):
            report.stopped = "asked to stop"
            return
        spark = self._session()
        options = kafka_options(self._kafka, self.spec.group, topic_ids)
        batches = MicroBatches(self.spec, spark, options, commits, destination)
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

    @staticmethod
    def _met(ledger: SqlLedger, waiting: Waiting) -> bool:
        """A ledger that has never answered may have a wrong address: then that is an error at once."""
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

    def _holding(self, ledger: Ledger[Any], admin: Admin) -> Holding:
        spec = self.spec
        claimer = Claimer(spec.group, ledger, admin, start=spec.start, recreated=spec.recreated)
        return Holding(
            *(spec.group, spec.topics, ledger, admin), claimer=claimer, policy=spec.out_of_range, tell=self._tell
        )
