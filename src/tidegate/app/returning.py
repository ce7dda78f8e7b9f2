"""Handlers that return records for other topics: known by their annotation, and what that asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tidegate.app.spec import ListenerSpec
from tidegate.core.delivery import Delivery
from tidegate.core.errors import ConfigurationError
from tidegate.kafka.outgoing import Outgoing

__all__ = ["refuse_to_return", "returns_records"]

_SEVERAL = (list, tuple, Sequence, Collection, Iterable)


def returns_records(function: Callable[..., object]) -> bool:
    """Whether the return annotation names ``Outgoing``, alone or in a list or a union."""
    return _names_a_record(_annotation(function))


def refuse_to_return(name: str, function: Callable[..., object], spec: ListenerSpec, *, has_ledger: bool) -> None:
    """Raise if what a handler returns cannot be sent, or not exactly once."""
    if not _is_sendable(_annotation(function)):
        raise ConfigurationError(
            f"{name}: the annotation of what it returns names Outgoing, and not as what can be sent; use -> Outgoing, "
            "-> list[Outgoing], or either with | None"
        )
    if has_ledger:
        raise ConfigurationError(
            f"{name} returns records for other topics: those and their positions go into one Kafka transaction, which "
            "a database is no part of. Give the app ledger=None, or send with app.producer, which may repeat itself"
        )
    if spec.delivery is not Delivery.EXACTLY_ONCE:
        raise ConfigurationError(
            f"{name} returns records for other topics, which is for delivery=Delivery.EXACTLY_ONCE; for less, send "
            "with app.producer"
        )
    if spec.workers is not None:
        raise ConfigurationError(
            f"{name} returns records for other topics, and those of a pool of workers are not sent; leave workers out, "
            "or run several processes"
        )
    if spec.topics.partitions:
        raise ConfigurationError(
            f"{name} returns records and names its partitions: without a group's assignment nothing tells two "
            "consumers of a partition apart. Subscribe to the topic instead"
        )


def _annotation(function: Callable[..., object]) -> Any:
    inner = getattr(function, "func", function)  # of a partial
    try:
        return get_type_hints(inner).get("return")
    except Exception:  # what cannot be understood is told where arguments are bound
        return None


def _is_sendable(annotation: Any) -> bool:
    """Whether it is a record, or several of them, or may be ``None``."""
    if get_origin(annotation) in (Union, UnionType):
        return all(part is NoneType or _is_sendable(part) for part in get_args(annotation))
    parts = get_args(annotation) if get_origin(annotation) in _SEVERAL else (annotation,)
    return all(part is Outgoing or part is Ellipsis for part in parts)


def _names_a_record(annotation: Any) -> bool:
    return annotation is Outgoing or any(_names_a_record(part) for part in get_args(annotation))
