"""Every option is declared once: its default stands in one place, and what a file can set is what the code takes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from inspect import signature
from typing import Any, NamedTuple

import pytest

from tidegate.app.sink import Sink
from tidegate.app.spec import ListenerSpec
from tidegate.settings import (
    IntoSettings,
    ListenerSettings,
    PartSettings,
    PipelineSettings,
    RouteSettings,
    RunSettings,
    SinkSettings,
    SparkSettings,
)
from tidegate.spark import Pipeline, SparkOptions
from tidegate.tables import CsvFormat, DebeziumFormat, Part, Route, Table

from .sources import Source, python_files, read

PLAIN = {"None", "False", "0", "0.0", "''", "()", "[]", "{}", "frozenset()"}
"""Defaults that mean off, nothing or empty."""
FACTORIES = {"dict", "list", "set"}
OWN = {
    ("out_of_range", "OutOfRange.STOP"): "an OwnLoop is below the settings; a listener and a pipeline share theirs",
    ("recreated", "Recreated.STOP"): "as out_of_range",
    ("format", "'json'"): "a sink, a pipeline and a Target: each accepts other formats",
    ("key_format", "'json'"): "as format",
    ("key_format", "KeyFormat.JSON"): "of a sink, and of a pipeline",
    ("ignore_case", "True"): "of a table, and of readers of a format that are made without a table",
    ("limit", "100"): "a page of dead letters for a program, and one on a terminal",
    ("host", "'127.0.0.1'"): "the command does not import the page before it has checked its options",
    ("port", "8600"): "as host",
    ("every", "2.0"): "a status on a terminal and a dashboard, which are not the same view",
    ("timeout", "60.0"): "to end a transaction, and to close a producer",
    ("attempts", "1"): "a letter, and how Redis writes one",
    ("order", "Order.FREE"): "no option: the layout of a table, and the facts that it is made from",
    ("takes_bulk", "True"): "no option: as order",
    ("move", "Move.ADVANCE"): "no option: what a transaction does unless its caller is an operator",
}
"""Equal defaults of different options, with the reason why neither refers to the other."""


class Default(NamedTuple):
    """A default that stands in the source: of a field of a class, or of a parameter."""

    name: str
    value: str
    owner: str
    """The class, or the method or function: methods of one name repeat the signature of the one that they implement."""
    place: str


def defaults(source: Source) -> Iterator[Default]:
    """The defaults of public fields and parameters that are neither plain nor a reference to another declaration."""
    constants = {
        target.id: ast.unparse(node.value)
        for node in source.tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for owner, name, node in _declared(source.tree.body):
        value = ast.unparse(node)
        place = f"{source.module}:{node.lineno}"
        if isinstance(node, ast.Name):  # a private constant of the module is not shared with another one
            value = constants.get(node.id, "") if node.id.startswith("_") else ""
        if not name.startswith("_") and value and not _is_plain(node, value) and not _is_reference(node):
            yield Default(name, value, source.module if isinstance(node, ast.Name) else owner, place)


def _declared(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str, ast.expr]]:
    for statement in body:
        match statement:
            case ast.ClassDef(name=owner) if not owner.startswith("_"):
                for inner in statement.body:
                    if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name) and inner.value:
                        yield owner, inner.target.id, inner.value
                    elif isinstance(inner, ast.FunctionDef):
                        yield from _parameters(inner, owner if inner.name == "__init__" else inner.name)
            case ast.FunctionDef(name=owner):
                yield from _parameters(statement, owner)


def _parameters(function: ast.FunctionDef, owner: str) -> Iterator[tuple[str, str, ast.expr]]:
    if owner.startswith("_"):
        return
    positional = [*function.args.posonlyargs, *function.args.args]
    given = positional[len(positional) - len(function.args.defaults) :]
    pairs = [*zip(given, function.args.defaults, strict=True)]
    pairs += [
        (each, value) for each, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value
    ]
    for parameter, value in pairs:
        yield owner, parameter.arg, value


def _is_plain(node: ast.expr, value: str) -> bool:
    match node:
        case ast.Call(func=ast.Name("field"), keywords=[ast.keyword("default_factory", value=ast.Name(factory))]):
            return factory in FACTORIES
        case ast.Lambda() | ast.Call(args=[], keywords=[]):  # what a class declares of itself
            return True
    return value in PLAIN


def _is_reference(node: ast.expr) -> bool:
    """Whether a default is looked up elsewhere: `_RUN.max_records`, `time.time`. A member of an enum is not."""
    return isinstance(node, ast.Attribute) and not node.attr.isupper()


def doubles(sources: Iterable[Source]) -> dict[tuple[str, str], list[str]]:
    """Options with a default that stands in several places."""
    owners: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for source in sources:
        for each in defaults(source):
            owners[each.name, each.value].setdefault(each.owner, each.place)
    return {key: sorted(found.values()) for key, found in owners.items() if len(found) > 1}


def sources() -> list[Source]:
    found = [read(path) for path in python_files("src")]
    return [source for source in found if not source.module.startswith("tidegate.sandbox")]


def test_a_default_stands_in_one_place() -> None:
    found = {key: places for key, places in doubles(sources()).items() if key not in OWN}
    assert not found, "\n".join(f"{name} = {value}: {', '.join(places)}" for (name, value), places in found.items())


def test_every_exception_is_needed() -> None:
    assert OWN.keys() - doubles(sources()).keys() == set()


NOT_IN_A_FILE = {
    "topics": "a listener is a function, and its topics and group stand beside it",
    "group": "as topics",
    "workers": "depends on the function: a pool wants one that returns what to write",
    "ordering": "as workers",
    "concurrency": "depends on the function: coroutines have it",
    "timeout": "as concurrency",
    "on_assigned": "a function",
    "on_revoked": "a function",
    "on_lost": "a function",
    "kafka": "the section of the cluster has it for all listeners",
}
RENAMED = {"deployment": "a part of start", "retries": "a part of on_error", "backoff": "a part of on_error"}


def names(model: type[Any]) -> set[str]:
    return {each.name for each in fields(model)}


def parameters(*functions: Callable[..., object]) -> set[str]:
    return {name for function in functions for name in signature(function).parameters} - {"self", "unknown"}


def test_the_settings_of_listeners_are_those_that_listeners_take() -> None:
    assert names(ListenerSettings) - RENAMED.keys() == names(ListenerSpec) - NOT_IN_A_FILE.keys()


def test_the_settings_of_a_table_are_those_that_a_table_takes() -> None:
    assert names(IntoSettings) == names(Table) - {"name", "columns"} | {"table", "types"}


def test_the_settings_of_a_sink_are_those_that_a_sink_takes() -> None:
    formats = parameters(CsvFormat) | parameters(DebeziumFormat) | {"flatten"}  # of a SchemaFormat
    assert names(SinkSettings) == names(Sink) | formats | {"topics", "group", "on_error", "route"}
    assert names(RouteSettings) == names(Route)
    assert names(PartSettings) == names(IntoSettings) | names(Part)


def test_the_settings_of_a_pipeline_are_those_that_a_pipeline_takes() -> None:
    formats = parameters(CsvFormat) | parameters(DebeziumFormat) | {"flatten"}  # of a SchemaFormat
    settings = names(PipelineSettings) | names(RunSettings) - {"deployment"}
    taken = parameters(Pipeline, Pipeline.run) - {"observers", "on_batch", "transform"}
    assert settings >= formats
    assert settings - {"run", "sql", "route"} - formats == taken
    assert names(SparkSettings) == names(SparkOptions)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class Settings:\n    most: int = 200", "class Table:\n    most: int = 200"),
        ("class Settings:\n    most: int = 200", "def table(*, most: int = 200): ..."),
        ("class Settings:\n    most: int = 200", "class Table:\n    def __init__(self, most: int = 200): ..."),
        ("_MOST = 200\nclass Settings:\n    most: int = _MOST", "_MOST = 200\nclass Table:\n    most: int = _MOST"),
        ("class A:\n    mode: Mode = Mode.APPEND", "class B:\n    mode: Mode = Mode.APPEND"),
    ],
)
def test_a_default_that_stands_in_two_places_is_reported(first: str, second: str) -> None:
    assert doubles([Source("tidegate.settings", first), Source("tidegate.tables.table", second)])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class Table:\n    most: int = 200", "class Settings:\n    most: int = Table.most"),
        (
            "class A:\n    def rows(self, part: str = 'value'): ...",
            "class B:\n    def rows(self, part: str = 'value'): ...",
        ),
        ("class A:\n    most: int | None = None", "class B:\n    most: int | None = None"),
        ("class A:\n    limit: int = MOST", "class B:\n    limit: int = MOST"),
        ("class A:\n    most: int = 200", "class B:\n    most: int = 300"),
    ],
)
def test_a_reference_to_the_declaration_is_not_reported(first: str, second: str) -> None:
    assert not doubles([Source("tidegate.settings", first), Source("tidegate.tables.table", second)])
