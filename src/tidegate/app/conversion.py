"""Conversions: turn JSON into the types of annotations.

JSON can become dataclasses, collections, unions, enums, dates and decimals. msgspec does the work.
"""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    NotRequired,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

import msgspec
from msgspec import UNSET, ValidationError

__all__ = ["Conversion", "Mismatch", "NotFromJson", "shown"]


Reader: TypeAlias = Callable[[bytes], Any]

_SIMPLE = {int, float, str, bool, NoneType, datetime, date, timedelta, UUID, Any, object}
_COLLECTIONS = {list, tuple, set, frozenset, dict}
_COLLECTIONS |= {abc.Collection, abc.Sequence, abc.MutableSequence, abc.Set, abc.MutableSet}
_COLLECTIONS |= {abc.Mapping, abc.MutableMapping}
_OBJECTS = (dict, abc.Mapping, abc.MutableMapping)
_KEYS = (_SIMPLE | {Decimal, time}) - {float, bool, NoneType}
_ENCODE = msgspec.json.Encoder(decimal_format="number").encode
_ANY = msgspec.json.Decoder(float_hook=Decimal).decode


class NotFromJson(Exception):
    """A type cannot be made from JSON; raised when a :class:`Conversion` is created, not when it is used."""


class Mismatch(ValueError):
    """A JSON value does not fit the type. The message says where and why, but never contains the value.

    It is a ``ValueError`` because msgspec adds the path only to those.
    """

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def under(self, path: str) -> Mismatch:
        """Return the same mismatch with its path extended at the front."""
        return Mismatch(self.problem, path + self.path)

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')}: {self.problem}" if self.path else self.problem


class Conversion:
    """Converts JSON into a value of one type. The decoders are built once, from the type.

    There are two of them. The fast one leaves to msgspec what msgspec does as promised here. The careful one calls the
    constructor of every dataclass, and checks every decimal, enum and literal in Python. It takes over if the fast one
    has failed, because it finds the path and the words for the error, and if a decimal may be infinite or not a number,
    which msgspec accepts. ``names`` are extra names for resolving the annotations of dataclasses.
    """

    __slots__ = ("_careful", "_fast", "_has_decimals")

    def __init__(self, kind: Any, names: Mapping[str, Any] | None = None, *, takes_bytes: bool = False) -> None:
        """``takes_bytes``: fields may be bytes, which are base64 in JSON."""
        careful = _Plan(kind, names, is_careful=True, takes_bytes=takes_bytes)
        self._careful = careful.read
        self._fast = _Plan(kind, names, is_careful=False, takes_bytes=takes_bytes).read
        self._has_decimals = careful.has_decimals

    def __call__(self, data: bytes) -> Any:
        """Decode JSON; raises :class:`Mismatch`, or an error of msgspec if it is not JSON."""
        if not (self._has_decimals and _may_name_no_number(data)):
            try:
                return self._fast(data)
            except Exception:  # noqa: S110  # decoded again for a message that quotes no value
                pass
        return self._careful(data)


_FILLING = rb'(?:\\u[0-9a-f]{4}|\\[^u"]|[^"a-z\\])*'
_NO_NUMBER = re.compile(rb'"%b(?:s?nan|inf(?:inity)?)%b"|\\u00[4-7]' % (_FILLING, _FILLING))


def _may_name_no_number(data: bytes) -> bool:
    """Return whether a string in JSON may be ``NaN`` or ``Infinity`` to a decimal.

    Decimals ignore case, underscores and the space around them, and JSON may escape any letter.
    """
    lower = data.replace(b"_", b"").lower()
    is_possible = b"nan" in lower or b"inf" in lower or b"\\u00" in lower  # spares most values the expression
    return is_possible and _NO_NUMBER.search(lower) is not None


class _StandIn(type):
    """The metaclass of classes that take the place of a type that msgspec does not make, or makes otherwise.

    ``make`` makes the value from parsed JSON; ``read``, if it is not ``None``, from the JSON itself.
    """

    make: Callable[[Any], Any]
    read: Reader | None

    def __instancecheck__(cls, value: Any) -> bool:
        return True  # msgspec asks whether the value that the hook returns is an instance


