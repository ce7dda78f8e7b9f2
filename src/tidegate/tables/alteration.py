"""Alterations: columns of a table that become wider, or may be null, because records ask for it."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tidegate.errors import ConfigurationError, LedgerBusy
from tidegate.ledger.sql.sessions import passes
from tidegate.tables.column import Column, Form
from tidegate.tables.database import Unalterable
from tidegate.tables.feed import Clash, Feed, Known, Source
from tidegate.tables.fit import absent, fit
from tidegate.tables.format import FieldMatch, Format
from tidegate.tables.inference import infer_arrow
from tidegate.tables.layout import Layout
from tidegate.tables.reader import Reader
from tidegate.tables.registry import database_of
from tidegate.tables.rights import line_of
from tidegate.tables.rows import Misfit, Rows
from tidegate.tables.schema_format import SchemaFormat
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["Changes", "Trial", "TrialOfBatch", "TrialOfRecords", "alter", "changes_for", "refusals", "types_beside"]

_INTEGERS = range(-(2**63), 2**63)
_EXACT_IN_DOUBLE = 2**53
_LEAST_LENGTH = 32  # of a text that becomes longer; then powers of two, so that a column is altered only a few times
_DECIMAL = ColumnType(TypeName.DECIMAL)
_SCALE = 30  # digits after the point that an unbounded decimal gets where every decimal has bounds


def types_beside(form: Format, feed: Feed, names: Iterable[str], *, ignore_case: bool) -> dict[str, ColumnType | None]:
    """Return the types that records show for their fields, for a table with these columns."""
    if isinstance(form, SchemaFormat):
        found = form.infer_beside(feed, names, ignore_case=ignore_case)
    else:
        found = form.infer(feed, None)
    return {path[0]: kind for path, kind in found.items()}


class Trial(Protocol):
    """Reads some records once more, as rows of a table whose columns are as wide as they can become."""

    def kinds(self, place: int) -> Mapping[str, ColumnType | None]:
        """Return the types that a record's schema, or the record itself, shows for its fields, by column."""

    def read(self, layout: Layout, places: Sequence[int]) -> Rows:
        """Return the rows of the records at these places."""


@dataclass(frozen=True)
class TrialOfRecords:
    """A trial of records in some format."""

    layout: Layout
    form: Format
    sources: Mapping[str, Source] | None
    keys: Format | None
    feed: Feed
    watch: FieldMatch | None = None

    def kinds(self, place: int) -> Mapping[str, ColumnType | None]:
        """Return the types of a record's fields, by column."""
        one = self.feed.at([place])
        if self.sources is not None:
            paths = {name: source.path for name, source in self.sources.items() if source.is_field}
            asked = self.form.infer(one, list(paths.values())) if paths else {}
            return {name: asked.get(path) for name, path in paths.items()}
        names = [(name,) for name in self.layout.by_name]
        ignore_case = self.layout.table.ignore_case
        shown = types_beside(self.form, one, self.layout.names, ignore_case=ignore_case)
        try:
            return Known(names, ignore_case=ignore_case).matched(shown)
        except Clash:
            return {}

    def read(self, layout: Layout, places: Sequence[int]) -> Rows:
        """Return the rows of the records at these places."""
        sources = None if self.sources is None else dict(self.sources)
        return Reader(layout, self.form, sources, keys=self.keys, watch=self.watch).read(self.feed.at(places))


@dataclass(frozen=True)
class TrialOfBatch:
    """A trial of the rows of an Arrow batch."""

    batch: Any

    def kinds(self, place: int) -> Mapping[str, ColumnType | None]:
        """Return the types of the batch's columns."""
        return infer_arrow(self.batch.schema)

    def read(self, layout: Layout, places: Sequence[int]) -> Rows:
        """Return the rows at these places."""
        return fit(layout, self.batch.take(list(places)))


@dataclass
class Changes:
    """The columns to alter, as they are and as they have to be; and by place why other records do not fit."""

    columns: dict[str, tuple[Column, Column]] = field(default_factory=dict)
    whys: dict[int, str] = field(default_factory=dict)

    def explained(self, misfits: Iterable[Misfit]) -> tuple[Misfit, ...]:
        """Return the misfits; those that no alteration could help say so, with both types."""
        return tuple(
            each if each.place not in self.whys else each._replace(why=f"{each.why}; {self.whys[each.place]}")
            for each in misfits
        )


class _Stuck(Exception):
    """A value fits no wider type of its column."""


