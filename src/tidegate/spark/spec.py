"""The specification of a pipeline, and the checks of it that need no server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

from tidegate.core.arguments import Accepts, Amount, ByteCount, Count, Label, convert_arguments
from tidegate.core.columns import FieldPath
from tidegate.core.policies import CommitMode, Delivery, OutOfRange, Recreated, StartStrategy, Strategy
from tidegate.core.records import check_group, check_topic
from tidegate.core.schemas import CONNECT_AVRO, SCHEMA_FORMATS
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.settings import RunSettings
from tidegate.spark.rows import is_path
from tidegate.tables.connect_avro import ConnectAvroFormat, plain_keys
from tidegate.tables.connect_format import ConnectJsonFormat
from tidegate.tables.csv_format import CsvFormat
from tidegate.tables.debezium_format import DebeziumFormat
from tidegate.tables.feed import Source, sources_of
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.route import IntoArgument, Route
from tidegate.tables.schema_format import SchemaFormat
from tidegate.tables.table import Mode, Table
from tidegate.tables.target import format_of
from tidegate.tables.types import ColumnType, reads_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PipelineSpec", "Transform", "ValueFormat", "WriteSpec"]

Transform: TypeAlias = "str | Callable[[DataFrame], DataFrame]"
"""SQL over ``records``, or a function of a DataFrame."""

ValueFormat: TypeAlias = str | CsvFormat | SchemaFormat | ConnectJsonFormat | DebeziumFormat | ConnectAvroFormat
"""A name, such as ``"json"``, ``"text"``, ``"avro"`` or ``"debezium"``, or a format, such as ``CsvFormat([…])``."""

_DEFAULT = RunSettings()
_NAMES = ("json", "text", "bytes")
_SCHEMAS = ", ".join(map(repr, SCHEMA_FORMATS))
_FORMATS = (
    f"'json', 'text', 'bytes', {_SCHEMAS}, 'connect-json', 'connect-avro', 'debezium', 'debezium-avro', "
    "SchemaFormat(…), DebeziumFormat(…), DebeziumAvroFormat(…) or CsvFormat([…])"
)
_OBJECTS = CsvFormat | SchemaFormat | ConnectJsonFormat | DebeziumFormat | ConnectAvroFormat
_OF_CONNECT = ("connect-json", "debezium", *CONNECT_AVRO)


def _format(given: Any) -> ValueFormat | None:
    if is_text(given) and (given in SCHEMA_FORMATS or given in _OF_CONNECT):
        made: Any = format_of(given)
        return made  # type: ignore[no-any-return]
    return given if isinstance(given, _OBJECTS) or (is_text(given) and given in _NAMES) else None


def _key_format(given: Any) -> str | SchemaFormat | None:
    found = _format(given)
    return found if isinstance(found, SchemaFormat) else "json" if found == "json" else None


def _transform(given: Any) -> Any:
    if is_text(given):
        return given if given.strip() else None
    return given if callable(given) and not isinstance(given, type) else None


class WriteSpec(Protocol):
    """What the driver needs to know in order to write: of a pipeline, or of a streaming query."""

    @property
    def about(self) -> str:
        """The beginning of error messages."""

    @property
    def group(self) -> str:
        """The name that the positions are kept under."""

    @property
    def delivery(self) -> Delivery:
        """The delivery guarantee."""

    @property
    def table(self) -> Table:
        """The one table, with the types of its columns as far as they are declared."""

    @property
    def is_plain(self) -> bool:
        """Whether every record becomes a row and every column is a part of it, without expressions."""

    @property
    def columns(self) -> Mapping[str, str] | None:
        """The columns with their sources; ``None`` if each column takes the field of its name."""

    @property
    def sources(self) -> dict[str, Source]:
        """The sources of those columns that are parts of the record."""

    @property
    def form(self) -> Any:
        """The format object for readers."""

    @property
    def keys(self) -> SchemaFormat | None:
        """The format of keys that name a schema; ``None`` if keys are JSON."""

    @property
    def key_format(self) -> Any:
        """The format of keys."""


@dataclass(frozen=True)
class PipelineSpec:
    """The arguments of a pipeline, checked as far as possible without its servers."""

    topics: tuple[str, ...]
    into: IntoArgument
    group: Annotated[str, Accepts("the name of a group", check_group)]
    format: Annotated[ValueFormat, Accepts(_FORMATS, _format, (*_NAMES, *SCHEMA_FORMATS, *_OF_CONNECT))] = "json"
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
    key_format: Annotated[Any, Accepts(f"'json', {_SCHEMAS} or SchemaFormat(…)", _key_format)] = "json"
    registry: Any = None
    """The schema registry, for formats that need one and have none."""

    def __post_init__(self) -> None:
        convert_arguments(self)
        for name in ("format", "key_format"):
            if isinstance(form := getattr(self, name), SchemaFormat | ConnectAvroFormat):
                form = form.with_registry(self.registry)
                _ = form.codecs  # raises if there is no registry
                object.__setattr__(self, name, form)
        object.__setattr__(self, "key_format", plain_keys(self.format, self.key_format))
        object.__setattr__(self, "topics", tuple(dict.fromkeys(self.topics)))
        if not self.topics:
            self._refuse("topics is empty; name one or several")
        for topic in self.topics:
            check_topic(topic)
        if self.route is not None:
            self._check_route(self.route)
        self._check_format()
        self._check_rows()
        self._check_commit()
        _ = self.fields

    def _check_route(self, route: Route) -> None:
        if self.columns is not None or self.schema is not None:
            self._refuse(
                "columns and schema belong to one table: give each Part of the route its columns, and each Table its "
                "types, as in Table(columns=…)"
            )
        if self.where is not None:
            self._refuse(
                "where belongs to one table: give each Part of the route its where, and let unmatched='ignore' pass "
                "over the records that no part takes"
            )
        if self.transform is not None:
            self._refuse(
                "a transform makes the rows of one table: let each Part of the route take parts of the record, or give "
                "each table a pipeline in a group of its own"
            )
        if self.is_scalar:
            self._refuse(f"format {self.format!r} has no fields that a route could write; use another format")
        route.refuse_alike(self.topics)

    def _check_format(self) -> None:
        if self.names_schemas and not self.is_plain:
            self._refuse(
                "records that name a schema go into columns that are parts of the record, such as 'value.id'; where, "
                "transform and SQL expressions do not read them yet"
            )
        if self.names_schemas and self.delivery is Delivery.AT_MOST_ONCE:
            self._refuse(
                "records that name a schema need the registry after the position has moved, and an outage would lose "
                "them; use another delivery than at-most-once"
            )
        if reads_changes(self.format) and not self.is_plain:
            self._refuse(
                "change events change rows one after the other, as a whole: columns are parts of the record, such as "
                "'value.id'; where, transform and SQL expressions, and with them the order of their rows, are refused"
            )
        self.into.check_format(self.format)
        if self.is_scalar and self.schema is not None:
            self._refuse(f"format {self.format!r} has no fields that a schema could name; it is the value as a whole")
        if self.is_scalar and self.columns is None and self.transform is None:
            self._refuse(f"format {self.format!r} has no fields; name its column: columns={{'…': 'value'}}")

    def _check_rows(self) -> None:
        if self.route is None and self.table.soft_delete is not None and not self.deletes:
            self._refuse(
                "soft_delete marks the rows of deletions, which have no fields for where, transform and SQL "
                "expressions; let columns be parts of the record, such as 'value.id'"
            )
        if self.transform is not None and (self.columns is not None or self.where is not None):
            self._refuse("transform makes the rows by itself; leave out columns and where, or transform")
        if self.columns is not None and not self.columns:
            self._refuse("columns is empty; leave it out, or give each column a source")
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
    def route(self) -> Route | None:
        """The route to several tables; ``None`` if there is one."""
        return self.into if isinstance(self.into, Route) else None

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
        return JsonFormat() if isinstance(self.format, str) else self.format

    @property
    def keys(self) -> SchemaFormat | None:
        """The format of keys that name a schema; ``None`` if keys are JSON."""
        return self.key_format if isinstance(self.key_format, SchemaFormat) else None

    @property
    def names_schemas(self) -> bool:
        """Whether values or keys name a schema of a registry."""
        return isinstance(self.format, SchemaFormat | ConnectAvroFormat) or self.keys is not None

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
        """The one table. If it may be created, its column types include those that the schema declares."""
        assert not isinstance(self.into, Route)  # noqa: S101 - a route has tables of its own
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
        if isinstance(self.into, Route):
            return self.into.deletes
        return self.is_plain and self.into.deletes and self.into.kind is not Mode.APPEND

    @property
    def about(self) -> str:
        """The beginning of error messages: group and table."""
        return f"pipeline of group {self.group!r} into table {self.into}"

    def _refuse(self, why: str) -> None:
        raise ConfigurationError(f"{self.about}: {why}")
