"""Conversion and validation of arguments and settings, driven by type annotations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from tidegate.core.text import is_text, seconds_in
from tidegate.errors import ConfigurationError

__all__ = [
    "Accepts",
    "Age",
    "Amount",
    "Answer",
    "ByteCount",
    "ClientConfig",
    "Concurrency",
    "Count",
    "Hold",
    "Label",
    "LockWait",
    "Retention",
    "Seconds",
    "TablePrefix",
    "ThreadCount",
    "TimeLimit",
    "argument",
    "c_string",
    "checked_text",
    "convert_arguments",
    "described",
    "did_you_mean",
    "kind_of",
    "number",
    "passed_through",
    "refuse_unknown",
    "setting",
    "several",
    "span",
    "whole",
]


_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_WHOLE = re.compile(r"[+-]?\d+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
N = TypeVar("N", int, float)

_DAY = 86_400.0
_CENTURY = 36_500 * _DAY  # a wait that is much longer overflows the timeouts of threads

_SHOWN = 40  # errors quote no text with more characters, and numbers with more are not parsed
_DESCRIBED: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    list: "an array",
    datetime: "a time",
    date: "a date",
    time: "a time of day",
}


class _Entry(ConfigurationError):
    """An entry of a mapping is invalid; the message starts with its key, to be appended to the parameter's name."""


@dataclass(frozen=True)
class Accepts:
    """A kind of argument. ``convert`` returns the converted value, or ``None`` if the argument is invalid.

    ``expected`` describes valid arguments in error messages. ``choices`` are the accepted words, if there is a fixed
    set of them; errors suggest the nearest one for a typo.
    """

    expected: str
    convert: Callable[[Any], Any]
    choices: tuple[str, ...] = ()


def argument(name: str, hint: Any, given: object) -> Any:
    """Convert ``given`` to the type ``hint``; raise a :class:`ConfigurationError` that names the parameter."""
    return _converted(name, hint, given, lambda _, value: f", not {_quoted(value)}")


def setting(place: str, hint: Any, given: object) -> Any:
    """Convert a setting as :func:`argument` does. Errors never quote the value: it may be a misplaced secret."""
    return _converted(place, hint, given, _unquoted)


def _unquoted(kind: Accepts, given: object) -> str:
    """Name the type of ``given``, except where the expectation is clear without it: for a text, or for a value of the
    right type that is out of bounds.
    """
    is_clear = is_text(given) or kind.expected.startswith(described(given))
    return "" if is_clear else f", not {described(given)}"


def _converted(name: str, hint: Any, given: object, show: Callable[[Accepts, object], str]) -> Any:
    inner, is_optional = _without_none(hint)
    if inner is Any or (is_optional and given is None):
        return given
    kind = kind_of(inner)
    try:
        value = kind.convert(given)
    except _Entry as error:
        raise ConfigurationError(f"{name}.{error}") from None
    except ConfigurationError as error:
        raise type(error)(f"{name}: {error}") from None
    if value is None:
        raise ConfigurationError(f"{name}: expected {kind.expected}{show(kind, given)}{_hint(kind, given)}")
    return value


def convert_arguments(instance: Any) -> None:
    """Convert every field of a frozen dataclass to its annotated type; call it in ``__post_init__``."""
    for name, hint in _hints(instance.__class__).items():
        given = getattr(instance, name)
        value = argument(name, hint, given)
        if value is not given:
            object.__setattr__(instance, name, value)


def refuse_unknown(what: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise a :class:`ConfigurationError` if ``given`` has a keyword argument that ``what`` does not know."""
    for name in sorted(set(given) - set(known)):
        near = did_you_mean(name, known) or f"; it has {', '.join(sorted(known))}"
        raise ConfigurationError(f"{what} has no argument {name!r}{near}")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the end of an error message that suggests the nearest choice; empty if none is near."""
    known = {choice.replace("_", "-"): choice for choice in choices}
    near = get_close_matches(word.lower().replace("_", "-"), known, 1)
    return f"; did you mean {known[near[0]]!r}?" if near else ""


def described(given: object) -> str:
    """Describe a value by its type only, since the value may be a secret."""
    if isinstance(given, str) and not given.strip():
        return "an empty string"
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return _DESCRIBED.get(type(given)) or ("None" if given is None else f"a {type(given).__name__}")


def _quoted(given: object) -> str:
    if isinstance(given, Enum):
        return f"{type(given).__name__}.{given.name}"
    if isinstance(given, str) and (len(given) > _SHOWN or "://" in given or "=" in given):
        return "a string"
    if isinstance(given, (str, int, float, NoneType)):
        return repr(str(given)) if isinstance(given, str) else repr(given)
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"


def _hint(kind: Accepts, given: object) -> str:
    if is_text(given):
        return did_you_mean(given, kind.choices)
    if isinstance(given, Enum) and isinstance(given.value, str):
        return f"; if its text is meant, pass {type(given).__name__}.{given.name}.value"
    if isinstance(given, type) and given.__module__.startswith("tidegate."):
        return f"; pass {given.__name__}(…), not the class"
    return ""


# From annotations to kinds


@cache
def _hints(owner: Any) -> dict[str, Any]:
    hints = get_type_hints(owner, include_extras=True)
    return {name: hints[name] for name in owner.__dataclass_fields__}


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType) or NoneType not in get_args(hint):
        return hint, False
    return Union[tuple(each for each in get_args(hint) if each is not NoneType)], True  # noqa: UP007


