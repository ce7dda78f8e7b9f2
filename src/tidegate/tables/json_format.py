"""JSON: one object for each record, read straight into the types of the columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from tidegate.tables.column import Column
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldReader, Fields, NewFields, Wanted, Watch
from tidegate.tables.inference import field_at, infer_json, is_plain
from tidegate.tables.misfit import Misfit
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import Converted, array_of, array_of_raw, array_of_raw_decimals

__all__ = ["JsonFormat"]

_Tree: TypeAlias = "dict[str, _Tree | Wanted]"

# Times and decimals stay text: Arrow parses a column of them in a fraction of the time that single ones take.
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
_UNKNOWN = "Object contains unknown field"
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class JsonFormat:
    """Each value is one JSON object. Decimals never pass through binary floats; bytes are base64."""

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: Watch | None = None) -> FieldReader:
        """See :meth:`Format.reader`."""
        return JsonFields(wanted, part, watch)

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """See :meth:`Format.infer`."""
        return infer_json(feed.value, paths)


class JsonFields:
    """Decodes each record by itself, so that no record's rubbish reaches into another one."""

    def __init__(self, wanted: Sequence[Wanted], part: str, watch: Watch | None) -> None:
        self._part = part
        plain = [each for each in wanted if all(map(is_plain, each.path))]
        self._passes: list[_Pass | _OddPass] = [_Pass(tree, watch) for tree in _trees(plain)]
        if odd := [each for each in wanted if each not in plain]:
            self._passes.append(_OddPass(odd))

    def read(self, feed: Feed) -> Fields:
        """See :meth:`FieldReader.read`."""
        values = feed.part(self._part)
        converted: dict[str, Converted] = {}
        misfits: dict[int, Misfit] = {}
        for each in self._passes:
            each.read(values, converted, misfits)
        return Fields(converted, range(len(values)), list(misfits.values()))


class _OddPass:
    """Fields whose names cannot be those of a struct: found in the object as it is, and decoded one by one."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = [(each, msgspec.json.Decoder(_kind(each.column)).decode) for each in wanted]

    def read(self, values: Sequence[Any], converted: dict[str, Converted], misfits: dict[int, Misfit]) -> None:
        for (column, path), decode in self._wanted:
            found: list[Any] = []
            for place, value in enumerate(values):
                raw = field_at(value, path)
                try:
                    found.append(None if raw is None else decode(raw))
                except _UNREADABLE:
                    misfits.setdefault(place, Misfit(place, column.name, f"not {column.type}"))
                    found.append(None)
            converted[column.name] = _array(found, column)


class _Pass:
    """One decoder, and the way from what it makes to the columns."""

    def __init__(self, tree: _Tree, watch: Watch | None) -> None:
        self._columns: list[tuple[Wanted, list[Callable[[Any], Any]]]] = []
        self._by_path: dict[str, str] = {}
        kind = self._struct(tree, [], "", watch)
        self._blank = kind()
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, values: Sequence[Any], converted: dict[str, Converted], misfits: dict[int, Misfit]) -> None:
        try:
            found = list(map(self._decode, values))
        except (*_UNREADABLE, TypeError):  # a tombstone is none of the decoder's types
            found = self._read_one_by_one(values, misfits)
        for wanted, steps in self._columns:
            first, *rest = steps
            column = list(map(first, found))
            for step in rest:
                column = [None if value is None else step(value) for value in column]
            converted[wanted.column.name] = _array(column, wanted.column)

    def _read_one_by_one(self, values: Sequence[Any], misfits: dict[int, Misfit]) -> list[Any]:
        """Find out which of them cannot be read, and why."""
        found: list[Any] = []
        for place, value in enumerate(values):
            try:
                found.append(self._blank if value is None else self._decode(value))
            except _UNREADABLE as error:
                misfits.setdefault(place, self._misfit(place, error))
                found.append(self._blank)
        return found

    def _struct(
        self, tree: _Tree, steps: list[Callable[[Any], Any]], path: str, watch: Watch | None = None
    ) -> type[msgspec.Struct]:
        """The type that a tree of fields is decoded into. JSON's names may be none in Python, so they are numbered."""
        known = watch.waiting | watch.never if watch else ()
        names = {f"f{number}": name for number, name in enumerate([*tree, *sorted(set(known).difference(tree))])}
        fields: list[Any] = []
        for attribute, name in names.items():
            branch = tree.get(name)
            way: list[Callable[[Any], Any]] = [*steps, attrgetter(attribute)]
            if isinstance(branch, Wanted):
                self._columns.append((branch, way))
                self._by_path[f"{path}.{name}"] = branch.column.name
                fields.append((attribute, _kind(branch.column), None))
            elif branch is None:  # what has been null so far is new if it is anything else
                fields.append((attribute, msgspec.Raw if watch and name in watch.never else None, None))
            else:
                nested = self._struct(branch, way, f"{path}.{name}")
                fields.append((attribute, nested | None, None))
        return msgspec.defstruct("Value", fields, rename=names, gc=False, forbid_unknown_fields=watch is not None)

    def _misfit(self, place: int, error: Exception) -> Misfit:
        """What is wrong, in words without the value; which is what msgspec's have, too."""
        if isinstance(error, RecursionError):
            return Misfit(place, None, "JSON that is nested too deep")
        if isinstance(error, UnicodeDecodeError):
            return Misfit(place, None, "JSON that is not UTF-8")
        match = _ERROR.fullmatch(str(error))
        if match is None or not isinstance(error, msgspec.ValidationError):
            return Misfit(place, None, f"not JSON: {error}")
        path = match["path"] or ""
        column = self._by_path.get(path)
        if match["what"].startswith(_UNKNOWN) or (column is None and match["what"] == "Expected `null`"):
            raise NewFields from None
        where = f"field {path[1:]!r}: " if path and column is None else ""
        return Misfit(place, column, where + _why(match))


def _kind(column: Column) -> Any:
    kind = _TYPES[column.type.name]
    return kind if kind is msgspec.Raw else kind | None


def _array(values: list[Any], column: Column) -> Converted:
    match column.type.name:
        case TypeName.JSON:
            return array_of_raw(values, column)
        case TypeName.DECIMAL:
            return array_of_raw_decimals(values, column)
        case name:
            return array_of(values, column, _TYPES[name])


def _why(match: re.Match[str]) -> str:
    what: str = match["what"]
    if match["got"] is None:
        return what[:1].lower() + what[1:]
    expected = re.sub(r"Expected `(.*?)(?: \| null)?`", r"\1", what)
    return f"expected {_NAMES.get(expected, expected)}, got {_NAMES.get(match['got'], match['got'])}"


def _trees(wanted: Sequence[Wanted]) -> list[_Tree]:
    """The fields as trees, in as few as there can be: one field cannot be read in two ways at once."""
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
