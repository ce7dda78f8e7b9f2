"""The format of records that name a schema of a registry."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, product
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

import pyarrow as pa
from msgspec import UNSET

from tidegate.core.arguments import Accepts, Label, convert_arguments
from tidegate.core.schemas import SCHEMA_FORMATS, SchemaKind, SchemaRegistry
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.tables.aliases import Renames, original, renamed, renames_of
from tidegate.tables.codec import ODD, Codec, Codecs, Mismatched, odd
from tidegate.tables.feed import Feed, Known, fold
from tidegate.tables.format import FieldMatch, FieldReader, Fields, MappedRows, Unmatched, Wanted, field_in
from tidegate.tables.rows import Misfit
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import Converted

__all__ = ["SchemaFormat"]

_Path: TypeAlias = "tuple[str, ...]"


def _kind(given: Any) -> SchemaKind | None:
    if isinstance(given, SchemaKind):
        return given
    return SCHEMA_FORMATS.get(given) if is_text(given) else None


_KindArgument: TypeAlias = Annotated[
    SchemaKind, Accepts(" or ".join(map(repr, SCHEMA_FORMATS)), _kind, tuple(SCHEMA_FORMATS))
]


def _registry(given: Any) -> Any:
    return given if callable(getattr(given, "by_id", None)) and not isinstance(given, type) else None


_RegistryArgument: TypeAlias = Annotated[Any, Accepts("an open schema registry, such as a RegistryClient", _registry)]


@dataclass(frozen=True)
class SchemaFormat:
    """A format in which each key or value names a schema of a registry: ``"avro"``, ``"protobuf"``, ``"json-schema"``.

    With ``flatten``, the fields of nested records become columns of their own, whose names join the names on the path
    to them: with ``"_"``, ``address_city``. Otherwise nested records go into one column as JSON. ``registry`` is by
    default that of the app or the pipeline.
    """

    kind: _KindArgument = SchemaKind.AVRO
    flatten: Label | None = None
    registry: _RegistryArgument | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)

    def with_registry(self, registry: SchemaRegistry | None) -> SchemaFormat:
        """Return the format with this registry, unless it has one."""
        return self if self.registry is not None else replace(self, registry=registry)

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: FieldMatch | None = None) -> FieldReader:
        """Return a reader of these columns from the values or, with ``part="key"``, from the keys.

        An empty path stands for the key or value as a whole.
        """
        return _RegisteredFields(self, wanted, part, watch)

    def bare_reader(self, wanted: Wanted) -> FieldReader:
        """Return a reader of one column from the keys, which are the value itself, or a record with that field."""
        return _RegisteredFields(self, [wanted], "key", None, bare=wanted.path)

    def infer(self, feed: Feed, paths: Sequence[_Path] | None) -> dict[_Path, ColumnType | None]:
        """Return the types of the fields at these paths, or of all fields, by the schemas of the records."""
        return self.infer_part(feed, paths, "value")

    def infer_beside(self, feed: Feed, names: Iterable[str], *, ignore_case: bool) -> dict[_Path, ColumnType | None]:
        """Return the types of all fields, for a table with these columns: renamed fields have their former names."""
        return self.infer_part(feed, None, "value", names, ignore_case=ignore_case)

    def infer_part(
        self,
        feed: Feed,
        paths: Sequence[_Path] | None,
        part: str,
        beside: Iterable[str] = (),
        *,
        ignore_case: bool = False,
    ) -> dict[_Path, ColumnType | None]:
        """Return the types of fields by the schemas of the keys or the values.

        Fields that the schemas do not describe have the types that the records show.
        """
        found: dict[_Path, list[ColumnType | None]] = {}
        beside = tuple(beside)
        for codec, values in self._codecs_of(feed, part):
            asked = [*((name,) for name in beside), *found] if paths is None else list(filter(None, paths))
            renames = self.renames(codec, Known(asked, ignore_case=ignore_case))
            types = self._types(codec)
            if paths is not None and renames:
                for path in paths:
                    at = original(path, renames)
                    kind = codec.whole if not path else types[at] if at in types else _type_at(codec, at)
                    found.setdefault(path, []).append(kind)
                continue
            types = {(renames[path[0]].name,) if path[0] in renames else path: kind for path, kind in types.items()}
            shown = codec.shown(values, paths and [*filter(None, paths)]) if self.flatten is None else {}
            for path in dict.fromkeys([*types, *shown]) if paths is None else paths:
                kind = codec.whole if not path else types[path] if path in types else _type_at(codec, path)
                found.setdefault(path, []).append(shown.get(path) if kind is None else kind)
        return {path: _widest(kinds) for path, kinds in found.items()}

    @property
    def codecs(self) -> Codecs:
        """The codecs of the registry; raises if there is no registry."""
        if self.registry is None:
            raise ConfigurationError(
                "the format needs a schema registry: pass registry='http://host:8081' to the app or the pipeline, or "
                "set it in tidegate.toml or as TIDEGATE_REGISTRY"
            )
        codecs = self.__dict__.get("_codecs")
        if codecs is None:
            codecs = self.__dict__["_codecs"] = Codecs(self.kind, self.registry, into_columns=True)
        return codecs

    def __reduce__(self) -> tuple[Any, ...]:
        return SchemaFormat, (self.kind, self.flatten, self.registry)

    def flattened(self, codec: Codec, value: Any) -> Any:
        """Return a decoded record with its nested records flattened, if so configured; raises :class:`Mismatched`."""
        if self.flatten is None or codec.fields is None or not isinstance(value, Mapping):
            return value
        found: dict[str, Any] = {}
        for path in _leaves_of(cast(Hashable, codec)):
            name = self.flatten.join(path)
            if name in found:
                raise Mismatched("two fields become the same column", name)
            leaf = field_in(value, path)
            if leaf is not UNSET:
                found[name] = leaf
        return found

    def renames(self, codec: Codec, known: Known) -> Renames:
        """Return which fields of a row, perhaps a flattened one, get a former name because that is known."""
        if codec.aliases(()) is None:
            return {}
        flat = None if self.flatten is None else _flat_aliases(cast(Hashable, codec), self.flatten)
        return renames_of(codec.aliases if flat is None else lambda path: None if path else flat, known)

    def below(self, codec: Codec, path: _Path) -> _Path | None:
        """Return the path within a record to the field that rows have at a path; ``None`` if it is not exactly so."""
        if self.flatten is None:
            return path
        paths = _leaves_of(cast(Hashable, codec))
        leaves = {self.flatten.join(each): each for each in paths}
        return leaves.get(path[0]) if len(path) == 1 and len(leaves) == len(paths) else None

    def _types(self, codec: Codec) -> dict[_Path, ColumnType | None]:
        """Return the column types of a record's fields, by path, as rows have them."""
        if codec.fields is None:
            return {}
        if self.flatten is None:
            return {(name,): kind for name, kind in codec.fields.items()}
        return {(self.flatten.join(path),): _type_at(codec, path) for path in _leaves_of(cast(Hashable, codec))}

    def _codecs_of(self, feed: Feed, part: str) -> Iterable[tuple[Codec, list[bytes]]]:
        """Return the codecs of the readable records, each once, with what it is to decode."""
        found: dict[int, tuple[Codec, list[bytes]]] = {}
        headers = feed.headers
        for place, data in enumerate(feed.part(part)):
            if data is None:
                continue
            try:
                codec, _, rest = self.codecs.selected(data, (headers and headers[place]) or (), part)
            except Mismatched:
                continue
            found.setdefault(id(codec), (codec, []))[1].append(rest)
        return found.values()


