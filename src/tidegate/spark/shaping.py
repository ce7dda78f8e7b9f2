"""Shaping: from what a pipeline is asked for and the table as it is, to the way in which rows are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.core.errors import ConfigurationError
from tidegate.spark.parsing import OF_TABLE, Parsing, for_spark
from tidegate.spark.reading import RAW
from tidegate.spark.rows import Expressions, Plain, is_path
from tidegate.spark.spec import PipelineSpec
from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.sources import Source
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["parsing_of", "rowwise_of", "view_of"]

_OF_VALUE = "value."
_PARTS = ("key", "topic", "partition", "offset")
_HEADERS = (
    f"transform(from_json(`{RAW['headers']}`, 'array<struct<k: string, v: string>>'), "
    "h -> named_struct('key', h.k, 'value', unbase64(h.v)))"
)


def rowwise_of(spec: PipelineSpec, layout: Layout | None) -> Plain | Expressions:
    """How rows are made one by one."""
    if not spec.is_plain:
        return expressions_of(spec, layout)
    parts = {"value", *(source.part for source in spec.sources.values()), *(["key"] if spec.deletes else [])}
    return Plain(frozenset(parts))


def expressions_of(spec: PipelineSpec, layout: Layout | None) -> Expressions:
    """How rows are made of SQL expressions; without any, each column is the field of its name."""
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
    """What executors make of each record: the fields of its value, and the columns that are parts of it."""
    made: dict[str, tuple[Column, Source]] = {}
    if spec.is_scalar:
        kind = ColumnType(TypeName.TEXT if spec.format == "text" else TypeName.BYTES)
        made["value"] = Column("value", kind, ""), Source("value")
    else:
        for path, kind in _fields(spec, layout).items():
            name = _OF_VALUE + ".".join(path)
            made[name] = for_spark(Column(name, kind, ""), name), Source("value", path)
    for name, source in spec.sources.items():
        if layout is not None and name in layout.by_name:
            made[OF_TABLE + name] = for_spark(layout.by_name[name], OF_TABLE + name), source
    if not made:
        raise ConfigurationError(
            f"pipeline of group {spec.group!r}: nothing tells the fields of the value; declare them in schema=…"
        )
    columns = tuple(column for column, _ in made.values())
    return Parsing(columns, {name: source for name, (_, source) in made.items()}, spec.form)


def view_of(parsing: Parsing) -> tuple[str, ...]:
    """What expressions and transforms speak of: the record's parts, and the value's fields by themselves as well."""
    view = [f"`{RAW[part]}` AS `{part}`" for part in _PARTS]
    view.append(f"{_HEADERS} AS `headers`")
    view.append(f"timestamp_millis(`{RAW['timestamp']}`) AS `timestamp`")
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
    """The value's fields: as declared, or those that the table's columns come from, with their types."""
    if spec.fields or layout is None:
        return spec.fields
    if spec.columns is None:
        return {(name,): column.type for name, column in layout.by_name.items() if "`" not in name}
    return {
        source.path: layout.by_name[name].type
        for name, source in spec.sources.items()
        if source.is_field and name in layout.by_name
    }


assert not is_path("value.a + 1")  # noqa: S101 - or an expression would be taken for a name
