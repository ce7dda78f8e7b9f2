"""The specification of a pipeline, and the checks of it that need no server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from tidegate.core.arguments import Accepts, Amount, ByteCount, Count, Label, convert_arguments
from tidegate.core.columns import FieldPath
from tidegate.core.policies import CommitMode, Delivery, OutOfRange, Recreated, StartStrategy, Strategy
from tidegate.core.records import check_group, check_topic
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.settings import RunSettings
from tidegate.spark.rows import is_path
from tidegate.tables.csv_format import CsvFormat
from tidegate.tables.feed import Source, sources_of
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.table import Mode, Table, TableArgument
from tidegate.tables.types import ColumnType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PipelineSpec", "Transform", "ValueFormat"]

Transform: TypeAlias = "str | Callable[[DataFrame], DataFrame]"
"""SQL over ``records``, or a function of a DataFrame."""

ValueFormat: TypeAlias = str | CsvFormat
"""``"json"``, ``"text"``, ``"bytes"`` or ``CsvFormat([…])``."""

_DEFAULT = RunSettings()
_NAMES = ("json", "text", "bytes")
_FORMATS = "'json', 'text', 'bytes' or CsvFormat([…])"


def _format(given: Any) -> ValueFormat | None:
    return given if isinstance(given, CsvFormat) or (is_text(given) and given in _NAMES) else None


def _transform(given: Any) -> Any:
    if is_text(given):
        return given if given.strip() else None
    return given if callable(given) and not isinstance(given, type) else None


@dataclass(frozen=True)
class PipelineSpec:
    """The arguments of a pipeline, checked as far as possible without its servers."""

    topics: tuple[str, ...]
    into: TableArgument
    group: Annotated[str, Accepts("the name of a group", check_group)]
    format: Annotated[ValueFormat, Accepts(_FORMATS, _format, _NAMES)] = "json"
    schema: Mapping[FieldPath, Any] | None = None
    columns: Mapping[Label, Label] | None = None
    where: Label | None = None
    transform: Annotated[Any, Accepts("SQL, or a function of a DataFrame", _transform)] | None = None
    commit: CommitMode | None = None
    delivery: Delivery = _DEFAULT.delivery
    start: Strategy = field(default_factory=StartStrategy)
    out_of_range: OutOfRange = _DEFAULT.out_of_range
    recreated: Recreated = _DEFAULT.recreated
    max_records: Count = _DEFAULT.max_records
    collect: Amount = _DEFAULT.collect
    per_batch: bool = _DEFAULT.per_batch
    max_bytes: ByteCount = _DEFAULT.max_bytes

    def __post_init__(self) -> None:
        convert_arguments(self)
        object.__setattr__(self, "topics", tuple(dict.fromkeys(self.topics)))
        if not self.topics:
            self._refuse("topics is empty; name one or several")
        for topic in self.topics:
            check_topic(topic)
        self._check_format()
        self._check_rows()
        self._check_commit()
        _ = self.fields

    def _check_format(self) -> None:
        if self.is_scalar and self.schema is not None:
            self._refuse(f"format {self.format!r} has no fields that a schema could name; it is the value as a whole")
        if self.is_scalar and self.columns is None and self.transform is None:
            self._refuse(f"format {self.format!r} has no fields; say which column it goes to: columns={{'…': 'value'}}")

    def _check_rows(self) -> None:
        if self.transform is not None and (self.columns is not None or self.where is not None):
            self._refuse("transform makes the rows by itself; leave out columns and where, or transform")
        if self.columns is not None and not self.columns:
            self._refuse("columns is empty; leave it out, or say where each column comes from")
        for name in self.columns or ():
            if "`" in name:
                self._refuse(f"column {name!r} has a backtick in its name, which expressions cannot speak of")
        if self.schema is not None and not self.schema:
            self._refuse("schema is empty; leave it out, or name the fields of the value")

    def _check_commit(self) -> None:
        if self.commit is CommitMode.PARTITION and self.transform is not None:
            self._refuse(
                "commit='partition' cannot hold the guarantee with a transform: its rows may come from several "
                "partitions, so that no one position stands for them; use commit='batch'"
            )

    @property
    def mode(self) -> CommitMode:
        """The commit mode. The default is by partition, or by batch if a transform makes the rows."""
        return self.commit or (CommitMode.BATCH if self.transform is not None else CommitMode.PARTITION)

    @property
    def is_scalar(self) -> bool:
        """Whether the value is a single text or byte string without fields."""
        return self.format in ("text", "bytes")

    @property
    def is_plain(self) -> bool:
        """Whether every record becomes a row and every column is a part of it, without expressions."""
        is_rowwise = self.transform is None and self.where is None
        return is_rowwise and all(map(is_path, (self.columns or {}).values()))

    @property
    def form(self) -> Any:
        """The format object for readers."""
        return self.format if isinstance(self.format, CsvFormat) else JsonFormat()

    @property
    def sources(self) -> dict[str, Source]:
        """The sources of those columns that are parts of the record."""
        paths = {name: written for name, written in (self.columns or {}).items() if is_path(written)}
        return sources_of({name: [part.strip("`") for part in written.split(".")] for name, written in paths.items()})

    @property
    def fields(self) -> dict[tuple[str, ...], ColumnType]:
        """The declared types of the value's fields, by path."""
        found = {}
        for name, declared in (self.schema or {}).items():
            try:
                found[tuple(name.split("."))] = ColumnType.of(declared)
            except ConfigurationError as error:
                self._refuse(f"schema, field {name!r}: {error}")
        return found

    @property
    def table(self) -> Table:
        """The table. If it may be created, its column types include those that the schema declares."""
        if not self.into.create or not self.fields or self.transform is not None:
            return self.into
        if self.columns is None:
            told = {path[0]: kind for path, kind in self.fields.items() if len(path) == 1}
        else:
            fields = {source: self.fields.get(source.path) for source in self.sources.values() if source.is_field}
            told = {name: kind for name, source in self.sources.items() if (kind := fields.get(source)) is not None}
        return replace(self.into, columns={**told, **self.into.columns})

    @property
    def deletes(self) -> bool:
        """Whether tombstones delete rows. They cannot if expressions make the rows, since a tombstone has no fields."""
        return self.is_plain and self.into.deletes and self.into.kind is not Mode.APPEND

    @property
    def about(self) -> str:
        """The beginning of error messages: group and table."""
        return f"pipeline of group {self.group!r} into table {self.into}"

    def _refuse(self, why: str) -> None:
        raise ConfigurationError(f"{self.about}: {why}")
