"""Columns of Avro records: read field by field from all records at once, without a dictionary for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET

from tidegate.tables.avro.reader import AvroReader, Read
from tidegate.tables.avro.scans import Scan, scan_of
from tidegate.tables.avro.schema import AvroSchema, Tree, is_record
from tidegate.tables.codec import ODD, Codec, Mismatched, odd
from tidegate.tables.column import Column
from tidegate.tables.converters import finite_json
from tidegate.tables.cursors import Cursors, Vector
from tidegate.tables.feed import Feed, Known
from tidegate.tables.format import (
    FieldMatch,
    Fields,
    MappedRows,
    Unmatched,
    Wanted,
    field_in,
    lacking_in,
    read_in_parts,
)
from tidegate.tables.rows import Misfit
from tidegate.tables.types import TypeName
from tidegate.tables.values import Converted, array_of
from tidegate.tables.vectors import Values, column_of, with_those_alone

__all__ = ["AvroColumns"]

_Path: TypeAlias = "tuple[str, ...]"

_AT_ONCE = 10_000
_MOST_FIELDS = 1_000
"""Of nested records, which are read on their own: records that contain each other have fields without end."""


class _AtOnce(NamedTuple):
    """A field that is read from all records at once."""

    scan: Scan
    null: int | None
    """The branch of null, if the field is a union of null and another type."""


class _OneByOne(NamedTuple):
    """A field that is read from one record after the other, and perhaps written as JSON at once.

    Then there are never many objects, which Python would look through for garbage again and again.
    """

    read: Read
    is_json: bool = False


class _Nested(NamedTuple):
    """A nested record, of which columns come from single fields."""

    fields: Mapping[str, _Node]
    null: int | None


_Node: TypeAlias = "_AtOnce | _OneByOne | _Nested"


class _Place(NamedTuple):
    """Where a column comes from: the path to what is read, and what is looked up within its value."""

    column: Column
    path: _Path
    rest: _Path


class _Batch:
    """Some records, and what has been read of them: the values of fields by path, and masks of those that are null."""

    def __init__(self, records: Sequence[bytes | None]) -> None:
        self._records = [each or b"" for each in records]
        self.cursors = Cursors(self._records)
        if None in records:
            self.cursors.leave(np.array([each is None for each in records], np.bool_))
        self.values: dict[_Path, Values | list[Any]] = {}
        self.nulls: dict[_Path, Vector] = {(): np.zeros(len(records), np.bool_)}

    def read(self, nodes: Mapping[str, _Node], path: _Path = ()) -> None:
        """Read the fields of a record. In records where it is null, so are they."""
        nulls = self.nulls[path]
        for name, node in nodes.items():
            at = (*path, name)
            match node:
                case _OneByOne():
                    self.values[at], self.nulls[at] = self._one_by_one(node, nulls)
                case _AtOnce(scan, null):
                    with self._there(at, nulls, null) as missing:
                        self.values[at] = scan(self.cursors, missing)
                case _Nested(fields, null):
                    with self._there(at, nulls, null):
                        self.read(fields, at)

    @contextmanager
    def _there(self, at: _Path, nulls: Vector, null: int | None) -> Iterator[Vector | None]:
        """Read the branch of a union, and in this block only the records that have a value."""
        if null is None:
            self.nulls[at] = nulls
            yield nulls if nulls.any() else None
            return
        branch = self.cursors.longs()
        is_null = branch == null
        is_odd = ~is_null & (branch != 1 - null)
        self.cursors.leave(is_odd)
        missing = self.nulls[at] = nulls | is_null
        if is_null.any():
            with self.cursors.only(~is_null):
                yield missing
        else:
            yield missing if nulls.any() else None

    def _one_by_one(self, node: _OneByOne, nulls: Vector) -> tuple[Values | list[Any], Vector]:
        cursors, read, is_json = self.cursors, node.read, node.is_json
        values: list[Any] = []
        offsets = cursors.offsets()
        left = np.zeros(len(offsets), np.bool_)
        there = ~(nulls | cursors.alone)
        for row, (record, at, is_there) in enumerate(zip(self._records, offsets, there.tolist(), strict=True)):
            value = None
            if is_there:
                try:
                    value, offsets[row] = read(record, at)
                    value = finite_json(value) if is_json and value is not None else value
                except (*ODD, msgspec.MsgspecError):
                    left[row] = True
            values.append(value)
        cursors.move(offsets, there)
        cursors.leave(left)
        missing = np.array([each is None for each in values], np.bool_)
        return (Values(pa.array(values, pa.binary()).cast(pa.string()), is_json=True) if is_json else values), missing

    def column(self, place: _Place) -> tuple[Converted, Any | None]:
        """Return the values of a column, and a mask of the records that lack it, if there are any."""
        found = self.values.get(place.path)
        if isinstance(found, Values) and not place.rest:
            return column_of(found, place.column), None
        nulls = self.nulls[place.path]
        if not isinstance(found, list):  # there is nothing in what is there
            objects = [None if each else UNSET for each in nulls.tolist()]
        else:
            objects = [field_in(each, place.rest) for each in found] if place.rest else found
        present, mask = lacking_in(objects)
        return array_of(present, place.column), mask


class AvroColumns:
    """Reads columns from records of one schema.

    Records that cannot be read so, among them all with bytes that do not fit, are decoded one by one.
    """

    def __init__(self, codec: Codec, schema: AvroSchema, wanted: Sequence[Wanted], watch: FieldMatch | None) -> None:
        """Raises :class:`Clash` or :class:`Mismatched` for a schema whose records are all decoded one by one."""
        self._decode = codec.decode
        self._watch = watch or FieldMatch()
        self._rows = MappedRows(wanted, watch)
        self._schema = schema
        self._reader, self._finite = AvroReader(schema), AvroReader(schema, only_finite=True)
        names = [each["name"] for each in schema.tree["fields"]]
        if len(set(names)) < len(names) or self._reader.spends:
            raise Mismatched("a schema whose records are decoded one by one")
        known = Known([path for _, path in wanted], ignore_case=self._watch.ignore_case)
        given = known.matched({name: name for name in names})
        wanted = [Wanted(column, (given.get(path[0], path[0]), *path[1:])) for column, path in wanted]
        self._unmatched = self._without_column(given, known)
        self._left = _MOST_FIELDS
        self._fields = self._nodes(schema.tree, wanted)
        self._places = [self._place(column, path) for column, path in wanted]

    def _without_column(self, given: Mapping[str, str], known: Known) -> dict[str, str]:
        """Return the fields without a column that matter, and the names that are reported for them."""
        if self._watch.unmatched is Unmatched.IGNORED:
            return {}
        names = given.keys() - known.inside.keys() - self._watch.left_out
        spared = {name for name in names if self._watch.spares_nulls and known.has_exactly(name, given)}
        return {given[name]: name for name in given if name in names - spared}

    def _nodes(self, tree: Tree, wanted: Sequence[Wanted], around: frozenset[str] = frozenset()) -> dict[str, _Node]:
        found = {}
        for each in tree["fields"]:
            below = [Wanted(column, path[1:]) for column, path in wanted if path[0] == each["name"]]
            found[each["name"]] = self._node(each["type"], below, around | {tree["name"]})
        return found

    def _node(self, tree: Tree, wanted: Sequence[Wanted], around: frozenset[str]) -> _Node:
        kind, null = self._without_null(tree)
        if is_record(kind) and all(path for _, path in wanted) and self._is_split(kind, around):
            return _Nested(self._nodes(kind, wanted, around), null)
        scan = None if isinstance(kind, list) else scan_of(kind)
        if scan is not None:
            return _AtOnce(scan, null)
        is_json = bool(wanted) and all(column.type.name is TypeName.JSON and not path for column, path in wanted)
        return _OneByOne((self._finite if is_json else self._reader).reader_of(tree), is_json)

    def _is_split(self, record: Tree, around: frozenset[str]) -> bool:
        """Whether the fields of a nested record are read on their own; counts them."""
        names = [each["name"] for each in record["fields"]]
        if record["name"] in around or len(names) > self._left or len(set(names)) < len(names):
            return False
        self._left -= len(names)
        return True

    def _without_null(self, tree: Tree) -> tuple[Tree, int | None]:
        """Return the other type of a union with null, and the branch of null; every other type unchanged."""
        tree = self._schema.known(tree)
        if isinstance(tree, list) and len(tree) == 2 and tree.count("null") == 1:
            null = tree.index("null")
            return self._schema.known(tree[1 - null]), null
        return tree, None

    def _place(self, column: Column, path: _Path) -> _Place:
        nodes: Mapping[str, _Node] = self._fields
        for depth, name in enumerate(path):
            node = nodes.get(name)
            if node is None:
                return _Place(column, path[:depth], path[depth:])
            if not isinstance(node, _Nested):
                return _Place(column, path[: depth + 1], path[depth + 1 :])
            nodes = node.fields
        return _Place(column, path, ())

    def read(self, feed: Feed) -> Fields:
        """Read all records; a record without a value becomes a row of nulls. May raise :class:`NewFields`."""
        return read_in_parts(self._read_some, feed.value, _AT_ONCE)

    def _read_some(self, records: Sequence[bytes | None]) -> Fields:
        batch = _Batch(records)
        batch.read(self._fields)
        batch.cursors.finish()
        converted, lacking = {}, {}
        for place in self._places:
            converted[place.column.name], mask = batch.column(place)
            if mask is not None:
                lacking[place.column.name] = mask
        misfits = self._watch.misfits(self._judged(batch))
        found = Fields(converted, range(len(records)), misfits, lacking)
        alone = np.flatnonzero(batch.cursors.alone).tolist()
        return with_those_alone(found, self._alone(records, alone), alone) if alone else found

    def _judged(self, batch: _Batch) -> dict[int, str]:
        """Return, by row, the names of fields without a column."""
        found: dict[int, str] = {}
        for field, name in self._unmatched.items():
            there = ~batch.cursors.alone
            if self._watch.spares_nulls:
                there &= ~batch.nulls[field,]
            for row in np.flatnonzero(there).tolist():
                found.setdefault(row, name)
        return found

    def _alone(self, records: Sequence[bytes | None], places: Sequence[int]) -> Fields:
        """Decode the records at these places one by one."""
        misfits: list[Misfit] = []
        rows = [self._row(records[place], number, misfits) for number, place in enumerate(places)]
        return self._rows.fields(rows, range(len(rows)), misfits)

    def _row(self, record: bytes | None, place: int, misfits: list[Misfit]) -> Any:
        try:
            return {} if record is None else self._decode(record)
        except ODD as error:
            misfits.append(Misfit(place, None, str(odd(error, "the value"))))
            return {}
