"""The interface between schemas and formats: a codec reads and writes the values of one schema."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from tidegate.core.schemas import (
    Framed,
    Schema,
    SchemaKind,
    SchemaRegistry,
    UnknownSchema,
    WithoutSchema,
    unframed,
)
from tidegate.errors import ConfigurationError
from tidegate.tables.aliases import Renames, renamed, renames_of
from tidegate.tables.feed import Known
from tidegate.tables.types import ColumnType

if TYPE_CHECKING:
    from tidegate.tables.format import FieldMatch, FieldReader, Wanted

__all__ = ["ODD", "Codec", "Codecs", "Mismatched", "codec_of", "is_finite", "odd"]

_MOST_CODECS = 10_000  # ids in records are foreign input
_FRAME = 5  # bytes in front of a value that name its schema


class Mismatched(ValueError):
    """Bytes do not fit a schema, or a value does not. The message says why, and never contains the value.

    ``path`` leads to the field, if it is known.
    """

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"field {path!r}: {why}" if path else why)
        self.why = why
        self.path = path

    def of_schema(self, number: int) -> Mismatched:
        """Return the mismatch with the id of the schema in its message."""
        return Mismatched(f"schema {number}: {self}")


ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of the kinds that a schema or a value can cause which a codec does not foresee. Both are foreign input."""


def odd(error: Exception, what: str) -> Mismatched:
    """Return the error for a schema or value that caused an unforeseen one, by its type: its text may quote a value."""
    if isinstance(error, Mismatched):
        return error
    return Mismatched(f"{what} cannot be read: {type(error).__name__}")


class Codec(Protocol):
    """Reads and writes the values of one schema. It has no state, and threads may share it.

    Values are ``None``, ``bool``, ``int``, ``float``, ``Decimal``, ``str``, ``bytes``, ``date``, ``time``,
    ``datetime``, ``UUID``, and lists and dictionaries of these. Records are dictionaries.
    """

    name: str
    """The full name of the record in the schema, for names of subjects."""
    fields: Mapping[str, ColumnType | None] | None
    """The column types of a record's fields, in their order: ``None`` for a field that is always null, and a type with
    the name JSON for a nested one. ``None`` if the schema is not of a record."""
    whole: ColumnType | None
    """The column type of the value as a whole."""

    def inside(self, name: str) -> Mapping[str, ColumnType | None] | None:
        """Return the column types of the fields of a nested record, by the path to it, joined by dots.

        ``None`` if it is not a record.
        """

    def aliases(self, path: tuple[str, ...]) -> Mapping[str, Sequence[str]] | None:
        """Return all fields of the record at a path with their former names; ``None`` if no field has any."""
        return None

    def selected(self, data: bytes) -> tuple[Codec, bytes]:
        """Return the codec for these bytes, and the bytes that it decodes.

        That is the codec itself with the same bytes, unless the bytes begin with the choice of a message. Raises
        :class:`Mismatched`.
        """

    def decode(self, data: bytes) -> Any:
        """Return the value of all of these bytes; raises :class:`Mismatched`."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value, without the id of its schema; raises :class:`Mismatched`."""

    def name_of(self, value: Any) -> str:
        """Return the full name of the record that a value becomes: a schema may have several."""
        return self.name

    def shown(
        self, values: Iterable[bytes], paths: Sequence[tuple[str, ...]] | None
    ) -> Mapping[tuple[str, ...], ColumnType | None]:
        """Return the types that values show for the fields at these paths, or for all fields.

        They are for fields that the schema allows and does not describe. Needs the extra ``tables``.
        """
        return {}

    def columns(self, wanted: Sequence[Wanted], watch: FieldMatch | None) -> FieldReader | None:
        """Return a reader of columns that gives what :meth:`decode` gives, but faster; ``None`` if there is none.

        The values of its feed are the bytes that :meth:`decode` takes. Needs the extra ``tables``.
        """
        return None


def is_finite(value: Any) -> bool:
    """Whether all numbers in a value are finite."""
    rest = [value]
    seen: dict[int, Any] = {}  # by identity: a value may contain itself
    while rest:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        match each:
            case float() as number if not math.isfinite(number):
                return False
            case Decimal() as number if not number.is_finite():
                return False
            case Mapping() as nested:
                rest += nested.keys()
                rest += nested.values()
            case list() | tuple() | set() | frozenset() as nested:
                rest += nested
    return True


@lru_cache(maxsize=1024)
def codec_of(schema: Schema) -> Codec:
    """Return the codec of a schema.

    Raises :class:`Mismatched` if the schema itself cannot be used, and :class:`ConfigurationError` if the package for
    its language is not installed.
    """
    made = _language(schema.kind)
    try:
        return made(schema)
    except ODD as error:
        raise odd(error, "the schema") from error


def _language(kind: SchemaKind, *, into_columns: bool = False) -> Callable[[Schema], Codec]:
    """Return what makes the codecs of a language; raises :class:`ConfigurationError` if its package is missing."""
    try:
        match kind:
            case SchemaKind.AVRO:
                from tidegate.tables.avro.codec import AvroCodec  # noqa: PLC0415 - it imports this module

                if into_columns:
                    import tidegate.tables.avro.columns  # noqa: F401, PLC0415 - needs an extra

                return AvroCodec
            case SchemaKind.PROTOBUF:
                from tidegate.tables.protobuf.codec import ProtobufCodec  # noqa: PLC0415 - needs an extra

                return ProtobufCodec
            case SchemaKind.JSON:
                from tidegate.tables.json_schema import JsonSchemaCodec  # noqa: PLC0415 - needs an extra

                return JsonSchemaCodec
            case other:
                assert_never(other)
    except ImportError as error:
        raise ConfigurationError(
            f'schemas of the kind {kind.value} need the package {error.name}: pip install "tidegate[registry]"'
        ) from error


