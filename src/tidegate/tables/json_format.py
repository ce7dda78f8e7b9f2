"""The JSON format: one object per record, decoded directly into the types of the columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import repeat
from operator import attrgetter, length_hint
from types import NoneType
from typing import Any, TypeAlias, Union, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType

from tidegate.tables.column import Column
from tidegate.tables.converters import Unfit, lenient
from tidegate.tables.feed import Clash, Feed, Known, is_spelled_otherwise
from tidegate.tables.format import FieldMatch, FieldReader, Fields, Unmatched, Wanted, lacking_in
from tidegate.tables.inference import ENVELOPE, field_at, infer_json, is_envelope, is_plain, json_fields
from tidegate.tables.rows import Misfit
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import (
    Converted,
    array_of,
    array_of_raw,
    array_of_raw_decimals,
    array_of_raw_values,
    joined,
    reads_raw,
)

__all__ = ["JsonFormat"]

_Tree: TypeAlias = "dict[str, _Tree | Wanted]"

# Times and decimals stay text here: Arrow parses a whole column much faster than single values can be parsed.
_TYPES: dict[TypeName, Any] = {
    TypeName.BOOLEAN: bool,
    TypeName.INTEGER: int,
    TypeName.DOUBLE: float,
    TypeName.DECIMAL: msgspec.Raw,
    TypeName.TEXT: str,
    TypeName.BYTES: bytes,
    TypeName.DATE: str,
    TypeName.TIMESTAMP: str,
    TypeName.JSON: msgspec.Raw,
}
_ERROR = re.compile(r"(?P<what>.*?)(?:, got `(?P<got>[^`]*)`)?(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_MANY = 1 << 62
_AT_ONCE = 4000  # records; 20,000 take half as long again for each
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class JsonFormat:
    """A format in which each value is one JSON object. Decimals are never read as floats; bytes are base64."""

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: FieldMatch | None = None) -> FieldReader:
        """Return a reader of these columns from the values or, with ``part="key"``, from the keys."""
        return JsonFields(wanted, part, watch)

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """Infer the types of the fields at these paths, or of all fields; ``None`` for a field that is always null."""
        return infer_json(feed.value, paths)


class JsonFields:
    """Reads columns from JSON. Each record is decoded by itself, so that invalid JSON affects no other record."""

    def __init__(self, wanted: Sequence[Wanted], part: str, watch: FieldMatch | None) -> None:
        self._part = part
        self._paths = {each.column.name: each.path for each in wanted}
        self._names = _Names(self._paths.values(), watch or FieldMatch())
        plain = [each for each in wanted if all(map(is_plain, each.path))]
        odd = [each for each in wanted if not all(map(is_plain, each.path))]
        self._passes: list[_Pass | _OddPass] = [_Pass(tree, self._names, strict=not odd) for tree in _trees(plain)]
        if odd:
            self._passes.append(_OddPass(odd))

    def read(self, feed: Feed) -> Fields:
        """Read all records; a record without a value becomes a row of nulls. May raise :class:`NewFields`."""
        values = feed.part(self._part)
        judged = _Judged()
        converted, lacking = self._read(values, judged)
        if again := self._spelled_otherwise(values, lacking, judged):
            values = [again.get(place, value) for place, value in enumerate(values)]
            converted, lacking = self._read(values, judged)
        misfits = [*judged.misfits.values(), *self._names.watch.misfits(judged.unmatched)]
        return Fields(converted, range(len(values)), misfits, lacking)

    def _read(self, values: Sequence[Any], judged: _Judged) -> tuple[dict[str, Converted], dict[str, Any]]:
        """Return values by column name, and masks of the records that lack a column, if there are any."""
        if len(values) <= _AT_ONCE:
            return self._read_some(values, judged)
        starts = range(0, len(values), _AT_ONCE)
        found = []
        for start in starts:
            some = _Judged()
            found.append(self._read_some(values[start : start + _AT_ONCE], some))
            judged.add(some, start)
        converted = {
            name: joined([(start, part[name]) for start, (part, _) in zip(starts, found, strict=True)])
            for name in found[0][0]
        }
        lacking = {}
        for name in {name for _, masks in found for name in masks}:
            lacking[name] = pa.concat_arrays(
                [
                    masks[name] if name in masks else pa.repeat(pa.scalar(False), len(part[name].array))
                    for part, masks in found
                ]
            )
        return converted, lacking

    def _read_some(self, values: Sequence[Any], judged: _Judged) -> tuple[dict[str, Converted], dict[str, Any]]:
        """Read so few records that their decoded objects fit into the processor's cache.

        Columns are converted one after the other, which is faster than all at once.
        """
        converted: dict[str, Converted] = {}
        lacking: dict[str, Any] = {}
        for each in self._passes:
            for column, found, lacks in each.read(values, judged):
                present, mask = lacking_in(found) if lacks else (found, None)
                converted[column.name] = _array(present, column)
                if mask is not None:
                    lacking[column.name] = mask
        return converted, lacking

    def _spelled_otherwise(self, values: Sequence[Any], masks: Mapping[str, Any], judged: _Judged) -> dict[int, bytes]:
        """Return, by place, records that have a missing field in another case, rewritten to the column's spelling."""
        names = {name for column in masks for name in self._paths[column]}
        if not names or not self._names.watch.ignore_case:
            return {}
        if not is_spelled_otherwise(b"\n".join(filter(None, values)), names):
            return {}
        found = {}
        for place in pc.indices_nonzero(reduce(pc.or_, masks.values())).to_pylist():
            value = values[place]
            if value is not None and place not in judged and is_spelled_otherwise(value, names):
                amended = self._names.amended(place, value, judged)
                if amended != value:
                    found[place] = amended
        return found


