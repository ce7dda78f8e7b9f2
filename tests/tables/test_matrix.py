"""The matrix of docs/tables.md is what the databases say. ``make values`` writes it anew."""

from __future__ import annotations

from tools.matrix import TYPES, marks_of, section, written

from .places import Place

SERVERS = {"postgres": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB", "sqlite": "SQLite"}


def test_the_matrix_in_the_docs_is_what_the_database_does(database: Place) -> None:
    name = SERVERS[database.way]
    found = section(name, marks_of(database.engine, TYPES[name]))
    there = [each for each in written().split("\n\n") if each.lstrip().startswith(f"| {name} |")]
    assert [each.strip() for each in there] == [found.strip()], "run make values"
