"""Hooks: interceptors and listeners, who see every record that is sent and what became of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeAlias

from tidegate.core.arguments import Kind
from tidegate.kafka.blame import blamed
from tidegate.kafka.errors import ProducerError
from tidegate.kafka.outgoing import Delivered, Outgoing

__all__ = ["Hooks", "Interceptor", "InterceptorsArgument", "SendListener", "SendListenersArgument"]

_log = logging.getLogger("tidegate")


class Interceptor:
    """Sees every record before it is serialized and partitioned, and what became of it. Override what you need.

    An error in an interceptor is logged, and does not stop the send.
    """

    def on_send(self, record: Outgoing) -> Outgoing:
        """The record to send instead; called on the thread that sends, in the order of the chain."""
        return record

    def on_acknowledgement(self, record: Outgoing, delivered: Delivered | None, error: ProducerError | None) -> None:
        """The record was delivered or given up: one of the two is not ``None``. Before listeners and callbacks."""

    def close(self) -> None:
        """The producer was closed."""


class SendListener:
    """Hears of the end of every record, after the interceptors and before the callbacks. Override what you need."""

    def on_success(self, record: Outgoing, delivered: Delivered) -> None:
        """The record is in the log."""

    def on_error(self, record: Outgoing, error: ProducerError) -> None:
        """The record was not taken, or was given up."""


def _all(*methods: str) -> Callable[[Any], tuple[Any, ...] | None]:
    """Objects that have these methods; a class is not one of them."""

    def convert(given: Any) -> tuple[Any, ...] | None:
        found = tuple(given) if isinstance(given, Iterable) else (given,)
        fit = all(
            not isinstance(each, type) and all(callable(getattr(each, name, None)) for name in methods)
            for each in found
        )
        return found if fit else None

    return convert


InterceptorsArgument: TypeAlias = Annotated[
    tuple[Interceptor, ...], Kind("Interceptors", _all("on_send", "on_acknowledgement", "close"))
]
"""Interceptors as an argument."""

SendListenersArgument: TypeAlias = Annotated[
    tuple[SendListener, ...], Kind("SendListeners", _all("on_success", "on_error"))
]
"""Listeners as an argument."""


class Hooks:
    """The interceptors and the listeners of a producer, each in the order they were given."""

    def __init__(self, interceptors: Iterable[Interceptor] = (), listeners: Iterable[SendListener] = ()) -> None:
        self._interceptors = tuple(interceptors)
        self._listeners = tuple(listeners)

    def __bool__(self) -> bool:
        return bool(self._interceptors or self._listeners)

    def on_send(self, record: Outgoing) -> Outgoing:
        """The record as the chain makes it. What fails is left out: the next one gets what the one before it made."""
        for interceptor in self._interceptors:
            try:
                changed = interceptor.on_send(record)
                if not isinstance(changed, Outgoing):
                    raise TypeError
            except Exception as error:
                self._complain(interceptor, "on_send", record, error)
            else:
                record = changed
        return record

    def delivered(self, record: Outgoing, delivered: Delivered) -> None:
        """The record is in the log."""
        self._acknowledge(record, delivered, None)
        for listener in self._listeners:
            self._call(listener, "on_success", record, delivered)

    def failed(self, record: Outgoing, error: ProducerError) -> None:
        """The record was not taken, or was given up."""
        self._acknowledge(record, None, error)
        for listener in self._listeners:
            self._call(listener, "on_error", record, error)

    def close(self) -> None:
        """The producer was closed."""
        for interceptor in self._interceptors:
            try:
                interceptor.close()
            except Exception as error:
                _log.error("%s.close() failed with %s", type(interceptor).__name__, blamed(error))

    def _acknowledge(self, record: Outgoing, delivered: Delivered | None, error: ProducerError | None) -> None:
        for interceptor in self._interceptors:
            self._call(interceptor, "on_acknowledgement", record, delivered, error)

    def _call(self, whom: object, method: str, record: Outgoing, *told: object) -> None:
        try:
            getattr(whom, method)(record, *told)
        except Exception as error:
            self._complain(whom, method, record, error)

    @staticmethod
    def _complain(whom: object, method: str, record: Outgoing, error: Exception) -> None:
        _log.error(
            "%s.%s() failed with %s for a record of topic %s, which is not disturbed by that",
            type(whom).__name__,
            method,
            blamed(error),
            record.topic,
            extra={"topic": record.topic, "partition": record.partition},
        )