class _Shown(NamedTuple):
    """What a record has for the columns that can be altered, and what its schema says of them."""

    kinds: Mapping[str, ColumnType | None]
    values: Mapping[str, Any]
    nulls: frozenset[str]
    """The columns in which it needs null, and they are NOT NULL."""


Refusals = Callable[[Column, Column], str | None]
"""Returns why the database refused an alteration lately."""


def changes_for(
    layout: Layout, misfits: Sequence[Misfit], trial: Trial, refused: Refusals = lambda old, new: None
) -> Changes:
    """Return which columns to alter so that these records fit.

    Records are taken one after the other, each with the columns as those before it leave them. So the result does not
    depend on where batches end. A record that does not fit in any case alters nothing.
    """
    found = Changes()
    alterable = {column.name: column for column in layout.by_name.values() if _may_change(layout, column)}
    places = sorted({misfit.place for misfit in misfits if misfit.column in alterable})
    if not places:
        return found
    current, rows = dict(alterable), dict(_rows(layout, alterable, places, trial))
    kinds = {place: trial.kinds(place) for place in places if place not in rows}
    for place in places:
        row = rows.get(place)
        if row is None:
            why = _named(alterable, misfits, place, kinds[place])
            found.whys |= {} if why is None else {place: why}
            continue
        try:
            changed = {name: _follow(layout, old, row) for name, old in current.items()}
        except _Stuck:
            why = _named(alterable, misfits, place, row.kinds)
            found.whys |= {} if why is None else {place: why}
            continue
        whys = [
            f"the column is {_spelled(old)}, and cannot become {_described(old, changed[name])}: {why}"
            for name, old in alterable.items()
            if changed[name] != current[name] and (why := refused(old, changed[name])) is not None
        ]
        if whys:
            found.whys[place] = whys[0]
        else:
            current = changed
    found.columns = {name: (old, current[name]) for name, old in alterable.items() if current[name] != old}
    return found


def _may_change(layout: Layout, column: Column) -> bool:
    evolution = layout.table.evolution
    is_key = column.name in layout.table.key
    if column.reserved or column.refusal or column.name in layout.table.filled:
        return False
    return (evolution.widens and bool(column.spelled)) or (evolution.drops and not is_key and not column.nullable)


def _rows(
    layout: Layout, alterable: Mapping[str, Column], places: Sequence[int], trial: Trial
) -> Iterator[tuple[int, _Shown]]:
    """Yield the records that fit if the columns are as wide as they can become, by place."""
    groups: dict[tuple[ColumnType | None, ...], list[int]] = {}
    for place in places:
        kinds = trial.kinds(place)
        groups.setdefault(tuple(kinds.get(name) for name in alterable), []).append(place)
    for shown, members in groups.items():
        kinds = dict(zip(alterable, shown, strict=True))
        wide = {name: _widest(layout, column, kinds[name]) for name, column in alterable.items()}
        columns = tuple(wide.get(column.name, column) for column in layout.columns)
        rows = trial.read(replace(layout, columns=columns), members)
        names = [name for name in alterable if name in rows.batch.schema.names]
        nulls: dict[str, set[int]] = {
            name: set(absent(layout, alterable[name], rows.batch.column(name), rows.lacking.get(name), rows.existing))
            for name in names
        }
        read = {name: rows.batch.column(name).to_pylist() for name in names}
        deletes = rows.tombstones
        for number, place in enumerate(rows.places):
            is_gone = deletes is not None and deletes[number].as_py()
            kept = [name for name in names if not is_gone or name in layout.table.key]
            values = {name: read[name][number] for name in kept}
            yield members[place], _Shown(kinds, values, frozenset(name for name in kept if number in nulls[name]))


def _widest(layout: Layout, column: Column, kind: ColumnType | None) -> Column:
    """Return a column that holds every value that the column may be altered for."""
    evolution, name = layout.table.evolution, column.type.name
    if evolution.drops and column.name not in layout.table.key:
        column = replace(column, nullable=True)
    if not (evolution.widens and column.spelled):
        return column
    match name:
        case TypeName.INTEGER if column.exact and kind is not None and kind.name is not name:
            return column
        case TypeName.INTEGER if kind is not None and kind.name is TypeName.DOUBLE:
            return replace(column, type=kind.bare) if _is_exact_in_double(column) else column
        case TypeName.INTEGER if kind is None or kind.name in (TypeName.INTEGER, TypeName.DECIMAL):
            return replace(column, type=_DECIMAL)
        case TypeName.DECIMAL:
            return replace(column, type=_DECIMAL, digits=None)
        case TypeName.DOUBLE if column.name not in layout.table.key:
            return replace(column, largest=None, places=None, rounds=True)
        case TypeName.TEXT if column.form is Form.ANY:
            return replace(column, length=None, size=None)
        case TypeName.BYTES:
            return replace(column, size=None)
    return column


