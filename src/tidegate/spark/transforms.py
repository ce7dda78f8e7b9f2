"""How the rows of a micro-batch are made: derived from the pipeline's specification and the table's layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tidegate.core.records import FailedRecord, Record, TopicPartition
from tidegate.errors import ConfigurationError
from tidegate.spark.records import ERROR, NO_ROW, OF_TABLE, RAW, SIZE, SIZE_OF_RECORD, Parsing, for_spark, headers_of
from tidegate.spark.rows import Expressions, Plain, is_path
from tidegate.spark.spec import PipelineSpec, Transform
from tidegate.tables.column import Column
from tidegate.tables.feed import Source
from tidegate.tables.layout import Layout
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Transformed", "Transforming", "parsing_of", "parts_of", "rowwise_of", "view_of"]


_OF_VALUE = "value."
_PARTS = ("key", "topic", "partition", "offset")
_HEADERS = (
    f"transform(from_json(`{RAW['headers']}`, 'array<struct<k: string, v: string>>'), "
    "h -> named_struct('key', h.k, 'value', unbase64(h.v)))"
)


def rowwise_of(spec: PipelineSpec, layout: Layout | None) -> Plain | Expressions:
    """Return how a row is made from each record."""
    return Plain(parts_of(spec)) if spec.is_plain else expressions_of(spec, layout)


def parts_of(spec: PipelineSpec) -> frozenset[str]:
    """Return the parts of a record that rows are made of, if each column is a part of the record."""
    sources = spec.sources.values() if spec.route is None else spec.route.sources
    parts = {"value", *(source.part for source in sources), *(["key"] if spec.deletes else [])}
    parts |= {"headers"} if spec.names_schemas else set()
    return frozenset(parts | set(getattr(spec.form, "parts", ())))


def expressions_of(spec: PipelineSpec, layout: Layout | None) -> Expressions:
    """Return how rows are made from SQL expressions. Without ``columns``, each column is the field of the same name."""
    parsing = parsing_of(spec, layout)
    columns: dict[str, str] = {}
    if spec.columns is None:
        fields = [path for path in _fields(spec, layout) if len(path) == 1]
        columns = {path[0]: f"`value`.`{path[0]}`" for path in fields}
    else:
        for name, written in spec.columns.items():
            columns[name] = f"`{OF_TABLE}{name}`" if f"{OF_TABLE}{name}" in parsing.sources else f"({written})"
    return Expressions(parsing, view_of(parsing), columns, spec.where)


def parsing_of(spec: PipelineSpec, layout: Layout | None) -> Parsing:
    """Return how executors parse each record: the fields of its value, and the columns that are parts of the record."""
    made: dict[str, tuple[Column, Source]] = {}
    if spec.is_scalar:
        kind = ColumnType(TypeName.TEXT if spec.format == "text" else TypeName.BYTES)
        made["value"] = Column("value", kind, ""), Source("value")
    else:
        for path, kind in _fields(spec, layout).items():
            name = _OF_VALUE + ".".join(path)
            made[name] = for_spark(Column(name, kind.bare, "", exact=spec.table.exact), name), Source("value", path)
    for name, source in spec.sources.items():
        if layout is not None and name in layout.by_name:
            made[OF_TABLE + name] = for_spark(layout.by_name[name], OF_TABLE + name), source
    if not made:
        raise ConfigurationError(
            f"pipeline of group {spec.group!r}: the fields of the value are not known; declare them in schema=…"
        )
    columns = tuple(column for column, _ in made.values())
    into = spec.table
    tombstones = None if into.deletes else into.tombstones
    names = Table("records", tombstones=tombstones, unknown=into.unknown, ignore_case=into.ignore_case)
    is_rows = spec.transform is None and spec.columns is None
    return Parsing(columns, {name: source for name, (_, source) in made.items()}, spec.form, names, is_rows)


def view_of(parsing: Parsing) -> tuple[str, ...]:
    """Return the columns that expressions and transforms can use: the record's parts and the value's fields."""
    view = [f"`{RAW[part]}` AS `{part}`" for part in _PARTS]
    view.append(f"{_HEADERS} AS `headers`")
    # Kafka stores -1 for a missing timestamp
    view.append(f"timestamp_millis(nullif(`{RAW['timestamp']}`, -1)) AS `timestamp`")
    view += [f"`{name}`" for name in parsing.sources if name.startswith(OF_TABLE)]
    if "value" in parsing.sources:
        return (*view, "`value`")
    tree: dict[str, Any] = {}
    for name, source in parsing.sources.items():
        if name.startswith(_OF_VALUE):
            at = tree
            for step in source.path[:-1]:
                at = at.setdefault(step, {})
            at[source.path[-1]] = name
    if not tree:
        return (*view, f"`{RAW['value']}` AS `value`")
    view.append(f"{_struct(tree)} AS `value`")
    taken = {name.casefold() for name in (*_PARTS, "headers", "timestamp", "value")}
    view += [f"{_written(branch)} AS `{name}`" for name, branch in tree.items() if name.casefold() not in taken]
    return tuple(view)


def _struct(tree: Mapping[str, Any]) -> str:
    parts = (f"{_literal(name)}, {_written(branch)}" for name, branch in tree.items())
    return f"named_struct({', '.join(parts)})"


def _written(branch: Any) -> str:
    return f"`{branch}`" if isinstance(branch, str) else _struct(branch)


def _literal(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _fields(spec: PipelineSpec, layout: Layout | None) -> dict[tuple[str, ...], ColumnType]:
    """Return the fields of the value with their types: as declared, or else from the table's columns."""
    if spec.fields or layout is None:
        return spec.fields
    if spec.columns is None:
        return {(name,): column.type for name, column in layout.by_name.items() if "`" not in name}
    return {
        source.path: layout.by_name[name].type
        for name, source in spec.sources.items()
        if source.is_field and name in layout.by_name
    }