def _stand_in(make: Callable[[Any], Any] | None = None) -> _StandIn:
    return _StandIn("StandIn", (), {"make": staticmethod(make) if make else None, "read": None})


def _hook(kind: Any, value: Any) -> Any:
    return value if kind is object else kind.make(value)


class _Plan:
    """The type that msgspec decodes in place of the annotated one: the same, with stand-ins where they are needed.

    ``is_exact`` is true if the type contains decimals or models. Then numbers with a fraction become decimals where the
    type does not say what they are.
    """

    def __init__(self, kind: Any, names: Mapping[str, Any] | None, *, is_careful: bool, takes_bytes: bool) -> None:
        self._simple = _SIMPLE | {bytes} if takes_bytes else _SIMPLE
        self.has_decimals = self.is_exact = False
        self._names = dict(names or {})
        self._is_careful = is_careful
        self._stand_ins: dict[Any, _StandIn] = {}  # of classes with members
        self._seen: set[Any] = set()
        self._builds: list[Callable[[], None]] = []
        known = -1
        while known < len(self._stand_ins):  # a class needs a stand-in if a class in one of its fields needs one
            known = len(self._stand_ins)
            self._seen.clear()
            self._builds.clear()
            shape = self._planned(kind)
        for build in self._builds:
            build()
        self.read = self._reader(shape)

    def _reader(self, shape: Any) -> Reader:
        """Return the decoder of a planned type; it raises :class:`Mismatch`."""
        decode = self._decoder(shape)

        def read(data: bytes) -> Any:
            try:
                return decode(data)
            except ValidationError as error:
                mismatch = _mismatch(error)
                raise mismatch from mismatch.__cause__

        return read

    def _decoder(self, shape: Any) -> Reader:
        """Return the decoder of a planned type; it raises :class:`Mismatch` or ``ValidationError``."""
        if isinstance(shape, _StandIn) and shape.read is not None:
            return lambda data: shape.read(data)  # type: ignore[misc]  # noqa: PLW0108  # its decoder is built later
        try:
            return msgspec.json.Decoder(shape, dec_hook=_hook, float_hook=Decimal if self.is_exact else None).decode
        except TypeError as error:  # a constraint that does not go with its type
            raise NotFromJson(str(error)) from None

    def _planned(self, kind: Any) -> Any:
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return Annotated[(self._planned(parts[0]), *kind.__metadata__)]
        if origin in (Union, UnionType):
            return self._union(parts)
        if origin is Literal:
            return self._choice(kind, f"none of {', '.join(map(repr, parts))}")
        if kind is None or kind in self._simple:
            return kind
        if hasattr(kind, "__supertype__"):  # a NewType
            shape = self._planned(kind.__supertype__)
            return kind if shape == kind.__supertype__ else shape
        if (origin or kind) in _COLLECTIONS:
            return self._collection(kind, origin, parts)
        if is_typeddict(origin or kind):
            return self._typed_dict(kind, origin or kind)
        if is_dataclass(origin or kind) or _is_named_tuple(origin or kind):
            return self._class(kind, origin or kind)
        return self._leaf(kind)

    def _leaf(self, kind: Any) -> Any:
        if kind is time:
            return _stand_in(_time)
        if kind is Decimal:
            self.has_decimals = self.is_exact = True
            return _stand_in(_decimal) if self._is_careful else kind
        if isinstance(kind, type) and issubclass(kind, Enum):
            return self._choice(kind, f"no value of {kind.__name__}")
        if isinstance(kind, type) and hasattr(kind, "model_validate"):
            self.is_exact = True  # the model may contain decimals
            return _stand_in(partial(_validated, kind))
        raise NotFromJson(f"{shown(kind)} cannot be made from JSON")

    def _choice(self, kind: Any, otherwise: str) -> Any:
        """Plan an enum or a literal. msgspec takes strings and whole numbers, and in literals booleans and null."""
        if not _is_native(kind):
            if get_origin(kind) is Literal:
                raise NotFromJson(f"{shown(kind)} cannot be made from JSON")
            return _stand_in(partial(_member, kind, otherwise))
        return _stand_in(partial(_chosen_of, kind, otherwise)) if self._is_careful else kind

    def _union(self, kinds: tuple[Any, ...]) -> Any:
        others = [kind for kind in kinds if kind is not NoneType]
        none = [NoneType] * (len(kinds) - len(others))
        if len(others) == 1:
            return _any_of(self._planned(others[0]), *none)
        shapes = [self._native(kind) if _is_choice(_inner(kind)) else self._planned(kind) for kind in others]
        whole = _any_of(*shapes, *none)
        if Decimal not in map(_inner, others) and _is_native(whole):
            return whole
        stand_in = self._from_bytes(lambda: self._first_that_fits(others, shapes))
        return _any_of(stand_in, *none)

    def _first_that_fits(self, kinds: list[Any], shapes: list[Any]) -> Reader:
        """Return a decoder that tries the types in order, but ``float`` last: it would take whole numbers first."""
        in_order = sorted(zip(kinds, shapes, strict=True), key=lambda each: _inner(each[0]) is float)
        decoders = [self._decoder(shape) for _, shape in in_order]

        def read(data: bytes) -> Any:
            for decode in decoders:
                try:
                    return decode(data)
                except (Mismatch, ValidationError):
                    continue
            raise Mismatch(f"{_json_name(_ANY(data))} that fits none of {', '.join(map(shown, kinds))}")

        return read

    def _collection(self, kind: Any, origin: Any, parts: tuple[Any, ...]) -> Any:
        if origin in _OBJECTS:
            shapes = tuple(plan(part) for plan, part in zip((self._key, self._planned), parts, strict=False))
        else:
            shapes = tuple(part if part is Ellipsis else self._planned(part) for part in parts)
        return kind if shapes == parts else origin[shapes]

    def _key(self, kind: Any) -> Any:
        inner = _inner(kind)
        if inner not in _KEYS and not _is_choice(inner):
            raise NotFromJson(f"keys of JSON objects are strings, not {shown(kind)}")
        return self._planned(kind) if inner in (Decimal, time) else self._native(kind)

    def _native(self, kind: Any) -> Any:
        """Plan a type without members as the fast decoder does."""
        is_careful, self._is_careful = self._is_careful, False
        try:
            return self._planned(kind)
        finally:
            self._is_careful = is_careful

    def _typed_dict(self, kind: Any, origin: Any) -> Any:
        if kind in self._seen:
            raise NotFromJson(f"{shown(kind)} contains itself; use a dataclass")
        self._seen.add(kind)
        hints, are_plain = self._hints(kind, origin)
        shapes = {}
        for name, hint in hints.items():
            wrapper = get_origin(hint) if get_origin(hint) in (Required, NotRequired) else None
            shape = self._part(kind, name, get_args(hint)[0] if wrapper else hint)
            is_required = wrapper is Required or (wrapper is None and name in origin.__required_keys__)
            shapes[name] = Required[shape] if is_required else NotRequired[shape]
        self._seen.discard(kind)
        if are_plain and all(get_args(shapes[name])[0] == _unwrapped(hint) for name, hint in hints.items()):
            return kind
        return TypedDict(origin.__name__, shapes)  # type: ignore[operator]

    def _class(self, kind: Any, origin: Any) -> Any:
        """Plan a dataclass or a named tuple."""
        if kind in self._seen:
            return self._stand_ins.get(kind, kind)
        self._seen.add(kind)
        hints, are_plain = self._hints(kind, origin)
        members = _members(origin)
        shapes = {name: self._part(kind, name, hints.get(name, Any)) for name in members}
        are_same = are_plain and all(shape == hints.get(name, Any) for name, shape in shapes.items())
        if kind not in self._stand_ins and not self._is_careful and are_same and _is_made_plainly(origin, kind):
            return kind
        stand_in = self._from_bytes(lambda: self._constructed(origin, members, shapes), self._stand_ins.get(kind))
        self._stand_ins[kind] = stand_in
        return stand_in

    def _constructed(self, kind: Any, members: dict[str, bool], shapes: dict[str, Any]) -> Reader:
        """Return a decoder that decodes the arguments of a class and calls its constructor."""
        is_array = not is_dataclass(kind)  # a named tuple
        given = [
            (name, shapes[name]) if is_needed else (name, shapes[name], UNSET) for name, is_needed in members.items()
        ]
        arguments = self._reader(
            msgspec.defstruct(
                "Arguments", given, kw_only=not is_array, array_like=is_array, forbid_unknown_fields=is_array
            )
        )

        def read(data: bytes) -> Any:
            found = arguments(data)
            passed = {name: value for name in members if (value := getattr(found, name)) is not UNSET}
            try:
                return kind(**passed)
            except Exception as error:  # raised by __post_init__; left out of the message, as it may quote values
                raise Mismatch(f"{shown(kind)} refused its fields with {type(error).__name__}") from error

        return read

    def _from_bytes(self, build: Callable[[], Reader], stand_in: _StandIn | None = None) -> _StandIn:
        """Return a stand-in whose decoder is built when the whole type is planned."""
        made = stand_in or _stand_in()
        made.read = _unfinished

        def finish() -> None:
            read = made.read = build()
            made.make = lambda value: read(_ENCODE(value))

        self._builds.append(finish)
        return made

    def _part(self, kind: Any, name: str, hint: Any) -> Any:
        try:
            return self._planned(hint)
        except NotFromJson as error:
            raise NotFromJson(f"{shown(kind)}.{name}: {error}") from None

    def _hints(self, kind: Any, origin: Any) -> tuple[dict[str, Any], bool]:
        """Return the types of a class's members, and whether msgspec, which does not know ``names``, sees the same."""
        try:
            hints = get_type_hints(origin, localns=self._names, include_extras=True)
        except NameError as error:
            raise NotFromJson(
                f"{shown(kind)} has a field whose annotation names {error.name!r}, which is not known at run time"
            ) from None
        try:
            are_plain = hints == get_type_hints(origin, include_extras=True)
        except NameError:
            are_plain = False
        given = dict(zip(getattr(origin, "__parameters__", ()), get_args(kind), strict=False))
        return {name: _bound(hint, given) for name, hint in hints.items()}, are_plain


