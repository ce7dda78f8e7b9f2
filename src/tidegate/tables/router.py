"""The router of a sink: several tables that one transaction writes to, in an order that foreign keys accept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.arguments import argument
from tidegate.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.connect_avro import plain_keys, translation
from tidegate.tables.connect_format import ConnectJsonFormat, with_plain_keys
from tidegate.tables.csv_format import CsvFormat
from tidegate.tables.debezium_format import DebeziumFormat
from tidegate.tables.elements import ElementFormat
from tidegate.tables.feed import Feed, Source, Unread, fold
from tidegate.tables.format import Format, Wanted
from tidegate.tables.inference import json_fields
from tidegate.tables.links import Links, TableId, ordered
from tidegate.tables.outlet import Draft, Outlet, TableDraft
from tidegate.tables.own_format import OwnFormat
from tidegate.tables.reader import REFUSED_TOMBSTONE, Reader
from tidegate.tables.registry import database_of
from tidegate.tables.route import NamePattern, Part, Route, in_two_parts
from tidegate.tables.rows import Misfit, Rows, Truncate
from tidegate.tables.schema_format import SchemaFormat
from tidegate.tables.table import Mode, Table, Tombstones
from tidegate.tables.target import Target, format_of, write_rows
from tidegate.tables.types import ColumnType, FormatChoice, KeyFormatArgument, TypeName

__all__ = ["RoutedRows", "Router"]

_NOT_ROUTED = "no part of the route takes the record"
_NO_NAME = "the record has no value for the name of its table"
_ODD_NAME = "the name of its table may have letters from A to Z, digits, '_', '-' and '.' only"
_NO_KEY = "the key of its table is that of its records, and this record's key has no fields that could be columns"
_OTHER_KEY = (
    "this record's key has other fields than the key of its table: if the key of the source's table has been altered, "
    "alter that of the table too, and start again"
)
_TRUNCATE = "it empties the table, and has no order among the rows of other tables; give the table a sink of its own"
_JSON = msgspec.json.Decoder(float_hook=Decimal)
_LONGEST = 63  # bytes of a name that records make: as many as every database takes
_MOST_DIGITS = 1000  # of whole numbers that choose tables
_MOST_LINKED = 1000  # tables that are followed along foreign keys

Places: TypeAlias = Sequence[int]


class Router:
    """The tables of a route. Making rows may create them; tables with fixed names are inspected at once."""

    def __init__(
        self,
        engine: Engine,
        route: Route,
        *,
        format: FormatChoice = "json",
        key_format: FormatChoice = "json",
        reserved: Sequence[str] = (),
    ) -> None:
        """``reserved``: no name of a table that records make may begin so, since these are tables of ledgers."""
        self._engine = engine
        self._route = route
        self._database = database_of(engine)
        self._form, self._translated = translation(format_of(format))
        self._key_format = plain_keys(format, argument("key_format", KeyFormatArgument, key_format))
        self._keys, _ = translation(format_of(self._key_format))
        self._reserved = tuple(prefix.casefold() for prefix in reserved if prefix)
        self._forms = [_form_of(part, self._form) for part in route.tables]
        self._schema = self._default_schema()
        self._lock = threading.Lock()
        self._outlets: dict[tuple[int, str], Outlet] = {}
        self._owners: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._links: dict[TableId, Links] = {}
        self._ids: dict[tuple[int, str], tuple[Target, TableId | None]] = {}
        for number, part in enumerate(route.tables):
            for source, values in part.conditions.items():
                if self._is_text(source):
                    part.refuse_numbers(source, values)
            if part.pattern is None:
                if self._owners.setdefault(self._folded(part.table), (number, ())) != (number, ()):
                    raise ConfigurationError(in_two_parts(part.table))
                self._outlets[number, part.table.name] = self._opened(number, part.table)

    def _is_text(self, source: Source) -> bool:
        """Whether the values at a source are text, whatever they look like."""
        is_key = source == Source("key") and not isinstance(self._keys, SchemaFormat)
        return is_key or (source.part == "value" and isinstance(self._form, CsvFormat))

    def breaks_reference(self, error: BaseException) -> bool:
        """Whether a foreign key refused a row."""
        cause: BaseException | None = error
        while cause is not None:
            if self._database.breaks_reference(cause):
                return True
            cause = cause.__cause__
        return False

    def draft(self, feed: Feed) -> Draft:
        """Convert records to rows of all tables that they go into. A record that does not fit one goes into none."""
        feed = self._translated(feed)
        feed = with_plain_keys(feed) if isinstance(self._form, ConnectJsonFormat | DebeziumFormat) else feed
        chosen = _Choice(feed, self._form, self._keys)
        unread = {place: value.why for place, value in enumerate(feed.value) if isinstance(value, Unread)}
        misfits = {place: Misfit(place, None, why) for place, why in unread.items()}
        loads: list[_TableRows] = []
        routed: set[int] | None = set()  # None stands for all
        for number, part in enumerate(self._route.tables):
            places = chosen.places(part.conditions)
            if len(places) == len(feed):
                routed = None
            elif routed is not None:
                routed.update(places)
            for name, given, those in self._named(number, places, chosen, misfits):
                if (number, name) not in self._outlets and not self._has_effect(feed, those):
                    continue
                with self._lock:
                    outlet = self._outlet(number, name, given, partial(self._key_of, feed, those))
                if isinstance(outlet, str):
                    _refuse(misfits, those, outlet)
                elif fitting := self._with_key_of(number, outlet.table, feed, those, misfits):
                    loads += self._loads(number, outlet, feed, fitting, misfits)
        if routed is not None and self._route.unmatched == "refuse":
            _refuse(misfits, [place for place in range(len(feed)) if place not in routed], _NOT_ROUTED)
        misfits.update(chosen.misfits)
        misfits = {place: misfit for place, misfit in misfits.items() if self._has_effect(feed, [place])}
        with self._lock:
            loads, cuts = self._in_order(loads, len(feed))
        rows = RoutedRows(tuple(load.rows for load in loads), ())
        if misfits:
            rows = rows.without(misfits)
        return _RouteDraft(tuple(loads), rows, cuts)

    # Which tables

    def _named(
        self, number: int, places: Places, chosen: _Choice, misfits: dict[int, Misfit]
    ) -> Iterator[tuple[str, tuple[str, ...], Places]]:
        """Yield the tables of a part, each with the values in its name and the places of its records."""
        part = self._route.tables[number]
        if part.pattern is None:
            if places:
                yield part.table.name, (), places
            return
        found: dict[tuple[Any, ...], Places] = {}
        for values, those in chosen.grouped(part.pattern.sources, places):
            texts = tuple(str(value) if type(value) is int else value for value in values)
            if not all(isinstance(text, str) and text for text in texts):
                _refuse(misfits, those, _NO_NAME)
            else:
                found[texts] = those if texts not in found else sorted((*found[texts], *those))
        for given, those in found.items():
            names = [self._route.named(value) for value in given]
            if None in names:
                _refuse(misfits, those, _ODD_NAME)
            else:
                yield part.pattern.filled([name for name in names if name is not None]), given, those

    def _outlet(self, number: int, name: str, given: tuple[str, ...], key: Callable[[], Sequence[str]]) -> Outlet | str:
        """Return the outlet of a table, or the reason why the table is not used; ``key`` returns its records' key."""
        part = self._route.tables[number]
        known = self._outlets.get((number, name))
        table = replace(part.table, name=name) if part.pattern is not None else part.table
        if known is not None and self._owners[self._folded(table)] == (number, given):
            return known
        if (why := self._unfit(part, table, number, given)) is not None:
            return why
        if part.is_keyed_by_records:
            try:
                table = replace(table, key=key())
            except ConfigurationError:
                return _NO_KEY
        try:
            outlet = self._opened(number, table)
        except ConfigurationError as error:
            return _without_name(error, part, name)
        self._owners[self._folded(table)] = number, given
        self._outlets[number, name] = outlet
        return outlet

    def _key_of(self, feed: Feed, places: Places) -> Sequence[str]:
        """Return the names of the fields in the first of these records' keys that has some.

        Change events go before all others: heartbeats and messages have keys, too, which are not those of rows.
        """
        form = self._form
        if isinstance(form, DebeziumFormat):
            places = sorted(places, key=lambda place: not form.changes_rows(feed.value[place]))
        for place in places:
            if isinstance(self._keys, SchemaFormat):
                names = [path[0] for path in self._keys.infer_part(feed.at([place]), None, "key")]
            else:
                names = list(json_fields(feed.part("key")[place]) or ())
            if names:
                return names
        return ()

    def _with_key_of(self, number: int, table: Table, feed: Feed, places: Places, misfits: dict[int, Misfit]) -> Places:
        """Return the places of the records that have the key of their table or none, and refuse the other ones.

        The key of a source's table may be altered: then its rows are no longer those of the table here.
        """
        form = self._form
        if not (self._route.tables[number].is_keyed_by_records and isinstance(form, DebeziumFormat)):
            return places
        wanted = sorted(map(fold, table.key))
        known: dict[tuple[str, ...], bool] = {}
        others: set[int] = set()
        for place in places:
            names = tuple(json_fields(feed.part("key")[place]) or ())
            if names not in known:
                known[names] = not names or sorted(map(fold, names)) == wanted
            if not known[names] and form.changes_rows(feed.value[place]):
                others.add(place)
        _refuse(misfits, others, _OTHER_KEY)
        return [place for place in places if place not in others] if others else places

    def _unfit(self, part: Part, table: Table, number: int, given: tuple[str, ...]) -> str | None:
        """Return why records may not make this name of a table; ``None`` if they may."""
        name, most = table.name, self._route.most_tables
        if self._owners.get(self._folded(table), (number, given)) != (number, given):
            return f"the name of its table, {part.table.name!r}, would be that of a table of other records"
        if name.casefold().startswith(self._reserved):
            return "the name of its table would be one of the ledger's"
        if len(name.encode()) > _LONGEST:
            return f"the name of its table has more than {_LONGEST} bytes"
        if len(self._outlets) - sum(each.pattern is None for each in self._route.tables) >= most:
            return f"the route may have {most} tables at most that records name: see most_tables"
        try:
            inspector = inspect(self._engine)
            if inspector.has_table(name, table.schema):
                return None
            if not part.table.create:
                return f"there is no table for it by the route {part.table.name!r}; create it, or say create=True"
            patterns = [each.pattern for each in self._route.tables if each.pattern is not None]
            kept = [each for each in inspector.get_table_names(table.schema) if self._is_named(patterns, each)]
        except SQLAlchemyError as error:
            raise self._database.unseen(self._engine, table, error) from error
        if len(kept) >= most:
            return f"the database has {len(kept)} tables with such names, and there may be {most}: see most_tables"
        return None

    def _is_named(self, patterns: Iterable[NamePattern], name: str) -> bool:
        """Whether records may have made a name of a table; those of the ledger and of fixed parts are not counted."""
        if name.casefold().startswith(self._reserved) or any(
            part.pattern is None and part.table.name == name for part in self._route.tables
        ):
            return False
        return any(pattern.matches(name) for pattern in patterns)

    def _opened(self, number: int, table: Table) -> Outlet:
        part = self._route.tables[number]
        form = self._forms[number]
        return Outlet(self._engine, table, format=form, key_format=self._key_format, columns=part.mapped)

    def _default_schema(self) -> str | None:
        """Return the schema of tables that name none."""
        try:
            return inspect(self._engine).default_schema_name
        except SQLAlchemyError as error:
            raise self._database.unseen(self._engine, self._route.tables[0].table, error) from error

    def _folded(self, table: Table) -> str:
        name = f"{table.schema or self._schema}.{table.name}"
        return name.casefold() if self._database.folds_tables else name

    # What goes into them

    def _has_effect(self, feed: Feed, places: Places) -> bool:
        """Whether one of these records may change a row: connectors send heartbeats and the like beside the events."""
        form = self._form
        return not isinstance(form, DebeziumFormat) or any(form.has_effect(feed.value[place]) for place in places)

    def _loads(
        self, number: int, outlet: Outlet, feed: Feed, places: Places, misfits: dict[int, Misfit]
    ) -> Iterator[_TableRows]:
        """Yield the rows of one table, and note the records that do not fit it."""
        part = self._route.tables[number]
        some = feed if len(places) == len(feed) else feed.at(places)
        try:
            draft = outlet.draft(some)
        except ConfigurationError as error:
            if part.pattern is None:
                raise
            _refuse(misfits, places, _without_name(error, part, outlet.table.name))
            self._forget(number, outlet)
            return
        for misfit in draft.rows.misfits:
            place = places[misfit.place]
            misfits.setdefault(place, misfit._replace(place=place, why=f"table {part.table}: {misfit}", column=None))
        _refuse(misfits, (places[each.place] for each in draft.rows.truncates), _TRUNCATE)
        layout = outlet.target.prepare()
        if layout is None:  # no record shows its columns
            if part.pattern is not None:
                self._forget(number, outlet)
            return
        key = number, outlet.table.name
        if part.array is not None and part.table.on_tombstone is Tombstones.REFUSE:
            _refuse(misfits, (places[at] for at in range(len(some)) if some.value[at] is None), REFUSED_TOMBSTONE)
        if part.array is not None and part.table.deletes and None in some.value:
            parents = replace(
                layout.table, key=tuple(part.parent_key), mode=Mode.UPDATE, tombstones=Tombstones.DELETE,
                create=False, evolve=False, columns={}, add=(), soft_delete=None,
            )  # fmt: skip
            by_parent = replace(layout, table=parents)
            gone = [place for place in range(len(some)) if some.value[place] is None]
            sources = dict(part.parent_key)
            found = Reader(by_parent, self._form, sources, keys=self._keys, needs_field=False).read(some.at(gone))
            for misfit in found.misfits:
                place = places[gone[misfit.place]]
                misfits.setdefault(
                    place, misfit._replace(place=place, why=f"table {part.table}: {misfit}", column=None)
                )
            where = [places[place] for place in gone]

            def write(connection: Connection, rows: Rows) -> None:
                write_rows(connection, by_parent, rows)

            yield _TableRows(key, outlet, draft, _placed(found, where), write, is_partial=True)
        yield _TableRows(key, outlet, draft, _placed(draft.rows, places), draft.write)

    def _forget(self, number: int, outlet: Outlet) -> None:
        with self._lock:
            self._outlets.pop((number, outlet.table.name), None)
            self._owners.pop(self._folded(outlet.table), None)

    # In which order

    def _in_order(self, loads: list[_TableRows], count: int) -> tuple[list[_TableRows], Sequence[int] | None]:
        """Return the loads, parents before children, and where a new segment of records must begin.

        Rows go segment by segment. ``None`` stands for a single segment, in which all tables are independent.
        """
        loads = [load for load in loads if len(load.rows)]
        tables = list(dict.fromkeys(load.table for load in loads))
        if len(tables) < 2 and not any(load.is_partial for load in loads):
            return loads, None
        ids = {load.table: self._linked(load.table, load.outlet) for load in loads}
        known = list(dict.fromkeys(found for found in ids.values() if found is not None))
        self._follow(known)
        reached = _component(self._links, known)
        acts = any(self._links[each].acts for each in reached if each in self._links)
        order = ordered(self._links, known)
        if acts or order is None:
            order = known if order is None else order
            return _sorted(loads, ids, order), _by_tables(loads, count)
        is_linked = any(load.is_partial for load in loads) or any(
            other != each and other in known for each in known for other in _component(self._links, [each])
        )
        if not is_linked:
            return loads, None
        return _sorted(loads, ids, order), _by_deletes(loads, count)

    def _linked(self, table: tuple[int, str], outlet: Outlet) -> TableId | None:
        """Return the database's name of a table; its links are read anew after it was altered."""
        target, found = self._ids.get(table, (None, None))
        if target is not outlet.target:
            links = self._read_links(outlet.table)
            found = None if links is None else links.table
            if links is not None:
                self._note(links)
            self._ids[table] = outlet.target, found
        return found

    def _follow(self, tables: Iterable[TableId]) -> None:
        """Read the links of the tables and of all that foreign keys lead to from there."""
        pending = list(tables)
        seen = set(pending)
        while pending and len(seen) < _MOST_LINKED:
            each = pending.pop()
            links = self._links.get(each) or self._read_links(Table(each[1], schema=each[0]))
            if links is not None:
                self._note(links)
                new = (links.parents | links.children) - seen
                seen |= new
                pending += new

    def _note(self, links: Links) -> None:
        """Keep what a table has to do with others, and that these have to do with it."""
        self._links[links.table] = links
        for parent in links.parents & self._links.keys():
            known = self._links[parent]
            self._links[parent] = replace(known, children=known.children | {links.table})
        for child in links.children & self._links.keys():
            known = self._links[child]
            self._links[child] = replace(known, parents=known.parents | {links.table})

    def _read_links(self, table: Table) -> Links | None:
        try:
            with self._engine.connect() as conn:
                return self._database.links(conn, table)
        except SQLAlchemyError as error:
            raise self._database.unseen(self._engine, table, error) from error


