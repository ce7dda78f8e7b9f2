"""One database, one place for each layer: elsewhere, code asks what a database can do, and not what it is called."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .sources import Source, python_files, read

LAYERS = ("src/tidegate/tables", "src/tidegate/spark")
NAMES = re.compile("postgres|mysql|mariadb|sqlite|innodb|psycopg", re.IGNORECASE)
PLACES = re.compile(r"tidegate\.tables\.(postgres|mysql|sqlite)(\.\w+)?")
"""The modules of one database each, where its name may stand."""
REGISTRY = "tidegate.tables.registry"
"""The one module that knows all of them by name."""
EXCEPTIONS = {
    "tidegate.spark.daemon": "it imports the drivers before Spark forks workers, and has to start quickly",
    "tidegate.spark.doctor": "a message tells users which ledgers a pipeline can have",
    "tidegate.spark.loop": "a message tells users which databases executors can write to",
    "tidegate.spark.pipeline": "a message has the URL of a ledger as an example",
}


def named_databases(source: Source) -> Iterator[str]:
    """Where `source` names a database in an identifier, an import or a text; docstrings do not count."""
    docstrings = _docstrings(source.tree)
    for node in ast.walk(source.tree):
        for name in _names(node, docstrings):
            if NAMES.search(name):
                yield f"{source.module}:{getattr(node, 'lineno', 1)} names a database: {name!r}"


def _names(node: ast.AST, docstrings: set[ast.AST]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str() | bytes() as text) if node not in docstrings:
            yield text if isinstance(text, str) else text.decode(errors="replace")
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.ImportFrom(module=module, names=names):
            yield from (module or "", *(alias.name for alias in names))
        case ast.Import(names=names):
            yield from (alias.name for alias in names)


def _docstrings(tree: ast.Module) -> set[ast.AST]:
    """The texts that stand alone as statements: docstrings of modules, classes, functions and attributes."""
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def test_a_database_is_named_in_its_own_place_and_in_the_registry_only() -> None:
    found = [
        each
        for path in python_files(*LAYERS)
        if not PLACES.fullmatch((source := read(path)).module) and source.module not in (REGISTRY, *EXCEPTIONS)
        for each in named_databases(source)
    ]
    assert not found, "\n".join(found)


def test_every_exception_is_needed() -> None:
    sources = {source.module: source for source in map(read, python_files(*LAYERS))}
    assert [module for module in EXCEPTIONS if not any(named_databases(sources[module]))] == []


def test_exceptions_are_texts_and_decide_nothing() -> None:
    """No exception compares a database's name with anything."""
    sources = {source.module: source for source in map(read, python_files(*LAYERS))}
    compared = [
        f"{module}:{node.lineno}"
        for module in EXCEPTIONS
        for node in ast.walk(sources[module].tree)
        if isinstance(node, ast.Compare) and NAMES.search(ast.unparse(node))
    ]
    assert compared == []


@pytest.mark.parametrize(
    "text",
    [
        "if engine.dialect.name == 'sqlite':\n    pass",
        "NAMES = {'mysql': 1}",
        "from tidegate.tables.postgres.writer import judge_now",
        "from tidegate.tables import mysql",
        "import psycopg",
        "def write(postgres):\n    pass",
        "is_mariadb = True",
        "made(mysql=True)",
        "message = f'{name}: use PostgreSQL'",
        "class MySQLWriter:\n    pass",
    ],
)
def test_a_database_that_is_named_elsewhere_is_reported(text: str) -> None:
    assert list(named_databases(Source("tidegate.tables.target", text)))


def test_comments_and_docstrings_may_explain_what_a_database_does() -> None:
    text = '"""As PostgreSQL does."""\n\n\nclass Names:\n    mark = 1\n    """MySQL has another."""\n\n# SQLite: none'
    assert not list(named_databases(Source("tidegate.tables.names", text)))