def _bound(hint: Any, given: Mapping[Any, Any]) -> Any:
    """Replace the type variables of a generic class in the type of a member."""
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    names = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(name, name) for name in names)] if names and given else hint


def _members(kind: Any) -> dict[str, bool]:
    """Return the names that a constructor takes, and whether each is required."""
    if not is_dataclass(kind):
        return {name: name not in kind._field_defaults for name in kind._fields}
    return {
        each.name: each.default is MISSING and each.default_factory is MISSING for each in fields(kind) if each.init
    }


def _is_made_plainly(origin: Any, kind: Any) -> bool:
    """Return whether msgspec, which calls no constructor, makes the object that the constructor would make."""
    if not is_dataclass(origin):
        return origin.__bases__ == (tuple,) and _is_native(kind)
    made = vars(origin).get("__dataclass_params__")
    if made is None or not made.init or not all(each.init for each in fields(origin)):
        return False
    is_set_plainly = made.frozen or origin.__setattr__ is object.__setattr__
    return bool(is_set_plainly and origin.__new__ is object.__new__ and _is_native(kind))


def _is_native(shape: Any) -> bool:
    """Return whether msgspec decodes a type by itself."""
    try:
        msgspec.json.Decoder(shape)
    except Exception:  # it has several for what it does not support
        return False
    return True


