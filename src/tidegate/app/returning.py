"""Handlers that return records for other topics: known by their annotation, and what that asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from tidegate.app.spec import ListenerSpec
from tidegate.core.delivery import Delivery
from tidegate.core.errors import ConfigurationError
from tidegate.kafka.outgoing import Outgoing

__all__ = ["refuse_to_return", "returns_records"]


def returns_records(function: Callable[..., object]) -> bool:
    """Whether the return annotation names ``Outgoing``, alone or in a list or a union."""
    inner = getattr(function, "func", function)  # of a partial
    try:
        annotation = get_type_hints(inner).get("return")
    except Exception:  # what cannot be understood is told where arguments are bound
        return False
    return _names_a_record(annotation)


def refuse_to_return(name: str, spec: ListenerSpec, *, has_ledger: bool) -> None:
    """Raise if what a handler returns cannot be sent exactly once."""
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


def _names_a_record(annotation: Any) -> bool:
    return annotation is Outgoing or any(_names_a_record(part) for part in get_args(annotation))
