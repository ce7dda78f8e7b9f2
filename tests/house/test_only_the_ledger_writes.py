"""Advance, token check and sentinel exist once: no package but `ledger/` writes to a `tidegate_` table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .sources import Source, python_files, read

LEDGER = "tidegate.ledger"
INTERNAL = {"schema", "statements"}

# An interpolated value reads as {}: the prefix is a setting, so f"UPDATE {prefix}positions" writes to the ledger too.
NAMES = "positions|groups|journal|dead_letters|schema|sentinel"
TABLE = rf"""(?:[`"\[]?\w+[`"\]]?\.)?[`"\[]?(?:tidegate_|\{{\}}_?(?:{NAMES})\b)"""
WRITES = re.compile(
    rf"""\b(?:
        (?:INSERT|REPLACE|MERGE)\s+(?:(?!INTO\b)\w+\s+)*(?:INTO\s+)?{TABLE}
      | DELETE\s+(?:(?!FROM\b)\w+\s+)*FROM\s+(?:ONLY\s+)?{TABLE}
      | UPDATE\s+(?:(?!\bSET\b)[^;])*?{TABLE}[^;]*?\bSET\b
      | COPY\s+{TABLE}[^;]*?\bFROM\b
      | LOAD\s+DATA\b[^;]*?\bINTO\s+TABLE\s+{TABLE}
      | TRUNCATE\s+(?:TABLE\s+)?{TABLE}
      | (?:ALTER|CREATE|DROP)\s+TABLE\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?{TABLE}
    )""",
    re.IGNORECASE | re.VERBOSE,
)


def violations(source: Source) -> Iterator[str]:
    """Where `source`, if it is not part of the ledger, writes to the ledger's tables or takes hold of them."""
    if source.module == LEDGER or source.module.startswith(f"{LEDGER}."):
        return
    for imported in source.imports():
        if imported.name.startswith(f"{LEDGER}.") and INTERNAL & set(imported.name.split(".")):
            yield f"{source.module}:{imported.line} imports the ledger's tables or statements: {imported.name}"
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(
                func=ast.Name(id="Table" | "table") | ast.Attribute(attr="Table" | "table"), args=[name, *_]
            ) if _text(name).startswith("tidegate_"):
                yield f"{source.module}:{node.lineno} defines a ledger table of its own: {_text(name)!r}"
    for node in _strings(source.tree):
        if WRITES.search(_text(node)):
            yield f"{source.module}:{node.lineno} writes to a ledger table: {_text(node)!r}"


def _strings(node: ast.AST) -> Iterator[ast.expr]:
    """The outermost string expressions below `node`, docstrings and other bare strings left out."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Constant(value=str()) | ast.JoinedStr() | ast.BinOp(op=ast.Add() | ast.Mod()):
                yield child
        yield from _strings(child)


def _text(node: ast.AST) -> str:
    """The text that a string expression builds, as far as it stands in the source; {} for the rest."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"\{\w*\}", "{}", text)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.BinOp(left=left, op=ast.Mod()):
            return re.sub(r"%(?:\(\w+\))?s", "{}", _text(left))
        case _:
            return "{}"


def test_no_package_but_the_ledger_writes_to_its_tables() -> None:
    found = [violation for path in python_files("src", "examples") for violation in violations(read(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        'run("INSERT INTO tidegate_positions VALUES (1)")',
        'run("insert or ignore into tidegate_journal values (1)")',
        'run("UPDATE tidegate_positions SET next_offset = 7")',
        'run("update `shop`.`tidegate_positions` set next_offset = 7")',
        'run("UPDATE bills b JOIN tidegate_positions p ON b.id = p.seq SET p.next_offset = 7")',
        "run('''\n    DELETE\n    FROM \"tidegate_journal\"\n''')",
        'run("REPLACE INTO tidegate_groups VALUES (1)")',
        'run("MERGE INTO tidegate_positions USING staged ON 1 = 1")',
        'run("COPY tidegate_dead_letters (id) FROM STDIN")',
        "run(\"LOAD DATA LOCAL INFILE 'x' INTO TABLE tidegate_dead_letters\")",
        'run("TRUNCATE TABLE tidegate_journal")',
        'run("ALTER TABLE tidegate_positions ADD COLUMN x INT")',
        'run("DELETE FROM " + "tidegate_journal")',
        'run("UPDATE tidegate_positions " "SET epoch = 1")',
        'run(f"INSERT INTO tidegate_{table} VALUES (1)")',
        'run(f"UPDATE {prefix}positions SET epoch = epoch + 1")',
        'run("DELETE FROM %sjournal" % prefix)',
        'run("DELETE FROM {prefix}journal".format(prefix=prefix))',
        'run(update(sa.table("tidegate_positions", sa.column("epoch"))))',
        "from tidegate.ledger.sql.schema import tables",
        "from tidegate.ledger.sql import schema",
        "from tidegate.ledger.sql.statements import advance",
        "from ..ledger import schema",
        "def late():\n    import tidegate.ledger.sql.schema",
    ],
)
def test_a_write_from_another_package_is_reported(text: str) -> None:
    assert list(violations(Source("tidegate.app.runtime", text)))


@pytest.mark.parametrize(
    "text",
    [
        'run("SELECT next_offset FROM tidegate_positions")',
        'run("INSERT INTO bills SELECT seq FROM tidegate_journal")',
        'run("CREATE TABLE copy AS SELECT seq FROM tidegate_journal")',
        'run(f"INSERT INTO {table} VALUES (1)")',
        'Table("orders", key=["id"])',
        'run("UPDATE bills SET total = 1")',
        '"""Callers never UPDATE tidegate_positions SET anything by hand."""',
        "from tidegate.ledger import open_ledger",
    ],
)
def test_reading_the_ledger_and_writing_elsewhere_is_not_reported(text: str) -> None:
    assert not list(violations(Source("tidegate.app.runtime", text)))


def test_the_ledger_itself_may_write() -> None:
    assert not list(violations(Source("tidegate.ledger.sql", 'run("UPDATE tidegate_positions SET epoch = 1")')))
