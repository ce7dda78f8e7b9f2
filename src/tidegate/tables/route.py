"""The description of a route, as users write it: which tables a record goes into, and what of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import Accepts, Count, Seconds, argument, convert_arguments
from tidegate.core.columns import Unrouted
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.tables.feed import Mapped, Source, sources_of
from tidegate.tables.table import RECORD_KEY, Table, TableArgument
from tidegate.tables.types import reads_changes

__all__ = ["IntoArgument", "NamePattern", "OneTableArgument", "Part", "Route", "RouteArgument"]

_EACH, _INDEX = "each", "index"  # what sources of an array's columns may begin with: an element, and its number

_PLACE = re.compile(r"\{([^{}]*)\}")
_SAFE = re.compile(r"[A-Za-z0-9_.\-]+")
_CHOOSING = ("topic", "key", "headers", "value")


def _wanted(given: Any) -> dict[str, tuple[Any, ...]] | None:
    if not isinstance(given, Mapping):
        return None
    found = {}
    for source, values in given.items():
        if not is_text(source):
            raise ConfigurationError("a condition is a source, such as 'headers.type', and its values")
        several = list(values) if isinstance(values, (list, tuple, set, frozenset)) else [values]
        if not several or not all(value is None or isinstance(value, (str, int)) for value in several):
            raise ConfigurationError(
                f"{source!r}: expected the value that a record must have, or a list of them: text, a whole number, "
                "true, false or None"
            )
        found[source] = tuple(several)
    return found


def _columns(given: Any) -> Any:
    is_one = isinstance(given, Mapping) and given
    is_path = (
        all(path and (is_text(path) or isinstance(path, Sequence)) for path in given.values()) if is_one else False
    )
    return dict(given) if is_path else None


_PartColumns: TypeAlias = Annotated[
    Mapping[str, str | Sequence[str]],
    Accepts("a mapping from columns to their sources, such as {'id': 'value.id'}", _columns),
]
Conditions: TypeAlias = Annotated[
    Mapping[str, Any], Accepts("a mapping from sources to values, such as {'headers.type': 'order'}", _wanted)
]
"""What a record must have to go into a table."""


def in_two_parts(table: Table) -> str:
    """Return the error about a table that two parts of a route name."""
    return (
        f"table {table} is in two parts of the route, and so the order of its rows would not be that of the records; "
        "make one part of them"
    )


class NamePattern(NamedTuple):
    """The name of a table with places in it that each record fills, such as ``raw_{topic}``."""

    texts: tuple[str, ...]
    sources: tuple[Source, ...]

    @classmethod
    def of(cls, name: str) -> NamePattern | None:
        """Parse a name; ``None`` if it has no places."""
        texts = _PLACE.split(name)
        if any("{" in text or "}" in text for text in texts[::2]):
            raise ConfigurationError(
                f"the name {name!r}: a place, such as {{topic}}, begins with '{{' and ends with '}}'"
            )
        if len(texts) == 1:
            return None
        return cls(tuple(texts[::2]), tuple(_source(f"the name {name!r}", each, _CHOOSING) for each in texts[1::2]))

    @property
    def is_trusted(self) -> bool:
        """Whether only topics fill the places. Headers, keys and values are written by the producers of records."""
        return all(source.part == "topic" for source in self.sources)

    def filled(self, values: Sequence[str]) -> str:
        """Return the name with these values in its places."""
        return "".join(text + value for text, value in zip(self.texts, (*values, ""), strict=True))

    def matches(self, name: str) -> bool:
        """Whether the name could be one of those that records make."""
        return re.fullmatch(".+".join(map(re.escape, self.texts)), name, re.DOTALL) is not None


@dataclass(frozen=True)
class Part:
    """One of the tables that a record goes into, and what of the record goes into it.

    ``table`` may have places in its name, which each record fills: ``"{topic}"``, ``"raw_{headers.type}"``,
    ``"raw_{value.kind}"``. The key of such a table may be ``"{key}"``: the fields of its first record's key.
    ``columns`` maps columns to their sources, as in a sink; without it, each column takes the field of its name.
    ``where`` limits the part to records with certain values: ``{"headers.type": ["order", "refund"]}``. ``each`` names
    a field with an array: its elements become the rows, and ``columns`` may then have sources such as ``"each.sku"``,
    ``"index"`` (the element's number, from 0) and ``"value.id"`` (of the record itself).
    """

    table: TableArgument
    columns: _PartColumns | None = None
    where: Conditions = field(default_factory=dict)
    each: str | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)
        _ = self.array, self.mapped
        for source, values in self.conditions.items():
            if source.part in ("topic", "headers"):
                self.refuse_numbers(source, values)
        pattern = self.pattern
        if RECORD_KEY in self.table.key:
            if pattern is None:
                raise _no_record_key(self.table)
            if self.table.key != (RECORD_KEY,) or self.each is not None or self.columns is not None:
                raise ConfigurationError(
                    f"table {self.table}: key='{{key}}' is the whole key, and goes with neither columns nor each"
                )
        if self.table.schema is not None and NamePattern.of(self.table.schema) is not None:
            raise ConfigurationError(f"table {self.table}: the schema is fixed; only the table's name has places")
        if pattern is not None and not pattern.is_trusted and not pattern.texts[0]:
            raise ConfigurationError(
                f"table {self.table}: producers write {pattern.sources[0]}, so a name that begins with it could be "
                f"that of any table. Let it begin with text, as in 'raw_{self.table.name}', or declare the tables, "
                f"each as a Part with where={{'{pattern.sources[0]}': …}}"
            )
        by_value = [source for source in self.choosing if source.is_field]
        if self.table.deletes and by_value:
            raise ConfigurationError(
                f"table {self.table}: a tombstone has no value, so {by_value[0]} cannot lead it to this table, and its "
                "row would stay. Choose by the topic, the key or a header, or give the table tombstones='ignore'"
            )
        if self.table.guard_table is not None:
            raise ConfigurationError(
                f"table {self.table}: guard_table keeps a table's truncates, and a route takes none; leave it out"
            )
        if self.each is not None and self.table.soft_delete is not None:
            raise ConfigurationError(
                f"table {self.table}: soft_delete marks the row of a record; here elements of {self.each} are rows"
            )
        if self.each is not None and self.table.deletes and not self.parent_key:
            raise ConfigurationError(
                f"table {self.table}: nothing in its key comes from the record, only from elements of {self.each}, so "
                "a tombstone could not delete the rows of a record. Give a column of the key a source such as "
                "'value.id', or the table tombstones='ignore'"
            )

    def refuse_numbers(self, source: Source, values: Iterable[Any]) -> None:
        """Raise if values that are no text are wanted of a source that has text only: they would never be found."""
        odd = next((value for value in values if isinstance(value, (int, bool))), None)
        if odd is not None:
            raise ConfigurationError(
                f"where of table {self.table}: {source} is text, so it is never {json.dumps(odd)}; write it as text"
            )

    @cached_property
    def pattern(self) -> NamePattern | None:
        """The pattern of the table's name; ``None`` if it is fixed."""
        return NamePattern.of(self.table.name)

    @cached_property
    def array(self) -> tuple[str, ...] | None:
        """The path of the array within the value."""
        if self.each is None:
            return None
        source = _source(f"each of table {self.table}", self.each, ("value",))
        return source.path

    @cached_property
    def mapped(self) -> Mapped | None:
        """The sources of the columns; those of an array's are paths within what is read for each element."""
        if self.columns is None:
            return None
        mapped = self.columns if self.each is None else {name: _inside(path) for name, path in self.columns.items()}
        return argument("columns", Mapped, mapped)  # type: ignore[no-any-return]

    @cached_property
    def conditions(self) -> Mapping[Source, tuple[Any, ...]]:
        """The values that a record must have, by their sources."""
        return {_source(f"where of table {self.table}", each, _CHOOSING): all_ for each, all_ in self.where.items()}

    @cached_property
    def parent_key(self) -> Mapping[str, Source]:
        """The columns of the table's key that come from the record and not from an element, with their sources."""
        if self.each is None or self.mapped is None:
            return {}
        sources = sources_of(self.mapped)
        of_record = {name: _outside(sources[name]) for name in self.table.key if name in sources}
        return {name: source for name, source in of_record.items() if source is not None}

    @property
    def is_keyed_by_records(self) -> bool:
        """Whether the key of each table has the fields of its records' keys."""
        return RECORD_KEY in self.table.key

    @property
    def choosing(self) -> Iterator[Source]:
        """The sources that decide whether a record goes into the table, and into which one."""
        yield from self.conditions
        yield from self.pattern.sources if self.pattern is not None else ()

    @property
    def sources(self) -> Iterator[Source]:
        """All sources that are read, apart from those within the array."""
        yield from self.choosing
        yield from (Source("key"),) if self.is_keyed_by_records else ()
        yield from sources_of(self.mapped or {}).values()

    def check_format(self, form: Any) -> None:
        """Raise if the table cannot take the records of a format, or of the format with this name."""
        self.table.check_format(form)
        if self.each is not None and reads_changes(form):
            raise ConfigurationError(
                f"table {self.table}: a change event is the change of one row, so that it has no rows in {self.each}"
            )


def _parts(given: Any) -> tuple[Part, ...] | None:
    several = given if isinstance(given, (list, tuple)) else [given]
    found = []
    for each in several:
        part = Part(Table(each)) if is_text(each) else Part(each) if isinstance(each, Table) else each
        if not isinstance(part, Part):
            return None
        found.append(part)
    return tuple(found) or None


_Parts: TypeAlias = Annotated[
    Part | Table | str | Sequence[Part | Table | str], Accepts("a Part, a Table, or a list of them", _parts)
]


@dataclass(frozen=True)
class Route:
    """The tables that records go into; all rows of a record commit together, or none.

    Every part whose ``where`` fits takes the record. ``unmatched`` sets what happens to a record that no part takes. A
    topic, or another value in a table's name, has its characters replaced as ``replace`` says, and is put into lower
    case with ``lower``; two values that end in one name are refused. At most ``most_tables`` tables get their names
    from records. A record that a foreign key refuses is tried again for ``parent_wait`` seconds, because the row that
    it refers to may be on its way in another partition.
    """

    parts: _Parts
    unmatched: Unrouted | str = Unrouted.REFUSE
    replace: Mapping[str, str] = field(default_factory=lambda: {".": "_"})
    lower: bool = False
    most_tables: Count = 100
    parent_wait: Seconds = 30.0

    def __post_init__(self) -> None:
        convert_arguments(self)
        for before, after in self.replace.items():
            if len(before) != 1 or (after and _SAFE.fullmatch(after) is None):
                raise ConfigurationError(
                    f"replace: {before!r} is to be one character, and {after!r} letters, digits, '_', '-' or '.'"
                )
        names: set[str] = set()
        for part in self.tables:
            if (name := str(part.table).casefold()) in names:
                raise ConfigurationError(in_two_parts(part.table))
            names.add(name)

    @property
    def tables(self) -> tuple[Part, ...]:
        """The parts, always as a tuple of :class:`Part`."""
        return self.parts  # type: ignore[return-value]

    @property
    def deletes(self) -> bool:
        """Whether a tombstone deletes rows."""
        return any(part.table.deletes for part in self.tables)

    @property
    def sources(self) -> Iterator[Source]:
        """All sources that rows and tables are chosen by or made of."""
        for part in self.tables:
            yield from part.sources

    def check_format(self, form: Any) -> None:
        """Raise if a table cannot take the records of a format, or of the format with this name."""
        for part in self.tables:
            part.check_format(form)

    def named(self, value: str) -> str | None:
        """Return what a value becomes in a table's name; ``None`` if it cannot be in one."""
        found = "".join(self.replace.get(character, character) for character in value)
        found = found.lower() if self.lower else found
        return found if _SAFE.fullmatch(found) else None

    def refuse_alike(self, topics: Sequence[str]) -> None:
        """Raise if two of these topics would end in one table."""
        for part in self.tables:
            if part.pattern is None or not part.pattern.is_trusted:
                continue
            seen: dict[str, str] = {}
            for topic in dict.fromkeys(topics):
                name = self.named(topic)
                if name is not None and (other := seen.setdefault(name, topic)) != topic:
                    raise ConfigurationError(f"topics {other} and {topic} would both end in table {name!r}")

    def __str__(self) -> str:
        return " and ".join(str(part.table) for part in self.tables)


def _no_record_key(table: Table) -> ConfigurationError:
    return ConfigurationError(
        f"table {table}: key='{{key}}' is for tables that records name, as in Table('{{topic}}', key='{{key}}', …); "
        "name the columns of the key"
    )


def _into(given: Any) -> Table | Route | None:
    if isinstance(given, (Part, list, tuple)):
        return None if not given or _parts(given) is None else Route(given)
    table = Table(given) if is_text(given) else given
    if isinstance(table, Table):
        if NamePattern.of(table.name) is not None:
            return Route(Part(table))
        if RECORD_KEY in table.key:
            raise _no_record_key(table)
        return table
    return given if isinstance(given, Route) else None


IntoArgument: TypeAlias = Annotated[
    Table | Route, Accepts("a Table, the name of one, a Route, or a list of Parts and Tables", _into)
]
"""Where a sink writes: one table, or a route to several."""


def _one(given: Any) -> Table | None:
    found = _into(given)
    if isinstance(found, Route):
        raise ConfigurationError(
            "several tables are for sinks and pipelines, as in app.sink(topics, into=Route(…)); here there is one"
        )
    return found


OneTableArgument: TypeAlias = Annotated[Table, Accepts("a Table, or the name of one", _one)]
"""One table with a fixed name, where there is no way to several yet."""

RouteArgument: TypeAlias = Table | Part | Route | str | Sequence[Part | Table | str]
"""What a user may pass for an :data:`IntoArgument`."""


def _source(what: str, written: str, parts: Sequence[str]) -> Source:
    if written.partition(".")[0] not in parts:
        raise ConfigurationError(f"{what}: {written!r} is not possible here; use one of {', '.join(parts)}")
    (source,) = sources_of({what: written}).values()
    if source.part in ("headers", "value") and not source.path:
        raise ConfigurationError(f"{what}: {written!r} needs a name after it, as in '{written}.type'")
    return source


def _inside(written: str | Sequence[str]) -> str | Sequence[str]:
    """Return a source of an array's column as a path within what is read for each element."""
    path = written.split(".") if isinstance(written, str) else list(written)
    return ["value", *path] if path[0] in (_EACH, _INDEX) or (path[0] == "value" and len(path) > 1) else written


def _outside(source: Source) -> Source | None:
    """Return the source within the record; ``None`` for one within an element."""
    if not source.is_field:
        return source if source.part != "value" else None
    first, *rest = source.path
    return Source("value", tuple(rest)) if first == "value" else None
