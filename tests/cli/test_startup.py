"""The command line imports what a command needs, and nothing else: that is what makes it start fast."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import tidegate
from tidegate import TopicPartition, open_ledger
from tidegate.cli.options import COMMANDS, complete_groups, complete_topics, with_every_command

KAFKA = "confluent_kafka"
DATABASE = "sqlalchemy"
OTHER_DATABASES = (
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.mysql",
    "psycopg",
    "pymysql",
    "redis",
    "duckdb",
)
NEVER_FOR_READING = (KAFKA, "msgspec", "pyarrow", "pyspark", "pydantic", "prometheus_client", *OTHER_DATABASES)


def imported(*arguments: str, **environment: str) -> set[str]:
    """The modules that `tidegate` with these arguments imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tidegate.cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "tidegate.cli.options" in found
    return found


def among(modules: set[str], *unwanted: str) -> list[str]:
    return sorted(each for each in modules if any(each == name or each.startswith(f"{name}.") for name in unwanted))


def test_help_imports_no_command_and_nothing_that_is_large() -> None:
    modules = imported("--help")
    assert among(modules, DATABASE, *NEVER_FOR_READING) == []
    assert among(modules, *(f"tidegate.cli.{each.module}" for each in COMMANDS.values())) == []
    assert among(modules, "tidegate.ledger", "tidegate.kafka", "tidegate.settings", "tidegate.app") == []


@pytest.mark.parametrize("arguments", [["status"], ["status", "billing"], ["status", "--json", "--no-kafka"]])
def test_status_of_a_ledger_in_sqlite_imports_nothing_for_other_servers(tmp_path: Path, arguments: list[str]) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with open_ledger(url) as ledger:
        ledger.create()
        ledger.claim("billing", [TopicPartition("orders", 0)], start_at=0)
    modules = imported(*arguments, TIDEGATE_LEDGER=url)
    assert "sqlalchemy.dialects.sqlite" in modules
    assert among(modules, "rich", *NEVER_FOR_READING) == []
    assert among(modules, "tidegate.app", "tidegate.web", "tidegate.spark", "tidegate.operate.edits") == []


def test_importing_tidegate_imports_no_part_of_it() -> None:
    shown = "import sys, tidegate; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    ours = among(set(done.stdout.split()), "tidegate")
    assert ours == ["tidegate", "tidegate.core", "tidegate.core.lazy_names"]


def test_the_list_of_commands_has_every_command_with_the_line_of_its_own_help() -> None:
    loaded: Any = typer.main.get_command(with_every_command())
    lines = {name: re.sub(r"\s+", " ", command.help.split("\n\n")[0]) for name, command in loaded.commands.items()}
    assert {name: command.line for name, command in COMMANDS.items()} == lines


def parameters(command: Any, path: str = "tidegate") -> Iterator[tuple[str, Any]]:
    for parameter in command.params:
        yield f"{path} {parameter.metavar or parameter.name}", parameter
    for name, each in getattr(command, "commands", {}).items():
        yield from parameters(each, f"{path} {name}")


@pytest.mark.parametrize(("what", "complete"), [("GROUP", complete_groups), ("TOPIC", complete_topics)])
def test_every_command_that_takes_a_group_or_a_topic_completes_it(what: str, complete: object) -> None:
    found = list(parameters(typer.main.get_command(with_every_command())))
    named = {place: each for place, each in found if str(each.metavar).strip("[]") == what}
    assert len(named) >= 5
    assert [place for place, each in named.items() if not completes(each, complete)] == []


def completes(parameter: Any, complete: Any) -> bool:
    function = getattr(parameter, "_custom_shell_complete", None)
    return function is not None and complete.__name__ in {
        getattr(cell.cell_contents, "__name__", "") for cell in [*_cells(function)]
    }


def _cells(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        yield cell
        if callable(cell.cell_contents) and getattr(cell.cell_contents, "__closure__", None):
            yield from _cells(cell.cell_contents)


@pytest.mark.parametrize("package", ["tidegate", "tidegate.kafka", "tidegate.ledger", "tidegate.operate"])
def test_a_package_that_imports_lazily_offers_what_a_type_checker_sees(package: str) -> None:
    module = import_module(package)
    source = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    typed = next(node for node in source.body if isinstance(node, ast.If))
    seen = {
        (each.module, alias.name) for each in typed.body if isinstance(each, ast.ImportFrom) for alias in each.names
    }
    assert {name for _, name in seen} == set(module.__all__)
    for home, name in seen:
        assert getattr(module, name) is getattr(import_module(str(home)), name)


def test_a_name_that_a_package_does_not_have_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match=r"module 'tidegate' has no attribute 'Nonsense'"):
        _ = tidegate.Nonsense  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="Nonsense"):
        exec("from tidegate import Nonsense")


def test_modules_are_found_as_attributes_without_an_import_of_their_own() -> None:
    shown = "import tidegate; print(tidegate.errors.Fenced.__name__, tidegate.ledger.open_ledger.__name__)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Fenced", "open_ledger"]