def _is_exact_in_double(column: Column) -> bool:
    return column.low >= -_EXACT_IN_DOUBLE and column.high <= _EXACT_IN_DOUBLE


def _follow(layout: Layout, column: Column, row: _Shown) -> Column:
    """Return the column as it has to be for a record; raise :class:`_Stuck` if it cannot be so."""
    name = column.name
    value, kind, declared = row.values.get(name), row.kinds.get(name), layout.table.types.get(name)
    if declared is not None and declared.precision is not None:
        kind = declared
    found = column if value is None or not column.spelled else _holding(layout, column, value, kind)
    if found is not column and declared is not None and not _within(found.type, declared):
        raise _Stuck
    return replace(found, nullable=True) if name in row.nulls else found


def _within(kind: ColumnType, declared: ColumnType) -> bool:
    """Whether a type is not wider than what the user declares."""
    if kind.name is not declared.name:
        return False
    if declared.precision is None or kind.name is not TypeName.DECIMAL:
        return True
    if kind.precision is None:
        return False
    before, after = kind.precision - (kind.scale or 0), kind.scale or 0
    return before <= declared.precision - (declared.scale or 0) and after <= (declared.scale or 0)


def _holding(layout: Layout, column: Column, value: Any, kind: ColumnType | None) -> Column:
    """Return the column if it holds the value, or the next wider one that does."""
    match column.type.name:
        case TypeName.INTEGER:
            return _wider_number(layout, column, value, kind)
        case TypeName.DECIMAL if column.type.precision is not None:
            return _wider_number(layout, column, value, kind)
        case TypeName.DOUBLE if column.largest is not None or column.places is not None:
            if not math.isfinite(value) or _is_kept(value, column):
                return column
            return replace(column, largest=None, places=None, rounds=True)
        case TypeName.TEXT:
            chars, octets = len(value), len(value.encode())
            if (column.length is None or chars <= column.length) and (column.size is None or octets <= column.size):
                return column
            return replace(column, length=_power(chars) if column.length else None, size=_power(octets))
        case TypeName.BYTES if column.size is not None and len(value) > column.size:
            return replace(column, size=_power(len(value)))
    return column


def _wider_number(layout: Layout, column: Column, value: Any, kind: ColumnType | None) -> Column:
    if isinstance(value, float):
        if column.type.name is TypeName.INTEGER and value.is_integer() and column.low <= value <= column.high:
            return column
        if column.type.name is TypeName.DECIMAL or not math.isfinite(value) or not _is_exact_in_double(column):
            raise _Stuck
        return replace(column, type=ColumnType(TypeName.DOUBLE))
    number = Decimal(value)
    is_integer = column.type.name is TypeName.INTEGER
    is_whole = number == number.to_integral_value()
    if is_integer and is_whole:
        if column.low <= number <= column.high:
            return column
        if column.high in _INTEGERS and int(number) in _INTEGERS:
            return replace(column, low=_INTEGERS[0], high=_INTEGERS[-1])
    if kind is None:  # a key or a header, which show no type
        raise _Stuck
    before, after = _digits(number)
    if is_integer:
        held = len(str(max(abs(column.low), column.high))), 0
    else:
        held = (column.type.precision or 0) - (column.type.scale or 0), column.type.scale or 0
        if before <= held[0] and after <= held[1]:
            return column
    before, after = max(before, held[0]), max(after, held[1])
    if kind.name is TypeName.DECIMAL and kind.precision is not None:
        before, after = max(before, kind.precision - (kind.scale or 0)), max(after, kind.scale or 0)
        is_open = False
    else:
        is_open = True
    return replace(column, type=_decimal(layout, before, after, is_open=is_open))


def _decimal(layout: Layout, before: int, after: int, *, is_open: bool) -> ColumnType:
    """Return a type with at least these digits, and with all that there may be if nothing bounds them (``is_open``)."""
    if layout.digits is None:
        return _DECIMAL
    most, most_after = layout.digits
    if is_open and most >= 1000:
        return _DECIMAL
    scale = max(after, _SCALE)
    if is_open and before + scale <= most and scale <= most_after:
        return ColumnType.decimal(most, scale)
    if before + after > most or after > most_after:
        raise _Stuck
    return ColumnType.decimal(before + after, after)


