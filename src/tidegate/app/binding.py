"""Binding: what a handler is called with, decided by its annotations when it is decorated."""

from __future__ import annotations

import functools
import inspect
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from tidegate.app.conversion import shown
from tidegate.app.decoding import DecoderChoice, Decoding
from tidegate.core.errors import ConfigurationError
from tidegate.core.records import Record
from tidegate.ledger.transaction import Transaction

__all__ = ["Binding", "bind"]

_POSSIBLE = (
    "A handler takes each record (record: Record) or its value (order: Order, where Order is a dataclass, a pydantic "
    "model, dict, str, bytes or what its decoder makes), or a batch of them (records: list[Record], orders: "
    "list[Order]), and, if it likes, tx: Transaction; in any order"
)
_LISTS = (list, abc.Sequence)


class _Role(IntEnum):
    """What a parameter is given; also its place among the arguments of :meth:`Binding.call`."""

    RECORD = 0
    VALUE = 1
    TRANSACTION = 2


class _Bound(NamedTuple):
    parameter: inspect.Parameter
    role: _Role
    is_batch: bool
    kind: Any
    optional: bool


@dataclass(frozen=True, slots=True)
class Binding:
    """A function, and how to call it.

    ``transaction`` is the class that it asks for, so that a store can be refused whose transaction is of another one.
    ``decoding`` is ``None`` if it takes no value.
    """

    function: Callable[..., object]
    name: str
    is_batch: bool
    transaction: type[Transaction] | None
    decoding: Decoding | None
    invoke: Callable[[tuple[Any, Any, Transaction]], object]

    @property
    def wants_transaction(self) -> bool:
        """Whether the transaction is among its parameters."""
        return self.transaction is not None

    def decode(self, record: Record) -> Any:
        """The value for a record, or ``None`` if the function takes none; raises ``DecodingError``."""
        return self.decoding(record) if self.decoding is not None else None

    def call(self, records: Any, values: Any, tx: Transaction) -> None:
        """Call the function: with lists of records and values if it takes batches, or else with one of each."""
        returned = self.invoke((records, values, tx))
        if returned is not None:
            tx.returned(returned)


def bind(
    function: Callable[..., object], decoder: DecoderChoice = None, *, names: Mapping[str, Any] | None = None
) -> Binding:
    """Work out how to call ``function``; raises :class:`ConfigurationError` if its signature leaves that open.

    ``names`` are those that its annotations may use beyond the names of its module, such as classes that were defined
    in the function that it was defined in.
    """
    name = _name(function)
    _check_kind(function, name)
    given = _given(function)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name not in given]
    bound = [_bound(function, name, parameter, names) for parameter in parameters]
    _check_together(name, bound)
    value = next((each for each in bound if each.role is _Role.VALUE), None)
    transaction = next((each.kind for each in bound if each.role is _Role.TRANSACTION), None)
    is_batch = any(each.is_batch for each in bound)
    decoding = _decoding(name, value, decoder, names)
    return Binding(function, name, is_batch, transaction, decoding, _invoke(function, bound))


def _decoding(
    name: str, value: _Bound | None, decoder: DecoderChoice, names: Mapping[str, Any] | None
) -> Decoding | None:
    if value is None:
        if decoder is not None:
            raise ConfigurationError(f"cannot bind {name}: it has a decoder, and no parameter that takes a value")
        return None
    try:
        return Decoding(value.kind, optional=value.optional, decoder=decoder, names=names)
    except ConfigurationError as error:
        raise _refused(name, value.parameter, str(error)) from None


def _name(function: Callable[..., object]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}.{named.__qualname__}"


def _given(function: Callable[..., object]) -> set[str]:
    return set(function.keywords) if isinstance(function, functools.partial) else set()


