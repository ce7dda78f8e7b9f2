"""JSON values into the types that annotations name: dataclasses, collections, unions, enums, dates, decimals."""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, Union, get_args, get_origin, get_type_hints
from uuid import UUID

__all__ = ["Conversion", "Mismatch", "NotFromJson", "shown"]

Converter: TypeAlias = Callable[[Any], Any]

_JSON_NAMES: dict[type, str] = dict.fromkeys((int, float, Decimal), "a number")
_JSON_NAMES |= {dict: "an object", list: "an array", str: "a string", bool: "a boolean", NoneType: "null"}
_FROM_TEXT: dict[Any, Converter] = {kind: kind.fromisoformat for kind in (datetime, date, time)}
_FROM_TEXT[UUID] = UUID
_ARRAYS: dict[Any, Converter] = {kind: kind for kind in (list, tuple, set, frozenset)}
_ARRAYS |= {abc.Sequence: list, abc.Set: frozenset}
_OBJECTS = (dict, abc.Mapping)


class NotFromJson(Exception):
    """A type that no JSON value can become; found when the conversion is made, not when it is used."""


class Mismatch(Exception):
    """A value that does not fit: says where and what is wrong, and never what the value is."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def under(self, step: str) -> Mismatch:
        """The same, seen from one level further up."""
        return Mismatch(self.problem, step + self.path)

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')}: {self.problem}" if self.path else self.problem


class Conversion:
    """How JSON becomes a value of one type, worked out once.

    ``exact``: the type has decimals in it, so the JSON has to be read without going through binary floats. ``names``
    are those that annotations of dataclasses may use beyond the names of their modules.
    """

    def __init__(self, kind: Any, names: Mapping[str, Any] | None = None) -> None:
        self.exact = False
        self._names = dict(names or {})
        self._known: dict[type, Converter] = {}
        self._convert = self._converter(kind)

    def __call__(self, value: Any) -> Any:
        """Convert what ``json.loads`` gave; raises :class:`Mismatch`."""
        return self._convert(value)

    def _converter(self, kind: Any) -> Converter:
        origin, parts = get_origin(kind), get_args(kind)
        if kind is Any or kind is object:
            return lambda value: value
        if hasattr(kind, "__supertype__"):  # a NewType
            return self._converter(kind.__supertype__)
        if origin is Annotated:
            return self._converter(parts[0])
        if origin in (Union, UnionType):
            return self._union(parts)
        if origin is Literal:
            return _literal(parts)
        if (origin or kind) in _ARRAYS:
            return self._array(origin or kind, parts)
        if (origin or kind) in _OBJECTS:
            return self._object(parts or (str, Any))
        if isinstance(kind, type) or kind is None:
            return self._class(kind or NoneType)
        raise NotFromJson(f"{shown(kind)} cannot be made from JSON")

    def _class(self, kind: type) -> Converter:
        if is_dataclass(kind):
            return self._dataclass(kind)
        if issubclass(kind, Enum):
            return _enum(kind)
        if kind in _FROM_TEXT:
            return _text(kind)
        if kind is Decimal:
            self.exact = True
            return _decimal
        if kind is float:
            return _float
        if kind in _JSON_NAMES:
            return _exactly(kind)
        if hasattr(kind, "model_validate"):
            self.exact = True  # it may have decimals in it
            return _validated(kind)
        raise NotFromJson(f"{shown(kind)} cannot be made from JSON")

    def _dataclass(self, kind: type) -> Converter:
        if kind in self._known:
            return lambda value: self._known[kind](value)  # noqa: PLW0108  # not known yet if it contains itself
        self._known[kind] = _unfinished
        try:
            hints = get_type_hints(kind, localns=self._names, include_extras=True)
        except NameError as error:
            raise NotFromJson(
                f"{shown(kind)} has a field whose annotation names {error.name!r}, which is not known at run time"
            ) from None
        members = []
        for field in fields(kind):
            if field.init:
                try:
                    convert = self._converter(hints[field.name])
                except NotFromJson as error:
                    raise NotFromJson(f"{shown(kind)}.{field.name}: {error}") from None
                required = field.default is MISSING and field.default_factory is MISSING
                members.append((field.name, convert, required))

        def construct(value: Any) -> Any:
            if type(value) is not dict:
                _misfit("an object", value)
            arguments = {}
            for name, convert, required in members:
                if name in value:
                    try:
                        arguments[name] = convert(value[name])
                    except Mismatch as mismatch:
                        raise mismatch.under(f".{name}") from mismatch.__cause__
                elif required:
                    raise Mismatch("missing", f".{name}")
            try:
                return kind(**arguments)
            except Exception as error:  # what a __post_init__ objects to; its text may quote values
                raise Mismatch(f"{shown(kind)} refused its fields with {type(error).__name__}") from error

        self._known[kind] = construct
        return construct

    def _union(self, kinds: tuple[Any, ...]) -> Converter:
        others = [kind for kind in kinds if kind is not NoneType]
        converters = [self._converter(kind) for kind in others]
        optional = len(others) < len(kinds)

        def first_that_fits(value: Any) -> Any:
            if value is None and optional:
                return None
            for convert in converters:
                try:
                    return convert(value)
                except Mismatch as mismatch:
                    if len(converters) == 1:
                        raise mismatch from mismatch.__cause__
            raise Mismatch(f"{_json_name(value)} that fits none of {', '.join(map(shown, others))}")

        return first_that_fits

    def _array(self, kind: Any, parts: tuple[Any, ...]) -> Converter:
        make = _ARRAYS[kind]
        if kind is tuple and parts and parts[-1] is not Ellipsis:
            raise NotFromJson(f"JSON arrays have any length; use tuple[{shown(parts[0])}, ...] or a list")
        convert = self._converter(parts[0] if parts else Any)

        def each(value: Any) -> Any:
            if type(value) is not list:
                _misfit("an array", value)
            converted: list[Any] = []
            try:
                for element in value:
                    converted.append(convert(element))  # its length tells which one did not fit
            except Mismatch as mismatch:
                raise mismatch.under(f"[{len(converted)}]") from mismatch.__cause__
            try:
                return make(converted)
            except TypeError:
                raise Mismatch("an array with elements that a set cannot hold") from None

        return each

    def _object(self, parts: tuple[Any, ...]) -> Converter:
        key_kind, value_kind = parts
        if key_kind in (int, float, bool):
            raise NotFromJson(f"keys of JSON objects are strings, not {shown(key_kind)}")
        key, member = self._converter(key_kind), self._converter(value_kind)

        def each(value: Any) -> Any:
            if type(value) is not dict:
                _misfit("an object", value)
            try:
                return {key(name): member(content) for name, content in value.items()}
            except Mismatch as mismatch:  # the key is left out: it is data
                raise mismatch.under("[…]") from mismatch.__cause__

        return each


def _exactly(kind: type) -> Converter:
    def check(value: Any) -> Any:
        if type(value) is not kind:  # so that True is not taken for 1
            _misfit("a whole number" if kind is int else _JSON_NAMES[kind], value)
        return value

    return check


def _float(value: Any) -> float:
    if type(value) not in (int, float, Decimal):
        _misfit("a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Mismatch("a number too large for a float")
    return number


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


def _text(kind: type) -> Converter:
    parse = _FROM_TEXT[kind]

    def convert(value: Any) -> Any:
        if type(value) is not str:
            _misfit(f"a string with a {kind.__name__}", value)
        try:
            return parse(value)
        except ValueError:
            raise Mismatch(f"a string that is not a {kind.__name__}") from None

    return convert


def _enum(kind: type[Enum]) -> Converter:
    takes_booleans = any(isinstance(member.value, bool) for member in kind)

    def convert(value: Any) -> Any:
        if isinstance(value, bool) and not takes_booleans:
            _misfit(f"a value of {kind.__name__}", value)
        try:
            return kind(value)
        except ValueError:
            raise Mismatch(f"{_json_name(value)} that is no value of {kind.__name__}") from None

    return convert


def _literal(values: tuple[Any, ...]) -> Converter:
    def convert(value: Any) -> Any:
        if any(type(value) is type(each) and value == each for each in values):
            return value
        raise Mismatch(f"{_json_name(value)} that is none of {', '.join(map(repr, values))}")

    return convert


def _validated(model: Any) -> Converter:
    def convert(value: Any) -> Any:
        try:
            return model.model_validate(value)
        except ValueError as error:
            raise Mismatch(f"{shown(model)} refused it with {type(error).__name__}") from None

    return convert


def _unfinished(_: Any) -> NoReturn:
    raise AssertionError("a dataclass was converted before it was worked out")


def _misfit(wanted: str, value: Any) -> NoReturn:
    raise Mismatch(f"expected {wanted}, got {_json_name(value)}")


def _json_name(value: Any) -> str:
    return _JSON_NAMES.get(type(value), type(value).__name__)


def shown(kind: Any) -> str:
    """A type as its author would write it."""
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