class _SchemaRecords(NamedTuple):
    """Records of one schema: its id, the codec, the places of the records, and the bytes that the codec decodes."""

    number: int
    codec: Codec
    places: list[int]
    data: list[bytes | None]


_MOST_READERS = 1_000


class _RegisteredFields:
    def __init__(
        self,
        form: SchemaFormat,
        wanted: Sequence[Wanted],
        part: str,
        watch: FieldMatch | None,
        *,
        bare: _Path | None = None,
    ) -> None:
        self._form = form
        self._codecs = form.codecs
        self._part = part
        self._bare = bare
        self._wanted = wanted
        self._watch = watch or FieldMatch()
        self._needs_record = any(path for _, path in wanted) or not wanted
        self._rows = MappedRows(wanted, watch)
        self._readers: dict[int, tuple[Codec, FieldReader | None]] = {}
        self._renames: dict[int, tuple[Codec, Renames]] = {}
        asked = [path for _, path in wanted if path]
        self._known = Known([each[-1:] for each in asked] if bare else asked, ignore_case=self._watch.ignore_case)

    def read(self, feed: Feed) -> Fields:
        """Read all records; a record without a value becomes a row of nulls. May raise :class:`NewFields`."""
        found = self._read_columns(feed)
        # A key that cannot be read is a row all the same: it stands beside the row of its value.
        is_whole = found is not None and (self._part == "value" or len(found.places) == len(feed))
        return found if found is not None and is_whole else self._read_rows(feed)

    def _read_columns(self, feed: Feed) -> Fields | None:
        """Read the records of each schema together, column by column; ``None`` if one of them cannot be read so."""
        if self._bare or not self._wanted or not all(path for _, path in self._wanted):
            return None
        groups, misfits = self._grouped(feed)
        read: list[Fields] = []
        for number, codec, places, data in groups:
            try:
                reader = self._reader_of(codec)
                if reader is None:
                    return None
                found = reader.read(Feed(value=data))
            except ODD:  # reading row by row finds the record that it is about
                return None
            named = [_named(misfit, number)._replace(place=places[misfit.place]) for misfit in found.misfits]
            at = places if isinstance(found.places, range) else [places[place] for place in found.places]
            read.append(replace(found, places=at, misfits=named))
        if not read:
            return None
        if len(read) == 1 and not misfits:
            return replace(read[0], places=range(len(feed))) if len(read[0].places) == len(feed) else read[0]
        return _joined(read, misfits, self._wanted)

    def _grouped(self, feed: Feed) -> tuple[list[_SchemaRecords], list[Misfit]]:
        """Return the records by codec, and misfits for those that have none; tombstones are in the first group."""
        groups: dict[tuple[int, int], _SchemaRecords] = {}
        misfits: list[Misfit] = []
        gone: list[int] = []
        prefix, group = b"", None
        headers = feed.headers if feed.headers is not None and any(feed.headers) else None
        for place, each in enumerate(feed.part(self._part)):
            beside = (headers[place] if headers is not None else None) or ()
            if each is None:
                gone.append(place)
            elif group is not None and each.startswith(prefix) and not beside:
                group.places.append(place)
                group.data.append(each[len(prefix) :])
            else:
                try:
                    codec, number, rest = self._codecs.selected(each, beside, self._part)
                except Mismatched as mismatch:
                    misfits.append(Misfit(place, None, str(mismatch)))
                    continue
                chosen = groups.setdefault((number, id(codec)), _SchemaRecords(number, codec, [], []))
                chosen.places.append(place)
                chosen.data.append(rest)
                if not beside:
                    prefix, group = each[: len(each) - len(rest)], chosen
        if gone and groups:
            first = next(iter(groups.values()))
            first.places.extend(gone)
            first.data.extend([None] * len(gone))
            if first.places != sorted(first.places):
                both = sorted(zip(first.places, first.data, strict=True), key=itemgetter(0))
                first.places[:], first.data[:] = (list(part) for part in zip(*both, strict=True))
        return list(groups.values()), misfits

    def _reader_of(self, codec: Codec) -> FieldReader | None:
        """Return the reader of columns for a codec, if it has one."""
        known = self._readers.get(id(codec))
        if known is None:
            renames = self._renames_of(codec)
            paths = [self._form.below(codec, original(path, renames)) for _, path in self._wanted]
            is_flat = self._form.flatten is None or self._watch.unmatched is Unmatched.IGNORED
            wanted = [
                Wanted(column, path) for (column, _), path in zip(self._wanted, paths, strict=True) if path is not None
            ]
            takes = is_flat and len(wanted) == len(paths) and codec.fields is not None
            if takes and renames:  # two fields that differ only in case, one of which is renamed, are told apart by row
                takes = len({fold(name) for name in codec.fields or ()}) == len(codec.fields or ())
            known = codec, codec.columns(wanted, self._watch) if takes else None
            if len(self._readers) >= _MOST_READERS:
                self._readers.clear()
            self._readers[id(codec)] = known  # with the codec, so that its id stays its own
        return known[1]

    def _renames_of(self, codec: Codec) -> Renames:
        found = self._renames.get(id(codec))
        if found is None:
            found = codec, self._form.renames(codec, self._known)
            if len(self._renames) >= _MOST_READERS:
                self._renames.clear()
            self._renames[id(codec)] = found  # with the codec, so that its id stays its own
        return found[1]

    def _read_rows(self, feed: Feed) -> Fields:
        data = feed.part(self._part)
        headers = feed.headers
        rows: list[Any] = []
        numbers: dict[int, int] = {}
        misfits: list[Misfit] = []
        for place, each in enumerate(data):
            row: Any = None
            if each is not None:
                try:
                    row, numbers[place] = self._row(each, (headers and headers[place]) or ())
                except Mismatched as mismatch:
                    misfits.append(Misfit(place, None, str(mismatch)))
            rows.append(row)
        found = self._rows.fields(rows, range(len(data)), ())
        return replace(found, misfits=[*misfits, *(_named(each, numbers[each.place]) for each in found.misfits)])

    def _row(self, data: bytes, headers: Sequence[tuple[str, bytes | None]]) -> tuple[Any, int]:
        """Return a value, and the id of its schema."""
        codec, number, rest = self._codecs.selected(data, headers, self._part)
        try:
            value = renamed(self._form.flattened(codec, codec.decode(rest)), self._renames_of(codec))
        except ODD as error:
            raise odd(error, "the value").of_schema(number) from None
        if self._bare and not isinstance(value, Mapping):
            return {self._bare[-1]: value}, number
        if self._needs_record and not isinstance(value, Mapping):
            raise Mismatched(f"schema {number}: its values have no fields that columns could come from")
        return value, number