def _digits(number: Decimal) -> tuple[int, int]:
    """Return how many digits a number needs before and after the point."""
    if not number:
        return 0, 0
    text = f"{number:f}".lstrip("-")
    before, _, after = text.partition(".")
    return len(before.lstrip("0")), len(after.rstrip("0"))


def _is_kept(value: float, column: Column) -> bool:
    """Whether a column in single precision, or one of few places, holds a number as it is."""
    if column.places is not None and round(value, column.places) != value:
        return False
    try:
        return column.largest is None or bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def _power(length: int) -> int:
    return max(_LEAST_LENGTH, 1 << (length - 1).bit_length())


def _spelled(column: Column) -> str:
    return column.spelled or column.sql_type


def _described(old: Column, new: Column) -> str:
    wider = "" if replace(new, nullable=old.nullable) == old else str(new.type)
    wider += f" of {new.length} characters" if wider and new.length else ""
    return wider + (" " * bool(wider) + "NULL" if new.nullable and not old.nullable else "")


def _named(
    alterable: Mapping[str, Column],
    misfits: Iterable[Misfit],
    place: int,
    kinds: Mapping[str, ColumnType | None],
) -> str | None:
    """Return both types of the column that a record does not fit, if the column could be widened at all."""
    name = next((misfit.column for misfit in misfits if misfit.place == place), None)
    column = alterable.get(name or "")
    kind = None if column is None else kinds.get(column.name)
    if column is None or kind is None or not column.spelled:
        return None
    return f"the column is {column.spelled}, the field {kind.bare}, and no wider type keeps every value of both"


_AGAIN_AFTER = 60.0  # seconds in which the database is not asked again for what it has refused
_REFUSED: WeakKeyDictionary[Engine, dict[Any, tuple[float, str]]] = WeakKeyDictionary()


def _key(table: Table, old: Column, new: Column) -> tuple[Any, ...]:
    wanted = new.type, new.high, new.length, new.size, new.nullable
    return table.schema, table.name, old.name, old.spelled, old.nullable, *wanted


def refusals(engine: Engine, table: Table) -> Refusals:
    """Return what looks up why the database has refused an alteration within the last minute."""

    def refused(old: Column, new: Column) -> str | None:
        at, why = _REFUSED.get(engine, {}).get(_key(table, old, new), (-math.inf, ""))
        return why if time.monotonic() - at < _AGAIN_AFTER else None

    return refused


def alter(engine: Engine, table: Table, changes: Changes) -> None:
    """Alter columns, each unless another process has altered it in the meantime. What is refused is remembered.

    Raises :class:`LedgerBusy` if the table's lock was not free in time; then it can be tried again.
    """
    for old, new in changes.columns.values():
        why = _altered(engine, table, old, new)
        if why is not None:
            _REFUSED.setdefault(engine, {})[_key(table, old, new)] = time.monotonic(), why


def _altered(engine: Engine, table: Table, old: Column, new: Column) -> str | None:
    """Alter one column; return why the database refused."""
    database = database_of(engine)
    statement = ""
    try:
        with database.defining(engine) as conn, database.alone(conn, table):
            if _found(database.columns(conn, table), old) == (old.spelled, old.nullable):
                statement = database.alteration(conn, table, old, new)
                conn.exec_driver_sql(database.verbatim(statement))
    except Unalterable as error:
        return str(error)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        if passes(engine, error):
            raise LedgerBusy(
                f"table {table}: column {old.name!r} could not be altered yet, because others use the table: "
                f"{line_of(error)}; trying again"
            ) from error
        if refused := database.denial(engine, table, error):
            raise refused from error
        if not statement or not database.refuses_alteration(error):
            raise ConfigurationError(
                f"table {table}: column {old.name!r} cannot be altered: {line_of(error)}"
            ) from error
        return line_of(error)
    if not statement:
        return None
    with engine.connect() as conn:
        same = _found(database.columns(conn, table), old) == (old.spelled, old.nullable)
    return "the database left it as it was" if same else None


def _found(columns: Sequence[Column], old: Column) -> tuple[str, bool] | None:
    return next(((each.spelled, each.nullable) for each in columns if each.name == old.name), None)