@cache
def kind_of(hint: Any) -> Accepts:
    """Return the kind of argument that an annotation stands for."""
    if get_origin(hint) is Annotated:
        return next(each for each in get_args(hint) if isinstance(each, Accepts))
    if hint in _PLAIN:
        return _PLAIN[hint]
    if get_origin(hint) is Mapping:
        return _mapping(*get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        named = [each for each in get_args(hint) if isinstance(each, type) and issubclass(each, Enum)]
        return kind_of(named[0]) if named else _instances(*get_args(hint))
    if get_origin(hint) is Callable:
        return Accepts("a function", lambda given: given if callable(given) else None)
    if issubclass(hint, Enum):
        return _choice(hint)
    return _instances(hint)


def _instances(*classes: type) -> Accepts:
    """Accept instances of these classes, unchanged."""
    names = " or ".join(each.__name__ for each in classes)
    return Accepts(f"a {names}", lambda given: given if isinstance(given, classes) else None)


def _choice(enum: type[Enum]) -> Accepts:
    by_value = {each.value: each for each in enum}

    def convert(given: Any) -> Enum | None:
        return by_value.get(given) if is_text(given) else given if isinstance(given, enum) else None

    return Accepts(f"one of {', '.join(map(repr, by_value))}", convert, tuple(by_value))


def _mapping(key: Any, value: Any) -> Accepts:
    def convert(given: Any) -> dict[Any, Any] | None:
        if not isinstance(given, Mapping):
            return None
        keys = kind_of(key)
        if any(keys.convert(each) is None for each in given):
            raise ConfigurationError(f"expected a mapping, and in it as each name {keys.expected}")
        try:
            return {each: setting(each, value, item) for each, item in given.items()}
        except ConfigurationError as error:
            raise _Entry(str(error)) from None

    return Accepts("a mapping", convert)


def several(hint: Any, what: str) -> Accepts:
    """Accept one value or an iterable of values, and convert to a tuple."""

    def convert(given: Any) -> tuple[Any, ...] | None:
        kind = kind_of(hint)
        if isinstance(given, (str, bytes, Mapping, type)) or not isinstance(given, Iterable):
            one = kind.convert(given)
            return None if one is None else (one,)
        found = [kind.convert(each) for each in given]
        return None if any(each is None for each in found) else tuple(found)

    return Accepts(f"{what}, or a list of them", convert)


# Numbers: a number or its text; booleans are refused


def whole(least: int | None = None, most: int | None = None) -> Accepts:
    """Accept a whole number within bounds, both inclusive."""

    def convert(given: Any) -> int | None:
        return _bounded(_whole(given), least, most)

    return Accepts("a whole number" + _bounds(least, most), convert)


def span(least: float = 0.0, most: float = _CENTURY, *, above: bool = False) -> Accepts:
    """Accept a duration: a number of seconds, or text with a unit. With ``above``, ``least`` itself is excluded."""

    def convert(given: Any) -> float | None:
        seconds = seconds_in(given)
        if seconds is not None and seconds > _CENTURY:
            raise ConfigurationError("expected at most a hundred years")
        return None if seconds is None or not least <= seconds <= most or (above and seconds == least) else seconds

    bound = f" of more than {least:g} s" if above else f" of at least {least:g} s" if least else ""
    bound += f" and at most {most:g} s" if most < _CENTURY else ""
    return Accepts(f"a number of seconds, or a time such as '500ms', '5s' or '10 min'{bound and ','}{bound}", convert)


def number(least: float) -> Accepts:
    """Accept a finite number of at least ``least``."""

    def convert(given: Any) -> float | None:
        return _bounded(_real(given), least)

    return Accepts("a number" + _bounds(least, None), convert)


def _bytes(least: int) -> Accepts:
    def convert(given: Any) -> int | None:
        found = _SIZE.fullmatch(given.strip()) if is_text(given) and len(given) <= _SHOWN else None
        if found and found[2].lower() in _UNITS:
            size = Decimal(found[1]) * _UNITS[found[2].lower()]
            given = int(size) if size == int(size) else None  # a fraction of a byte is a mistake
        return _bounded(_whole(given), least)

    return Accepts("a number of bytes, or a size such as '32MB' or '4MiB'" + (", of at least 1 byte" * least), convert)


def _whole(given: Any) -> int | None:
    if is_text(given):
        return int(given) if _WHOLE.fullmatch(given.strip()) and len(given) <= _SHOWN else None
    if not _is_number(given) or isinstance(given, float):
        return None
    try:
        return int(given)
    except TypeError:  # an array has __index__, even if it is not one number
        return None


def _is_number(given: object) -> bool:
    """Return whether ``given`` is a number, NumPy's integers included; booleans, classes and enum members are not."""
    is_one = isinstance(given, (int, float)) or hasattr(given, "__index__")
    return is_one and not isinstance(given, (bool, type, Enum))


def _real(given: Any) -> float | None:
    if not is_text(given) and not _is_number(given):
        return None
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _bounded(number: N | None, least: N | None, most: N | None = None) -> N | None:
    is_within = number is not None and (least is None or number >= least) and (most is None or number <= most)
    return number if is_within else None


def _bounds(least: float | None, most: float | None) -> str:
    if most is not None:
        return f" from {least} to {most}"
    return "" if least is None else f" of at least {least:g}"


# Words


def _boolean(given: Any) -> bool | None:
    if not is_text(given):
        return given if isinstance(given, bool) else None
    word = given.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _text(given: Any) -> str | None:
    return checked_text(given) if is_text(given) else None


def _label(given: Any) -> str | None:
    return checked_text(given) if is_text(given) and given.strip() else None


def _table_prefix(given: Any) -> str | None:
    return given if is_text(given) and given.isidentifier() and len(given.encode()) <= _MOST_OF_PREFIX else None


def checked_text(given: str) -> str:
    """Return ``given``; raise if UTF-8 cannot encode it, as no database, broker or driver could take it.

    An environment variable or an argument of the command line that is not UTF-8 becomes such text.
    """
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ConfigurationError("expected text that UTF-8 can encode; was it written in another encoding?") from None
    return given


# Settings of librdkafka and of other libraries, passed on unchanged


def passed_through(given: object) -> str | int | float | bool | None:
    """Return a setting of another library unchanged; ``None`` if it is not a string, a finite number or a boolean."""
    is_plain = isinstance(given, (str, int)) or (isinstance(given, float) and math.isfinite(given))
    return given if is_plain else None  # type: ignore[return-value]


def c_string(given: str) -> str:
    """Return ``given``; raise if librdkafka, which is written in C, could not take the whole of it."""
    if "\0" in given:
        raise ConfigurationError("expected text without a NUL character: librdkafka would cut it there")
    return checked_text(given)


def _client_config(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, Mapping):
        return None
    for key, value in given.items():
        if not is_text(key) or not key.strip():
            raise ConfigurationError(f"the names of librdkafka's settings are strings, not {_quoted(key)}")
        for each in (key, value):
            if isinstance(each, str):
                c_string(each)
        is_callback = callable(value) and not isinstance(value, type)
        if passed_through(value) is None and not is_callback and key != "logger":
            raise ConfigurationError(f"{key!r}: expected a string, a number, or true or false, not {described(value)}")
    return dict(given)


_PLAIN: dict[Any, Accepts] = {
    str: Accepts("a string", _text),
    bool: Accepts("true or false", _boolean),
    int: whole(),
    float: Accepts("a number", _real),
    tuple[str, ...]: Accepts("a string, or an array of strings", several(str, "a string").convert),
}

Count: TypeAlias = Annotated[int, whole(1)]
"""A whole number of at least 1."""

Amount: TypeAlias = Annotated[int, whole(0)]
"""A whole number of at least 0."""

Seconds: TypeAlias = Annotated[float, span()]
"""A duration, up to a hundred years: a number of seconds, or text with a unit."""

ByteCount: TypeAlias = Annotated[int, _bytes(1)]
"""A size: a number of bytes, or text with a unit."""

Label: TypeAlias = Annotated[str, Accepts("a string that is not empty", _label)]
"""A string that is neither empty nor blank."""

_MOST_OF_PREFIX = 40  # bytes: PostgreSQL cuts names after 63 of them, and tables would have the same name

TablePrefix: TypeAlias = Annotated[
    str,
    Accepts(
        f"a prefix of letters, digits and '_', at most {_MOST_OF_PREFIX} bytes long, with no digit first", _table_prefix
    ),
]
"""What the names of a ledger's tables begin with."""

ClientConfig: TypeAlias = Annotated[Mapping[str, Any], Accepts("a mapping of librdkafka's settings", _client_config)]
"""Settings of librdkafka."""


ThreadCount: TypeAlias = Annotated[int, whole(1, 1000)]
"""The number of threads in one process."""

Concurrency: TypeAlias = Annotated[int, whole(1, 10_000)]
"""The number of coroutines that run at once."""

TimeLimit: TypeAlias = Annotated[float, span(above=True)]
"""A duration above zero: a number of seconds, or text with a unit."""

# The shortest limit. With a shorter idle timeout, PostgreSQL ends every transaction between two statements.
_LEAST = 0.05

Hold: TypeAlias = Annotated[float, span(_LEAST)]
"""How long a transaction may stay idle while it holds locks."""

LockWait: TypeAlias = Annotated[float, span(_LEAST, _DAY)]
"""How long an operation waits for a lock. It has a maximum because the servers store it in an integer."""

Answer: TypeAlias = Annotated[float, span(_LEAST, 2 * _DAY)]
"""How long one statement waits for the server's answer."""

Age: TypeAlias = Annotated[float, span()]
"""An age, up to a hundred years."""

Retention: TypeAlias = Age
"""How long the journal is kept; 0 means forever."""
