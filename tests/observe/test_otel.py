"""Events become spans, linked to the spans of producers, and what is sent inside a span names it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from tidegate import App, Record, Span, TopicPartition
from tidegate.errors import ConfigurationError
from tidegate.observe import Committed, Conflicted, FencedOff, OpenTelemetryObserver
from tidegate.observe.otel import TraceHeaders
from tidegate.settings import Settings

from .samples import EVENTS, PLANTED

ORDERS = TopicPartition("orders", 3)


class Traced:
    """An SDK that keeps its spans, and an observer that reports to it."""

    def __init__(self) -> None:
        self.provider, self._kept = TracerProvider(), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.observer = OpenTelemetryObserver(self.provider)
        self.tracer = self.provider.get_tracer("shop")

    @property
    def spans(self) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.instrumentation_scope.name == "tidegate"]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def record(offset: int, *headers: tuple[str, bytes | None]) -> Record:
    return Record(*ORDERS, offset, headers=headers)


def parent(number: int) -> bytes:
    return f"00-{number:032x}-{number:016x}-01".encode()


def committed(*records: Record, end: int = 1000) -> Committed:
    return Committed("billing", (Span(ORDERS, 0, end, 20),), 0.25, 2, 1, False, 0.125, 1, (records,))


def test_a_transaction_is_a_span_with_its_attributes(traced: Traced) -> None:
    traced.observer(committed())
    (span,) = traced.spans
    assert (span.name, span.kind, span.status.status_code) == ("process orders", SpanKind.CONSUMER, StatusCode.UNSET)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 250_000_000
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.batch.message_count": 20,
        "tidegate.outcome": "committed",
        "tidegate.partitions": ("orders[3]",),
        "tidegate.spans": ("orders[3]@[0, 1000)",),
        "tidegate.attempts": 2,
        "tidegate.unknown_outcomes": 1,
        "tidegate.conflicts": 1,
        "tidegate.handler_seconds": 0.125,
    }


def test_a_transaction_over_several_topics_names_all_its_partitions_and_none_as_the_destination(traced: Traced) -> None:
    spans = (Span(ORDERS, 0, 2, 2), Span(TopicPartition("returns", 0), 5, 6, 1))
    traced.observer(Committed("billing", spans, 0.1, 1, 0, True))
    (span,) = traced.spans
    attributes = span.attributes or {}
    assert span.name == "process"
    assert not {"messaging.destination.name", "messaging.destination.partition.id"} & set(attributes)
    assert attributes["tidegate.partitions"] == ("orders[3]", "returns[0]")
    assert attributes["messaging.batch.message_count"] == 3
    assert attributes["tidegate.outcome"] == "already_done"


def test_what_was_not_committed_is_an_error(traced: Traced) -> None:
    traced.observer(FencedOff("billing", {ORDERS: "other"}, "claimed by other, mysql://me:pl4nted@db/shop"))
    traced.observer(Conflicted("billing", (Span(ORDERS, 0, 2, 2),), 3, "deadlock"))
    fenced, conflicted = traced.spans
    outcomes = [(span.attributes or {})["tidegate.outcome"] for span in (fenced, conflicted)]
    assert outcomes == ["fenced", "conflict"]
    assert {span.status.status_code for span in (fenced, conflicted)} == {StatusCode.ERROR}
    assert "pl4nted" not in str(fenced.status.description)
    assert (conflicted.attributes or {})["tidegate.conflicts"] == 3


def test_every_event_is_taken_and_no_data_gets_into_a_span(traced: Traced) -> None:
    for event in EVENTS:
        traced.observer(event)
    assert len(traced.spans) == sum(isinstance(event, Committed | Conflicted | FencedOff) for event in EVENTS)
    assert PLANTED not in "".join(span.to_json() for span in traced.spans)


def test_a_span_is_linked_to_each_producers_span_once(traced: Traced) -> None:
    state = ("tracestate", b"shop=1")
    traced.observer(
        committed(
            record(0, ("traceparent", parent(1)), state),
            record(1, ("traceparent", parent(1)), state),
            record(2),
            record(3, ("other", b"x"), ("traceparent", parent(2))),
        )
    )
    (span,) = traced.spans
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [(1, 1), (2, 2)]
    assert span.links[0].context.trace_state["shop"] == "1"


def test_headers_that_name_no_span_are_ignored(traced: Traced) -> None:
    wrong = [b"", None, b"\xff\xfe", b"00-abc-def-01", parent(0), parent(1)[:-3], b"ff" + parent(1)[2:]]
    traced.observer(committed(*(record(n, ("traceparent", value)) for n, value in enumerate(wrong))))
    (span,) = traced.spans
    assert not span.links


def test_links_are_bounded(traced: Traced) -> None:
    traced.observer(committed(*(record(n, ("traceparent", parent(n + 1))) for n in range(500))))
    (span,) = traced.spans
    assert len(span.links) == 100


def test_records_behind_the_end_of_a_span_are_not_linked(traced: Traced) -> None:
    """A transaction that ran out of time commits a part of its records; the others get their own."""
    records = [record(n, ("traceparent", parent(n + 1))) for n in range(4)]
    traced.observer(committed(*records, end=2))
    (span,) = traced.spans
    assert [link.context.span_id for link in span.links] == [1, 2]


def test_headers_name_the_current_span_and_keep_what_they_are_given(traced: Traced) -> None:
    add = TraceHeaders()
    assert add(None) is None
    given = {"a": "1"}
    assert add(given) is given, "outside of a span nothing changes"
    with traced.tracer.start_as_current_span("order") as span:
        context = span.get_span_context()
        expected = f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"
        assert add(None) == {"traceparent": expected}
        assert add({"a": "1"}) == add([("a", "1")]) == [("a", "1"), ("traceparent", expected)]
        assert add({"Traceparent": b"theirs"}) == [("Traceparent", b"theirs")], "a record passed on keeps its trace"


def test_the_setting_adds_the_observer_once(traced: Traced) -> None:
    settings = Settings.load(environ={"TIDEGATE_OBSERVE__TRACES": "true", "TIDEGATE_KAFKA": "broker:9092"})
    assert [type(each) for each in App(ledger="memory://", settings=settings).observers] == [OpenTelemetryObserver]
    app = App(ledger="memory://", settings=settings, observers=[traced.observer])
    assert list(app.observers) == [traced.observer]
    assert not list(App("broker:9092", "memory://", settings=Settings()).observers)


@pytest.mark.parametrize("use", ["OpenTelemetryObserver()", "TraceHeaders()"])
def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[otel\]'"):
        (OpenTelemetryObserver if "Observer" in use else TraceHeaders)()


def test_opentelemetry_is_not_imported_unless_it_is_used() -> None:
    program = "import sys, tidegate.observe, tidegate.cli; print([m for m in sys.modules if m.startswith('opentele')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
