"""Decoders: a record's value as what a handler wants."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, NoReturn, Protocol, TypeAlias

from tidegate.app.conversion import Conversion, Mismatch, NotFromJson, shown
from tidegate.core.arguments import Kind, argument
from tidegate.core.errors import ConfigurationError, TidegateError
from tidegate.core.records import Record
from tidegate.core.texts import is_text

__all__ = ["Decoder", "DecoderArgument", "DecoderChoice", "Decoding", "DecodingError"]

_CHOICES = "'json', 'text', 'bytes' or a function that takes the Record"


class DecodingError(TidegateError):
    """A record whose value is not what the handler's annotation asks for.

    Says where and why, without the value: errors go to logs, and values may be secret.
    """


class Decoder(Protocol):
    """Makes a value of a record, which is no tombstone; raises if it cannot."""

    def __call__(self, record: Record, /) -> Any:
        """The value; it is given to the handler as it is."""


DecoderChoice: TypeAlias = str | Decoder | None
"""The name of a built-in decoder; a function of one's own; or ``None``: what the annotation suggests."""

_NAMES = ("json", "text", "bytes")


def _decoder(given: Any) -> str | Decoder | None:
    if is_text(given):
        return given if given in _NAMES else None
    return given if callable(given) else None


DecoderArgument: TypeAlias = Annotated[Any, Kind(_CHOICES, _decoder, _NAMES)]
"""A decoder as an argument."""


class Decoding:
    """How the value of a record becomes what an annotation asks for, worked out once.

    ``bytes`` is the value as it is and ``str`` its text; anything else is read as JSON, and a pydantic model reads it
    itself. A tombstone is ``None`` where the annotation allows that, and cannot be decoded where it does not. If the
    model has decimals in it, numbers with a fraction are never binary floats, except in fields that say so.
    """

    __slots__ = ("_decode", "_optional", "_wanted")

    def __init__(
        self, kind: Any, *, optional: bool, decoder: DecoderChoice = None, names: Mapping[str, Any] | None = None
    ) -> None:
        """``kind`` is the annotation without ``None``, which ``optional`` stands for."""
        self._optional = optional or kind is Any or kind is object
        self._wanted = shown(kind)
        self._decode = _chosen(kind, self._optional, decoder, names)

    def __call__(self, record: Record) -> Any:
        """The value of a record; raises :class:`DecodingError`."""
        if record.value is None:
            if self._optional:
                return None
            raise DecodingError(
                f"the record is a tombstone, and the handler wants {self._wanted}; "
                f"annotate it as {self._wanted} | None to be given None"
            )
        try:
            return self._decode(record)
        except DecodingError:
            raise
        except Mismatch as mismatch:
            raise DecodingError(str(mismatch)) from mismatch.__cause__
        except Exception as error:  # its text may quote the value
            raise DecodingError(f"the decoder failed with {type(error).__name__}") from error


def _chosen(kind: Any, optional: bool, decoder: DecoderChoice, names: Mapping[str, Any] | None) -> Decoder:
    """Refuses, with the reason, what does not go together."""
    if decoder is None and kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if decoder is None or decoder == "json":
        if hasattr(kind, "model_validate_json"):
            return partial(_by_model, kind, optional)
        try:
            return _from_json(Conversion(kind | None if optional and kind is not Any else kind, names))
        except NotFromJson as error:
            raise ConfigurationError(f"{error}; give the listener a decoder: {_CHOICES}") from None
    decoder = argument("decoder", DecoderArgument, decoder)
    if isinstance(decoder, str):
        made, built_in = _BY_NAME[decoder]
        if kind not in (made, Any, object):
            raise ConfigurationError(f"the decoder {decoder!r} makes {made.__name__}, not {shown(kind)}")
        return built_in
    return decoder


def _bytes(record: Record) -> Any:
    return record.value


def _text(record: Record) -> str:
    try:
        return str(record.value, "utf-8")  # type: ignore[arg-type]  # a tombstone does not come here
    except UnicodeDecodeError as error:
        raise DecodingError(f"not UTF-8: byte {error.start} of {len(error.object)}") from None


_BY_TYPE: dict[Any, Decoder] = {bytes: _bytes, str: _text}
_BY_NAME: dict[str, tuple[type, Decoder]] = {"bytes": (bytes, _bytes), "text": (str, _text)}


def _from_json(convert: Conversion) -> Decoder:
    load = _loader(exact=convert.exact)

    def decode(record: Record) -> Any:
        text = _text(record)
        try:
            content = load(text)
        except json.JSONDecodeError as error:
            what = "an empty value" if not text else f"not JSON: {error.msg} at character {error.pos} of {len(text)}"
            raise DecodingError(what) from None
        except ValueError:
            raise DecodingError("JSON with a number that is out of all bounds") from None
        except RecursionError:
            raise DecodingError("JSON that is nested too deep") from None
        return convert(content)

    return decode


def _loader(*, exact: bool) -> Callable[[str], Any]:
    """``json.loads``, made once: it makes a new decoder on every call with options."""
    return json.JSONDecoder(parse_float=Decimal if exact else _finite, parse_constant=_no_number).decode


def _finite(text: str) -> float:
    """Python would make infinity of a number that is too large."""
    number = float(text)
    if math.isinf(number):
        raise DecodingError("JSON with a number that is out of all bounds")
    return number


def _no_number(_: str) -> NoReturn:
    raise DecodingError("not JSON: NaN and Infinity are not part of it")


def _by_model(model: Any, optional: bool, record: Record) -> Any:
    """Duck-typed, so that pydantic is needed only by those who use it."""
    if optional and record.value == b"null":
        return None
    try:
        return model.model_validate_json(record.value)
    except ValueError as error:
        listed = getattr(error, "errors", None)
        if not callable(listed):
            raise
        found = listed(include_url=False, include_context=False, include_input=False)
        # The messages quote values here and there; the kinds of error never do.
        said = [f"{'.'.join(map(str, each['loc']))}: {each['type']}".removeprefix(": ") for each in found[:5]]
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise DecodingError(", ".join(said) + more) from None