assert not is_path("value.a + 1")  # noqa: S101 - an expression must not be taken for a name


@dataclass(frozen=True)
class Transformed:
    """The rows of a micro-batch as a DataFrame, its dead letters, and the record count and mean size by partition."""

    rows: DataFrame
    letters: list[FailedRecord]
    counts: dict[TopicPartition, int]
    sizes: dict[TopicPartition, float]


@dataclass(frozen=True)
class Transforming:
    """Parses the records of a micro-batch once, separates those that do not parse, and transforms the rest."""

    parsing: Parsing
    view: tuple[str, ...]
    transform: Transform

    @contextmanager
    def of(self, raw: DataFrame) -> Iterator[Transformed]:
        """Yield the result for the raw records.

        Spark caches the parsed records meanwhile: they are read twice, and the transform may read only some of them.
        """
        always = ("topic", "partition", "offset")
        parts = [
            f"`{name}`" if part in always else f"CASE WHEN `{ERROR}` IS NOT NULL THEN `{name}` END AS `{name}`"
            for part, name in RAW.items()
        ]
        seen = self.parsing.frame(raw).selectExpr(*parts, f"`{ERROR}`", SIZE_OF_RECORD, *self.view).persist()
        try:
            counts, sizes, letters = _survey(seen)
            records = seen.where(f"`{ERROR}` IS NULL").drop(*RAW.values(), ERROR, SIZE)
            yield Transformed(self._applied(records), letters, counts, sizes)
        finally:
            seen.unpersist()

    def rows(self, raw: DataFrame) -> DataFrame:
        """Return the rows that the transform makes, as a DataFrame."""
        return self._applied(self.parsing.frame(raw).selectExpr(*self.view))

    def _applied(self, records: DataFrame) -> DataFrame:
        if isinstance(self.transform, str):
            records.createOrReplaceTempView("records")
            return records.sparkSession.sql(self.transform)
        made = self.transform(records)
        if not hasattr(made, "mapInArrow"):
            raise ConfigurationError(f"the transform returned {type(made).__name__}, and not a DataFrame")
        return made


def _survey(
    seen: DataFrame,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, float], list[FailedRecord]]:
    """Count and measure the records of each partition and collect those that do not parse, in one job."""
    from pyspark.sql.functions import expr  # noqa: PLC0415 - an extra

    topic, number = RAW["topic"], RAW["partition"]
    parts = ", ".join(f"`{RAW[part]}`" for part in ("offset", "key", "value", "headers", "timestamp"))
    bad = f"collect_list(CASE WHEN `{ERROR}` <> '{NO_ROW}' THEN struct({parts}, `{ERROR}`) END)"
    counts: dict[TopicPartition, int] = {}
    sizes: dict[TopicPartition, float] = {}
    letters: list[FailedRecord] = []
    mean = f"avg(`{SIZE}`)"
    for row in seen.groupBy(topic, number).agg(expr("count(*)"), expr(mean), expr(bad)).collect():
        source = TopicPartition(row[0], row[1])
        counts[source], sizes[source] = row[2], row[3]
        for offset, key, value, headers, timestamp, error in sorted(row[4], key=itemgetter(0)):
            record = Record(*source, offset, _bytes(key), _bytes(value), headers_of(headers), timestamp)
            letters.append(FailedRecord(record, error))
    return counts, sizes, letters


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