class _Judged:
    """The records that cannot become rows, by place: misfits, and names of fields without a column."""

    def __init__(self) -> None:
        self.misfits: dict[int, Misfit] = {}
        self.unmatched: dict[int, str] = {}

    def __contains__(self, place: int) -> bool:
        return place in self.misfits or place in self.unmatched

    def add(self, others: _Judged, start: int) -> None:
        """Take over what was found in records of which the first is at place ``start``."""
        for place, misfit in others.misfits.items():
            self.misfits.setdefault(start + place, misfit._replace(place=start + place))
        for place, name in others.unmatched.items():
            self.unmatched.setdefault(start + place, name)


class _Names:
    """Matches the names of an object's fields with the known ones."""

    def __init__(self, paths: Iterable[tuple[str, ...]], watch: FieldMatch) -> None:
        self.watch = watch
        self.known = Known(paths, ignore_case=watch.ignore_case)
        self.judges = watch.unmatched is not Unmatched.IGNORED

    def amended(self, place: int, value: bytes, judged: _Judged) -> bytes:
        """Return the object with known names spelled exactly; note unmatched fields in ``judged`` if so configured."""
        fields = json_fields(value)
        if fields is None:
            return value
        try:
            found = self._matched(place, fields, self.known, (), judged)
        except Clash as clash:
            judged.misfits.setdefault(place, Misfit(place, None, str(clash)))
            return value
        if place in judged.unmatched and is_envelope(value) and not fields.keys() & self.known.inside.keys():
            del judged.unmatched[place]
            judged.misfits.setdefault(place, Misfit(place, None, ENVELOPE))
        return value if found is None else msgspec.json.encode(found)

    def _matched(
        self, place: int, fields: Mapping[str, msgspec.Raw], known: Known, path: tuple[str, ...], judged: _Judged
    ) -> dict[str, Any] | None:
        """Return the fields under their known names, nested ones included; ``None`` if nothing changes."""
        found = known.matched(fields)
        changed = found.keys() != fields.keys()
        for name in found.keys() - known.inside.keys() if self.judges else ():
            is_left_out = not path and name in self.watch.left_out
            if self.watch.spares_nulls:
                is_left_out |= bytes(found[name]) == b"null" or known.has_exactly(name, found)
            if is_left_out:
                del found[name]
                changed = True
            else:
                judged.unmatched.setdefault(place, ".".join((*path, name)))
        for name, below in known.inside.items():
            inner = json_fields(bytes(found[name])) if below is not None and name in found else None
            if inner is not None and below is not None:
                amended = self._matched(place, inner, below, (*path, name), judged)
                if amended is not None:
                    found[name], changed = amended, True
        return found if changed else None