def _plain(function: Callable[..., object]) -> Any:
    """The function inside of a partial, a method, a decorator or an object that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = getattr(function, "__call__", function)  # noqa: B004  # the method itself is wanted
    return inspect.unwrap(getattr(function, "__func__", function))


def _check_kind(function: Callable[..., object], name: str) -> None:
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"cannot bind {name}: it is no function")
    for each in (function, _plain(function)):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigurationError(
                f"cannot bind {name}: it is 'async def', and handlers run in a transaction of a blocking driver; make "
                "it a plain 'def'"
            )
        if inspect.isgeneratorfunction(each):
            raise ConfigurationError(f"cannot bind {name}: it is a generator, and calling it would run nothing of it")


def _bound(
    function: Callable[..., object], name: str, parameter: inspect.Parameter, names: Mapping[str, Any] | None
) -> _Bound:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise _refused(name, parameter, "it stands for any number of arguments, and which ones is not said")
    if parameter.annotation is parameter.empty:
        raise _refused(name, parameter, "it has no annotation, so that what to give it is not known")
    kind, optional = _without_none(_resolved(function, name, parameter, names))
    if _is(kind, Transaction):
        return _Bound(parameter, _Role.TRANSACTION, False, kind, optional)
    if kind in _LISTS:
        raise _refused(name, parameter, "a batch of what? Write list[Record], or list[Order] for decoded values")
    is_batch = get_origin(kind) in _LISTS
    if is_batch:
        if optional:
            raise _refused(name, parameter, "a batch is never None; for tombstones, write list[Order | None]")
        kind, optional = _without_none(get_args(kind)[0])
    if _is(kind, Transaction):
        raise _refused(name, parameter, "there is one transaction, and no list of them")
    role = _Role.RECORD if _is(kind, Record) else _Role.VALUE
    return _Bound(parameter, role, is_batch, kind, optional)


def _resolved(
    function: Callable[..., object], name: str, parameter: inspect.Parameter, names: Mapping[str, Any] | None
) -> Any:
    """The annotation itself, also where it is a string or was postponed."""
    lone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        hints = get_type_hints(lone, getattr(_plain(function), "__globals__", {}), dict(names or {}))
    except NameError as error:
        raise _refused(
            name,
            parameter,
            f"its annotation names {error.name!r}, which is not known at run time; define it at the top of the module, "
            "and import it outside of 'if TYPE_CHECKING'",
        ) from None
    except Exception as error:
        raise _refused(name, parameter, f"its annotation cannot be understood ({type(error).__name__})") from error
    return hints[parameter.name]


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, UnionType) or NoneType not in get_args(kind):
        return kind, False
    others = tuple(part for part in get_args(kind) if part is not NoneType)
    return Union[others], True  # noqa: UP007  # of as many as there are


def _is(kind: Any, wanted: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, wanted)


def _check_together(name: str, bound: list[_Bound]) -> None:
    taken: dict[_Role, _Bound] = {}
    for each in bound:
        if (first := taken.setdefault(each.role, each)) is not each:
            what = {_Role.RECORD: "the record", _Role.VALUE: "the value", _Role.TRANSACTION: "the transaction"}
            raise _refused(
                name,
                each.parameter,
                f"as {shown(each.kind)} it takes {what[each.role]}, which {first.parameter.name!r} does already; what "
                "does not come from the record can be given by functools.partial",
            )
    records = [each for each in bound if each.role is not _Role.TRANSACTION]
    if not records:
        raise ConfigurationError(f"cannot bind {name}: it takes neither a record nor a value. {_POSSIBLE}")
    if len({each.is_batch for each in records}) > 1:
        one = next(each for each in records if not each.is_batch).parameter.name
        many = next(each for each in records if each.is_batch).parameter
        raise _refused(
            name, many, f"it takes a batch, and {one!r} takes one at a time; make both of them lists or none"
        )


def _invoke(function: Callable[..., object], bound: list[_Bound]) -> Callable[[tuple[Any, Any, Transaction]], object]:
    """Picks the arguments in the order of the parameters: this runs for every record."""
    pick = itemgetter(*(each.role for each in bound))
    by_name = [each.parameter.name for each in bound if each.parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    if by_name:
        first = len(bound) - len(by_name)

        def mixed(given: tuple[Any, Any, Transaction]) -> object:
            arguments = [given[each.role] for each in bound]
            return function(*arguments[:first], **dict(zip(by_name, arguments[first:], strict=True)))

        return mixed
    if len(bound) == 1:
        return lambda given: function(pick(given))
    return lambda given: function(*pick(given))


def _refused(name: str, parameter: inspect.Parameter, why: str) -> ConfigurationError:
    return ConfigurationError(f"cannot bind {name}: parameter {parameter.name!r}: {why}. {_POSSIBLE}")