class Codecs:
    """The codecs of a registry's schemas of one kind, by id. Threads share them.

    What :meth:`look_up` finds holds until it is called again, also that a schema is unknown: the registry is then not
    asked while records are decoded, because at most once their positions have moved by then.
    """

    def __init__(
        self, kind: SchemaKind, registry: SchemaRegistry, *, into_columns: bool = False, known: Known | None = None
    ) -> None:
        """Raises :class:`ConfigurationError` if a package is missing that the schemas need.

        ``known`` has the names of fields that are asked for: a decoded field that was renamed gets a former one.
        """
        _language(kind, into_columns=into_columns)
        self._known_fields = known
        self._renames: dict[int, Renames] = {}
        self._kind = kind
        self._registry = registry
        self._known: dict[int, Codec] = {}
        self._unusable: dict[int, str] = {}
        self._unknown: dict[int, str] = {}  # when they were last looked up

    def decoded(self, data: bytes, headers: Sequence[tuple[str, bytes | None]], part: str) -> Any:
        """Return the decoded key or value of a record.

        Raises :class:`Mismatched`, which names the id, or :class:`~tidegate.errors.RegistryUnavailable`.
        """
        codec, number, rest = self.selected(data, headers, part)
        try:
            value = codec.decode(rest)
        except ODD as error:
            raise odd(error, "the value").of_schema(number) from None
        if self._known_fields is None or codec.aliases(()) is None:
            return value
        if number not in self._renames:
            if len(self._renames) >= _MOST_CODECS:
                self._renames.clear()
            self._renames[number] = renames_of(codec.aliases, self._known_fields)
        return renamed(value, self._renames[number])

    def selected(self, data: bytes, headers: Sequence[tuple[str, bytes | None]], part: str) -> tuple[Codec, int, bytes]:
        """Return the codec for a key or value, the id of its schema, and the bytes that the codec decodes."""
        number, rest, choice = self._unframed(data, headers, part)
        codec = self._known.get(number)
        if codec is None:
            codec = self._found(number)
        try:
            chosen, left = codec.selected(rest if choice is None else choice)
        except ODD as error:
            raise odd(error, "the schema").of_schema(number) from None
        if choice is None:
            return chosen, number, left
        if left:
            raise Mismatched(f"schema {number}: the header with its id has bytes that stand for nothing")
        return chosen, number, rest

    def look_up(
        self,
        data: Iterable[bytes | None],
        headers: Iterable[Sequence[tuple[str, bytes | None]] | None],
        part: str,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask the registry for the schemas of these keys or values, so that they are known when they are decoded.

        Raises :class:`~tidegate.errors.RegistryUnavailable`. Those that name no known schema fail when they are
        decoded. ``check`` is called before each request, and may raise to end this.
        """
        for number in list(self._unknown)[:-_MOST_CODECS]:
            self._unknown.pop(number, None)
        for number in self._named(data, headers, part):
            check()
            try:
                with suppress(Mismatched):
                    self._asked(number)
            except UnknownSchema as unknown:
                self._unknown.pop(number, None)  # so that it becomes the youngest
                self._unknown[number] = str(unknown)
            else:
                self._unknown.pop(number, None)

    def _named(
        self, data: Iterable[bytes | None], headers: Iterable[Sequence[tuple[str, bytes | None]] | None], part: str
    ) -> Iterable[int]:
        """Return the ids that keys or values name, without those that are settled for good."""
        seen: set[tuple[bytes, bool]] = set()
        numbers: dict[int, None] = {}
        for each, beside in zip(data, headers, strict=True):
            if each is not None and (beside or (each[:_FRAME], True) not in seen):
                seen.add((each[:_FRAME], not beside))
                with suppress(Mismatched):
                    numbers[self._unframed(each, beside or (), part).id] = None
        return [number for number in numbers if number not in self._known and number not in self._unusable]

    def _unframed(self, data: bytes, headers: Sequence[tuple[str, bytes | None]], part: str) -> Framed:
        try:
            found = unframed(data, headers, part)
        except WithoutSchema as without:
            raise Mismatched(str(without)) from None
        if self._kind is SchemaKind.PROTOBUF and found.chosen == b"":
            raise Mismatched("the header with the id of the schema does not tell which message of it this is")
        return found

    def _found(self, number: int) -> Codec:
        if (why := self._unknown.get(number)) is not None:
            raise Mismatched(why)
        try:
            return self._asked(number)
        except UnknownSchema as unknown:
            raise Mismatched(str(unknown)) from None

    def _asked(self, number: int) -> Codec:
        if number in self._unusable:  # a schema never changes, and to compile it takes time
            raise Mismatched(self._unusable[number])
        schema = self._registry.by_id(number)
        if schema.kind is not self._kind:
            raise Mismatched(f"schema {number} is of the kind {schema.kind.value}, not {self._kind.value}")
        try:
            codec = codec_of(schema)
        except Mismatched as mismatch:
            if len(self._unusable) >= _MOST_CODECS:
                self._unusable.clear()
            self._unusable[number] = str(mismatch.of_schema(number))
            raise mismatch.of_schema(number) from None
        if len(self._known) >= _MOST_CODECS:
            self._known.clear()
        self._known[number] = codec
        return codec
