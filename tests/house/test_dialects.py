"""One database, one place for each layer: elsewhere, code asks what a database can do, and not what it is called."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .sources import Source, python_files, read

SANDBOX = "tidegate.sandbox"
"""Starts servers, each by its name."""
NAMES = re.compile("postgres|mysql|mariadb|sqlite|innodb|psycopg|duckdb", re.IGNORECASE)
PLACES = re.compile(
    r"tidegate\.tables\.(postgres|mysql|sqlite)(\.\w+)?|tidegate\.ledger\.(sql\.(postgres|mysql|sqlite)|duckdb(\.\w+)?)"
)
"""The modules of one database each, where its name may stand."""
REGISTRIES = {"tidegate.tables.registry", "tidegate.ledger.registry"}
"""The modules that know all of them by name: of tables, and of ledgers."""
MESSAGES = {
    "tidegate.app.sink": "tells which ledgers a sink can have",
    "tidegate.spark.doctor": "tells which ledgers a pipeline can have",
    "tidegate.spark.loop": "tells which databases executors can write to",
    "tidegate.spark.pipeline": "has the URL of a ledger as an example",
    "tidegate.cli.sandbox": "starts the servers that its user names, and prints their URLs",
    "tidegate.testing.fixtures": "makes a ledger in a file for each test",
}
"""Modules with names in texts, by which nothing is decided."""
DECISIONS = {
    "tidegate.operate.connector": "the names of databases in URLs of JDBC and in properties of connectors",
    "tidegate.spark.daemon": "it imports the drivers before Spark forks workers, and has to start quickly",
    "tidegate.ledger.sql.connections": "how to wait on the socket of a driver, which has no dialect yet",
    "tidegate.ledger.sql.doctor": "the settings of durability of each database",
    "tidegate.ledger.sql.schema": "a variant of a column's type, which SQLAlchemy takes by the name of its own dialect",
}
"""Modules that do what differs between databases, outside of the places for that."""


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


def elsewhere() -> dict[str, Source]:
    """The modules of all layers in which no database may be named."""
    sources = {source.module: source for source in map(read, python_files("src"))}
    return {
        name: source
        for name, source in sources.items()
        if not PLACES.fullmatch(name) and not name.startswith(SANDBOX) and name not in REGISTRIES
    }


def test_a_database_is_named_in_its_own_place_and_in_the_registry_only() -> None:
    found = [
        each
        for name, source in elsewhere().items()
        if name not in MESSAGES and name not in DECISIONS
        for each in named_databases(source)
    ]
    assert not found, "\n".join(found)


def test_every_layer_is_looked_at() -> None:
    looked_at = {name.split(".")[1] for name in elsewhere() if "." in name}
    assert {"app", "cli", "core", "kafka", "ledger", "observe", "operate", "spark", "tables", "web"} <= looked_at


def test_every_exception_is_needed() -> None:
    sources = elsewhere()
    assert [module for module in (*MESSAGES, *DECISIONS) if not any(named_databases(sources[module]))] == []


def test_messages_decide_nothing() -> None:
    """No module of :data:`MESSAGES` compares a database's name with anything."""
    sources = elsewhere()
    compared = [
        f"{module}:{node.lineno}"
        for module in MESSAGES
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
