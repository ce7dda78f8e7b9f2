"""Making one row from each record, in the two ways of a row-wise pipeline; the driver and executors share this code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import pyarrow.compute as pc

from tidegate.core.records import FailedRecord
from tidegate.spark.records import (
    ERROR,
    NO_ROW,
    RAW,
    READ,
    SIZE,
    SIZE_OF_RECORD,
    Parsing,
    Portable,
    feed_of,
    letters_of,
    sizes_of,
)
from tidegate.tables.alteration import Trial, TrialOfBatch, TrialOfRecords, changes_for
from tidegate.tables.feed import Feed, Source
from tidegate.tables.fit import fit
from tidegate.tables.format import Format, NewFields
from tidegate.tables.layout import Layout
from tidegate.tables.reader import Reader, new_fields
from tidegate.tables.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Expressions", "FixedTable", "Into", "Made", "Plain", "RowWise", "is_path"]

_NAME = r"(?:[A-Za-z_]\w*|`[^`.]+`)"
_PATH = re.compile(rf"(?:value|key|headers)(?:\.{_NAME})*|topic|partition|offset|timestamp")
_KEEP = "tidegate_keep"


class Made(NamedTuple):
    """What was made from a batch of records: the number of records, rows to write, dead letters to park.

    ``source`` holds the raw records that the rows were made from, at their places.
    """

    records: int
    rows: Rows
    letters: list[FailedRecord]
    source: Any


class Into(Protocol):
    """The table that rows are made for.

    On the driver it is a :class:`Target`, which may alter the table; on executors a :class:`FixedTable`.
    """

    def read(self, records: Feed) -> Rows:
        """Return the rows of records."""

    def fit(self, batch: Any) -> Rows:
        """Return the rows of an Arrow batch, converted to the types of the table."""


class RowWise(Protocol):
    """A way to make one row from each record: first a DataFrame, then the rows of its Arrow batches."""

    counts: ClassVar[bool]
    """Whether tasks check the number of records that they receive, because Spark operations follow the reading."""

    def frame(self, raw: DataFrame) -> DataFrame:
        """Return what Spark computes from the raw records. It drops no record, so that they can be counted."""

    def read(self, batch: Any) -> int | None:
        """Return the number of records that the task has read, if this batch is the last; else ``None``."""

    def sizes(self, batch: Any) -> Any:
        """Return the sizes of the raw records of an Arrow batch of that frame."""

    def make(self, batch: Any, into: Into) -> Made:
        """Return the rows and dead letters of an Arrow batch of that frame."""

    def of_partitions(self, count: int) -> RowWise:
        """Return the same for a group that reads so many partitions."""


def is_path(expression: str) -> bool:
    """Return whether a column's definition only names a part of the record, instead of being an expression."""
    return _PATH.fullmatch(expression) is not None


@dataclass(frozen=True)
class FixedTable(Portable, Into):
    """A table that is not altered. Raises :class:`NewFields` where columns would have to be added or altered first."""

    layout: Layout
    format: Format
    sources: Mapping[str, Source] | None
    keys: Format | None = None

    def read(self, records: Feed) -> Rows:
        """Return the rows of records."""
        trial = TrialOfRecords(self.layout, self.format, self.sources, self.keys, records)
        return self._checked(self._reader.read(records), trial)

    def fit(self, batch: Any) -> Rows:
        """Return the rows of an Arrow batch, converted to the types of the table."""
        return self._checked(fit(self.layout, batch), TrialOfBatch(batch))

    def _checked(self, rows: Rows, trial: Trial) -> Rows:
        if not (rows.misfits and self.layout.table.evolution.alters_columns):
            return rows
        found = changes_for(self.layout, rows.misfits, trial)
        if found.columns:
            raise NewFields
        return replace(rows, misfits=found.explained(rows.misfits))

    @cached_property
    def _reader(self) -> Reader:
        watch = new_fields(self.layout) if self.layout.table.evolution.adds and self.sources is None else None
        sources = None if self.sources is None else dict(self.sources)
        return Reader(self.layout, self.format, sources, keys=self.keys, watch=watch)


