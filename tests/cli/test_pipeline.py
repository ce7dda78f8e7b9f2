"""`tidegate pipeline`: a file is checked, run, stopped and reported on."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from tidegate import TidegateError
from tidegate.cli import ExitCode
from tidegate.cli.options import app
from tidegate.cli.pipeline_run import check_pipeline
from tidegate.sandbox import Kafka
from tidegate.settings import PipelineSettings

from .conftest import Run, Start

RECORDS = 1000
FILE = """
topics = "{topic}"
group = "etl"
kafka = "{kafka}"
ledger = "sqlite:///shop.db"
where = "value.total > 0"

[schema]
id = "integer"
total = "decimal(12,2)"

[columns]
id = "value.id"
cents = "cast(value.total * 100 as bigint)"

[into]
table = "orders"
create = true
types = {{ id = "integer", cents = "integer" }}

[run]
max_records = 400

[spark]
master = "local[2]"

[spark.conf]
spark.driver.extraJavaOptions = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    """Orders, one of them with a total of 0, and one record that is no order."""
    name = f"orders-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(name, f'{{"id": {number}, "total": {number}.25}}' if number else '{"id": 0, "total": 0}')
    producer.produce(name, "no JSON")
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def file(directory: Path, kafka: Kafka, topic: str) -> Path:
    path = directory / "orders.toml"
    path.write_text(FILE.format(topic=topic, kafka=kafka.bootstrap))
    return path


def query(directory: Path, sql: str) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(directory / "shop.db")) as database:
        return database.execute(sql).fetchall()


def test_a_pipeline_runs_until_sigint_and_reports_though_spark_has_a_handler_of_its_own(
    start: Start, directory: Path, file: Path
) -> None:
    options = ("--every", "100ms", "--log-level", "debug", "--json", "--report", "report.json")
    process = start("pipeline", "run", file.name, *options)
    assert process.stdout is not None
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    said: list[str] = []
    for line in lines:
        said.append(line)
        if "batch " in line and ", lag 0, " in line:
            break
    else:
        pytest.fail("it ended before it had caught up:\n" + "".join(said))
    process.send_signal(signal.SIGINT)
    drain = threading.Thread(target=lambda: said.extend(lines))
    drain.start()
    out = process.stdout.read()
    assert process.wait(120) == ExitCode.OK, "".join(said)
    drain.join(30)
    assert any("stopping on SIGINT" in line for line in said)
    assert any("INFO    tidegate: group 'etl': 1 batches: " in line for line in said)
    report = json.loads(out)
    assert report == json.loads((directory / "report.json").read_text())
    assert (report["records"], report["rows"], report["dead_letters"]) == (RECORDS + 1, RECORDS - 1, 1)
    assert (report["stopped"], report["lag"]) == ("asked to stop", 0)
    assert sum(each["position"] for each in report["positions"]) == RECORDS + 1
    whole = sum(100 * number + 25 for number in range(1, RECORDS))
    assert query(directory, "SELECT count(*), sum(cents) FROM orders") == [(RECORDS - 1, whole)]
    assert query(directory, "SELECT count(*) FROM tidegate_dead_letters") == [(1,)]
    assert query(directory, "SELECT count(*) FROM tidegate_positions WHERE owner IS NULL") == [(2,)]


def test_check_looks_at_everything_and_leaves_it_as_it_is(run: Run, directory: Path, file: Path, topic: str) -> None:
    done = run("pipeline", "check", file.name)
    assert done.returncode == ExitCode.OK, done.stderr
    topics, ledger, table = done.stdout.splitlines()
    assert topics == f"topic {topic}: 2 partitions, 1,001 offsets"
    assert ledger.endswith("does not exist yet, and will be created")
    assert table == "table orders: does not exist yet, and will be created"
    assert not (directory / "shop.db").exists()


@pytest.mark.parametrize(
    ("before", "after", "code", "said"),
    [
        ('topics = "', 'topics = "not-', ExitCode.CONFIGURATION, "there is no topic 'not-orders-"),
        (
            'id = "value.id"',
            'no = "value.id"',
            ExitCode.CONFIGURATION,
            "columns.no: table orders has no such column to write to; it has id, cents",
        ),
        ('cents = "cast', 'no = "cast', ExitCode.CONFIGURATION, "columns.no: table orders has no such column to write"),
        ("create = true", "create = false", ExitCode.OK, "table orders: 2 columns"),
        ('types = { id = "integer", ', 'types = { id = "date", ', ExitCode.CONFIGURATION, "'id' is declared as date"),
        (
            'total = "decimal(12,2)"',
            'total = "money"',
            ExitCode.CONFIGURATION,
            "schema.total: expected a type of column",
        ),
        ("create = true", 'mode = "x"', ExitCode.CONFIGURATION, "expected one of 'append', 'upsert', 'accumulate'"),
        ("shop.db", "gone/shop.db", ExitCode.UNREACHABLE, "the directory of gone/shop.db does not exist"),
        ('ledger = "sqlite:///shop.db"', "", ExitCode.CONFIGURATION, "no ledger is named; write ledger ="),
        ("sqlite:///shop.db", "redis://localhost/0", ExitCode.CONFIGURATION, "needs a ledger in a SQL database"),
    ],
)
def test_check_finds_what_would_not_run(
    monkeypatch: pytest.MonkeyPatch, directory: Path, file: Path, before: str, after: str, code: ExitCode, said: str
) -> None:
    monkeypatch.chdir(directory)
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute("CREATE TABLE orders (id BIGINT, cents BIGINT)")
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    if code is ExitCode.OK:
        assert said in list(check_pipeline(PipelineSettings.load(file)))
        return
    with pytest.raises(TidegateError) as refused:
        list(check_pipeline(PipelineSettings.load(file)))
    assert said in str(refused.value)
    assert ExitCode.of(refused.value) == code


def test_without_a_broker_there_is_nothing_to_run(run: Run, directory: Path) -> None:
    (directory / "orders.toml").write_text('topics = "a"\ngroup = "b"\nledger = "sqlite:///a.db"\n[into]\ntable = "a"')
    done = run("pipeline", "run", "orders.toml")
    assert done.returncode == ExitCode.CONFIGURATION
    assert done.stderr.startswith('error: no broker is named; write kafka = "host:9092" in the pipeline\'s file')


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--once", "--every", "1s"], "--once and --every contradict each other"),
        (["--once", "--available-now"], "--once and --available-now contradict each other"),
        (["--every", "soon"], "'soon' is not a duration"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: list[str], said: str) -> None:
    file = tmp_path / "orders.toml"
    file.write_text('topics = "a"\ngroup = "b"\n[into]\ntable = "a"')
    done = CliRunner().invoke(app, ["pipeline", "run", str(file), *options])
    assert (done.exit_code, said in done.output) == (ExitCode.CONFIGURATION, True)


def test_help_names_every_option() -> None:
    shown = CliRunner().invoke(app, ["pipeline", "run", "--help"], env={"COLUMNS": "200"}).output
    options = (
        "--once",
        "--available-now",
        "--every",
        "--json",
        "--report",
        "--config",
        "--log-level",
        "--metrics-port",
    )
    for option in options:
        assert option in shown
