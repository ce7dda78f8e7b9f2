"""What producers do, as Prometheus metrics. Labels are topics and kinds of error: nothing that grows with time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.errors import ConfigurationError
from tidegate.kafka.errors import ProducerError
from tidegate.kafka.hooks import SendListener
from tidegate.kafka.outgoing import Delivered, Outgoing

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["ProducerMetrics"]

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class ProducerMetrics(SendListener):
    """A listener of producers that counts what is delivered and what is not, and how long deliveries take.

    One may listen to several producers. A registry takes one: for a second, prometheus_client raises ``ValueError``.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Histogram  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigurationError(
                "metrics need prometheus_client, which is not installed; run: pip install 'tidegate[metrics]'"
            ) from None
        where = REGISTRY if registry is None else registry
        self._delivered = Counter("tidegate_records_delivered", "Records delivered", ("topic",), registry=where)
        self._errors = Counter(
            "tidegate_send_errors", "Records not taken, or given up", ("topic", "kind"), registry=where
        )
        self._seconds = Histogram(
            "tidegate_delivery_seconds",
            "Time from sending a record to its acknowledgement",
            ("topic",),
            buckets=_BUCKETS,
            registry=where,
        )

    def on_success(self, record: Outgoing, delivered: Delivered) -> None:
        """See :meth:`SendListener.on_success`."""
        self._delivered.labels(record.topic).inc()
        if delivered.seconds is not None:
            self._seconds.labels(record.topic).observe(delivered.seconds)

    def on_error(self, record: Outgoing, error: ProducerError) -> None:
        """See :meth:`SendListener.on_error`."""
        self._errors.labels(record.topic, type(error).__name__).inc()