def _named(misfit: Misfit, number: int) -> Misfit:
    """Return a misfit that names its schema, unless it is about a column alone."""
    return misfit if misfit.column is not None else misfit._replace(why=f"schema {number}: {misfit.why}")


def _joined(read: Sequence[Fields], misfits: list[Misfit], wanted: Sequence[Wanted]) -> Fields:
    """Join what was read by several schemas, in the order of the records."""
    places = [place for fields in read for place in fields.places]
    order = sorted(range(len(places)), key=places.__getitem__)
    taken = pa.array(order, pa.int64())
    rank = {row: at for at, row in enumerate(order)}
    converted: dict[str, Converted] = {}
    lacking: dict[str, Any] = {}
    for column, _ in wanted:
        name, before = column.name, 0
        problems: dict[int, str] = {}
        masks = []
        for fields in read:
            array, found = fields.converted[name]
            problems |= {rank[before + row]: why for row, why in found.items()}
            masks.append(fields.lacking.get(name, pa.repeat(pa.scalar(False), len(array))))
            before += len(array)
        arrays = pa.chunked_array([fields.converted[name].array for fields in read], column.arrow)
        converted[name] = Converted(arrays.take(taken).combine_chunks(), problems)
        mask = pa.chunked_array(masks, pa.bool_()).take(taken).combine_chunks()
        if mask.true_count:
            lacking[name] = mask
    found_places = [places[row] for row in order]
    return Fields(
        converted, found_places, [*misfits, *(misfit for fields in read for misfit in fields.misfits)], lacking
    )