@dataclass(frozen=True)
class Plain(RowWise):
    """Makes rows whose columns are parts of the record, parsed straight into the types of the table."""

    counts: ClassVar[bool] = False
    parts: frozenset[str]
    partitions: int = 0
    """How many partitions the group reads; 0 if that is not known."""

    def frame(self, raw: DataFrame) -> DataFrame:
        """Return the raw records unchanged."""
        return raw

    def read(self, batch: Any) -> int | None:
        """Return ``None``: no Spark operation follows the reading, so there is nothing to count."""
        return None

    def sizes(self, batch: Any) -> Any:
        """Return the sizes of the raw records of a batch."""
        return sizes_of(batch)

    def make(self, batch: Any, into: Into) -> Made:
        """Return the rows and dead letters of a batch."""
        rows = into.read(feed_of(batch, self.parts)).of_partitions(self.partitions)
        letters = letters_of(batch, {misfit.place: str(misfit) for misfit in rows.misfits})
        return Made(batch.num_rows, rows, letters, batch)

    def of_partitions(self, count: int) -> Plain:
        """Return the same for a group that reads so many partitions: with several, none of them empties the table."""
        return replace(self, partitions=count)


@dataclass(frozen=True)
class Expressions(RowWise):
    """Makes rows whose columns are SQL expressions over the parsed record, from the records that meet a condition."""

    counts: ClassVar[bool] = True
    parsing: Parsing
    view: tuple[str, ...]
    """Expressions that turn the parsed columns into the names that the user's expressions refer to."""
    columns: Mapping[str, str]
    where: str | None

    def frame(self, raw: DataFrame) -> DataFrame:
        """Return the records, parsed, with their columns. Records that do not parse are kept, without columns."""
        internal = [f"`{name}`" for name in (*RAW.values(), ERROR, READ)]
        seen = self.parsing.frame(raw).selectExpr(*internal, *self.view)
        keep = f"CASE WHEN `{ERROR}` IS NULL THEN coalesce({self.where or 'true'}, false) ELSE false END"
        judged = seen.selectExpr("*", f"{keep} AS `{_KEEP}`")
        columns = enumerate(self.columns.values())  # numbered because mapInArrow does not quote names
        made = [f"CASE WHEN `{_KEEP}` THEN {written} END AS tidegate_{number}" for number, written in columns]
        needed = f"`{_KEEP}` OR `{ERROR}` IS NOT NULL"  # the other records are only counted, so their data is dropped
        always = ("topic", "partition", "offset")
        parts = [
            f"`{name}`" if part in always else f"CASE WHEN {needed} THEN `{name}` END AS `{name}`"
            for part, name in RAW.items()
        ]
        return judged.selectExpr(*parts, f"`{ERROR}`", f"`{READ}`", SIZE_OF_RECORD, f"`{_KEEP}`", *made)

    def read(self, batch: Any) -> int | None:
        """Return the number of records that the task has read, if this batch is the last; else ``None``."""
        found: int | None = batch.column(READ)[-1].as_py()
        return found

    def sizes(self, batch: Any) -> Any:
        """Return the sizes of the raw records of a batch, which :meth:`frame` has computed."""
        return batch.column(SIZE)

    def rows(self, raw: DataFrame) -> DataFrame:
        """Return only the rows, as a DataFrame."""
        return self.apply(self.parsing.frame(raw).selectExpr(*self.view))

    def apply(self, records: DataFrame) -> DataFrame:
        """Apply condition and columns to the records that parse, as a transform does."""
        made = [f"{written} AS `{name}`" for name, written in self.columns.items()]
        return (records.where(self.where) if self.where else records).selectExpr(*made)

    def make(self, batch: Any, into: Into) -> Made:
        """Return the rows and dead letters of a batch."""
        errors = batch.column(ERROR)
        letters: list[FailedRecord] = []
        if errors.null_count < batch.num_rows:
            places = pc.indices_nonzero(pc.not_equal(errors, NO_ROW)).to_pylist()
            letters = letters_of(batch, {place: errors[place].as_py() for place in places})
        kept = batch.filter(batch.column(_KEEP))
        made = kept.select([f"tidegate_{number}" for number in range(len(self.columns))])
        rows = into.fit(made.rename_columns(list(self.columns)))
        letters += letters_of(kept, {misfit.place: str(misfit) for misfit in rows.misfits})
        return Made(batch.num_rows, rows, letters, kept)

    def of_partitions(self, count: int) -> Expressions:
        """Return the same: expressions do not read change events, so that no record empties the table."""
        return self