class _TableRows(NamedTuple):
    """Rows of one table, and how to write them. ``is_partial``: they delete the rows that an array once had."""

    table: tuple[int, str]
    outlet: Outlet
    draft: TableDraft
    rows: Rows
    write: Callable[[Connection, Rows], None]
    is_partial: bool = False


@dataclass(frozen=True)
class RoutedRows:
    """The rows of records in several tables, in the order of the tables, and the misfits."""

    of: tuple[Rows, ...]
    misfits: tuple[Misfit, ...]
    truncates: tuple[Truncate, ...] = ()  # no record of a route empties a table

    def __len__(self) -> int:
        return sum(map(len, self.of))

    def among(self, places: list[int]) -> RoutedRows:
        """Return the rows and misfits of the records at these places, which must be in ascending order."""
        wanted = set(places)
        return RoutedRows(
            tuple(rows.among(places) for rows in self.of), tuple(each for each in self.misfits if each.place in wanted)
        )

    def between(self, start: int, end: int) -> RoutedRows:
        """Return the rows and misfits of the records from place ``start`` up to, but not including, ``end``."""
        kept = tuple(each for each in self.misfits if start <= each.place < end)
        return RoutedRows(tuple(rows.between(start, end) for rows in self.of), kept)

    @property
    def changing(self) -> Sequence[int]:
        """The places of the records that change a table, in ascending order."""
        return sorted({place for rows in self.of for place in rows.places})

    def without(self, misfits: Mapping[int, Misfit]) -> RoutedRows:
        """Return the rows of all records but these, which are misfits."""
        kept = tuple(
            rows.among([place for place in dict.fromkeys(rows.places) if place not in misfits]) for rows in self.of
        )
        return RoutedRows(kept, tuple(misfits[place] for place in sorted(misfits)))


