"""Rooms that can be found: modules are named by nouns, and are not split further than their users are."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

import tidegate

from .sources import Source, python_files, read

NOUNS = {"binding", "staging", "testing"}  # what they are is called so in the field
SMALL = 80  # lines
SANDBOX = "tidegate.sandbox"
ENTRY_POINTS = {"tidegate.spark.daemon", "tidegate.testing.fixtures", "tidegate.cli.__main__"}
"""Whom nobody imports: Spark, pytest and Python start them by their names."""


def sources() -> list[Source]:
    """The modules of the package, without those of the sandbox, which has a file and a class for each server."""
    found = [read(path) for path in python_files("src")]
    return [source for source in found if not source.module.startswith(SANDBOX)]


def gerunds(all_sources: Iterable[Source]) -> list[str]:
    """Modules that are named by what they do, and not by what they are."""
    names = [source.module for source in all_sources]
    return [name for name in names if (leaf := name.rpartition(".")[2]).endswith("ing") and leaf not in NOUNS]


def doubles(all_sources: Iterable[Source]) -> dict[str, list[str]]:
    """Class names that several modules have."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in all_sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(source.module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def crumbs(all_sources: list[Source], others: Iterable[Source] = ()) -> Iterator[str]:
    """Small modules with one user, whose part they are. A package that offers their names to others is no user."""
    users: dict[str, set[str]] = defaultdict(set)
    offered: dict[str, set[str]] = defaultdict(set)
    for source in [*all_sources, *others]:
        found = offered if source.is_package else users
        for each in source.imports():
            found[each.name].add(source.module)
            found[each.name.rpartition(".")[0]].add(source.module)
    for source in all_sources:
        if source.is_package or source.module in ENTRY_POINTS or len(source.text.splitlines()) >= SMALL:
            continue
        if len(users[source.module] - {source.module} or offered[source.module]) <= 1:
            yield source.module


def test_no_module_is_named_by_a_gerund() -> None:
    assert gerunds(sources()) == []


def test_no_class_name_is_there_twice() -> None:
    assert doubles(map(read, python_files("src"))) == {}


def test_no_small_module_has_one_user_only() -> None:
    assert list(crumbs(sources(), map(read, python_files("src/tidegate/sandbox")))) == []


def test_tidegate_itself_has_few_names() -> None:
    assert 25 <= len(tidegate.__all__) <= 30


def test_rooms_that_cannot_be_found_are_reported() -> None:
    bad = [
        Source("tidegate.app.handling", "class Handler:\n    pass"),
        Source(
            "tidegate.app.handler",
            "from tidegate.app.handling import Handler as Other\n\n\nclass Handler(Other):\n    pass",
        ),
    ]
    assert gerunds(bad) == ["tidegate.app.handling"]
    assert list(doubles(bad)) == ["Handler"]
    assert list(crumbs(bad)) == ["tidegate.app.handling", "tidegate.app.handler"]


def test_a_small_module_is_reported_although_its_package_offers_its_names() -> None:
    texts = {"shape": "LOW = 1", "writer": "from tidegate.tables.shape import LOW"}
    modules = [Source(f"tidegate.tables.{name}", text) for name, text in texts.items()]
    package = Source("tidegate.tables", "from tidegate.tables.shape import LOW", is_package=True)
    assert "tidegate.tables.shape" in list(crumbs([*modules, package]))
