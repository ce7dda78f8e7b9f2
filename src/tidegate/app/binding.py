"""Binding: the arguments of a handler, derived from its annotations when it is decorated."""

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
from tidegate.app.decoder import DecoderChoice, Decoding
from tidegate.app.lifespan import Resource
from tidegate.core.records import Record
from tidegate.errors import ConfigurationError
from tidegate.ledger.transaction import Transaction

__all__ = ["Binding", "bind"]

_POSSIBLE = (
    "A handler takes each record (record: Record) or its value (order: Order, where Order is a dataclass, a pydantic "
    "model, dict, str, bytes or what its decoder makes), or a batch of them (records: list[Record], orders: "
    "list[Order]), and optionally tx: Transaction, in any order"
)
_LISTS = (list, abc.Sequence)


class _Role(IntEnum):
    """The kind of argument that a parameter takes. Its number is its index in what ``Binding.arguments`` is given."""

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
    """A function, and how to call it: ``binding.function(*binding.arguments((record, value, tx)))``.

    ``transaction`` is the transaction class in the annotation, or ``None`` if the function takes no transaction.
    ``decoding`` is ``None`` if the function takes no value. ``arguments`` picks the function's positional arguments, in
    the order of its parameters, from a record, its value and the transaction; from lists of records and values if it
    takes batches.
    """

    function: Callable[..., object]
    name: str
    is_batch: bool
    transaction: type[Transaction] | None
    decoding: Decoding | None
    is_async: bool
    arguments: Callable[[tuple[Any, Any, Transaction | None]], tuple[Any, ...]]

    @property
    def wants_transaction(self) -> bool:
        """Whether the function has a parameter for the transaction."""
        return self.transaction is not None

    def decode(self, record: Record) -> Any:
        """Return the decoded value of a record, or ``None`` if the function takes none; raises ``DecodingError``."""
        return self.decoding(record) if self.decoding is not None else None


def bind(
    function: Callable[..., object],
    decoder: DecoderChoice = None,
    *,
    names: Mapping[str, Any] | None = None,
    resources: Mapping[type, Resource[Any]] | None = None,
) -> Binding:
    """Work out how to call ``function``; raises :class:`ConfigurationError` if its signature is ambiguous.

    ``names`` are extra names for resolving its annotations, such as classes that are local to an enclosing function.
    ``resources`` are passed to the parameters that are annotated with their types.
    """
    name = _name(function)
    is_async = _is_async(function, name)
    given = _given(function)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name not in given]
    shared = _shared(function, name, parameters, names, resources or {})
    parameters = [each for each in parameters if each.name not in shared]
    bound = [_bound(function, name, parameter, names) for parameter in parameters]
    _check_together(name, bound)
    value = next((each for each in bound if each.role is _Role.VALUE), None)
    transaction = next((each.kind for each in bound if each.role is _Role.TRANSACTION), None)
    is_batch = any(each.is_batch for each in bound)
    decoding = _decoding(name, value, decoder, names)
    called = _positional(function, bound, shared)
    return Binding(called, name, is_batch, transaction, decoding, is_async, _picked(bound))


def _shared(
    function: Callable[..., object],
    name: str,
    parameters: list[inspect.Parameter],
    names: Mapping[str, Any] | None,
    resources: Mapping[type, Resource[Any]],
) -> dict[str, Resource[Any]]:
    """Return the resources of a function by the names of their parameters."""
    found: dict[str, Resource[Any]] = {}
    for parameter in parameters if resources else ():
        if parameter.annotation is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
            continue
        kind, _ = _without_none(_resolved(function, name, parameter, names))
        if isinstance(kind, type) and kind in resources:
            found[parameter.name] = resources[kind]
    return found


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
    """Return the plain function inside a partial, a method, a decorator or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = getattr(function, "__call__", function)  # noqa: B004  # keep the method itself
    return inspect.unwrap(getattr(function, "__func__", function))


def _is_async(function: Callable[..., object], name: str) -> bool:
    """Return whether a function is a coroutine function; raises if it is none that can be called."""
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"cannot bind {name}: it is not a function")
    for each in (function, _plain(function)):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigurationError(f"cannot bind {name}: it is a generator, and calling it would not run its body")
    return any(inspect.iscoroutinefunction(each) for each in (function, _plain(function)))


def _bound(
    function: Callable[..., object], name: str, parameter: inspect.Parameter, names: Mapping[str, Any] | None
) -> _Bound:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise _refused(name, parameter, "it stands for any number of arguments, so it is unclear what to pass")
    if parameter.annotation is parameter.empty:
        raise _refused(name, parameter, "it has no annotation, so it is unclear what to pass")
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
        raise _refused(name, parameter, "a call gets one transaction, not a list of them")
    role = _Role.RECORD if _is(kind, Record) else _Role.VALUE
    return _Bound(parameter, role, is_batch, kind, optional)


def _resolved(
    function: Callable[..., object], name: str, parameter: inspect.Parameter, names: Mapping[str, Any] | None
) -> Any:
    """Return the annotation as a type, even if it is a string or its evaluation was postponed."""
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
    return Union[others], True  # noqa: UP007  # the number of members varies


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
                "does not come from the record can be a resource, declared before with @app.resource, or be given by "
                "functools.partial",
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


def _positional(
    function: Callable[..., object], bound: list[_Bound], shared: Mapping[str, Resource[Any]]
) -> Callable[..., object]:
    """Return a function whose parameters can all be passed by position, and which adds the resources."""
    kinds = inspect.Parameter
    may_be_named = (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD) if shared else (kinds.KEYWORD_ONLY,)
    by_name = [each.parameter.name for each in bound if each.parameter.kind in may_be_named]
    if not by_name and not shared:
        return function
    first = len(bound) - len(by_name)

    def mixed(*given: Any) -> object:
        resources = {name: resource.value for name, resource in shared.items()}
        return function(*given[:first], **dict(zip(by_name, given[first:], strict=True)), **resources)

    return mixed


def _picked(bound: list[_Bound]) -> Callable[[tuple[Any, Any, Transaction | None]], tuple[Any, ...]]:
    """Return a function that picks the arguments by their roles. It is called for every record, so it must be fast."""
    if len(bound) == 1:
        role = bound[0].role
        return itemgetter(slice(role, role + 1))  # a tuple of one
    return itemgetter(*(each.role for each in bound))


def _refused(name: str, parameter: inspect.Parameter, why: str) -> ConfigurationError:
    return ConfigurationError(f"cannot bind {name}: parameter {parameter.name!r}: {why}. {_POSSIBLE}")