@lru_cache(maxsize=256)
def _flat_aliases(codec: Any, joint: str) -> Mapping[str, Sequence[str]]:
    """Return the names of the flattened fields, with those that they would have if fields had kept former names."""
    found = {}
    for path in _leaves_of(codec):
        names = [(name, *(codec.aliases(path[:depth]) or {}).get(name, ())) for depth, name in enumerate(path)]
        ways = islice(product(*names), 1, _MOST_ALIASES)
        found[joint.join(path)] = tuple(joint.join(each) for each in ways)
    return found


_MOST_ALIASES = 64  # names of one flattened field


@lru_cache(maxsize=256)
def _leaves_of(codec: Any) -> tuple[_Path, ...]:
    """Return the paths of all fields that are not records, through nested records, but not into arrays and maps.

    A schema may contain itself in several places. Then their number grows exponentially with the depth, and fewer
    levels are flattened.
    """
    for deepest in range(_DEEPEST, 1, -1):
        looked_at = list(islice(_below(codec, (), codec.fields or (), deepest), _MOST_LOOKED_AT + 1))
        found = tuple(path for path, is_leaf in looked_at if is_leaf)
        if len(found) <= _MOST_LEAVES and len(looked_at) <= _MOST_LOOKED_AT:
            return found
    return tuple((name,) for name in codec.fields or ())


def _below(codec: Any, path: _Path, names: Iterable[str], deepest: int) -> Iterator[tuple[_Path, bool]]:
    """Yield the paths of fields, and whether they are leaves."""
    for name in names:
        inner = codec.inside(".".join((*path, name))) if len(path) < deepest else None
        yield (*path, name), inner is None
        if inner is not None:
            yield from _below(codec, (*path, name), inner, deepest)


_DEEPEST = 8  # levels that are flattened: a schema may contain itself
_MOST_LEAVES = 1_000
_MOST_LOOKED_AT = 2_000  # fields, with those that are records: a record may have no fields


def _type_at(codec: Codec, path: _Path) -> ColumnType | None:
    fields = codec.fields if len(path) == 1 else codec.inside(".".join(path[:-1]))
    return None if fields is None else fields.get(path[-1])


def _widest(kinds: Iterable[ColumnType | None]) -> ColumnType | None:
    """Return a type for values of several schemas."""
    found = {kind for kind in kinds if kind is not None}
    if len(found) < 2:
        return next(iter(found), None)
    names = {kind.name for kind in found}
    if TypeName.DECIMAL in names and names <= {TypeName.DECIMAL, TypeName.INTEGER}:
        return ColumnType(TypeName.DECIMAL)
    if names == {TypeName.INTEGER, TypeName.DOUBLE}:
        return ColumnType(TypeName.DOUBLE)
    return ColumnType(TypeName.JSON)
