"""Events become metrics that Prometheus can read, with labels that do not grow."""

from __future__ import annotations

import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tidegate.core.work import Span
from tidegate.errors import ConfigurationError
from tidegate.observe import Committed, LagSeen, Paused, PrometheusObserver, Rebalanced, StoreBack, StoreLost

from .samples import EVENTS, ORDERS, PLANTED

GROUP = {"group": "billing"}
PLACE = {**GROUP, "topic": "orders", "partition": "3"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_every_event_is_counted(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    for event in EVENTS:
        observer(event)
    expected = [
        ("tidegate_records_polled_total", GROUP, 20),
        ("tidegate_bytes_polled_total", GROUP, 4096),
        ("tidegate_records_committed_total", PLACE, 20),
        ("tidegate_commits_total", GROUP, 1),
        ("tidegate_commit_seconds_sum", GROUP, 0.25),
        ("tidegate_commit_seconds_count", GROUP, 1),
        ("tidegate_commit_attempts_total", GROUP, 2),
        ("tidegate_unknown_outcomes_total", GROUP, 1),
        ("tidegate_conflicts_total", GROUP, 2),
        ("tidegate_already_done_total", GROUP, 1),
        ("tidegate_fences_total", GROUP, 1),
        ("tidegate_rebalances_total", {**GROUP, "kind": "assigned"}, 1),
        ("tidegate_rebalance_seconds_sum", {**GROUP, "kind": "assigned"}, 1.5),
        ("tidegate_lag_records", PLACE, 100),
        ("tidegate_retries_total", {**GROUP, "topic": "orders"}, 1),
        ("tidegate_dead_letters_total", {**GROUP, "topic": "orders"}, 1),
        ("tidegate_skips_total", {**GROUP, "kind": "skip"}, 1),
        ("tidegate_skips_total", {**GROUP, "kind": "loss"}, 1),
        ("tidegate_claims_total", GROUP, 1),
        ("tidegate_outages_total", GROUP, 1),
        ("tidegate_paused", GROUP, 1),
        ("tidegate_batch_records_sum", GROUP, 20),
        ("tidegate_away", {**GROUP, "kind": "ledger"}, 0),
    ]
    assert [(name, labels, registry.get_sample_value(name, labels)) for name, labels, _ in expected] == expected


def test_the_exposition_parses_and_no_label_is_unbounded(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    for event in EVENTS:
        observer(event)
    text = generate_latest(registry).decode()
    families = list(text_string_to_metric_families(text))
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert len(families) > 15
    assert labels == {"group", "topic", "partition", "kind", "le"}
    assert PLANTED not in text
    assert "host-77-ab12" not in text


def test_a_group_that_goes_on_is_not_paused_any_more(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    observer(Paused("billing", True))
    observer(Paused("billing", False))
    assert registry.get_sample_value("tidegate_paused", GROUP) == 0


@pytest.mark.parametrize("kind", ["revoked", "lost"])
def test_the_lag_of_a_partition_that_is_gone_is_not_told_any_more(registry: CollectorRegistry, kind: str) -> None:
    observer = PrometheusObserver(registry)
    observer(LagSeen("billing", ORDERS, 1, 9))
    observer(Rebalanced("billing", kind, (ORDERS,), 0.1))
    observer(Rebalanced("billing", kind, (ORDERS,), 0.1))
    assert registry.get_sample_value("tidegate_lag_records", PLACE) is None


def test_the_time_of_the_handler_is_told_where_it_is_known(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    committed = Committed("billing", (Span(ORDERS, 0, 5, 5),), 0.5, 1, 0, False)
    observer(committed)
    assert registry.get_sample_value("tidegate_handler_seconds_count", GROUP) is None
    observer(committed._replace(handler_seconds=0.25))
    assert registry.get_sample_value("tidegate_handler_seconds_sum", GROUP) == 0.25


def test_what_is_away_shows_until_it_is_back(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    away = {**GROUP, "kind": "broker"}
    observer(StoreLost("billing", "broker", "refused"))
    assert registry.get_sample_value("tidegate_away", away) == 1
    observer(StoreBack("billing", "broker", 2.0))
    assert registry.get_sample_value("tidegate_away", away) == 0


def test_a_registry_takes_one_observer(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)


def test_without_prometheus_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[metrics\]'"):
        PrometheusObserver()
