"""Making rows of records, in the two ways of a row-wise pipeline: on the driver as on executors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import pyarrow.compute as pc

from tidegate.core.letters import Letter
from tidegate.spark.parsing import ERROR, READ, Parsing
from tidegate.spark.portable import Portable
from tidegate.spark.reading import RAW, feed_of, letters_of
from tidegate.spark.sizes import SIZE, SIZE_OF_RECORD, sizes_of
from tidegate.tables.feed import Feed
from tidegate.tables.fitting import fit
from tidegate.tables.format import Format, Watch
from tidegate.tables.layout import Layout
from tidegate.tables.reader import Reader
from tidegate.tables.rows import Rows
from tidegate.tables.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Expressions", "FixedTable", "Into", "Made", "Plain", "RowWise", "is_path"]

_NAME = r"(?:[A-Za-z_]\w*|`[^`.]+`)"
_PATH = re.compile(rf"(?:value|key|headers)(?:\.{_NAME})*|topic|partition|offset|timestamp")
_KEEP = "tidegate_keep"


class Made(NamedTuple):
    """What became of a batch of records: how many there were, rows to write, letters to park."""

    records: int
    rows: Rows
    letters: list[Letter]


class Into(Protocol):
    """The table that rows are made for: a :class:`Target` on the driver, which may alter it; a :class:`FixedTable`
    on executors."""

    def read(self, records: Feed) -> Rows:
        """The rows of records."""

    def fit(self, batch: Any) -> Rows:
        """The rows of an Arrow batch."""


class RowWise(Protocol):
    """A way to make rows, record by record: part of it as a DataFrame, the rest wherever its batches are taken."""

    counts: ClassVar[bool]
    """Whether the records are counted where they are read, since something may happen to them afterwards."""

    def frame(self, raw: DataFrame) -> DataFrame:
        """What Spark does with the raw records. No record is left out, so that they can be counted."""

    def read(self, batch: Any) -> int | None:
        """How many records the task has read, if the last one of this Arrow batch of the frame tells."""

    def sizes(self, batch: Any) -> Any:
        """The sizes of the records of an Arrow batch of that frame, as they were read."""

    def make(self, batch: Any, into: Into) -> Made:
        """The rows of an Arrow batch of that frame."""


def is_path(expression: str) -> bool:
    """Whether a column is a part of the record as it is, and no expression."""
    return _PATH.fullmatch(expression) is not None


@dataclass(frozen=True)
class FixedTable(Portable, Into):
    """A table as it is. Raises :class:`NewFields` where it would have to get columns first."""

    layout: Layout
    format: Format
    sources: Mapping[str, Source] | None

    def read(self, records: Feed) -> Rows:
        """See :meth:`Into.read`."""
        return self._reader.read(records)

    def fit(self, batch: Any) -> Rows:
        """See :meth:`Into.fit`."""
        return fit(self.layout, batch)

    @cached_property
    def _reader(self) -> Reader:
        watch = Watch() if self.layout.table.evolve and self.sources is None else None
        return Reader(self.layout, self.format, None if self.sources is None else dict(self.sources), watch=watch)


@dataclass(frozen=True)
class Plain(RowWise):
    """Columns that are parts of the record: read straight into the types of the table, with no detour."""

    counts: ClassVar[bool] = False
    parts: frozenset[str]

    def frame(self, raw: DataFrame) -> DataFrame:
        """See :meth:`RowWise.frame`: nothing."""
        return raw

    def read(self, batch: Any) -> int | None:
        """See :meth:`RowWise.read`: nothing has happened to them since."""
        return None

    def sizes(self, batch: Any) -> Any:
        """See :meth:`RowWise.sizes`."""
        return sizes_of(batch)

    def make(self, batch: Any, into: Into) -> Made:
        """See :meth:`RowWise.make`."""
        rows = into.read(feed_of(batch, self.parts))
        letters = letters_of(batch, {misfit.place: str(misfit) for misfit in rows.misfits})
        return Made(batch.num_rows, rows, letters)


@dataclass(frozen=True)
class Expressions(RowWise):
    """Columns that are SQL expressions over the parsed record, of the records that a condition holds for."""

    counts: ClassVar[bool] = True
    parsing: Parsing
    view: tuple[str, ...]
    """Expressions that make of the parsed columns what the user's expressions speak of."""
    columns: Mapping[str, str]
    where: str | None

    def frame(self, raw: DataFrame) -> DataFrame:
        """See :meth:`RowWise.frame`: those that do not parse get past the condition, and have no columns."""
        internal = [f"`{name}`" for name in (*RAW.values(), ERROR, READ)]
        seen = self.parsing.frame(raw).selectExpr(*internal, *self.view)
        keep = f"CASE WHEN `{ERROR}` IS NULL THEN coalesce({self.where or 'true'}, false) ELSE false END"
        judged = seen.selectExpr("*", f"{keep} AS `{_KEEP}`")
        columns = enumerate(self.columns.values())  # numbered: mapInArrow does not quote names
        made = [f"CASE WHEN `{_KEEP}` THEN {written} END AS tidegate_{number}" for number, written in columns]
        needed = f"`{_KEEP}` OR `{ERROR}` IS NOT NULL"  # the rest is counted, and nothing of it is carried on
        always = ("topic", "partition", "offset")
        parts = [
            f"`{name}`" if part in always else f"CASE WHEN {needed} THEN `{name}` END AS `{name}`"
            for part, name in RAW.items()
        ]
        return judged.selectExpr(*parts, f"`{ERROR}`", f"`{READ}`", SIZE_OF_RECORD, f"`{_KEEP}`", *made)

    def read(self, batch: Any) -> int | None:
        """See :meth:`RowWise.read`."""
        found: int | None = batch.column(READ)[-1].as_py()
        return found

    def sizes(self, batch: Any) -> Any:
        """See :meth:`RowWise.sizes`."""
        return batch.column(SIZE)

    def rows(self, raw: DataFrame) -> DataFrame:
        """The rows alone, as Spark sees them."""
        return self.apply(self.parsing.frame(raw).selectExpr(*self.view))

    def apply(self, records: DataFrame) -> DataFrame:
        """The same as a transform of the records that parse."""
        made = [f"{written} AS `{name}`" for name, written in self.columns.items()]
        return (records.where(self.where) if self.where else records).selectExpr(*made)

    def make(self, batch: Any, into: Into) -> Made:
        """See :meth:`RowWise.make`."""
        errors = batch.column(ERROR)
        letters: list[Letter] = []
        if errors.null_count < batch.num_rows:
            places = pc.indices_nonzero(pc.is_valid(errors)).to_pylist()
            letters = letters_of(batch, {place: errors[place].as_py() for place in places})
        kept = batch.filter(batch.column(_KEEP))
        made = kept.select([f"tidegate_{number}" for number in range(len(self.columns))])
        rows = into.fit(made.rename_columns(list(self.columns)))
        letters += letters_of(kept, {misfit.place: str(misfit) for misfit in rows.misfits})
        return Made(batch.num_rows, rows, letters)
