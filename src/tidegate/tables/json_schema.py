"""The codec of JSON Schema: JSON that is checked against a schema, and the column types that a schema shows."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urldefrag, urljoin
from uuid import UUID

import jsonschema_rs
import msgspec

from tidegate.core.schemas import Schema
from tidegate.tables.codec import Codec, Mismatched
from tidegate.tables.types import ColumnType, EpochUnit, TypeName

if TYPE_CHECKING:
    from tidegate.tables.feed import Feed
    from tidegate.tables.format import FieldMatch, FieldReader, Fields, Wanted

__all__ = ["JsonSchemaCodec"]

_BASE = "json-schema:///"
_MOST_DOCUMENTS = 1_000
_MOST_DEEP = 50
_MOST_PARTS = 10_000
_DEFAULT_DRAFT = jsonschema_rs.Draft7  # what Confluent's serializers take where a schema names none
_DRAFTS = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012,
}
_DECODE = msgspec.json.Decoder(float_hook=Decimal).decode
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_INTEGERS = range(-(2**63), 2**63)


class JsonSchemaCodec(Codec):
    """Checks JSON against one schema, in the draft that the schema names. Nothing is fetched from the network."""

    def __init__(self, schema: Schema) -> None:
        """Prepare the checks; raises :class:`Mismatched` if the schema is invalid."""
        root = _parsed(schema.text)
        draft = _draft(root)
        documents = _documents(schema, root)
        try:
            known = jsonschema_rs.Registry(documents, draft=draft)
            self._check = _validator(root, known, draft)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise Mismatched(f"the JSON Schema cannot be used: {_reason(error)}") from None
        self._blame = _blaming(root, documents, draft, self._check)
        self._names = frozenset(_names_in([root, *(_parsed(each.text) for each in _references(schema))]))
        top = _Subschema(root, known.resolver(_identifier(root) or _BASE), [_MOST_PARTS])
        self._top = top
        kind, self.fields = _type_of(top), _fields_of(top)
        self.whole: ColumnType | None = kind
        self.name = str(root.get("title", "")) if isinstance(root, dict) else ""

    def inside(self, name: str) -> Mapping[str, ColumnType | None] | None:
        """Return the column types of the fields of a nested object, by the path to it."""
        at = [self._top._replace(left=[_MOST_PARTS])]
        for step in name.split("."):
            at = [field for place in at for field in _properties(place).get(step, ())]
        found = [fields for place in at if (fields := _fields_of(place)) is not None]
        return found[0] if found else None

    def selected(self, data: bytes) -> tuple[Codec, bytes]:
        """Return the codec itself: a schema describes one kind of value."""
        return self, data

    def checked(self, data: bytes) -> Any:
        """Return the parsed JSON; raises :class:`Mismatched` if it is no JSON, or not valid under the schema."""
        try:
            value = _DECODE(data)
        except RecursionError:
            raise Mismatched("JSON that is nested too deep") from None
        except UnicodeDecodeError:
            raise Mismatched("JSON that is not UTF-8") from None
        except (msgspec.MsgspecError, ArithmeticError):
            raise Mismatched("not JSON, or a number out of all bounds in it" if data else "an empty value") from None
        self._refuse_invalid(value)
        return value

    def decode(self, data: bytes) -> Any:
        """Return the value: numbers with a fraction as decimals. Base64 stays text, as it is in JSON."""
        return self.checked(data)

    def encode(self, value: Any) -> bytes:
        """Return JSON that is valid under the schema. Decimals are numbers, or texts if the schema takes no numbers."""
        plain = _plain(value)
        failure: Mismatched | None = None
        for encode in (_AS_NUMBERS, _AS_TEXTS):
            data = encode(plain)
            try:
                self._refuse_invalid(_DECODE(data))
            except Mismatched as error:
                failure = failure or error
            else:
                return data
        assert failure is not None  # noqa: S101 - the loop ends so
        raise failure

    def takes_all(self, values: Sequence[bytes | None]) -> bool:
        """Whether all values are valid; ``None`` is."""
        try:
            return all(map(self._check.is_valid, map(_DECODE, filter(None, values)))) and b"" not in values
        except (*_UNREADABLE, ArithmeticError, ValueError):
            return False

    def shown(
        self, values: Iterable[bytes], paths: Sequence[tuple[str, ...]] | None
    ) -> Mapping[tuple[str, ...], ColumnType | None]:
        """Return the types of fields by the valid values, as the format ``"json"`` does: a schema may not name all."""
        from tidegate.tables.inference import infer_json  # noqa: PLC0415 - needs an extra

        return infer_json([value for value in values if self.takes_all([value])], paths)

    def columns(self, wanted: Sequence[Wanted], watch: FieldMatch | None) -> FieldReader:
        """Return a reader of columns, which reads them from JSON in the same way as the format ``"json"``."""
        return _CheckedFields(self, wanted, watch)

    def _refuse_invalid(self, value: Any) -> None:
        if self._check.is_valid(value):
            return
        error = None if self._blame is None else next(iter(self._blame.iter_errors(value)), None)
        if error is None:
            raise Mismatched("not valid under the schema")
        steps = [self._shown(step) for step in error.instance_path]
        keyword = error.kind.name
        if keyword == "required":
            missing = error.kind.as_dict()["property"]
            raise Mismatched("missing, and the schema requires it", ".".join([*steps, missing]))
        raise Mismatched(f"not valid under the schema: {_WORDS.get(keyword, keyword)}", ".".join(steps))

    def _shown(self, step: str | int) -> str:
        """Return a step of a path. Keys of maps are values, and positions are of no use."""
        if isinstance(step, int):
            return "[…]"
        return step if step in self._names else "{…}"


_META = {draft: {"$schema": uri + ("#" if "draft-0" in uri else "")} for uri, draft in _DRAFTS.items()}
_WORDS = {
    "type": "a value of another type",
    "enum": "none of the allowed values",
    "const": "none of the allowed values",
    "format": "text of another format",
    "pattern": "text that does not match the pattern",
    "additionalProperties": "a field that it does not have",
    "unevaluatedProperties": "a field that it does not have",
    "falseSchema": "a value that it does not allow",
    "oneOf": "none of the alternatives, or several of them",
    "anyOf": "none of the alternatives",
}


def _parsed(text: str) -> Any:
    try:
        found = msgspec.json.decode(text)
    except (*_UNREADABLE, ValueError):
        raise Mismatched("the JSON Schema is no JSON") from None
    if not isinstance(found, dict | bool):
        raise Mismatched("the JSON Schema is neither an object nor a boolean")
    return found


def _draft(root: Any) -> int:
    named = root.get("$schema") if isinstance(root, dict) else None
    if named is None:
        return _DEFAULT_DRAFT
    draft = _DRAFTS.get(
        str(named).removesuffix("#").replace("https://json-schema.org/draft-", "http://json-schema.org/draft-")
    )
    if draft is None:
        raise Mismatched("the JSON Schema names a draft other than 4, 6, 7, 2019-09 and 2020-12")
    return draft


def _identifier(document: Any) -> str:
    """Return the address that a schema gives itself; empty if none."""
    named = (document.get("$id") or document.get("id") or "") if isinstance(document, dict) else ""
    return urldefrag(named)[0] if isinstance(named, str) else ""


def _references(schema: Schema) -> Iterator[Schema]:
    for each in schema.references:
        yield each.schema
        yield from _references(each.schema)


def _documents(schema: Schema, root: Any) -> list[tuple[str, Any]]:
    """Return a schema and its references with their addresses.

    The name of a reference is an address relative to that of the schema that refers to it: to the one that it gives
    itself, or to the one that it was found under.
    """
    found: dict[str, Any] = {}
    rest: list[tuple[set[str], Schema, Any]] = [({_identifier(root) or _BASE, _BASE}, schema, root)]
    while rest:
        bases, each, document = rest.pop()
        for base in bases:
            found.setdefault(base, document)
        if len(found) > _MOST_DOCUMENTS:
            raise Mismatched("the JSON Schema has too many references")
        for reference in each.references:
            inner = _parsed(reference.schema.text)
            addresses = {urldefrag(urljoin(base, reference.name))[0] for base in bases}
            rest.append(({*addresses, *filter(None, [_identifier(inner)])}, reference.schema, inner))
    return list(found.items())


def _validator(root: Any, known: Any, draft: int) -> Any:
    base = None if _identifier(root) else _BASE
    return jsonschema_rs.validator_cls_for(_META[draft])(root, registry=known, offline=True, base_uri=base)


# What finds the field that is not valid. The validator makes the errors of every alternative before it returns one: in
# a schema whose alternatives refer to it again, their number grows exponentially with the depth of the value.


def _blaming(root: Any, documents: Sequence[tuple[str, Any]], draft: int, check: Any) -> Any:
    """Return a validator whose errors are some of those of ``check``, without the costly ones; ``None`` if none can be.

    It is without the alternatives of which several contain references.
    """
    try:
        reduced = [(address, _reduced(document)) for address, document in documents]
        if reduced == documents:
            return check
        if not _CONTRARY.isdisjoint(_keys_in(document for _, document in documents)):
            return None  # there, a schema without some of its parts may refuse what the whole one allows
        return _validator(_reduced(root), jsonschema_rs.Registry(reduced, draft=draft), draft)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError):
        return None  # such as a reference into what is left out


_CONTRARY = {"not", "if", "maxContains", "unevaluatedProperties", "unevaluatedItems"}
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_BY_NAME = {"properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies"}


def _reduced(schema: Any) -> Any:
    """Return a schema without the alternatives of which several contain references."""
    if isinstance(schema, list):
        return [_reduced(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for name, part in schema.items():
        if name in ("anyOf", "oneOf"):
            parts = _listed(part)
            if sum(not _REFERENCES.isdisjoint(_keys_in([each])) for each in parts) > 1:
                continue
        if name in ("enum", "const", "default", "examples"):
            found[name] = part
        elif name in _BY_NAME and isinstance(part, dict):
            found[name] = {inner: _reduced(each) for inner, each in part.items()}
        else:
            found[name] = _reduced(part)
    return found


def _keys_in(documents: Iterable[Any]) -> set[str]:
    """Return all keys of objects, at any depth."""
    found: set[str] = set()
    rest = list(documents)
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            found |= each.keys()
            rest += each.values()
        elif isinstance(each, list):
            rest += each
    return found


def _reason(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error)
    return text.partition("\n")[0][:300]


def _names_in(documents: Iterable[Any]) -> Iterator[str]:
    """Yield the names of all fields that schemas name: other names in a path are keys of a map, and may be secret."""
    rest = list(documents)
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            for name, value in each.items():
                if name in ("properties", "required", "dependentRequired") and isinstance(value, dict | list):
                    yield from (inner for inner in value if isinstance(inner, str))
                rest.append(value)
        elif isinstance(each, list):
            rest += each


# Column types


class _Subschema(NamedTuple):
    """A part of a schema, what resolves the references in it, and how many parts may still be looked at.

    A schema is foreign input, and may refer to itself in many ways.
    """

    schema: Any
    resolver: Any
    left: list[int]

    def part(self, schema: Any) -> _Subschema:
        """Return a part of this part."""
        return self._replace(schema=schema)


def _followed(place: _Subschema) -> Iterator[_Subschema]:
    """Yield a part of a schema and all parts that hold at the same place, without alternatives."""
    rest, seen = [place], 0
    while rest and seen < _MOST_DEEP and place.left[0] > 0:
        each = rest.pop(0)
        seen += 1
        place.left[0] -= 1
        if not isinstance(each.schema, dict):
            continue
        yield each
        for name in ("$ref", "$dynamicRef"):
            if isinstance(each.schema.get(name), str):
                try:
                    found = each.resolver.lookup(each.schema[name])
                except (jsonschema_rs.ReferencingError, ValueError):
                    continue
                rest.append(_Subschema(found.contents, found.resolver, place.left))
        rest += map(each.part, _listed(each.schema.get("allOf")))


def _alternatives(place: _Subschema) -> list[_Subschema]:
    """Return the alternatives at a place, apart from null."""
    found: list[_Subschema] = []
    for each in _followed(place):
        for name in ("oneOf", "anyOf"):
            found += map(each.part, _listed(each.schema.get(name)))
    return [each for each in found if not _is_null(each)]


def _is_null(place: _Subschema) -> bool:
    schema = place.schema
    return isinstance(schema, dict) and (schema.get("type") in ("null", ["null"]) or schema.get("enum") == [None])


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _type_of(place: _Subschema, depth: int = _MOST_DEEP) -> ColumnType | None:
    """Return the column type of a value; ``None`` if it is always null, and JSON if it may be several things."""
    if _is_null(place) or place.schema is False:
        return None
    parts = [each.schema for each in _followed(place)]
    if any(isinstance(part.get("properties"), dict) for part in parts):
        return _JSON
    kinds = {kind for part in parts if (kind := _own_type(part)) is not None}
    if not kinds and depth:
        kinds = {kind for each in _alternatives(place) if (kind := _type_of(each, depth - 1)) is not None}
    return _widest(kinds)


_JSON = ColumnType(TypeName.JSON)
_INTEGER, _DECIMAL, _DOUBLE = (ColumnType(name) for name in (TypeName.INTEGER, TypeName.DECIMAL, TypeName.DOUBLE))


def _widest(kinds: set[ColumnType]) -> ColumnType:
    if len(kinds) == 1:
        return next(iter(kinds))
    if kinds and kinds <= {_INTEGER, _DECIMAL}:
        return _DECIMAL
    if len(kinds) == 2 and ColumnType(TypeName.TEXT) in kinds and {kind.name for kind in kinds} <= _TEXTS:
        return ColumnType(TypeName.TEXT)
    return _JSON


_TEXTS = {TypeName.TEXT, TypeName.DATE, TypeName.TIMESTAMP}


def _own_type(schema: Mapping[str, Any]) -> ColumnType | None:
    """Return the column type that one part of a schema shows by itself."""
    named = schema.get("type")
    names = {name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)} - {"null"}
    if not names:
        values = _listed(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
        names = {_NAMES.get(type(value), "object") for value in values if value is not None}
    kinds = {_named_type(name, schema) for name in names}
    return _widest(kinds) if kinds else None


_NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def _named_type(name: str, schema: Mapping[str, Any]) -> ColumnType:
    connect = schema.get("connect.type")  # Kafka Connect's converter says more than JSON Schema can
    match name:
        case "boolean":
            return ColumnType(TypeName.BOOLEAN)
        case "integer":
            if schema.get("title") == "org.apache.kafka.connect.data.Timestamp":
                return ColumnType(TypeName.TIMESTAMP, unit=EpochUnit.MILLISECONDS)
            bounds = [schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")]
            beyond = any(isinstance(bound, int | float) and not -(2**63) <= bound <= 2**63 for bound in bounds)
            return _DECIMAL if beyond else _INTEGER
        case "number":
            return _DOUBLE if connect in ("float32", "float64") else _DECIMAL
        case "string":
            if schema.get("contentEncoding") == "base64" or connect == "bytes":
                return ColumnType(TypeName.BYTES)
            formats = {"date": TypeName.DATE, "date-time": TypeName.TIMESTAMP}
            return ColumnType(formats.get(str(schema.get("format")), TypeName.TEXT))
    return _JSON


def _properties(place: _Subschema, depth: int = _MOST_DEEP) -> dict[str, list[_Subschema]]:
    """Return the fields of an object by name, and for each all places of the schema that describe it."""
    found: dict[str, list[_Subschema]] = {}
    for each in _followed(place):
        inner = each.schema.get("properties")
        for name, schema in inner.items() if isinstance(inner, dict) else ():
            found.setdefault(name, []).append(each.part(schema))
    for each in _alternatives(place) if depth else ():
        for name, places in _properties(each, depth - 1).items():
            found.setdefault(name, []).extend(places)
    return found


def _fields_of(place: _Subschema) -> Mapping[str, ColumnType | None] | None:
    """Return the column types of an object's fields; ``None`` if the schema names no fields."""
    found = {}
    for name, places in _properties(place).items():
        kinds = {kind for each in places if (kind := _type_of(each)) is not None}
        found[name] = _widest(kinds) if kinds else None
    return found or None