class _RouteDraft:
    """Rows of several tables."""

    def __init__(self, loads: tuple[_TableRows, ...], rows: RoutedRows, cuts: Sequence[int] | None) -> None:
        self.rows = rows
        self._loads = loads
        self._cuts = cuts
        self._drafts = tuple({id(load.draft): load.draft for load in loads}.values())
        self.is_alone = any(draft.is_alone for draft in self._drafts)

    def write(self, connection: Connection, rows: RoutedRows) -> None:
        """Write the rows, table by table; in segments of records where tables depend on each other.

        In a segment, parents are written before children, and deleted after them.
        """
        if self._cuts is None:
            for load, all_ in zip(self._loads, rows.of, strict=True):
                if len(all_):
                    load.write(connection, all_)
            return
        for start, end in pairwise(self._cuts):
            parts = [
                (load, part)
                for load, all_ in zip(self._loads, rows.of, strict=True)
                if len(all_) and len(part := all_.between(start, end))
            ]
            for load, part in reversed(parts):
                if part.tombstones is not None and part.tombstones.true_count:
                    load.write(connection, part)
            for load, part in parts:
                if part.tombstones is None or not part.tombstones.true_count:
                    load.write(connection, part)

    def altered(self, connection: Connection, *, is_written: bool) -> Table | None:
        """Return a table that was altered since the rows were made."""
        return TableDraft.first_altered(self._drafts, connection, is_written=is_written)


