"""A reader: records in, rows of one table out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.core.errors import ConfigurationError
from tidegate.core.records import Record
from tidegate.tables.assembling import assemble
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldReader, Fields, Format, Wanted, Watch
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.layout import Layout
from tidegate.tables.metadata import check_metadata, read_metadata
from tidegate.tables.misfit import Misfit
from tidegate.tables.own_format import OwnFormat
from tidegate.tables.rows import Rows
from tidegate.tables.sources import Source
from tidegate.tables.tombstones import read_keys
from tidegate.tables.values import Converted

__all__ = ["Reader"]


class Reader:
    """Reads the columns of a table from records, each from its source; without sources from the fields of its name.

    It needs no database, keeps nothing between batches, and may be shared by threads.
    """

    def __init__(
        self,
        layout: Layout,
        form: Format,
        sources: dict[str, Source] | None = None,
        *,
        watch: Watch | None = None,
    ) -> None:
        """``watch``: raise :class:`NewFields` for fields that may become columns."""
        self.layout = layout
        self._sources = _checked(layout, sources)
        self._form = form.without_tombstones() if isinstance(form, OwnFormat) and layout.table.deletes else form
        of = {part: self._wanted(part) for part in ("value", "key")}
        self._fields: FieldReader | None = self._form.reader(of["value"], watch=watch) if of["value"] else None
        self._keys = JsonFormat().reader(of["key"], part="key") if of["key"] else None
        self._plain = [(layout.by_name[name], source) for name, source in self._sources.items() if _is_plain(source)]
        self._key_fields = [wanted for wanted in of["value"] if wanted.column.name in layout.table.key]

    def read(self, records: Feed | Sequence[Record]) -> Rows:
        """The rows of the records that fit, and the misfits."""
        feed = records if isinstance(records, Feed) else Feed.of(records)
        found = self._fields.read(feed) if self._fields else Fields({}, range(len(feed)))
        converted, misfits = dict(found.converted), list(found.misfits)
        self._add_the_rest(feed, found, converted, misfits)
        deleting = None
        if None in feed.value:
            gone = [row for row, place in enumerate(found.places) if feed.value[place] is None]
            if self.layout.table.deletes:
                deleting = self._deleting(feed, found.places, gone, converted, misfits)
            elif self._fields and not isinstance(self._form, OwnFormat):
                misfits += [Misfit(place, None, "a tombstone, and the table does not delete") for place in gone]
        ordered = {name: converted[name] for name in self.layout.by_name if name in converted}
        return assemble(self.layout, ordered, found.places, misfits=misfits, tombstones=deleting)

    def _add_the_rest(self, feed: Feed, found: Fields, converted: dict[str, Converted], misfits: list[Misfit]) -> None:
        """Columns that do not come from the value: one for each record, so spread over its rows."""
        other: dict[str, Converted] = {}
        if self._keys is not None:
            keys = self._keys.read(feed)
            other |= keys.converted
            misfits += [misfit._replace(why=f"key: {misfit.why}") for misfit in keys.misfits]
        other |= {column.name: read_metadata(feed, column, source) for column, source in self._plain}
        if isinstance(found.places, range):
            converted |= other
            return
        spread = pa.array(found.places, pa.int64())
        for name, (array, problems) in other.items():
            misfits += [Misfit(place, name, why) for place, why in problems.items()]
            converted[name] = Converted(array.take(spread), {})

    def _deleting(
        self,
        feed: Feed,
        places: Sequence[int],
        gone: list[int],
        converted: dict[str, Converted],
        misfits: list[Misfit],
    ) -> Any:
        """Mark the tombstones, and give them the key columns that other records have in their value."""
        if self._key_fields:
            keys, unread = read_keys(feed.at([places[row] for row in gone]), self._key_fields)
            misfits += [misfit._replace(place=places[gone[misfit.place]]) for misfit in unread]
            slots = list(range(len(places)))
            for number, row in enumerate(gone):
                slots[row] = len(places) + number
            for name, (array, problems) in keys.items():
                both = pa.chunked_array([converted[name].array, array]).take(pa.array(slots, pa.int64()))
                whys = {**converted[name].problems, **{gone[place]: why for place, why in problems.items()}}
                converted[name] = Converted(both.combine_chunks(), whys)
        tombstones = set(gone)
        return pa.array([row in tombstones for row in range(len(places))], pa.bool_())

    def _wanted(self, part: str) -> list[Wanted]:
        chosen = ((name, source) for name, source in self._sources.items() if source.part == part and source.path)
        return [Wanted(self.layout.by_name[name], source.path) for name, source in chosen]


def _is_plain(source: Source) -> bool:
    return not source.path or source.part == "headers"


def _checked(layout: Layout, sources: dict[str, Source] | None) -> dict[str, Source]:
    """Refuse what can never work, before the first record."""
    if sources is None:
        return {name: Source("value", (name,)) for name in layout.by_name}
    if not sources:
        raise ConfigurationError(f"table {layout.table}: no column is given a source")
    for name, source in sources.items():
        if name not in layout.by_name:
            raise ConfigurationError(
                f"table {layout.table} has no column {name!r} that can be written to; it has "
                f"{', '.join(map(repr, layout.by_name))}"
            )
        check_metadata(layout.by_name[name], source)
    for name, column in layout.by_name.items():
        if name not in sources and layout.must_not_be_null(column):
            raise ConfigurationError(
                f"table {layout.table}: column {name!r} needs a value in every row, and no source is given for it"
            )
    return sources
