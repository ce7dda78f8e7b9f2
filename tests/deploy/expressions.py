"""The PromQL of the dashboard and the alerts: which metrics and labels it names, and what it is worth on one scrape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import yaml

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana.json"
ALERTS = ROOT / "deploy" / "alerts.yml"
VARIABLES = {"$__rate_interval": "5m", "$group": ".*"}


class Named(NamedTuple):
    """A metric that an expression names, and the labels that it uses with it."""

    metric: str
    labels: frozenset[str]


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panel(title: str) -> str:
    """The first expression of a panel."""
    (found,) = [each for each in dashboard()["panels"] if each["title"] == title]
    return filled(found["targets"][0]["expr"])


def of_dashboard() -> Iterator[tuple[str, str]]:
    """Each panel's title with each of its expressions."""
    for each in dashboard()["panels"]:
        for target in each["targets"]:
            yield each["title"], filled(target["expr"])


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def filled(expression: str) -> str:
    """With values in the place of Grafana's variables."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, f"an unknown variable in {expression}"
    return expression


def named(expression: str) -> set[Named]:
    """The metrics of an expression. Labels of ``by`` count for all metrics below it."""
    return set(_named(promql.parse(expression), frozenset()))


def _named(node: Any, outer: frozenset[str]) -> Iterator[Named]:
    match node:
        case promql.VectorSelector():
            used = {each.name for each in node.matchers.matchers} if node.matchers else set()
            yield Named(node.name, outer | used)
        case promql.MatrixSelector():
            yield from _named(node.vector_selector, outer)
        case promql.AggregateExpr():
            assert node.modifier is None or str(node.modifier.type) == "AggModifierType.By"
            yield from _named(node.expr, outer | frozenset(node.modifier.labels if node.modifier else ()))
        case promql.Call():
            for argument in node.args:
                yield from _named(argument, outer)
        case promql.BinaryExpr():
            yield from _named(node.lhs, outer)
            yield from _named(node.rhs, outer)
        case promql.ParenExpr():
            yield from _named(node.expr, outer)
        case promql.NumberLiteral():
            return
        case other:
            raise AssertionError(f"unknown part of an expression: {other!r}")


Samples = dict[str, list[tuple[dict[str, str], float]]]


def worth(expression: str, samples: Samples) -> dict[tuple[str, ...], float]:
    """The value of ``sum(metric)`` or ``sum by (…) (metric)``, or ``max``, on one scrape, for each set of labels."""
    node = promql.parse(expression)
    assert isinstance(node, promql.AggregateExpr)
    assert isinstance(node.expr, promql.VectorSelector)
    by = list(node.modifier.labels) if node.modifier else []
    groups: dict[tuple[str, ...], list[float]] = {}
    for labels, value in samples.get(node.expr.name, []):
        if all(_matches(each, labels) for each in node.expr.matchers.matchers):
            groups.setdefault(tuple(labels[name] for name in by), []).append(value)
    combine = {"sum": sum, "max": max}[str(node.op)]
    return {key: combine(values) for key, values in groups.items()}


def _matches(matcher: Any, labels: dict[str, str]) -> bool:
    assert str(matcher.op) == "MatchOp.Re", f"only =~ is evaluated, not {matcher.op}"
    return re.fullmatch(matcher.value, labels[matcher.name]) is not None


def families(names: Iterable[str]) -> set[str]:
    """Metrics as the documentation names them: a histogram without the endings of its samples."""
    return {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in names}
