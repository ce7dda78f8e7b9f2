"""Decoders: turn a record's value into the type of a handler's annotation, from JSON, text, bytes or by a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Protocol,
    TypeAlias,
)

from msgspec import DecodeError

from tidegate.app.conversion import Conversion, Mismatch, NotFromJson, shown
from tidegate.core.arguments import Accepts, argument
from tidegate.core.records import Record
from tidegate.core.schemas import SCHEMA_FORMATS
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError, RegistryUnavailable, TidegateError

if TYPE_CHECKING:
    from tidegate.app.schema_decoder import SchemaDecoder

__all__ = [
    "Decoder",
    "DecoderArgument",
    "DecoderChoice",
    "Decoding",
    "DecodingError",
    "by_model",
]


_CHOICES = f"'json', 'text', 'bytes', {', '.join(map(repr, SCHEMA_FORMATS))} or a function that takes the Record"


class DecodingError(TidegateError):
    """The value of a record cannot be decoded into the type of the handler's annotation.

    The message says where and why, but never contains the value: errors are logged, and values may be secret.
    """


class Decoder(Protocol):
    """A function that turns a record into a value; it raises if it cannot. It is never called with a tombstone."""

    def __call__(self, record: Record, /) -> Any:
        """Return the value that is passed to the handler."""


DecoderChoice: TypeAlias = str | Decoder | None
"""The name of a built-in decoder, a custom function, or ``None`` to choose by the annotation."""

_NAMES = ("json", "text", "bytes", *SCHEMA_FORMATS)
_MALFORMED = re.compile(r"JSON is malformed: ([^(]+) \(byte (\d+)\)")


def _decoder(given: Any) -> str | Decoder | SchemaDecoder | None:
    if is_text(given):
        return given if given in _NAMES else None
    return given if callable(given) or hasattr(given, "decoder") else None


DecoderArgument: TypeAlias = Annotated[Any, Accepts(_CHOICES, _decoder, _NAMES)]
"""The type of an argument that takes a decoder; see :func:`~tidegate.core.arguments.argument`."""


class Decoding:
    """Decodes the value of a record into the type of an annotation. The decoder is chosen once, from the annotation.

    ``bytes`` takes the value unchanged, and ``str`` takes it as UTF-8 text. Any other type is parsed from JSON; a
    pydantic model parses the JSON itself. A tombstone becomes ``None`` if the annotation allows ``None``, and raises
    otherwise. If the type contains decimals, numbers with a fraction are parsed as decimals, and become binary floats
    only in fields annotated as ``float``.
    """

    __slots__ = ("_decode", "_optional", "_wanted")

    def __init__(
        self, kind: Any, *, optional: bool, decoder: DecoderChoice = None, names: Mapping[str, Any] | None = None
    ) -> None:
        """Choose the decoder. ``kind`` is the annotation without ``None``; ``optional``: it also allows ``None``."""
        self._optional = optional or kind is Any or kind is object
        self._wanted = shown(kind)
        self._decode = _chosen(kind, self._optional, decoder, names)

    def look_up(self, records: Sequence[Record], check: Callable[[], None]) -> None:
        """Ask a schema registry for the schemas of the records, if there is one; raises ``RegistryUnavailable``.

        ``check`` is called before each request, and may raise to end this.
        """
        look_up = getattr(self._decode, "look_up", None)
        if look_up is not None:
            look_up(records, check)

    def __call__(self, record: Record) -> Any:
        """Return the decoded value of a record; raises :class:`DecodingError`."""
        if record.value is None:
            if self._optional:
                return None
            raise DecodingError(
                f"the record is a tombstone, and the handler wants {self._wanted}; "
                f"annotate it as {self._wanted} | None to be given None"
            )
        try:
            return self._decode(record)
        except (DecodingError, RegistryUnavailable):
            raise
        except Mismatch as mismatch:
            raise DecodingError(str(mismatch)) from mismatch.__cause__
        except Exception as error:  # left out of the message, as its text may quote the value
            raise DecodingError(f"the decoder failed with {type(error).__name__}") from error


def _chosen(kind: Any, optional: bool, decoder: DecoderChoice, names: Mapping[str, Any] | None) -> Decoder:
    """Return the decoder for a type; raises :class:`ConfigurationError` if it cannot produce that type."""
    if decoder is None and kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if decoder is None or decoder == "json":
        if hasattr(kind, "model_validate_json"):
            return partial(_model_from_json, kind.model_validate_json, optional)
        try:
            return _from_json(Conversion(kind | None if optional and kind is not Any else kind, names))
        except NotFromJson as error:
            raise ConfigurationError(f"{error}; give the listener a decoder: {_CHOICES}") from None
    decoder = argument("decoder", DecoderArgument, decoder)
    if hasattr(decoder, "decoder"):  # a SchemaDecoder
        try:
            return decoder.decoder(kind, optional, names)  # type: ignore[no-any-return]
        except NotFromJson as error:
            raise ConfigurationError(f"{error}; take the value as a dict") from None
    if isinstance(decoder, str) and decoder in SCHEMA_FORMATS:
        raise ConfigurationError(f"the decoder {decoder!r} needs a schema registry; name one in the app's registry")
    if isinstance(decoder, str):
        made, built_in = _BY_NAME[decoder]
        if kind not in (made, Any, object):
            raise ConfigurationError(f"the decoder {decoder!r} makes {made.__name__}, not {shown(kind)}")
        return built_in
    return decoder


def _bytes(record: Record) -> Any:
    return record.value


def _as_text(record: Record) -> str:
    try:
        return str(record.value, "utf-8")  # type: ignore[arg-type]  # never called with a tombstone
    except UnicodeDecodeError as error:
        raise DecodingError(f"not UTF-8: byte {error.start} of {len(error.object)}") from None


_BY_TYPE: dict[Any, Decoder] = {bytes: _bytes, str: _as_text}
_BY_NAME: dict[str, tuple[type, Decoder]] = {"bytes": (bytes, _bytes), "text": (str, _as_text)}


def _from_json(convert: Conversion) -> Decoder:
    def decode(record: Record) -> Any:
        try:
            return convert(record.value)  # type: ignore[arg-type]  # never called with a tombstone
        except Mismatch:
            raise
        except Exception as error:
            raise _unreadable(record, error) from None

    return decode


def _unreadable(record: Record, error: Exception) -> Exception:
    """Return the error for a value that is not JSON, or contains what no type takes."""
    text = _as_text(record)
    if not text:
        return DecodingError("an empty value")
    if isinstance(error, RecursionError):
        return DecodingError("JSON that is nested too deep")
    if isinstance(error, ArithmeticError):  # raised by Decimal for an exponent
        return DecodingError("JSON with a number that is out of all bounds")
    if isinstance(error, TypeError):
        return DecodingError("an array with elements that a set cannot hold")
    if not isinstance(error, DecodeError):
        return error
    found = _MALFORMED.fullmatch(str(error))
    if found is None:
        return DecodingError("not JSON: it ends too early, or in half a surrogate pair")
    if text.encode()[int(found[2]) :].startswith((b"NaN", b"Infinity")):
        return DecodingError("not JSON: NaN and Infinity are not part of it")
    return DecodingError(f"not JSON: {found[1]} at byte {found[2]} of {len(record.value or b'')}")


def _model_from_json(validate: Callable[[Any], Any], optional: bool, record: Record) -> Any:
    return None if optional and record.value == b"null" else by_model(validate, optional, record.value)


def by_model(validate: Callable[[Any], Any], optional: bool, value: Any) -> Any:
    """Validate the value with a pydantic model. It is duck-typed, so that pydantic stays an optional dependency."""
    if optional and value is None:
        return None
    try:
        return validate(value)
    except ValueError as error:
        listed = getattr(error, "errors", None)
        if not callable(listed):
            raise
        found = listed(include_url=False, include_context=False, include_input=False)
        # The error messages may quote values; the error types never do.
        names = _names_of(getattr(validate, "__self__", None))
        paths = [".".join(_step(each, names) for each in error["loc"]) for error in found[:5]]
        said = [f"{path}: {each['type']}".removeprefix(": ") for path, each in zip(paths, found, strict=False)]
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise DecodingError(", ".join(said) + more) from None


def _step(step: str | int, names: frozenset[str]) -> str:
    """Return a step of a path. Names that the model does not have are keys of maps, which are values."""
    return str(step) if isinstance(step, int) or step in names else "{…}"


@lru_cache(maxsize=256)
def _names_of(model: Any) -> frozenset[str]:
    """Return all names in paths of a model's errors: of fields, with their aliases, and of the members of unions."""
    found = {"[key]"}
    rest: list[Any] = [getattr(model, "__pydantic_core_schema__", {})]
    while rest:
        each = rest.pop()
        if isinstance(each, Mapping):
            found.update(_texts_in(each.get("validation_alias")))
            fields, choices, cls = each.get("fields"), each.get("choices"), each.get("cls")
            found.update(name for name in (each.get("type"), each.get("name")) if isinstance(name, str))
            found.update(name for named in (fields, choices) if isinstance(named, Mapping) for name in named)
            found.update([cls.__name__] if isinstance(cls, type) else [])
            rest += each.values()
        elif isinstance(each, list | tuple):
            rest += each
    return frozenset(map(str, found))


def _texts_in(alias: Any) -> Iterator[str]:
    if isinstance(alias, str):
        yield alias
    elif isinstance(alias, list | tuple):
        for each in alias:
            yield from _texts_in(each)
