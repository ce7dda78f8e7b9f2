"""Structured Streaming, exactly once: :class:`ExactlyOnce` writes the batches of a query for ``foreachBatch``."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Never

from sqlalchemy import URL, Engine

from tidegate.core.arguments import Accepts, Amount, argument, convert_arguments, refuse_unknown
from tidegate.core.policies import Delivery
from tidegate.core.positions import Position, Standing, standing
from tidegate.core.records import FailedRecord, Record, TopicPartition, check_group, is_query, query_source
from tidegate.core.runtime import Signal
from tidegate.core.work import Claim, Span, Work
from tidegate.errors import ConfigurationError, Fenced, IdentityChanged, PipelineStopped, TidegateError
from tidegate.ledger import Ledger, SqlLedger, open_ledger
from tidegate.ledger.upkeep import Upkeep
from tidegate.observe.events import Claimed, Observer, Observers, ObserversArgument, Paused
from tidegate.spark.claims import Waiting
from tidegate.spark.driver import BatchDone, Driver, PipelineTable, Writes
from tidegate.spark.jobs import job
from tidegate.spark.loop import check_columns
from tidegate.spark.session import check_session, refuse_remote
from tidegate.spark.spec import PipelineSpec
from tidegate.spark.staging import MisfitRow, Offered, Staging, misfit_rows
from tidegate.spark.versions import installed
from tidegate.tables.feed import Source
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.route import OneTableArgument
from tidegate.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ExactlyOnce"]

_log = logging.getLogger(__name__)

_PAUSE = 0.5  # seconds between two looks at a paused name
_MICRO_BATCHES = "MicroBatchExecution"
_TEMPORARY = re.compile(r"/temporary-[0-9a-f-]{36}$")  # a checkpoint that Spark deletes when the query ends
_DOCS = "see 'Ways out of a refusal' in the documentation of Structured Streaming"


@dataclass(frozen=True)
class _Spec:
    """The arguments of :class:`ExactlyOnce`, as the driver of pipelines takes them."""

    into: OneTableArgument
    group: Annotated[str, Accepts("the name of a query", check_group)]
    collect: Amount

    # Without annotations, which would make them fields: a query makes its rows by itself, and parses no records.
    delivery = Delivery.EXACTLY_ONCE
    is_plain = False
    columns = None
    form = JsonFormat()
    keys = None
    key_format = "json"

    def __post_init__(self) -> None:
        convert_arguments(self)

    @property
    def sources(self) -> dict[str, Source]:
        """The sources of columns that are parts of a record: none."""
        return {}

    @property
    def table(self) -> Table:
        """The table."""
        return self.into

    @property
    def about(self) -> str:
        """The beginning of error messages."""
        return f"query {self.group!r} into table {self.into}"


class ExactlyOnce:
    """Writes each batch of a streaming query into a table once: ``df.writeStream.foreachBatch(ExactlyOnce(…))``.

    The rows of a batch and its number commit in one transaction. ``name`` is the name of the query in the ledger.
    ``collect``: a batch is staged by executors if one of its tasks has more than so many rows.
    """

    def __init__(
        self,
        into: Table | str,
        *,
        ledger: str | URL | Engine | Ledger[Any],
        name: str,
        collect: int = PipelineSpec.collect,
        observers: Iterable[Observer] = (),
        **unknown: Never,
    ) -> None:
        refuse_unknown("a query", unknown.keys(), signature(ExactlyOnce).parameters.keys() - {"unknown"})
        self.spec = _Spec(argument("into", OneTableArgument, into), name, collect)
        self._given_ledger = ledger
        opened = ledger if isinstance(ledger, Ledger) else open_ledger(ledger)
        PipelineTable(self.spec, opened)  # raises if the ledger is not in a SQL database
        if opened is not ledger:
            opened.close()
        self._tell = Observers(argument("observers", ObserversArgument, observers))
        self._runs: dict[str, _Run] = {}
        self._starting = threading.Lock()

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write the rows of a batch, unless they are written. Spark calls this."""
        refuse_remote(rows.sparkSession)
        stream = _Stream(rows, self.spec.about)
        with self._starting:
            run = self._runs.get(stream.run_id)
            if run is None:
                check_session(rows.sparkSession, reads_kafka=False)
                run = self._runs[stream.run_id] = self._started(stream, number)
        run.write(rows, number)

    def __reduce__(self) -> Never:
        raise ConfigurationError(
            f"{self.spec.about}: it cannot be sent to another process, as Spark Connect does with the function of "
            "foreachBatch; the driver of the query has to be this process"
        )

    def _started(self, stream: _Stream, number: int) -> _Run:
        stream.check()
        given = self._given_ledger
        ledger = given if isinstance(given, Ledger) else open_ledger(given)
        assert isinstance(ledger, SqlLedger)  # noqa: S101 - the constructor has raised otherwise

        def close() -> None:
            self._runs.pop(stream.run_id, None)
            if ledger is not given:
                ledger.close()

        try:
            run = _Run(self.spec, ledger, stream, self._tell)
            run.start(number)
        except BaseException:
            close()
            raise

        def end() -> None:
            stream.wait()
            try:
                run.close()
            finally:
                close()

        threading.Thread(target=end, name=f"tidegate-query-{self.spec.group}", daemon=True).start()
        return run