# Writing

_AS_NUMBERS = msgspec.json.Encoder(decimal_format="number").encode
_AS_TEXTS = msgspec.json.Encoder(decimal_format="string").encode


def _plain(value: Any, depth: int = 200) -> Any:
    """Return a value made of what JSON has, and decimals; raises :class:`Mismatched`."""
    if depth == 0:
        raise Mismatched("a value that is nested too deep")
    match value:
        case None | bool() | int():
            return value.value if isinstance(value, Enum) else value
        case Enum():
            return _plain(value.value, depth - 1)
        case str():
            return _encodable(value)
        case float() | Decimal():
            if not math.isfinite(value):
                raise Mismatched("a value that JSON cannot express: NaN or Infinity")
            return value
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case datetime():
            offset = value.utcoffset()  # RFC 3339 knows no seconds in an offset, and asks for an offset
            value = value.replace(tzinfo=UTC) if offset is None else value
            return (value.astimezone(UTC) if offset and offset.total_seconds() % 60 else value).isoformat()
        case date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case Mapping():
            return {_name(name): _plain(each, depth - 1) for name, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each, depth - 1) for each in value]
    return _plain(_members(value), depth - 1)


def _members(value: Any) -> Mapping[str, Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclass_fields(value)}
    if hasattr(value, "model_dump"):
        found: dict[str, Any] = value.model_dump()
        return found
    raise Mismatched(f"JSON cannot represent a {type(value).__name__}")


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise Mismatched("a name of a field that is no text")
    return _encodable(name)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Mismatched("text with half of a surrogate pair in it") from None
    return text


# Columns


class _CheckedFields:
    """Reads columns from JSON as the format ``"json"`` does, except from values that are not valid."""

    def __init__(self, codec: JsonSchemaCodec, wanted: Sequence[Wanted], watch: FieldMatch | None) -> None:
        from tidegate.tables.json_format import JsonFormat  # noqa: PLC0415 - needs an extra

        self._codec = codec
        self._fields = JsonFormat().reader(wanted, watch=watch)

    def read(self, feed: Feed) -> Fields:
        """Read all records; a record without a value becomes a row of nulls. May raise :class:`NewFields`."""
        from tidegate.tables.feed import Feed  # noqa: PLC0415 - needs an extra
        from tidegate.tables.rows import Misfit  # noqa: PLC0415 - the same

        values = list(feed.value)
        misfits = []
        for place, value in () if self._codec.takes_all(values) else enumerate(values):
            if value is not None:
                try:
                    self._codec.checked(value)
                except Mismatched as error:
                    misfits.append(Misfit(place, None, str(error)))
                    values[place] = None
        found = self._fields.read(Feed(value=values))
        return replace(found, misfits=[*misfits, *found.misfits])