class _Choice:
    """Chooses records by the values of their parts and fields."""

    def __init__(self, feed: Feed, form: Format, keys: Format) -> None:
        self.misfits: dict[int, Misfit] = {}
        self._feed = feed
        self._form = form
        self._keys = keys
        self._columns: dict[Source, list[Any]] = {}
        self._groups: dict[Source, dict[Any, Places]] = {}
        self._unread: dict[Source, dict[int, Misfit]] = {}

    def places(self, conditions: Mapping[Source, Collection[Any]]) -> Places:
        """Return the places of the records that have one of the values at each source."""
        found: Places = range(len(self._feed))
        for source, values in sorted(conditions.items(), key=_is_parsed):
            groups = self._by(source, found)
            those = [groups[value] for value in dict.fromkeys(map(_comparable, values)) if value in groups]
            one = those[0] if len(those) == 1 else sorted(place for group in those for place in group)
            found = one if isinstance(found, range) else _both(found, one)
        return found

    def grouped(self, sources: Sequence[Source], places: Places) -> Iterator[tuple[tuple[Any, ...], Places]]:
        """Yield the different values at these sources, and the places that have them."""
        if len(sources) == 1:
            for value, group in self._by(sources[0], places).items():
                if those := group if isinstance(places, range) else _both(places, group):
                    yield (value,), those
            return
        columns = [self._column(source, places) for source in sources]
        found: dict[tuple[Any, ...], list[int]] = {}
        for place in places:
            found.setdefault(tuple([column[place] for column in columns]), []).append(place)
        yield from found.items()

    def _column(self, source: Source, wanted: Places) -> list[Any]:
        """Return the values of all records at a source; records of the wanted places that lack one are misfits."""
        if source not in self._columns:
            self._columns[source] = self._values(source)
        if unread := self._unread.get(source):
            for place in wanted:
                if place in unread:
                    self.misfits.setdefault(place, unread[place])
        return self._columns[source]

    def _by(self, source: Source, wanted: Places) -> dict[Any, Places]:
        values = self._column(source, wanted)
        if source not in self._groups:
            groups: dict[Any, list[int]] = {}
            if source.part == "topic" and values and values.count(values[0]) == len(values):
                return self._groups.setdefault(source, {values[0]: range(len(values))})
            for place, value in enumerate(values):
                try:
                    groups[value].append(place)
                except KeyError:
                    groups[value] = [place]
            self._groups[source] = dict(groups)
        return self._groups[source]

    def _values(self, source: Source) -> list[Any]:
        feed = self._feed
        match source:
            case Source("topic", ()):
                return list(feed.part("topic"))
            case Source("key", ()) if not isinstance(self._keys, SchemaFormat):
                return list(map(_text, feed.part("key")))
            case Source("headers", (name,)):
                return [_text(_header(headers, name)) for headers in feed.part("headers")]
            case Source("key", path):  # an empty path stands for the whole key, decoded by its schema
                return self._fields(self._keys, "key", path)
        return self._fields(self._form, "value", source.path)

    def _fields(self, form: Format, part: str, path: tuple[str, ...]) -> list[Any]:
        is_csv = isinstance(form, CsvFormat)
        column = Column(".".join(path) or part, ColumnType(TypeName.TEXT if is_csv else TypeName.JSON), "")
        unread = self._unread.setdefault(Source(part, path), {})
        found = form.reader([Wanted(column, path)], part=part).read(self._feed)
        array, problems = found.converted[column.name]
        for misfit in found.misfits:
            unread.setdefault(misfit.place, misfit)
        for row, why in problems.items():
            unread.setdefault(found.places[row], Misfit(found.places[row], None, f"field {column.name!r}: {why}"))
        values: list[Any] = [None] * len(self._feed)
        known: dict[Any, Any] = {}
        for place, text in zip(found.places, array.to_pylist(), strict=True):
            if text is not None and text not in known:
                known[text] = text if is_csv else _decoded(text)
            values[place] = known.get(text)
        return values


