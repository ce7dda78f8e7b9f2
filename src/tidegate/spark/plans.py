"""Spark's plans, looked at before a job runs: what a query does with records beyond looking at each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import ConfigurationError
from tidegate.spark.parsing import ERROR
from tidegate.tables.table import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["refuse_exchange", "refuse_partial"]

# Parts of the names of physical nodes that take rows of several tasks together, or change their order. Spark's own and
# those of its extensions alike; what is left, a task finds out from the records that it was given.
_MOVING = ("Exchange", "Stage", "Shuffle", "Sort", "Window", "Aggregate", "Coalesce", "Union", "Limit", "Cartesian")
_NOT_MOVING = ("WholeStageCodegenExec",)

# Logical nodes that make rows of each record by itself.
_ROW_BY_ROW = frozenset(
    (
        *("Project", "Filter", "TypedFilter", "Generate", "Expand", "Sample", "SubqueryAlias", "View", "ResolvedHint"),
        *("MapInArrow", "MapInPandas", "MapPartitions", "MapElements", "SerializeFromObject", "DeserializeToObject"),
        *("Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions", "CollectMetrics", "LateralJoin"),
        *("WithCTE", "CTERelationDef", "CTERelationRef", "EventTimeWatermark", "DataFrameDropColumns"),
    )
)
# Joins in which each record of the side that is named stands by itself.
_JOINS = {"Inner": (True, True), "Cross": (True, True), "RightOuter": (False, True)}
_OTHER_JOINS = (True, False)  # left outer, semi, anti, and what subqueries become
_SUMS = frozenset(("Sum", "Count", "CountIf"))
_LINEAR = frozenset(("Alias", "Cast", "Coalesce", "Add", "Subtract", "UnaryMinus", "UnaryPositive"))
_SHOWN = {
    "Aggregate": "an aggregation",
    "Distinct": "DISTINCT",
    "Deduplicate": "dropDuplicates",
    "Window": "a window function",
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
}


def refuse_exchange(frame: DataFrame, about: str) -> None:
    """Refuse a frame in whose physical plan records may get from one task to another, or out of their order."""
    way = _way(frame._jdf.queryExecution().executedPlan())
    moving = [name for name in way if name not in _NOT_MOVING and any(part in name for part in _MOVING)]
    if moving:
        raise ConfigurationError(
            f"{about}: 'columns' and 'where' have Spark move records between tasks ({moving[0].removesuffix('Exec')}), "
            "by a window function or a subquery, and with commit='partition' each task commits all records of one "
            "Kafka partition; use commit='batch' (and per_batch=True if each micro-batch is meant by itself), or make "
            "the rows by a transform, which commits so too"
        )


def refuse_partial(frame: DataFrame, about: str, mode: Mode) -> None:
    """Refuse a frame whose rows would be others if the records were cut into other micro-batches."""
    found = _Query(accumulates=mode is Mode.ACCUMULATE)
    plan = frame._jdf.queryExecution().analyzed()
    if not found.visit(plan) and not found.reasons:
        found.reasons.append("rows that Spark's plan does not trace back to records, as of an RDD or collected ones")
    if not found.reasons:
        return
    if found.accumulates:
        way = "mode 'accumulate' adds up plain sums and counts, and nothing else"
    else:
        way = "use mode='accumulate', which adds up sums and counts"
    raise ConfigurationError(
        f"{about}: the rows are made by {found.reasons[0]}, which sees one micro-batch at a time, and records may be "
        f"cut into micro-batches anywhere: with mode '{mode.value}' the table would depend on that. {way[0].upper()}"
        f"{way[1:]}; or declare that each micro-batch is meant by itself, such as to keep one record of each key: "
        "per_batch=True (in a pipeline file, per_batch = true under [run])"
    )


def _way(node: Any) -> list[str]:
    """The names of the nodes from the reading of records up to this one; what is beside that way may do as it likes."""
    name = _name(node)
    if name == "BatchScanExec":
        return [name] if "kafka" in str(node.table().getClass().getName()).lower() else []
    below = [node.initialPlan()] if name == "AdaptiveSparkPlanExec" else _children(node)
    ways = [step for child in below for step in _way(child)]
    return [*ways, name] if ways else []


@dataclass
class _Query:
    """A walk through the analysed plan of a query, from its rows down to the records."""

    accumulates: bool
    reasons: list[str] = field(default_factory=list)
    _with_records: dict[Any, bool] = field(default_factory=dict)
    _summed: bool = False
    """Whether there is an aggregation below, of which sums are expected."""

    def visit(self, node: Any) -> bool:
        """Whether there are records in it; notes what does not look at each of them by itself."""
        name = _name(node)
        if name == "MapInArrow" and ERROR in {attribute.name() for attribute in _each(node.output())}:
            return True
        if name == "CTERelationRef":
            return self._with_records.get(node.cteId(), False)
        sides = [self.visit(child) for child in _children(node)]
        subqueries = [self.visit(query) for query in _each(node.subqueries())]
        if any(subqueries):
            self._note("a subquery over the records")
        if name == "CTERelationDef":
            self._with_records[node.id()] = sides[0]
        if any(sides):
            self._judge(node, name, sides)
        return any(sides)

    def _judge(self, node: Any, name: str, sides: list[bool]) -> None:
        match name:
            case "Join":
                alone = _JOINS.get(str(node.joinType().toString()), _OTHER_JOINS)
                if all(sides) or not alone[sides.index(True)]:
                    self._note("a join of records with each other, or one that keeps rows without records")
            case "Union":
                if not all(sides):
                    self._note("a union with rows that no record is for")
            case "Aggregate" if self.accumulates and not self._summed and _adds_up(node):
                self._summed = True
            case "Filter" if self._summed:
                self._note("a condition on sums (HAVING)")
            case _ if name not in _ROW_BY_ROW:
                self._note(_SHOWN.get(name, name))

    def _note(self, what: str) -> None:
        self.reasons.append(what)


def _adds_up(aggregate: Any) -> bool:
    """Whether an aggregation of two halves, added up, is that of the whole."""
    return all(map(_is_sum, _each(aggregate.aggregateExpressions())))


def _is_sum(expression: Any) -> bool:
    name = _name(expression)
    if name == "AggregateExpression":
        return _name(expression.aggregateFunction()) in _SUMS and not expression.isDistinct()
    parts = _children(expression)
    aggregated = [part for part in parts if _is_aggregated(part)]
    scaled = (name == "Multiply" and len(aggregated) == 1) or (name == "Divide" and aggregated == parts[:1])
    return not aggregated or ((name in _LINEAR or scaled) and all(map(_is_sum, aggregated)))


def _is_aggregated(expression: Any) -> bool:
    return _name(expression) == "AggregateExpression" or any(map(_is_aggregated, _children(expression)))


def _name(node: Any) -> str:
    return str(node.getClass().getName()).rpartition(".")[2]


def _children(node: Any) -> list[Any]:
    return list(_each(node.children()))


def _each(sequence: Any) -> Iterator[Any]:
    for place in range(sequence.size()):
        yield sequence.apply(place)
