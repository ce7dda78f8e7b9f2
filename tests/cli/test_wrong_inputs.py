"""Wrong inputs: one line each that says what is wrong, where, and what to do. docs/errors.md prints them.

After an intended change, run this with RENEW_GOLDEN=1 and read the difference. A new wrong input is a new line here.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.ports import refused_port
from typer.testing import CliRunner

from tidegate import App, Table, Transaction
from tidegate.cli.options import ExitCode, app
from tidegate.errors import TidegateError
from tidegate.kafka import SchemaSerializer

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
SECONDS = 10.0


class Wrong(NamedTuple):
    """A wrong input: a command line, or Python code that ends in `app.run()`; files that it needs; its exit code."""

    what: str
    given: str | Callable[[], object]
    code: ExitCode = ExitCode.CONFIGURATION
    files: dict[str, str] = {}  # noqa: RUF012 - never changed


def shop(**settings: Any) -> App:
    return App(**{"kafka": "localhost:PORT".replace("PORT", str(PORT)), "ledger": "sqlite:///shop.db", **settings})


def listening(topics: Any = "orders", function: Any = None, **settings: Any) -> int:
    given = shop()

    def bill(order: dict[str, Any], tx: Transaction) -> None: ...

    given.listener(topics, **{"group": "billing", **settings})(function or bill)
    return given.run(until_caught_up=True)


def takes_nothing() -> None: ...


UNSET = {"TIDEGATE_LEDGER": None, "TIDEGATE_KAFKA": None}
PORT = refused_port()
LEDGER = "--ledger sqlite:///shop.db"
NEW_APP = f'from tidegate import App\napp = App(kafka="localhost:{PORT}", ledger="sqlite:///shop.db")\n'
KEPT = Table("orders", key="id", mode="upsert", tombstones="ignore")  # type: ignore[arg-type]
LISTENER = '\n@app.listener("orders", group="billing")\ndef bill(order: dict) -> None: ...\n'


def sink(settings: str) -> dict[str, str]:
    """A file of settings with a sink."""
    servers = f'kafka = "localhost:{PORT}"\nledger = "sqlite:///shop.db"'
    return {"tidegate.toml": f'{servers}\n[sink.orders]\ntopics = "orders"\ngroup = "orders"\n{settings}'}


def connector(**properties: str) -> dict[str, str]:
    """The configuration of a connector, which the command reads."""
    kind = {"connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector"}
    return {"orders.json": json.dumps({"name": "orders", "config": {**kind, **properties}})}


HERE = f"{LEDGER} --kafka localhost:{PORT}"
CONNECT = "adopt connect orders.json --settings-only"
OTHER = "org.apache.kafka.connect.file.FileStreamSinkConnector"

WRONG = [
    Wrong("a misspelt command", "stauts"),
    Wrong("a misspelt command of a group", "positions rewnd billing orders"),
    Wrong("a misspelt option", "status --jsno"),
    Wrong("a missing argument", "pause"),
    Wrong("text for a number", "status --every soon"),
    Wrong("a number out of bounds", "run shop:app --workers 0"),
    Wrong("more partitions than Kafka takes", "topics create orders --partitions 1000000"),
    Wrong("an unknown choice", "run shop:app --log-level loud"),
    Wrong("no ledger named", "status"),
    Wrong("no broker named", "topics list"),
    Wrong("a ledger that is no URL", "status --ledger shop.db"),
    Wrong("an unknown kind of ledger", "status --ledger oracle://localhost/shop"),
    Wrong("a password on the command line", "status --ledger postgresql+psycopg://me:secret@localhost/shop"),
    Wrong("a directory that does not exist", "status --ledger sqlite:///nowhere/shop.db", ExitCode.UNREACHABLE),
    Wrong("a directory instead of a file", "status --ledger sqlite:///.", ExitCode.UNREACHABLE),
    Wrong(
        "a file that is no database", "status --ledger sqlite:///notes.db", ExitCode.FAILED, {"notes.db": "x" * 4096}
    ),
    Wrong(
        "PostgreSQL not running", f"status --ledger postgresql+psycopg://me@localhost:{PORT}/shop", ExitCode.UNREACHABLE
    ),
    Wrong("MySQL not running", f"status --ledger mysql+pymysql://me@localhost:{PORT}/shop", ExitCode.UNREACHABLE),
    Wrong("Redis not running", f"status --ledger redis://localhost:{PORT}/0", ExitCode.UNREACHABLE),
    Wrong("an unknown group", f"status nosuch {LEDGER}"),
    Wrong("a group that the ledger does not have", f"journal billing {LEDGER}"),
    Wrong("a settings file that does not exist", "config show --config gone.toml"),
    Wrong("a settings file that is not TOML", "config show", files={"tidegate.toml": 'kafka = "localhost:9092'}),
    Wrong("a misspelt setting", "config show", files={"tidegate.toml": 'legder = "sqlite:///shop.db"'}),
    Wrong("a setting of the wrong type", "config show", files={"tidegate.toml": "[ledger]\nprefix = 5"}),
    Wrong(
        "a refused setting of Kafka",
        "config show",
        files={"tidegate.toml": '[kafka.client]\n"enable.auto.commit" = true'},
    ),
    Wrong("an unknown policy", "config show", files={"tidegate.toml": '[listener]\non_error = "ignore"'}),
    Wrong("nothing to run", "run"),
    Wrong("an app without its name", "run shop"),
    Wrong("a module that does not exist", "run shpo:app"),
    Wrong("a name that the module does not have", "run tilled:ap", files={"tilled.py": NEW_APP}),
    Wrong("a module that fails", "run broken:app", files={"broken.py": "app = nothing"}),
    Wrong("a module with a syntax error", "run unended:app", files={"unended.py": "app = (\n"}),
    Wrong("a file instead of a module", "run shop.py:app"),
    Wrong("a path instead of a module", "run ../shop:app"),
    Wrong("an app without a listener", "run bare:app", files={"bare.py": NEW_APP}),
    Wrong(
        "a broker that does not answer",
        "run shop1:app --until-caught-up",
        ExitCode.UNREACHABLE,
        {"shop1.py": NEW_APP + LISTENER},
    ),
    Wrong("a pipeline file that does not exist", "pipeline run gone.toml"),
    Wrong("a pipeline with a misspelt setting", "pipeline check etl.toml", files={"etl.toml": 'topic = "orders"'}),
    Wrong("a listener with an unknown option", lambda: listening(grup="billing")),
    Wrong("a listener with an empty group", lambda: listening(group=" ")),
    Wrong("a topic that cannot exist", lambda: listening("no/such topic")),
    Wrong("a function without arguments", lambda: listening(function=takes_nothing)),
    Wrong("a broker that does not answer, in Python", listening, ExitCode.UNREACHABLE),
    Wrong("an app without a listener, in Python", lambda: shop().run()),
    Wrong("a setting that librdkafka does not know", lambda: shop(kafka={"bootstrap.servers": "x", "fetch.mni": 1})),
    Wrong("a number for the ledger", lambda: shop(ledger=5)),
    Wrong("a sink with an unknown mode", lambda: shop().sink("orders", into=Table("orders", mode="merge"))),  # type: ignore[arg-type]
    Wrong("an upsert without a key", lambda: shop().sink("orders", into=Table("orders", mode="upsert"))),
    Wrong("change events that leave deleted rows", lambda: shop().sink("orders", into=KEPT, format="debezium")),
    Wrong("a sink with an unknown format", "config show", files=sink('format = "avor"\ninto.table = "orders"')),
    Wrong("a format without a registry", "run --until-caught-up", files=sink('format = "avro"\ninto.table = "orders"')),
    Wrong("a registry that is no URL", "config show", files={"tidegate.toml": 'registry = "registry:8081"'}),
    Wrong(
        "a registry's password without its user",
        "config show",
        files={"tidegate.toml": '[registry]\nurl = "http://registry:8081"\npassword = "secret"'},
    ),
    Wrong(
        "a registry's certificate that cannot be read",
        "run --until-caught-up",
        files={
            **sink('format = "avro"\ninto.table = "orders"\n[registry]\nurl = "https://registry:8081"\nca = "gone.pem"')
        },
    ),
    Wrong("a sink into nothing", "config show", files=sink('format = "json"')),
    Wrong("a table and a route", "config show", files=sink('into.table = "a"\nroute.parts.b.table = "b"')),
    Wrong("a route without parts", "run --until-caught-up", files=sink('[sink.orders.route]\nunmatched = "ignore"')),
    Wrong("an unknown choice in a route", "config show", files=sink('[sink.orders.route]\nunmatched = "drop"')),
    Wrong(
        "a table's name that records choose freely",
        "run --until-caught-up",
        files=sink('[sink.orders.route.parts.all]\ntable = "{headers.type}"'),
    ),
    Wrong(
        "a table's name with an unknown place",
        "run --until-caught-up",
        files=sink('[sink.orders.route.parts.all]\ntable = "raw_{partition}"'),
    ),
    Wrong(
        "a part with an unknown condition",
        "run --until-caught-up",
        files=sink('[sink.orders.route.parts.all]\ntable = "orders"\nwhere = { "header.type" = "order" }'),
    ),
    Wrong("two parts for one table", lambda: shop().sink("orders", into=["bills", "bills"], group="orders")),
    Wrong("a route without a group", lambda: shop().sink("orders", into=Table("{topic}", create=True))),
    Wrong(
        "change events that are appended",
        lambda: shop().sink("orders", into=Table("orders", key="id", mode="append"), format="debezium"),
    ),
    Wrong("change events without a key", lambda: shop().sink("orders", into=Table("orders"), format="debezium")),
    Wrong(
        "the key of records for one table",
        lambda: shop().sink("orders", into=Table("orders", key="{key}", mode="upsert")),
    ),
    Wrong(
        "a listener of records with a schema and no registry",
        lambda: listening(decoder="avro"),
    ),
    Wrong("a producer's schema that is none", lambda: SchemaSerializer("{")),
    Wrong("an adoption from nothing", "adopt tpoic old --into bills"),
    Wrong("an adoption into no group", "adopt group old"),
    Wrong("an adoption without a broker", f"adopt group old --into bills {LEDGER}"),
    Wrong("an adoption without a ledger", f"adopt group old --into bills --kafka localhost:{PORT}"),
    Wrong("an adoption with a broker that is away", f"adopt group old --into bills {HERE}", ExitCode.UNREACHABLE),
    Wrong("an unknown choice about records in doubt", f"adopt group old --into bills --in-doubt drop {HERE}"),
    Wrong("a start that is none", f"adopt group old --into bills --start noon {HERE}"),
    Wrong("a topic that cannot be adopted", f"adopt group old --into bills --topic a/b {HERE}"),
    Wrong("a checkpoint that does not exist", f"adopt checkpoint gone --into bills {HERE}"),
    Wrong("a checkpoint elsewhere", f"adopt checkpoint s3a://shop/orders --into bills {HERE}"),
    Wrong("a directory that is no checkpoint", f"adopt checkpoint . --into bills {HERE}"),
    Wrong("a source with a negative number", f"adopt checkpoint . --into bills --source -1 {HERE}"),
    Wrong("a connector's file that does not exist", CONNECT),
    Wrong("a connector's file that is not JSON", CONNECT, files={"orders.json": "name=orders"}),
    Wrong("a file that is no connector's", CONNECT, files={"orders.json": "[]"}),
    Wrong("a connector that is no JDBC sink", CONNECT, files=connector(topics="orders", **{"connector.class": OTHER})),
    Wrong("a connector without topics", CONNECT, files=connector(**{"connection.password": "secret"})),
    Wrong("a connector with an unknown mode", CONNECT, files=connector(topics="a", **{"insert.mode": "merge"})),
    Wrong("a hand-back of a group that is not there", f"hand-back bills --to old {HERE}"),
    Wrong("a hand-back to no group", f"hand-back bills {HERE}"),
    Wrong("a format of keys that reads none", lambda: shop().sink("orders", into="orders", key_format="debezium")),
]


def told(wrong: Wrong) -> tuple[int, str]:
    """The exit code of a wrong input, and what was told of it."""
    if isinstance(wrong.given, str):
        done = CliRunner().invoke(app, wrong.given.split(), prog_name="tidegate", env=UNSET)
        lines = [line for line in done.output.splitlines() if " INFO " not in line and " WARNING " not in line]
        return done.exit_code, "\n".join(lines)
    try:
        wrong.given()
    except TidegateError as error:
        return ExitCode.of(error), f"error: {' '.join(str(error).split())}"
    return ExitCode.OK, ""


def row(wrong: Wrong, line: str, here: Path) -> str:
    given = f"`tidegate {wrong.given}`" if isinstance(wrong.given, str) else "in Python"
    text = f"| {wrong.what} | {given} | {wrong.code.value} | {line.removeprefix('error: ')} |"
    text = text.replace(str(here), "/shop").replace(str(PORT), "9092").replace("\\", "")
    return re.sub(r" \(/[^ )]*/tests/[^)]*\)", "", text)


def rows(page: str) -> dict[str, str]:
    found = [line for line in page.splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in found}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_CONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.what)
def test_a_wrong_input_is_told_in_the_line_that_the_page_prints(wrong: Wrong, here: Path) -> None:
    for name, text in wrong.files.items():
        (here / name).write_text(text)
    began = time.monotonic()
    code, line = told(wrong)
    assert time.monotonic() - began < SECONDS
    assert line.startswith("error: "), line
    assert len(line.splitlines()) == 1
    assert "secret" not in line
    if os.environ.get("RENEW_GOLDEN"):
        renew([(wrong.what, row(wrong, line, here))])
    assert code == wrong.code
    assert rows(PAGE.read_text(encoding="utf-8"))[wrong.what] == row(wrong, line, here)


def renew(new: Iterable[tuple[str, str]]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    kept = {**rows(page), **dict(new)}
    wanted = [kept[wrong.what] for wrong in WRONG if wrong.what in kept]
    head = page.partition("|---|")[0] + "|---|---|---|---|\n"
    PAGE.write_text(head + "\n".join(wanted) + "\n", encoding="utf-8")


def test_the_page_has_every_wrong_input_and_no_other() -> None:
    assert len(WRONG) >= 40
    listed = [each for each in rows(PAGE.read_text(encoding="utf-8")) if each != "wrong"]
    assert listed == [wrong.what for wrong in WRONG]