def _any_of(*kinds: Any) -> Any:
    return Union[kinds]  # noqa: UP007  # the number of members varies


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_field_defaults")


def _inner(kind: Any) -> Any:
    """Return the type inside of ``Annotated`` and ``NewType``."""
    while get_origin(kind) is Annotated or hasattr(kind, "__supertype__"):
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind.__supertype__
    return kind


def _is_choice(kind: Any) -> bool:
    return get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))


def _unwrapped(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint


def _unfinished(_: bytes) -> NoReturn:
    raise AssertionError("a value was decoded before its type was planned")


# What msgspec leaves to us


def _decimal(value: Any) -> Decimal:
    if type(value) not in (int, str, Decimal):
        _misfit("a number", value)
    try:
        number = Decimal(value)
    except ArithmeticError:
        number = Decimal("nan")
    if not number.is_finite():
        raise Mismatch("a string that is not a decimal number")
    return number


def _time(value: Any) -> time:
    if type(value) is not str:
        _misfit("a string with a time", value)
    try:
        found = msgspec.convert(value, time)
    except ValidationError:
        raise Mismatch("a string that is not a time") from None
    if found.hour == 0 and value.startswith("23"):  # a fraction of more than six digits is rounded
        raise Mismatch("a time that would be rounded to the next day")
    return found


def _chosen_of(kind: Any, otherwise: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except ValidationError:
        raise Mismatch(f"{_json_name(value)} that is {otherwise}") from None


def _member(kind: type[Enum], otherwise: str, value: Any) -> Any:
    """Return the member of an enum whose values are neither all text nor all whole numbers."""
    is_boolean_wanted = any(isinstance(each.value, bool) for each in kind)
    try:
        if is_boolean_wanted or not isinstance(value, bool):
            return kind(value)
    except (ValueError, TypeError):  # TypeError: an array or an object, of which enums have no values
        pass
    raise Mismatch(f"{_json_name(value)} that is {otherwise}")


def _validated(model: Any, value: Any) -> Any:
    try:
        return model.model_validate(value)
    except ValueError as error:
        raise Mismatch(f"{shown(model)} refused it with {type(error).__name__}") from None


# Messages: those of msgspec in our words. None of them may contain a value, so that only what is known is passed on.

_PATH = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_EXPECTED = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "str": "a string",
    "bool": "a boolean",
    "null": "null",
    "array": "an array",
    "object": "an object",
    "datetime": "a string with a datetime",
    "date": "a string with a date",
    "duration": "a string with a duration",
    "uuid": "a string with a UUID",
}
_PROBLEMS = {
    "Invalid RFC3339 encoded datetime": "a string that is not a datetime",
    "Invalid RFC3339 encoded date": "a string that is not a date",
    "Invalid ISO8601 duration": "a string that is not a duration",
    "Duration is out of range": "a duration out of all bounds",
    "Invalid UUID": "a string that is not a UUID",
    "Invalid decimal string": "a string that is not a decimal number",
    "Number out of range": "a number too large for a float",
    "Integer value out of range": "a number that is out of all bounds",
}


def _mismatch(error: ValidationError) -> Mismatch:
    text, path = str(error), ""
    if found := _PATH.search(text):
        text = text[: found.start()]
        path = found[2].replace("[...]", "[\u2026]") + ("[\u2026]" if found[1] else "")
    cause = error.__cause__
    if isinstance(cause, Mismatch):
        mismatch = cause.under(path)
        mismatch.__cause__ = cause.__cause__
        return mismatch
    if cause is not None:  # raised by the user's code
        return Mismatch(f"refused with {type(cause).__name__}", path)
    if found := _MISSING.fullmatch(text):
        return Mismatch("missing", f"{path}.{found[1]}")
    return Mismatch(_problem(text), path)


def _problem(text: str) -> str:
    if found := _EXPECTED.fullmatch(text):
        wanted = " or ".join(_WORDS.get(each, each) for each in found[1].removesuffix(" | null").split(" | "))
        return f"expected {wanted}, got {'a number' if found[2] == 'int' else _WORDS.get(found[2], found[2])}"
    if text.startswith("Expected "):  # a length or a bound, from the annotation
        return re.sub(r"`(\w+)`", lambda word: _WORDS.get(word[1], word[1]), text).replace("E", "e", 1)
    return _PROBLEMS.get(text, "not one of the allowed values" if text.startswith("Invalid ") else "does not fit")


_JSON_NAMES: dict[type, str] = dict.fromkeys((int, float, Decimal), "a number")
_JSON_NAMES |= {dict: "an object", list: "an array", str: "a string", bool: "a boolean", NoneType: "null"}


def _json_name(value: Any) -> str:
    return _JSON_NAMES.get(type(value), type(value).__name__)


def _misfit(wanted: str, value: Any) -> NoReturn:
    raise Mismatch(f"expected {wanted}, got {_json_name(value)}")


def shown(kind: Any) -> str:
    """Return the name of a type as it appears in source code."""
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