def _is_parsed(condition: tuple[Source, Any]) -> bool:
    """Whether a condition needs the fields of a key or value. It comes last: other records may have none."""
    source, _ = condition
    return bool(source.path) and source.part != "headers"


def _form_of(part: Part, form: Format) -> Format:
    """Return the format of a part's rows; raise if a function makes the rows, which has no fields to choose by."""
    if isinstance(form, OwnFormat) and any(source.part == "value" for source in part.choosing):
        raise ConfigurationError(
            f"table {part.table}: a function makes the rows, so that the route cannot look at fields of the value; "
            "choose by topic, key or headers, or use another format"
        )
    if part.array is None:
        return form
    if isinstance(form, OwnFormat):
        raise ConfigurationError(f"table {part.table}: a function makes the rows; it can make those of {part.each} too")
    return ElementFormat(
        form, part.array, is_mapped=part.columns is not None, ignore_case=part.table.ignore_case
    )  # fmt: skip


def _refuse(misfits: dict[int, Misfit], places: Iterable[int], why: str) -> None:
    for place in places:
        misfits.setdefault(place, Misfit(place, None, why))


def _without_name(error: ConfigurationError, part: Part, name: str) -> str:
    """Return the text of an error with the pattern of a table's name for the name, which is a value of records."""
    return str(error).replace(name, part.table.name)