class _OddPass:
    """Reads fields whose names a struct cannot have: looks them up in the undecoded object, one by one."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = wanted

    def read(self, values: Sequence[Any], judged: _Judged) -> Iterator[tuple[Column, list[Any], bool]]:
        """Yield each column, its values with ``UNSET`` for missing fields, and whether there may be missing fields."""
        for column, path in self._wanted:
            found: list[Any] = []
            for place, value in enumerate(values):
                raw = field_at(value, path)
                try:
                    found.append(raw if raw is None or raw is UNSET else _converted(raw, column))
                except Unfit as unfit:
                    judged.misfits.setdefault(place, Misfit(place, column.name, str(unfit)))
                    found.append(None)
            yield column, found, True


class _Pass:
    """One msgspec decoder, and the attribute paths from its structs to the columns.

    ``strict`` says that the decoder itself can detect fields without a column. It cannot if some names are impossible
    in a struct; then each record is examined separately.
    """

    def __init__(self, tree: _Tree, names: _Names, *, strict: bool) -> None:
        self._columns: list[tuple[Wanted, list[Callable[[Any], Any]]]] = []
        self._by_path: dict[str, Column] = {}
        self._names = names
        self._is_strict = names.judges and strict
        self._looks = names.judges and not strict
        self._missing = repeat(UNSET, _MANY)  # shrinks by one per missing field: a count at no cost
        kind = self._struct(tree, [], "", names.known)
        self._blank = kind()
        self._decode = msgspec.json.Decoder(kind).decode
        self._decode_raw = msgspec.json.Decoder(_raw(kind)).decode

    def read(self, values: Sequence[Any], judged: _Judged) -> Iterator[tuple[Column, list[Any], bool]]:
        """Yield each column, its values with ``UNSET`` for missing fields, and whether there may be missing fields."""
        left = length_hint(self._missing)
        try:
            found = None if self._looks else list(map(self._decode, values))
        except (*_UNREADABLE, TypeError):  # TypeError: a tombstone is None, which cannot be decoded
            found = None
        lacks = found is None or length_hint(self._missing) != left
        if found is None:
            found = self._read_one_by_one(values, judged)
        for wanted, steps in self._columns:
            first, *rest = steps
            column = list(map(first, found))
            for step in rest:
                column = [value if value is None or value is UNSET else step(value) for value in column]
            yield wanted.column, column, lacks

    def _read_one_by_one(self, values: Sequence[Any], judged: _Judged) -> list[Any]:
        """Decode the records one by one, converting fields where needed; unreadable records become misfits."""
        found: list[Any] = []
        for place, value in enumerate(values):
            try:
                found.append(self._blank if value is None else self._read_one(place, value, judged))
            except _UNREADABLE as error:
                judged.misfits.setdefault(place, self._misfit(place, error))
                found.append(self._blank)
        return found

    def _read_one(self, place: int, value: bytes, judged: _Judged) -> Any:
        """Decode one record: first as it is, then with its names matched, then with each field converted by itself."""
        if not self._looks:
            try:
                return self._decode(value)
            except msgspec.ValidationError:
                pass
        if self._names.judges:
            value = self._names.amended(place, value, judged)
            if place in judged:
                return self._blank
        found = self._decode_raw(value)
        for column, why in self._convert(found, ""):
            judged.misfits.setdefault(place, Misfit(place, column, why))
            return self._blank
        return found

    def _convert(self, found: Any, path: str) -> Iterator[tuple[str, str]]:
        """Convert the raw fields of a record in place; yield column and reason for those that do not fit."""
        for attribute, name in zip(found.__struct_fields__, found.__struct_encode_fields__, strict=True):
            value, at = getattr(found, attribute), f"{path}.{name}"
            if isinstance(value, msgspec.Struct):
                yield from self._convert(value, at)
            elif isinstance(value, msgspec.Raw) and (column := self._by_path.get(at)) is not None:
                try:
                    setattr(found, attribute, _converted(bytes(value), column))
                except Unfit as unfit:
                    yield column.name, str(unfit)

    def _struct(
        self, tree: _Tree, steps: list[Callable[[Any], Any]], path: str, known: Known | None
    ) -> type[msgspec.Struct]:
        """Return the struct type for a tree of fields.

        Attributes are numbered, since the names in JSON may not be valid in Python.
        """
        watch = self._names.watch
        more = {*known.inside, *(() if path else watch.left_out | watch.waiting)} if known and self._is_strict else ()
        others = sorted(name for name in more if name not in tree and is_plain(name))
        names = {f"f{number}": name for number, name in enumerate([*tree, *others])}
        fields: list[Any] = []
        for attribute, name in names.items():
            branch = tree.get(name)
            way: list[Callable[[Any], Any]] = [*steps, attrgetter(attribute)]
            if isinstance(branch, Wanted):
                self._columns.append((branch, way))
                self._by_path[f"{path}.{name}"] = branch.column
                fields.append((attribute, _kind(branch.column) | UnsetType, self._default))
            elif branch is None:  # a waiting field must be null; any other value makes it new
                waits = not path and name in watch.waiting and known is not None and name not in known.inside
                fields.append((attribute, None if waits else msgspec.Raw, None))
            else:
                below = known.inside.get(name) if known else None
                nested = self._struct(branch, way, f"{path}.{name}", below)
                fields.append((attribute, nested | None | UnsetType, self._default))
        forbid = self._is_strict and known is not None
        return msgspec.defstruct("Value", fields, rename=names, gc=False, forbid_unknown_fields=forbid)

    @property
    def _default(self) -> Any:
        """A field default of ``UNSET`` that counts its uses."""
        return msgspec.field(default_factory=self._missing.__next__)

    def _misfit(self, place: int, error: Exception) -> Misfit:
        """Return a misfit with the reason. It contains no values; msgspec's messages do not either."""
        if isinstance(error, RecursionError):
            return Misfit(place, None, "JSON that is nested too deep")
        if isinstance(error, UnicodeDecodeError):
            return Misfit(place, None, "JSON that is not UTF-8")
        match = _ERROR.fullmatch(str(error))
        if match is None or not isinstance(error, msgspec.ValidationError):
            return Misfit(place, None, f"not JSON: {error}")
        path = match["path"] or ""
        column = self._by_path.get(path)
        where = f"field {path[1:]!r}: " if path and column is None else ""
        return Misfit(place, None if column is None else column.name, where + _why(match))


