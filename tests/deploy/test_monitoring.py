"""The dashboard and the alerts name metrics and labels that exist, and the documentation names all of them."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.observe.samples import EVENTS, ORDERS

from tidegate import Span
from tidegate.errors import BufferFull
from tidegate.kafka.delivery import Delivered, Outgoing, ProducerMetrics
from tidegate.observe import Committed, PrometheusObserver

from .expressions import ROOT, dashboard, families, named, of_dashboard, rules

EXPRESSIONS = [*of_dashboard(), *((rule["alert"], rule["expr"]) for rule in rules())]
ROW = re.compile(r"^\| (`tidegate_.*?`) \| (.*?) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Every metric with its labels, as a scrape shows it after each event has happened once."""
    registry = CollectorRegistry()
    observer, producer = PrometheusObserver(registry), ProducerMetrics(registry)
    span = Span(ORDERS, 30, 31, 1)
    for event in (*EVENTS, Committed("billing", (span,), 0.2, 1, 0, False, handler_seconds=0.1)):
        observer(event)
    sent = Outgoing("orders", b"x")
    producer.on_success(sent, Delivered("orders", 0, 1, 1, 0.1))
    producer.on_error(sent, BufferFull("full", "_QUEUE_FULL"))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found[sample.name] = set(sample.labels)
    return found


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=lambda given: given[:40])
def test_every_metric_and_label_of_an_expression_exists(
    exported: dict[str, set[str]], title: str, expression: str
) -> None:
    used = named(expression)
    assert used, "an expression without a metric"
    for metric, labels in used:
        assert metric in exported, f"{title}: there is no {metric}"
        assert labels <= exported[metric], f"{title}: {metric} has no {labels - exported[metric]}"


def test_every_metric_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    shown = families(each.metric for _, expression in of_dashboard() for each in named(expression))
    assert shown == families(exported)


def test_the_documentation_has_every_metric_with_its_labels(exported: dict[str, set[str]]) -> None:
    documented: dict[str, set[str]] = {}
    for names, labels in ROW.findall((ROOT / "docs" / "cli.md").read_text()):
        documented |= {name: set(labels.split(", ")) for name in re.findall(r"`(\w+)`", names)}
    assert documented == {
        name: next(labels - {"le"} for sample, labels in exported.items() if families([sample]) == {name})
        for name in families(exported)
    }


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_it_is_about_by_labels_that_it_has(rule: dict[str, str]) -> None:
    node = promql_parser.parse(rule["expr"])
    while not isinstance(node, promql_parser.AggregateExpr):
        node = node.lhs  # type: ignore[attr-defined]
    annotations = str(rule["annotations"])
    assert set(re.findall(r"\$labels\.(\w+)", annotations)) <= set(node.modifier.labels)
    assert {"summary", "description"} <= set(rule["annotations"])
    assert rule["labels"]["severity"] in {"warning", "critical"}  # type: ignore[index]


def test_the_page_explains_every_alert() -> None:
    page = (ROOT / "docs" / "running.md").read_text()
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []


def test_panels_do_not_overlap_and_name_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for each in dashboard()["panels"]:
        place = each["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert each["title"]
        assert each["description"].endswith(".")
    assert len({each["id"] for each in dashboard()["panels"]}) == len(dashboard()["panels"])


def test_the_legend_of_a_panel_names_labels_that_its_expression_keeps() -> None:
    for each in dashboard()["panels"]:
        for target in each["targets"]:
            labels = set(re.findall(r"by \(([^)]*)\)", target["expr"]))
            kept = {label.strip() for names in labels for label in names.split(",")}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, each["title"]


def test_the_files_are_where_the_page_says() -> None:
    page = (ROOT / "docs" / "running.md").read_text()
    for name in re.findall(r"`(deploy/[\w.]+)`", page):
        assert (ROOT / name).is_file(), name
    assert {f"deploy/{path.name}" for path in Path(ROOT / "deploy").iterdir()} <= set(
        re.findall(r"`(deploy/[\w.]+)`", page)
    )
