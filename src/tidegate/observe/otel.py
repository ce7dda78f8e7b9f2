"""OpenTelemetry: an observer that makes a span of each transaction, and the trace headers of a producer's records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate.core.arguments import argument
from tidegate.core.masks import masked
from tidegate.errors import ConfigurationError
from tidegate.observe.events import Committed, Conflicted, Event, FencedOff

if TYPE_CHECKING:
    from opentelemetry.trace import Link, TracerProvider

    from tidegate.core.records import TopicPartition

__all__ = ["OpenTelemetryObserver", "TraceHeaders"]

_MOST_LINKS = 100  # the SDK keeps 128 links of a span by default
_MOST_SPANS = 100  # and as many texts are enough to find a transaction in the journal
_PARENT, _STATE = "traceparent", "tracestate"

Pairs: TypeAlias = "Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]"


class OpenTelemetryObserver:
    """An observer that makes a span of each transaction, with the attributes of the conventions for messaging.

    A span has the group, the topics, the number of records, the outcome and the attempts. It is linked to the spans of
    the producers that its records name in their ``traceparent`` headers, up to 100 of them. ``provider`` defaults to
    the global tracer provider: the program, or ``opentelemetry-instrument``, sets up the SDK and its exporter.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        api = _api()
        given = argument("provider", api.TracerProvider | None, provider)
        self._tracer = api.get_tracer("tidegate", tracer_provider=given)
        self._kind = api.SpanKind.CONSUMER
        self._error = api.StatusCode.ERROR
        self._link = api.Link
        self._context = _Propagation().context_of

    def __call__(self, event: Event) -> None:
        """Make a span, if the event ends a transaction."""
        match event:
            case Committed():
                outcome = "already_done" if event.already_done else "committed"
                self._ended(event, outcome, event.seconds, links=self._links(event))
            case Conflicted():
                self._ended(event, "conflict", why=event.reason)
            case FencedOff():
                self._ended(event, "fenced", why=event.reason)

    def _ended(
        self,
        event: Committed | Conflicted | FencedOff,
        outcome: str,
        seconds: float = 0.0,
        *,
        why: str | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        now = time.time_ns()
        partitions = _partitions(event)
        topics = {tp.topic for tp in partitions}
        span = self._tracer.start_span(
            f"process {topics.pop()}" if len(topics) == 1 else "process",
            kind=self._kind,
            attributes={"tidegate.outcome": outcome, **_attributes(event, partitions)},
            links=links,
            start_time=now - round(seconds * 1e9),
        )
        if why is not None:
            span.set_status(self._error, masked(why))
            span.set_attribute("error.type", type(event).__name__)
        span.end(now)

    def _links(self, event: Committed) -> list[Link]:
        """Return links to the contexts that the committed records carry, each once."""
        ends = {span.partition: span.end for span in event.spans}
        named: dict[tuple[bytes, bytes], None] = {}
        for records in event.records:
            for record in records:
                if record.headers and record.offset < ends.get(record.source, 0):
                    headers = dict(record.headers)
                    if parent := headers.get(_PARENT):
                        named[parent, headers.get(_STATE) or b""] = None
                        if len(named) == _MOST_LINKS:
                            return self._linked(named)
        return self._linked(named)

    def _linked(self, named: Iterable[tuple[bytes, bytes]]) -> list[Link]:
        contexts = (self._context(*pair) for pair in named)
        return [self._link(context) for context in contexts if context is not None]


def _partitions(event: Committed | Conflicted | FencedOff) -> list[TopicPartition]:
    return sorted(event.owners) if isinstance(event, FencedOff) else [span.partition for span in event.spans]


def _attributes(
    event: Committed | Conflicted | FencedOff, partitions: list[TopicPartition]
) -> dict[str, str | int | float | bool | list[str]]:
    found: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": event.group,
        "tidegate.partitions": [str(tp) for tp in partitions[:_MOST_SPANS]],
    }
    if len(topics := {tp.topic for tp in partitions}) == 1:
        found["messaging.destination.name"] = topics.pop()
    if len(partitions) == 1:
        found["messaging.destination.partition.id"] = str(partitions[0].partition)
    if not isinstance(event, FencedOff):
        found["messaging.batch.message_count"] = sum(span.records for span in event.spans)
        found["tidegate.spans"] = [str(span) for span in event.spans[:_MOST_SPANS]]
        found["tidegate.conflicts"] = event.conflicts
    if isinstance(event, Committed):
        found["tidegate.attempts"] = event.attempts
        found["tidegate.unknown_outcomes"] = event.unknown_outcomes
        if event.handler_seconds is not None:
            found["tidegate.handler_seconds"] = event.handler_seconds
    return found


class TraceHeaders:
    """Adds the headers of the current span, ``traceparent`` and ``tracestate``, to those of a record."""

    def __init__(self) -> None:
        self._current = _Propagation().current

    def __call__(self, headers: Pairs | None) -> Pairs | None:
        """Return the headers with those of the current span; outside of a span, or with such headers, unchanged."""
        if not (current := self._current()):
            return headers
        if headers is None:
            return current
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        if any(name.lower() == _PARENT for name, _ in pairs):  # a record that is passed on keeps its trace
            return pairs
        return [*pairs, *current.items()]


class _Propagation:
    """Reads and writes the headers of W3C Trace Context."""

    def __init__(self) -> None:
        self._api = _api()
        from opentelemetry.context import Context  # noqa: PLC0415 - an extra
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

        self._w3c, self._nothing = tracecontext.TraceContextTextMapPropagator(), Context()

    def context_of(self, parent: bytes, state: bytes) -> Any | None:
        """Return the span context that a record's headers name; ``None`` if they are not valid."""
        carrier = {_PARENT: parent.decode("ascii", "replace"), _STATE: state.decode("ascii", "replace")}
        found = self._api.get_current_span(self._w3c.extract(carrier, self._nothing)).get_span_context()
        return found if found.is_valid else None

    def current(self) -> dict[str, str | bytes | None]:
        """Return the headers of the current span; empty outside of one."""
        carrier: dict[str, str | bytes | None] = {}
        self._w3c.inject(carrier)
        return carrier


def _api() -> Any:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError(
            "traces need opentelemetry-api, which is not installed; run: pip install 'tidegate[otel]'"
        ) from None
    return trace