def _kind(column: Column) -> Any:
    return msgspec.Raw if reads_raw(column) else _TYPES[column.type.name] | None


def _raw(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the same struct type, but with the fields of columns undecoded."""
    fields: list[Any] = []
    for each in msgspec.structs.fields(kind):
        options = get_args(each.type) or (each.type,)
        nested = [option for option in options if isinstance(option, type) and issubclass(option, msgspec.Struct)]
        if nested:
            rest = [option for option in options if option is not nested[0]]
            made: Any = Union[_raw(nested[0]), *rest]
        else:
            made = None if each.type is NoneType else msgspec.Raw
        fields.append((each.name, made, UNSET if each.default is msgspec.NODEFAULT else each.default))
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    strict = kind.__struct_config__.forbid_unknown_fields
    return msgspec.defstruct("Value", fields, rename=names, gc=False, forbid_unknown_fields=strict)


def _converted(raw: bytes, column: Column) -> Any:
    """Convert a single field to what the decoder of whole records would return."""
    if reads_raw(column):
        return msgspec.Raw(raw)
    return None if raw == b"null" else lenient(raw, column)


def _array(values: list[Any], column: Column) -> Converted:
    match column.type.name:
        case TypeName.JSON:
            return array_of_raw(values, column)
        case TypeName.DECIMAL:
            return array_of_raw_decimals(values, column)
        case _ if reads_raw(column):
            return array_of_raw_values(values, column)
        case name:
            return array_of(values, column, _TYPES[name])


def _why(match: re.Match[str]) -> str:
    what: str = match["what"]
    if match["got"] is None:
        return what[:1].lower() + what[1:]
    expected = re.sub(r"Expected `(.*?)(?: \| null)?`", r"\1", what)
    return f"expected {_NAMES.get(expected, expected)}, got {_NAMES.get(match['got'], match['got'])}"


def _trees(wanted: Sequence[Wanted]) -> list[_Tree]:
    """Arrange the paths in as few trees as possible; a field that is read in two ways needs two trees."""
    trees: list[_Tree] = [{}]
    for each in wanted:
        if not any(_planted(tree, each) for tree in trees):
            trees.append({})
            _planted(trees[-1], each)
    return trees


def _planted(tree: _Tree, wanted: Wanted) -> bool:
    *branches, leaf = wanted.path
    at: Any = tree
    for name in branches:
        at = at.get(name, {})
        if isinstance(at, Wanted):
            return False
    if leaf in at:
        return False
    at = tree
    for name in branches:
        at = at.setdefault(name, {})
    at[leaf] = wanted
    return True


_NAMES: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a decimal number",
    "str": "text",
    "bool": "a boolean",
    "bytes": "bytes in base64",
    "object": "an object",
    "array": "an array",
}
