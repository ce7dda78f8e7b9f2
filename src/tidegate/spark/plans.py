"""Checks of Spark's query plans before a job runs: does the query treat each record by itself?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.errors import ConfigurationError
from tidegate.spark.records import ERROR
from tidegate.spark.versions import RENAMED
from tidegate.tables.table import Mode, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["refuse_exchange", "refuse_generators", "refuse_partial"]

# Name parts of physical nodes that combine rows of several tasks or change their order, of Spark and of its extensions.
# Tasks check the records that they receive, which catches nodes that are missing here.
_MOVING = ("Exchange", "Stage", "Shuffle", "Sort", "Window", "Aggregate", "Coalesce", "Union", "Limit", "Cartesian")
_NOT_MOVING = ("WholeStageCodegenExec",)

# Logical nodes that leave rows and columns unchanged.
_SAME_ROWS = frozenset(
    (
        *("SubqueryAlias", "View", "ResolvedHint", "WithCTE", "CTERelationDef", "CollectMetrics", "EventTimeWatermark"),
        *("Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions"),
    )
)
# Logical nodes that make rows from each record by itself.
_ROW_BY_ROW = _SAME_ROWS | frozenset(
    (
        *("Project", "Filter", "TypedFilter", "Generate", "Expand", "LateralJoin", "DataFrameDropColumns"),
        *("MapInArrow", "MapInPandas", "MapPartitions", "MapElements", "SerializeFromObject", "DeserializeToObject"),
    )
)
# For each join type, whether records on the left side, and on the right side, are joined each by itself.
_JOINS = {"Inner": (True, True), "Cross": (True, True), "RightOuter": (False, True)}
_OTHER_JOINS = (True, False)  # left outer, semi and anti joins, and the joins that Spark makes of subqueries
_SUMS = frozenset(("Sum", "Count", "CountIf"))
_OF_TASKS = {
    "MonotonicallyIncreasingID": "monotonically_increasing_id()",
    "SparkPartitionID": "spark_partition_id()",
    "InputFileName": "input_file_name()",
    "InputFileBlockStart": "input_file_block_start()",
    "InputFileBlockLength": "input_file_block_length()",
}
_CHANCE, _TIME = "chance", "the time"
_CHOSEN = "which records become rows depends on chance"
_CLOCKS = frozenset(("CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime"))
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_EXACT_DOUBLES = frozenset(("tinyint", "smallint", "int", "float"))
_SHOWN = {
    "Aggregate": "an aggregation",
    "Distinct": "DISTINCT",
    "Deduplicate": "dropDuplicates",
    "Window": "a window function",
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
}


def refuse_exchange(frame: DataFrame, about: str) -> None:
    """Raise if the physical plan of a frame may move records between tasks or change their order."""
    way = _way(frame._jdf.queryExecution().executedPlan())
    moving = [name for name in way if name not in _NOT_MOVING and any(part in name for part in _MOVING)]
    if moving:
        raise ConfigurationError(
            f"{about}: 'columns' and 'where' have Spark move records between tasks ({moving[0].removesuffix('Exec')}), "
            "by a window function or a subquery, and with commit='partition' each task commits all records of one "
            "Kafka partition; use commit='batch' (and per_batch=True if each micro-batch is meant by itself), or make "
            "the rows by a transform, which commits so too"
        )


def refuse_generators(frame: DataFrame, about: str) -> None:
    """Raise if a column makes several rows from one record, as ``explode`` does."""
    node = frame._jdf.queryExecution().analyzed()
    while _name(node) in ("Project", "Filter"):
        node = node.child()
    if _name(node) == "Generate":
        written = str(node.generator().prettyName())
        raise ConfigurationError(
            f"{about}: {written}(…) in 'columns' makes several rows of one record, and with commit='partition' columns "
            "make one; use it in a transform, or commit='batch'"
        )


def refuse_partial(frame: DataFrame, about: str, table: Table) -> None:
    """Raise if the rows of a frame would differ when the same records were cut into other micro-batches."""
    plan = frame._jdf.queryExecution().analyzed()
    java: Any = frame.sparkSession._jvm
    found = _Query(table, java.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE())
    found.look(plan)
    if found.unsteady:
        raise ConfigurationError(
            f"{about}: {found.unsteady[0]}, which differs from task to task and from micro-batch to micro-batch, and "
            "records may be cut into micro-batches anywhere: the table would depend on that. Make it of the record, "
            "such as of topic, partition and offset; or declare that each micro-batch is meant by itself: "
            "per_batch=True (in a pipeline file, per_batch = true under [run])"
        )
    if not found.reasons:
        return
    if table.kind is Mode.ACCUMULATE:
        way = (
            "mode 'accumulate' adds up columns that are sum(…) or count(…) and nothing more, of records that are "
            "grouped once, beside columns of the group; calculate inside of the sum, and choose records before it"
        )
    else:
        way = "use mode='accumulate', which adds up sums and counts"
    raise ConfigurationError(
        f"{about}: the rows are made by {found.reasons[0]}, which sees one micro-batch at a time, and records may be "
        f"cut into micro-batches anywhere: with mode '{table.kind.value}' the table would depend on that. "
        f"{way[0].upper()}{way[1:]}; or declare that each micro-batch is meant by itself, such as to keep one record "
        "of each key: per_batch=True (in a pipeline file, per_batch = true under [run])"
    )


def _way(node: Any) -> list[str]:
    """Return the names of the nodes from the Kafka scan up to this node; other branches of the plan do not matter."""
    name = _name(node)
    if name == "BatchScanExec":
        return [name] if "kafka" in str(node.table().getClass().getName()).lower() else []
    below = [node.initialPlan()] if name == "AdaptiveSparkPlanExec" else _children(node)
    ways = [step for child in below for step in _way(child)]
    return [*ways, name] if ways else []


class _Made(Enum):
    """What a column is computed from."""

    PLAIN = "one record, or what the records of a group have in common"
    SUM = "a sum or a count"
    OTHER = "anything else"


class _Column(NamedTuple):
    made: _Made = _Made.PLAIN
    varies: str | None = None
    """What makes the value differ from run to run: chance or the time."""


@dataclass(frozen=True)
class _Path:
    """A path of records through the plan: its columns by expression id, and whether it goes through an aggregation."""

    columns: Mapping[int, _Column] = field(default_factory=dict)
    summed: bool = False

    def of(self, attribute: Any) -> _Column:
        return self.columns.get(_id(attribute), _Column())

    def renamed(self, before: Any, after: Any) -> _Path:
        """Return the path with the columns renamed from one output to another, matched by their order."""
        if not self.columns:
            return self
        pairs = zip(_each(before), _each(after), strict=True)
        return _Path({_id(new): self.of(old) for old, new in pairs}, self.summed)


@dataclass
class _Query:
    """Walks through the analysed plan of a query, from its rows down to the records."""

    table: Table
    clock: Any
    reasons: list[str] = field(default_factory=list)
    """What neither treats each record by itself nor adds up."""
    unsteady: list[str] = field(default_factory=list)
    """What differs from run to run and affects the table."""
    _defined: dict[Any, tuple[Any, list[_Path]]] = field(default_factory=dict)
    _steady: bool = True
    _random: bool = False

    def look(self, plan: Any) -> None:
        self._random = not plan.deterministic()
        self._steady = not self._random and not plan.containsPattern(self.clock)
        paths = self._visit(plan)
        if not paths and not self.reasons:
            self._note("rows that Spark's plan does not trace back to records, as of an RDD or collected ones")
        for attribute in _each(plan.output()):
            for path in paths:
                self._judge_column(attribute, path)

    def _judge_column(self, attribute: Any, path: _Path) -> None:
        name, column = str(attribute.name()), path.of(attribute)
        in_key = self.table.kind is not Mode.APPEND and name in self.table.key
        if in_key and column.varies:
            self.unsteady.append(f"column {name!r} of the key depends on {column.varies}")
        if path.summed:
            added = not in_key and (name in self.table.add if self.table.add else _is_numeric(attribute))
            if added and column.made is not _Made.SUM:
                self._note(f"an aggregation, in which column {name!r} is added to and is not a plain sum or count")
            if not added and column.made is not _Made.PLAIN:
                self._note(f"an aggregation, in which column {name!r} is not added to and is not a column of the group")

    def _visit(self, node: Any) -> list[_Path]:
        """Return the paths of records to this node; note in ``reasons`` what does not treat each record by itself."""
        name = _name(node)
        if name == "MapInArrow" and ERROR in {attribute.name() for attribute in _each(node.output())}:
            return [_Path()]
        if name == "CTERelationRef":
            before, paths = self._defined.get(node.cteId(), (None, []))
            return [path.renamed(before, node.output()) for path in paths]
        sides = [self._visit(child) for child in _children(node)]
        if any(map(self._visit, _each(node.subqueries()))):
            self._note("a subquery over the records")
        if not any(sides):
            return []
        made = self._judge(node, name, sides)
        if name == "CTERelationDef":
            self._defined[node.id()] = node.output(), made
        return made

    def _judge(self, node: Any, name: str, sides: list[list[_Path]]) -> list[_Path]:
        paths = [path for side in sides for path in side]
        summed = any(path.summed for path in paths)
        if name == "Sample":
            self.unsteady.append(_CHOSEN)
        elif self._random:
            self._judge_chance(node, name, paths)
        match name:
            case "Union":
                if not all(sides):
                    self._note("a union with rows that no record is for")
                children = zip(_children(node), sides, strict=True)
                return [path.renamed(child.output(), node.output()) for child, side in children for path in side]
            case "WithCTE":
                return sides[-1]
            case "Project":
                return [self._projected(node.projectList(), path, path.summed) for path in paths]
            case "Aggregate" if self.table.kind is Mode.ACCUMULATE and not summed:
                return [self._projected(node.aggregateExpressions(), path, True) for path in paths]
            case _ if name in _SAME_ROWS:
                return [path.renamed(node.child().output(), node.output()) for path in paths]
            case "Join":
                self._judge_join(node, sides)
            case _ if name not in _ROW_BY_ROW:
                self._note(_SHOWN.get(name, name))
        if summed:
            self._note("a condition on sums (HAVING)" if name == "Filter" else f"what is done with sums ({name})")
        return [self._extended(node, path) for path in paths]

    def _judge_join(self, node: Any, sides: list[list[_Path]]) -> None:
        alone = _JOINS.get(str(node.joinType().toString()), _OTHER_JOINS)
        if all(sides) or not alone[0 if sides[0] else 1]:
            self._note("a join of records with each other, or one that keeps rows without records")

    def _judge_chance(self, node: Any, name: str, paths: list[_Path]) -> None:
        for expression in _each(node.expressions()):
            for written in _of_tasks(expression):
                self.unsteady.append(f"the rows are made by {written}")
            if name in ("Filter", "Join") and any(self._traced(expression, path).varies == _CHANCE for path in paths):
                self.unsteady.append(_CHOSEN)

    def _projected(self, expressions: Any, path: _Path, summed: bool) -> _Path:
        if self._steady and not summed:
            return path
        return _Path({_id(each): self._traced(each, path) for each in _each(expressions)}, summed)

    def _extended(self, node: Any, path: _Path) -> _Path:
        """Return the path with the node's new columns, assumed to depend on everything that the node uses."""
        if self._steady:
            return path
        varying = (self._traced(each, path).varies for each in _each(node.expressions()))
        new = _Column(varies=next(filter(None, varying), None))
        return _Path({_id(each): path.columns.get(_id(each), new) for each in _each(node.output())}, path.summed)

    def _traced(self, expression: Any, path: _Path) -> _Column:
        name = _name(expression)
        if name == "AttributeReference":
            return path.of(expression)
        if name == "Alias":
            return self._traced(expression.child(), path)
        if name == "AggregateExpression":
            return _Column(_Made.SUM if _is_sum(expression) else _Made.OTHER)
        parts = [self._traced(part, path) for part in _children(expression)]
        made = _Made.OTHER
        if all(part.made is _Made.PLAIN for part in parts):
            made = _Made.PLAIN
        elif name == "Cast" and parts[0].made is _Made.SUM and _is_wider(expression):
            made = _Made.SUM
        return _Column(made, self._varies(expression, name, parts))

    def _varies(self, expression: Any, name: str, parts: list[_Column]) -> str | None:
        found = {part.varies for part in parts}
        if _CHANCE in found or (self._random and not expression.deterministic()):
            return _CHANCE
        return _TIME if _TIME in found or name in _CLOCKS else None

    def _note(self, what: str) -> None:
        self.reasons.append(what)