def _placed(rows: Rows, places: Places) -> Rows:
    """Return rows of some records with the places of these among all records."""
    found = rows.places if isinstance(places, range) else [places[place] for place in rows.places]
    return replace(rows, places=found, misfits=(), truncates=())


def _both(some: Places, others: Places) -> Places:
    if isinstance(others, range):
        return some
    wanted = set(others)
    return [place for place in some if place in wanted]


def _decoded(text: str) -> Any:
    try:
        return _comparable(_JSON.decode(text))
    except (msgspec.MsgspecError, ArithmeticError, ValueError, RecursionError):
        return list, None


def _comparable(value: Any) -> Any:
    """Return what is equal for equal values of JSON only: in Python, true is 1."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, Decimal) and abs(value.adjusted()) < _MOST_DIGITS and value == value.to_integral_value():
        return int(value)  # 1.0 is 1
    return value if isinstance(value, (str, int, Decimal)) or value is None else (list, None)


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else str(value, "utf-8")
    except UnicodeDecodeError:
        return None


def _header(headers: Sequence[tuple[str, bytes | None]] | None, wanted: str) -> bytes | None:
    return next((value for name, value in reversed(headers or ()) if name == wanted), None)


def _component(links: Mapping[TableId, Links], tables: Iterable[TableId]) -> set[TableId]:
    """Return the tables and all that foreign keys link to them, in either direction."""
    pending = list(tables)
    seen = set(pending)
    while pending:
        known = links.get(pending.pop())
        new = (known.parents | known.children) - seen if known is not None else set()
        seen |= new
        pending += new
    return seen


def _sorted(
    loads: Iterable[_TableRows], ids: Mapping[tuple[int, str], TableId | None], order: Sequence[TableId]
) -> list[_TableRows]:
    rank = {table: number for number, table in enumerate(order)}
    return sorted(loads, key=lambda load: rank.get(found, -1) if (found := ids[load.table]) is not None else -1)


def _by_deletes(loads: Iterable[_TableRows], count: int) -> Sequence[int]:
    """Return the places where records that write rows and records that delete some alternate, and both ends.

    A record that does both, a change of the key, is by itself.
    """
    written: set[int] = set()
    deleted: set[int] = set()
    for load in loads:
        gone = load.rows.tombstones
        if gone is None:
            written.update(load.rows.places)
        else:
            for place, is_gone in zip(load.rows.places, gone.to_pylist(), strict=True):
                (deleted if is_gone else written).add(place)
    cuts = [0]
    last: tuple[bool, bool] | None = None
    for place in range(count) if deleted else ():
        effect = place in written, place in deleted
        if any(effect):
            if last is not None and (effect != last or all(effect)):
                cuts.append(place)
            last = effect
    return [*cuts, count]


def _by_tables(loads: Iterable[_TableRows], count: int) -> Sequence[int]:
    """Return the places where a record goes into other tables than the one before it, or into several; and the end."""
    tables: list[set[int]] = [set() for _ in range(count)]
    for number, load in enumerate(loads):
        for place in load.rows.places:
            tables[place].add(number)
    cuts = [0]
    for place in range(1, count):
        if len(tables[place]) > 1 or tables[place] != tables[place - 1]:
            cuts.append(place)
    return [*cuts, count]
