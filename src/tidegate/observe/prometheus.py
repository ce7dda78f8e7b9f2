"""An observer that keeps Prometheus metrics. Labels are groups, topics, partitions and kinds; none grows with time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tidegate.core.arguments import argument
from tidegate.errors import ConfigurationError
from tidegate.observe.events import (
    Claimed,
    Committed,
    Conflicted,
    DeadLettered,
    Event,
    FencedOff,
    LagSeen,
    Paused,
    Polled,
    Rebalanced,
    Retried,
    Skipped,
    StoreBack,
    StoreLost,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["PrometheusObserver"]

_PLACE = ("group", "topic", "partition")
_COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BATCH_BUCKETS = (1, 10, 100, 1_000, 10_000, 100_000)
_REBALANCE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class PrometheusObserver:
    """An observer that keeps counters, histograms and gauges in ``registry``, by default that of prometheus_client.

    Create one per registry: for a second one, prometheus_client raises ``ValueError``.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigurationError(
                "metrics need prometheus_client, which is not installed; run: pip install 'tidegate[metrics]'"
            ) from None
        where = argument("registry", CollectorRegistry | None, registry) or REGISTRY

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"tidegate_{name}", help_text, ("group", *labels), registry=where)

        self._polled = counter("records_polled", "Records fetched")
        self._bytes = counter("bytes_polled", "Bytes of keys and values fetched")
        self._records = counter("records_committed", "Records whose span was committed", "topic", "partition")
        self._commits = counter("commits", "Transactions committed")
        self._attempts = counter("commit_attempts", "Attempts that these took")
        self._unknown = counter("unknown_outcomes", "COMMITs without an answer, resolved by reading the row")
        self._conflicts = counter("conflicts", "Attempts that ran into a conflict with another transaction")
        self._already = counter("already_done", "Work that turned out to be committed before")
        self._fences = counter("fences", "Commits refused because someone else moved or claimed the position")
        self._rebalances = counter("rebalances", "Changes of the assignment", "kind")
        self._retries = counter("retries", "Records that were to be tried again", "topic")
        self._letters = counter("dead_letters", "Records parked", "topic")
        self._skips = counter("skips", "Spans stepped over", "kind")
        self._claims = counter("claims", "Partitions claimed")
        self._outages = counter("outages", "Times that the ledger or the broker went away")
        self._commit_seconds = Histogram(
            "tidegate_commit_seconds",
            "Time of handler and commit",
            ("group",),
            buckets=_COMMIT_BUCKETS,
            registry=where,
        )
        self._handler_seconds = Histogram(
            "tidegate_handler_seconds",
            "Time of the handler alone",
            ("group",),
            buckets=_COMMIT_BUCKETS,
            registry=where,
        )
        self._batch_records = Histogram(
            "tidegate_batch_records",
            "Records of a transaction",
            ("group",),
            buckets=_BATCH_BUCKETS,
            registry=where,
        )
        self._rebalance_seconds = Histogram(
            "tidegate_rebalance_seconds",
            "Time that a change of the assignment took here",
            ("group", "kind"),
            buckets=_REBALANCE_BUCKETS,
            registry=where,
        )
        self._position = Gauge(
            "tidegate_position", "Next offset of the partition, as in the ledger", _PLACE, registry=where
        )
        self._lag = Gauge("tidegate_lag_records", "Offsets between position and end of the log", _PLACE, registry=where)
        self._away = Gauge(
            "tidegate_away", "1 while the ledger, the broker or a topic is away", ("group", "kind"), registry=where
        )
        self._paused = Gauge("tidegate_paused", "1 while an operator has paused the group", ("group",), registry=where)

    def __call__(self, event: Event) -> None:  # noqa: PLR0912 - one for each kind of event
        """Update the metrics for the event."""
        group = event.group
        match event:
            case Polled():
                self._polled.labels(group).inc(event.records)
                self._bytes.labels(group).inc(event.bytes)
            case Committed():
                self._committed(event)
            case Conflicted():
                self._conflicts.labels(group).inc(event.conflicts)
            case Claimed():
                self._claims.labels(group).inc(len(event.partitions))
                for tp, position in zip(event.partitions, event.positions, strict=True):
                    self._position.labels(group, *map(str, tp)).set(position)
            case FencedOff():
                self._fences.labels(group).inc()
            case Rebalanced():
                self._rebalanced(event)
            case LagSeen():
                self._lag.labels(group, *map(str, event.partition)).set(max(0, event.end - event.position))
                self._position.labels(group, *map(str, event.partition)).set(event.position)
            case Retried():
                self._retries.labels(group, event.partition.topic).inc()
            case DeadLettered():
                self._letters.labels(group, event.partition.topic).inc()
            case Skipped():
                self._skips.labels(group, event.kind).inc()
            case Paused():
                self._paused.labels(group).set(event.paused)
            case StoreLost():
                self._outages.labels(group).inc()
                self._away.labels(group, event.what).set(1)
            case StoreBack():
                self._away.labels(group, event.what).set(0)

    def _committed(self, event: Committed) -> None:
        group = event.group
        self._commits.labels(group).inc()
        self._attempts.labels(group).inc(event.attempts)
        self._unknown.labels(group).inc(event.unknown_outcomes)
        self._conflicts.labels(group).inc(event.conflicts)
        self._already.labels(group).inc(event.already_done)
        self._commit_seconds.labels(group).observe(event.seconds)
        self._batch_records.labels(group).observe(sum(span.records for span in event.spans))
        if event.handler_seconds is not None:
            self._handler_seconds.labels(group).observe(event.handler_seconds)
        for span in event.spans:
            place = (group, *map(str, span.partition))
            self._records.labels(*place).inc(span.records)
            self._position.labels(*place).set(span.end)

    def _rebalanced(self, event: Rebalanced) -> None:
        self._rebalances.labels(event.group, event.kind).inc()
        self._rebalance_seconds.labels(event.group, event.kind).observe(event.seconds)
        if event.kind != "assigned":  # from now on, the new owner reports position and lag
            for partition in event.partitions:
                for gauge in (self._position, self._lag):
                    with suppress(KeyError):
                        gauge.remove(event.group, *map(str, partition))