def _is_sum(aggregated: Any) -> bool:
    """Return whether the results of two halves add up to that of the whole. ``try_sum`` is null where it overflows."""
    function = aggregated.aggregateFunction()
    return (
        _name(function) in _SUMS and not aggregated.isDistinct() and not str(function.prettyName()).startswith("try_")
    )


def _is_wider(cast: Any) -> bool:
    """Return whether a cast keeps the value of every number."""
    before, after = (str(each.dataType().catalogString()) for each in (cast.child(), cast))
    if before == after or (after == "double" and before in _EXACT_DOUBLES):
        return True
    (whole, scale), (more, finer) = _digits(before), _digits(after)
    return 0 < whole <= more and scale <= finer


def _digits(kind: str) -> tuple[int, int]:
    """Return the number of digits before and after the decimal point; zeros for a type that is not exact."""
    if decimal := _DECIMAL.fullmatch(kind):
        precision, scale = map(int, decimal.groups())
        return precision - scale, scale
    return _DIGITS.get(kind, 0), 0


def _is_numeric(attribute: Any) -> bool:
    kind = str(attribute.dataType().catalogString())
    return kind in ("float", "double") or kind in _DIGITS or _DECIMAL.fullmatch(kind) is not None


def _of_tasks(expression: Any) -> list[str]:
    """Return the functions in an expression whose result depends on the task that runs them."""
    if expression.deterministic():
        return []
    if shown := _OF_TASKS.get(_name(expression)):
        return [shown]
    return [shown for part in _children(expression) for shown in _of_tasks(part)]


def _id(named: Any) -> int:
    return int(named.exprId().id())


def _name(node: Any) -> str:
    name = str(node.getClass().getName()).rpartition(".")[2]
    return RENAMED.get(name, name)


def _children(node: Any) -> list[Any]:
    return list(_each(node.children()))


def _each(sequence: Any) -> Iterator[Any]:
    for place in range(sequence.size()):
        yield sequence.apply(place)
