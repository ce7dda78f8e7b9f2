"""Imports point down only: core < observe < ledger < tables < kafka < settings < operate < app | spark < web < cli."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from .sources import Import, Source, python_files, read

BASE = {"errors", "core"}
LISTENERS = BASE | {"observe", "ledger", "tables", "kafka", "settings", "settings_file"}

MAY_IMPORT = {
    "errors": {"core"},
    "core": {"errors"},
    "java": BASE,
    "sandbox": BASE | {"java"},
    "observe": BASE,
    "ledger": BASE | {"observe"},
    "tables": BASE | {"observe", "ledger"},
    "kafka": BASE | {"observe", "ledger", "tables"},
    "settings_file": BASE,
    "settings": BASE | {"settings_file", "ledger", "tables", "kafka"},
    "operate": LISTENERS - {"tables"},
    "app": LISTENERS,
    "spark": LISTENERS | {"java"},
    "testing": LISTENERS | {"app", "sandbox"},
    "web": LISTENERS | {"operate", "app", "spark"},
    "cli": LISTENERS | {"operate", "app", "spark", "web", "java", "sandbox"},
}


def violations(source: Source) -> Iterator[str]:
    """The imports of `source` that break the layers, one sentence each."""
    part = _part(source.module)
    if part and part not in MAY_IMPORT:
        yield f"{source.module}: the layers have no place for {part!r}; give it one in MAY_IMPORT"
        return
    for imported in source.imports():
        if reason := _objection(part, imported):
            yield f"{source.module}:{imported.line} imports {imported.name}: {reason}"


def _part(module: str) -> str:
    """The layer of a module of tidegate: `ledger` for tidegate.ledger.sql; none for tidegate itself."""
    _, _, rest = module.partition(".")
    return rest.partition(".")[0]


def _objection(part: str, imported: Import) -> str | None:
    package, _, rest = imported.name.partition(".")
    if package == "confluent_kafka" and part != "kafka":
        return "only kafka/ talks to confluent_kafka"
    if package != "tidegate":
        outside = part == "core" and package not in sys.stdlib_module_names
        return "core has nothing but the standard library" if outside else None
    target = rest.partition(".")[0]
    if not part or target == part:
        return None
    if target not in MAY_IMPORT:
        return "tidegate itself imports every layer; name the module that defines it"
    if target in MAY_IMPORT[part]:
        return None
    return f"{part} may import {', '.join(sorted(MAY_IMPORT[part])) or 'no other part'}"


def test_imports_point_down_only() -> None:
    found = [violation for path in python_files("src") for violation in violations(read(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("tidegate.core.span", "import sqlalchemy"),
        ("tidegate.core.span", "from tidegate.ledger import Ledger"),
        ("tidegate.core.span", "from ..ledger import Ledger"),
        ("tidegate.core.span", "from .. import ledger"),
        ("tidegate.core.span", "from tidegate import settings"),
        ("tidegate.core.span", "def late():\n    import tidegate.observe"),
        ("tidegate.core.span", "if TYPE_CHECKING:\n    from tidegate.observe import Observer"),
        ("tidegate.core.span", "importlib.import_module('tidegate.observe')"),
        ("tidegate.observe.log", "from tidegate.ledger.ledger import Ledger"),
        ("tidegate.ledger.sql", "import confluent_kafka"),
        ("tidegate.ledger.sql", "from tidegate import open_ledger"),
        ("tidegate.ledger.sql", "import tidegate"),
        ("tidegate.ledger.sql", "from tidegate.tables import Table"),
        ("tidegate.app.runtime", "from confluent_kafka import Consumer"),
        ("tidegate.app.runtime", "from tidegate.spark import Pipeline"),
        ("tidegate.spark.pipeline", "from tidegate.app import App"),
        ("tidegate.web.pages", "from tidegate.cli import main"),
        ("tidegate.sandbox.kafka", "from tidegate.ledger import schema"),
        ("tidegate.settings", "from tidegate.observe import Observer"),
        ("tidegate.testing", "from tidegate.spark import Pipeline"),
        ("tidegate.utils", ""),
    ],
)
def test_an_import_that_points_up_is_reported(module: str, text: str) -> None:
    assert list(violations(Source(module, text)))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("tidegate.core.span", "import dataclasses\nfrom .errors import TidegateError"),
        ("tidegate.ledger.sql", "import sqlalchemy\nfrom ..core import Span\nfrom .base import Ledger"),
        ("tidegate.kafka.consumer", "import confluent_kafka"),
        ("tidegate.cli.demo", "from tidegate.sandbox import Kafka\nfrom tidegate.spark import Pipeline"),
        ("tidegate.testing", "from tidegate.app import App"),
        ("tidegate", "from tidegate.app import App\nfrom tidegate.spark import Pipeline"),
    ],
)
def test_an_import_that_points_down_is_not_reported(module: str, text: str) -> None:
    assert not list(violations(Source(module, text, is_package=module == "tidegate")))


SIMULATED = {
    *("tidegate.app.commit", "tidegate.app.intake", "tidegate.app.member", "tidegate.app.pool"),
    *("tidegate.ledger.ledger", "tidegate.ledger.memory", "tidegate.ledger.once", "tidegate.ledger.transaction"),
    *("tidegate.ledger.upkeep", "tidegate.ledger.watch", "tidegate.kafka.claims"),
    *("tidegate.spark.claims", "tidegate.spark.driver", "tidegate.spark.executor", "tidegate.spark.loop"),
}
REAL = {"time", "random", "secrets", "concurrent.futures"}
"""What would escape the simulation: these modules take it from the runtime that is passed to them."""


def test_what_is_simulated_takes_time_and_randomness_from_the_runtime() -> None:
    found = {source.module: source for source in map(read, python_files("src")) if source.module in SIMULATED}
    assert found.keys() == SIMULATED
    escapes = [
        f"{source.module}:{imported.line} imports {imported.name}"
        for source in found.values()
        for imported in source.imports()
        if imported.name in REAL or imported.name.startswith(("time.", "concurrent.futures."))
    ]
    assert not escapes, "\n".join(escapes)
