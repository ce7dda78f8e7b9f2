"""The decoder of values that name a schema of a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, get_args, get_origin

import msgspec

from tidegate.app.conversion import Conversion, shown
from tidegate.app.decoder import DecodingError, by_model
from tidegate.core.records import Record
from tidegate.core.schemas import SchemaKind, SchemaRegistry
from tidegate.tables.codec import Codecs, Mismatched, is_finite
from tidegate.tables.feed import Known

__all__ = ["SchemaDecoder"]

_ENCODE = msgspec.json.Encoder(decimal_format="number").encode
_OBJECTS = (dict, Mapping, MutableMapping)


@dataclass(frozen=True)
class SchemaDecoder:
    """Decodes values that name a schema of a registry, which it asks for the schemas."""

    kind: SchemaKind
    registry: SchemaRegistry

    def decoder(self, kind: Any, optional: bool, names: Mapping[str, Any] | None) -> _BySchema:
        """Return the decoder for the type of an annotation; raises :class:`NotFromJson`."""
        return _BySchema(Codecs(self.kind, self.registry, known=_known(kind)), _made_from(kind, optional, names))


class _BySchema:
    """Decodes the value of a record by its schema, and converts it to the type of the annotation."""

    def __init__(self, codecs: Codecs, convert: Callable[[Any], Any]) -> None:
        self._codecs = codecs
        self._convert = convert

    def __call__(self, record: Record) -> Any:
        try:
            value = self._codecs.decoded(record.value or b"", record.headers, "value")
        except Mismatched as mismatch:
            raise DecodingError(str(mismatch)) from None
        return self._convert(value)

    def look_up(self, records: Sequence[Record], check: Callable[[], None]) -> None:
        """Ask the registry for the schemas of the records; ``check`` is called before each request."""
        self._codecs.look_up((each.value for each in records), (each.headers for each in records), "value", check)


def _known(kind: Any) -> Known | None:
    """Return the names of the fields of a dataclass or a model, for schemas that have renamed theirs."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else list(getattr(kind, "model_fields", ()))
    return Known([(name,) for name in names], ignore_case=False) if names else None


def _made_from(kind: Any, optional: bool, names: Mapping[str, Any] | None) -> Callable[[Any], Any]:
    """Return what converts a decoded value to a type.

    Dictionaries are passed as they were decoded, with decimals, times and bytes in them. A model validates the decoded
    value. Everything else takes the way through JSON, so that a class takes from Avro what it takes from JSON.
    """
    if kind in (Any, object):
        return lambda value: value
    if kind in (str, bytes, dict) or (get_origin(kind) in _OBJECTS and get_args(kind) == (str, Any)):
        made = kind if isinstance(kind, type) and get_origin(kind) is None else dict
        return partial(_checked_kind, made, optional)
    if hasattr(kind, "model_validate"):
        return partial(by_model, kind.model_validate, optional)
    convert = Conversion(kind | None if optional else kind, names, takes_bytes=True)

    def converted(value: Any) -> Any:
        encoded = _ENCODE(value)
        if b"null" in encoded and not is_finite(value):  # JSON has no NaN and no Infinity: the encoder writes null
            raise DecodingError("a value that is NaN or Infinity; take it as a dict")
        return convert(encoded)

    return converted


def _checked_kind(made: type, optional: bool, value: Any) -> Any:
    if isinstance(value, made) or (optional and value is None):
        return value
    raise DecodingError(f"expected {shown(made)}, got {'null' if value is None else type(value).__name__}")