class _Stream(Signal):
    """The query that a batch belongs to, and a signal that is set when it is stopped."""

    def __init__(self, rows: DataFrame, about: str) -> None:
        session: Any = rows.sparkSession
        self._about = about
        self._session: Any = session._jsparkSession
        self._jvm: Any = session._jvm
        # The session of a batch is a clone, which does not know the query; all sessions share the list of queries.
        self.query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        if self.query_id is None:
            raise ConfigurationError(f"{about}: it is called by Spark; give it to foreachBatch")
        queries = self._session.sharedState().activeStreamingQueries()
        self._query: Any = queries.get(self._jvm.java.util.UUID.fromString(self.query_id))
        self.run_id = str(self._query.runId())

    def check(self) -> None:
        """Raise if the query does not record its batches one by one, or not for good."""
        kind = self._query.getClass().getSimpleName()
        if kind != _MICRO_BATCHES:
            raise ConfigurationError(
                f"{self._about}: the query runs as {kind}; with a continuous trigger or asynchronous progress tracking "
                "Spark does not record every batch before the next one, so leave them out"
            )
        if _TEMPORARY.search(str(self._query.resolvedCheckpointRoot())):
            raise ConfigurationError(
                f"{self._about}: the query has no checkpointLocation, so its checkpoint would be deleted when it "
                "ends; give it one with .option('checkpointLocation', …)"
            )

    @cached_property
    def _files(self) -> Any:
        """Hadoop's settings, by which files of the checkpoint are found."""
        return self._session.sessionState().newHadoopConf()

    def digest(self, number: int) -> str:
        """Return the digest of the planned offsets of a batch, ``offsets/N`` of the checkpoint."""
        path = self._query.offsetLog().batchIdToPath(number)
        file = path.getFileSystem(self._files).open(path)
        try:
            return hashlib.blake2b(bytes(file.readAllBytes()), digest_size=16).hexdigest()
        finally:
            file.close()

    def has_state(self, number: int) -> bool:
        """Return whether the checkpoint of the query has state."""
        root = self._query.offsetLog().batchIdToPath(number).getParent().getParent()
        return bool(root.getFileSystem(self._files).exists(self._jvm.org.apache.hadoop.fs.Path(root, "state")))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the query ends, or for the time given; return whether it has been stopped."""
        if timeout is not None:
            time.sleep(timeout)
            return self.is_set()
        try:
            self._query.awaitTermination()
        except Exception:  # the query has failed, or Spark has ended
            return True
        return True

    def is_set(self) -> bool:
        """Return whether the query has been stopped."""
        return not self._query.isActive()

    def set(self) -> Never:
        """Only Spark stops a query."""
        raise NotImplementedError

    clear = set


class _Run:
    """One run of a query: its claim, made once, and its staging table."""

    def __init__(self, spec: _Spec, ledger: SqlLedger, stream: _Stream, tell: Observers) -> None:
        self._spec = spec
        self._ledger = ledger
        self._stream = stream
        self._tell = tell
        self._source = query_source(stream.query_id)
        self._claims: dict[TopicPartition, Claim] = {}
        self._waiting = Waiting(spec.group, stream, tell)
        self._table = PipelineTable(spec, ledger)
        self._driver = Driver(spec, ledger, self._table, tell)
        self._staging = Staging(ledger, spec.group, self._table.address)
        self._upkeep = Upkeep(ledger, spec.group)
        self._is_paused = False

    def start(self, number: int) -> None:
        """Check the position, and claim it. What is refused does not fence a run that goes on."""
        self._ledger.create()
        span = self._span(number)
        self._until_done(number, lambda: self._check_name(number))
        self._until_done(number, lambda: self._is_due(span))
        self._until_done(number, self._claim)
        self._until_done(number, lambda: self._check_name(number))
        self._until_done(number, self._table.look)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write the rows of a batch, unless an earlier attempt has committed them."""
        span = self._span(number)
        due: list[bool] = []
        self._until_done(number, lambda: due.append(self._is_due(span)))
        if not due[-1]:
            if self._stream.has_state(number):
                # Spark 4.2 ends a query when a batch leaves its state as it was.
                with job(self._spec.about):
                    rows.write.format("noop").mode("overwrite").save()
            return
        self._upkeep.look()
        alone = False
        while True:
            done = self._written(rows, span, alone=alone)
            if done.fenced:
                self._is_due(span)  # raises and says why
            if not done.outdated:
                break
            alone = True
            self._until_done(number, self._table.look)

    def close(self) -> None:
        """Release the position, if it is still ours, and drop the staging table."""
        self._upkeep.close()
        try:
            self._ledger.release(self._claims)
            self._staging.close()
        except TidegateError as error:
            _log.warning("%s: not released; its next run claims it all the same: %s", self._spec.about, error)

    def _written(self, rows: DataFrame, span: Span, *, alone: bool) -> BatchDone:
        """Compute the rows of a batch once, and commit them. ``alone``: the driver writes, as the table was altered."""
        found: list[Offered] = []
        with job(f"{self._spec.about}, batch {span.start}"):
            self._until_done(span.start, lambda: found.append(self._computed(rows, alone=alone)))
            staged, batches, misfits = found[-1]
            if (
                staged is not None and misfits and self._spec.into.evolution.alters_columns
            ):  # which only the driver does
                return BatchDone("staged", outdated=True)
            made = self._table.made(lambda target: [target.fit(each) for each in batches])
            misfits = [*misfits, *(each for pair in zip(batches, made, strict=True) for each in misfit_rows(*pair))]
            letters = [self._letter(span.start, each) for each in misfits]
            mode = "driver" if staged is None else "staged"
            writes = Writes(mode, made, letters, staged)
            covered = span._replace(records=writes.total + len(letters))
            done: list[BatchDone] = []
            self._until_done(span.start, lambda: done.append(self._driver.together(self._claims, (covered,), writes)))
        return done[-1]

    def _computed(self, rows: DataFrame, *, alone: bool) -> Offered:
        layout = self._table.layout
        if layout is not None:
            check_columns(layout, installed().arrow_schema(rows.schema), self._spec.about)
        if alone or layout is None or self._table.is_local or set(rows.columns) - layout.by_name.keys():
            return Offered(None, installed().arrow_table(rows).combine_chunks().to_batches())
        return self._staging.offer(rows, layout, self._spec.collect)

    def _letter(self, number: int, misfit: MisfitRow) -> FailedRecord:
        return FailedRecord(Record(*self._source, number, None, misfit.value.encode()), misfit.error)

    def _span(self, number: int) -> Span:
        return Span(self._source, number, number + 1, 0, self._stream.digest(number))

    def _check_name(self, number: int) -> None:
        """Raise if another query has the name. Called before and after the claim: of two queries that start at the
        same time, at least one finds the other."""
        known = self._ledger.read(self._spec.group).positions
        row = known.get(self._source)
        others = sorted(tp.topic for tp in known if tp != self._source)
        if others and (row is None or row.next_offset == 0):
            what = "the query" if is_query(others[0]) else "the topic"
            raise IdentityChanged(
                f"{self._spec.about}: the name belongs to {what} {others[0]!r}, and this is "
                f"{self._source.topic!r}. Either its checkpoint was deleted, and its batches would begin at "
                "0 again: bring the checkpoint back, or let the source start where the table ends and give the query "
                f"another name. Or two queries have one name: give each its own. {_DOCS}"
            )
        if row is None and number > 0:
            self._refuse_gap(number, 0)

    def _claim(self) -> None:
        self._claims = self._ledger.claim(self._spec.group, [self._source])
        positions = tuple(claim.position for claim in self._claims.values())
        self._tell(Claimed(self._spec.group, tuple(self._claims), positions))

    def _is_due(self, span: Span) -> bool:
        """Return whether a batch has to be written, and not if it was; wait while the name is paused. Raise if the
        position does not belong to this run, or not to this checkpoint."""
        while True:
            state = self._ledger.read(self._spec.group, [self._source])
            if state.paused != self._is_paused:
                self._is_paused = state.paused
                self._tell(Paused(self._spec.group, state.paused))
            if not state.paused:
                break
            if self._stream.wait(_PAUSE):
                self._refuse_stopped(span.start)
        row = state.positions.get(self._source)
        self._check_owner(span, row)
        position = 0 if row is None else row.next_offset
        if position < span.start:
            self._refuse_gap(span.start, position)
        if position == span.start:
            return True
        if row is not None and position == span.end and row.token in (None, self._token(span)):
            return False
        raise IdentityChanged(
            f"{self._spec.about}: Spark runs batch {span.start}, and the ledger has position {position}: this "
            "batch was committed with other offsets, so the checkpoint was restored from an older copy. Start the "
            f"query from the newest checkpoint, or restore the database of the same time. {_DOCS}"
        )

    def _check_owner(self, span: Span, row: Position | None) -> None:
        claim = self._claims.get(self._source)
        if claim is None:
            return
        if row is None:
            raise Fenced(f"{self._spec.about}: its position was deleted; start the query again", {self._source: None})
        if standing(row, claim) is not Standing.MINE:
            who = "an operator or a run that has ended" if row.owner is None else str(row.owner)
            raise Fenced(
                f"{self._spec.about}: batch {span.start} is not written, because {who} has taken its position. If the "
                "query also runs elsewhere, from this checkpoint or a copy, stop one of the two; else start it again",
                {self._source: row.owner},
            )

    def _refuse_gap(self, number: int, position: int) -> Never:
        raise IdentityChanged(
            f"{self._spec.about}: Spark runs batch {number}, and the ledger has position {position}: the database was "
            "restored and is older than the checkpoint, or the query wrote elsewhere before. Restore the checkpoint "
            f"of the same time, or set the position of {self._source.topic!r} to {number} if batches below it are in "
            f"the table. {_DOCS}"
        )

    def _refuse_stopped(self, number: int) -> Never:
        raise PipelineStopped(f"{self._spec.about}: the query was stopped before batch {number} was written")

    def _token(self, span: Span) -> str:
        """Return the token of the batch, which is the same under every claim."""
        claim = Claim(self._spec.group, self._source, span.start, 0, "")
        return Work.of({self._source: claim}, [span]).token

    def _until_done(self, number: int, work: Callable[[], object]) -> None:
        """Wait through outages of the ledger, for five minutes at most, unless the query is stopped."""
        if not self._waiting.until_done(work):
            self._refuse_stopped(number)
