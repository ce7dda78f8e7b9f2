"""What producers tell Prometheus."""

from __future__ import annotations

import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.kafka.producer import topics

from tidegate import ConfigurationError, Producer
from tidegate.errors import SerializationError
from tidegate.kafka import ProducerMetrics
from tidegate.sandbox import Kafka


def test_deliveries_errors_and_times_are_counted_for_each_topic(kafka: Kafka) -> None:
    registry, topic = CollectorRegistry(), topics.create(kafka.bootstrap)
    metrics = ProducerMetrics(registry)
    with (
        Producer(kafka.bootstrap, listeners=[metrics]) as first,
        Producer(kafka.bootstrap, listeners=[metrics]) as other,
    ):
        for number in range(20):
            (first if number % 2 else other).send(topic, str(number).encode())
        with pytest.raises(SerializationError):
            first.send(topic, object())
    label = {"topic": topic}
    assert registry.get_sample_value("tidegate_records_delivered_total", label) == 20
    assert registry.get_sample_value("tidegate_delivery_seconds_count", label) == 20
    assert 0 < (registry.get_sample_value("tidegate_delivery_seconds_sum", label) or 0) < 20 * 60
    errors = {**label, "kind": "SerializationError"}
    assert registry.get_sample_value("tidegate_send_errors_total", errors) == 1
    families = text_string_to_metric_families(generate_latest(registry).decode())
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert labels == {"topic", "kind", "le"}


def test_without_prometheus_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[metrics\]'"):
        ProducerMetrics()
