"""The pipeline file: what it may say, what it takes from elsewhere, and what it cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate import ConfigurationError, Delivery, Latest, Table, open_ledger
from tidegate.app import OutOfRange, Recreated
from tidegate.core.columns import DecimalText
from tidegate.core.policies import CommitMode
from tidegate.kafka import RegistrySettings
from tidegate.settings import (
    IntoSettings,
    KafkaSettings,
    LedgerSettings,
    PipelineFormat,
    PipelineSettings,
    RunSettings,
    SparkSettings,
    TableMode,
)
from tidegate.spark.pipeline import configured
from tidegate.tables import (
    ConnectAvroFormat,
    ConnectJsonFormat,
    DebeziumAvroFormat,
    DebeziumFormat,
    Part,
    Route,
)

PLANTED = "pl4nted"
EVERYTHING = """
topics = ["orders", "returns"]
group = "orders-etl"
format = "csv"
fields = ["id", "total"]
delimiter = ";"
where = "value.total > 0"
kafka = "one:9092"

[ledger]
url = "postgresql+psycopg://shop:${DB_PASSWORD}@db/shop"

[schema]
id = "integer"
total = "decimal(12,2)"

[columns]
id = "value.id"
total = "value.total"

[into]
table = "orders"
key = ["id"]
mode = "upsert"
create = true

[run]
every = "500ms"
max_records = 1000
max_bytes = 5000000
collect = 10
per_batch = true
commit = "partition"
delivery = "at-least-once"
start = "latest"
deployment = "2026-11"
out_of_range = "skip"
recreated = "restart"

[spark]
master = "spark://host:7077"
connector = "org.example:connector:1"
name = "orders"

[spark.conf]
spark.executor.memory = "2g"
"spark.executor.cores" = 2
"""
EXPECTED = PipelineSettings(
    ("orders", "returns"),
    "orders-etl",
    IntoSettings("orders", key=("id",), mode=TableMode.UPSERT, create=True),
    kafka=KafkaSettings("one:9092"),
    ledger=LedgerSettings(f"postgresql+psycopg://shop:{PLANTED}@db/shop"),
    registry=RegistrySettings(),
    format=PipelineFormat.CSV,
    fields=("id", "total"),
    delimiter=";",
    schema={"id": "integer", "total": "decimal(12,2)"},
    columns={"id": "value.id", "total": "value.total"},
    where="value.total > 0",
    run=RunSettings(
        every="500ms",
        max_records=1000,
        max_bytes=5_000_000,
        collect=10,
        per_batch=True,
        commit=CommitMode.PARTITION,
        delivery=Delivery.AT_LEAST_ONCE,
        start=Latest(),
        deployment="2026-11",
        out_of_range=OutOfRange.SKIP,
        recreated=Recreated.RESTART,
    ),
    spark=SparkSettings(
        "spark://host:7077",
        "org.example:connector:1",
        "orders",
        {"spark.executor.memory": "2g", "spark.executor.cores": 2},
    ),
)
LEAST = "topics = 'orders'\ngroup = 'etl'\n"
INTO = "[into]\ntable = 'orders'\n"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, **environ: str) -> PipelineSettings:
    Path("orders.toml").write_text(text)
    return PipelineSettings.load("orders.toml", environ)


def test_everything_that_a_file_can_say_is_read() -> None:
    assert load(EVERYTHING, DB_PASSWORD=PLANTED) == EXPECTED


def test_a_file_may_leave_almost_everything_out() -> None:
    assert load(LEAST + INTO) == PipelineSettings(
        ("orders",),
        "etl",
        IntoSettings("orders"),
        kafka=KafkaSettings(),
        ledger=LedgerSettings(),
        registry=RegistrySettings(),
    )


def test_cluster_and_ledger_come_from_the_settings_where_the_file_does_not_name_them() -> None:
    Path("tidegate.toml").write_text("kafka = 'common:9092'\nledger = 'sqlite:///common.db'\n[listener]\nthreads = 2")
    neither = load(LEAST + INTO)
    assert (neither.kafka, neither.ledger) == (KafkaSettings("common:9092"), LedgerSettings("sqlite:///common.db"))
    one = load(LEAST + "ledger = 'sqlite:///own.db'\n" + INTO)
    assert (one.kafka, one.ledger) == (KafkaSettings("common:9092"), LedgerSettings("sqlite:///own.db"))


def test_a_cluster_that_the_file_names_gets_no_password_meant_for_another_one() -> None:
    Path("tidegate.toml").write_text(f"[kafka]\nbootstrap = 'a:1'\n[kafka.client]\nsasl.password = '{PLANTED}'")
    assert load(LEAST + "kafka = 'b:1'\n" + INTO).kafka == KafkaSettings("b:1")


def test_the_environment_goes_before_both_files() -> None:
    Path("tidegate.toml").write_text("kafka = 'common:9092'\nledger = 'sqlite:///common.db'")
    environ = {"TIDEGATE_KAFKA": "e:1", "TIDEGATE_LEDGER__URL": "sqlite:///e.db", "TIDEGATE_LISTENER__THREADS": "2"}
    for text in (LEAST + INTO, LEAST + "kafka = 'own:1'\nledger = 'sqlite:///own.db'\n" + INTO):
        pipeline = load(text, **environ)
        assert (pipeline.kafka, pipeline.ledger) == (KafkaSettings("e:1"), LedgerSettings("sqlite:///e.db"))


def test_a_field_within_a_field_is_declared_by_its_path() -> None:
    assert load(LEAST + INTO + "[schema]\naddress.city = 'text'").schema == {"address.city": "text"}


def test_the_formats_of_connect_are_those_of_a_pipeline() -> None:
    into = INTO + "key = ['id']\nmode = 'upsert'\n"
    ledger = open_ledger("sqlite:///orders.db")
    cluster = LEAST + "kafka = 'a:1'\n"
    form = "format = 'debezium'\ndecimals = 'digits'\nplaceholder = 'gone'\n"
    spec = configured(load(cluster + form + into), ledger).spec
    assert isinstance(spec.format, DebeziumFormat)
    assert (spec.format.decimals, spec.format.placeholder) == (DecimalText.DIGITS, "gone")
    other = configured(load(cluster + "format = 'connect-json'\n" + into), ledger)
    assert isinstance(other.spec.format, ConnectJsonFormat)
    registry = "registry.url = 'http://r:1'\n"
    events = "format = 'debezium-avro'\nkey_format = 'avro'\nplaceholder = 'gone'\n"
    avro = configured(load(cluster + registry + events + into), ledger).spec
    assert isinstance(avro.format, DebeziumAvroFormat)
    assert (avro.format.placeholder, avro.keys, avro.names_schemas) == ("gone", None, True)
    rows = configured(load(cluster + registry + "format = 'connect-avro'\nkey_format = 'avro'\n" + into), ledger).spec
    assert isinstance(rows.format, ConnectAvroFormat)
    assert rows.keys is not None
    with pytest.raises(ConfigurationError, match="change events change rows one after the other"):
        configured(load(cluster + form + "where = 'true'\n" + into), ledger)
    ledger.close()


def test_a_pipeline_prints_without_its_secrets() -> None:
    text = EVERYTHING + "spark.hadoop.fs.secret.key = '${DB_PASSWORD}'"
    pipeline = load(text, DB_PASSWORD=PLANTED)
    assert pipeline.spark.conf["spark.hadoop.fs.secret.key"] == PLANTED
    assert PLANTED not in repr(pipeline) + str(pipeline) + str(pipeline.shown())
    assert pipeline.shown()["columns"] == {"id": "value.id", "total": "value.total"}
    assert pipeline.shown()["into"]["key"] == ("id",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'topics' is missing"),
        ("group = 'a'\n" + INTO, "'topics' is missing"),
        (LEAST, "'into' is missing"),
        (LEAST + "[into]\nmode = 'append'", "into: 'table' is missing"),
        ("topics = []\ngroup = 'a'\n" + INTO, "'topics' is empty"),
        (f"topics = '{PLANTED}!'\ngroup = 'a'\n{INTO}", "topics: expected names of topics"),
        ("topics = 'a'\ngroup = ''\n" + INTO, "group: expected the name of a group"),
        ("topic = 'a'\ngroup = 'a'\n" + INTO, "topic: there is no such setting; did you mean topics?"),
        (LEAST + INTO + "[run]\nevry = '1s'", "run.evry: there is no such setting; did you mean run.every?"),
        (LEAST + INTO + "[listener]\nthreads = 2", "listener.threads: there is no such setting"),
        (
            LEAST + INTO + f"[run]\nevery = '{PLANTED}'",
            "run.every: expected a number of seconds, or a time such as '500ms'",
        ),
        (LEAST + INTO + "[run]\nevery = '1s'\nonce = true", "'every' and 'once' contradict each other"),
        (LEAST + INTO + "[run]\nonce = true\navailable_now = true", "'available_now' and 'once' contradict each other"),
        (LEAST + INTO + "[run]\nmax_records = 0", "run.max_records: expected a whole number of at least 1"),
        (LEAST + INTO + "[run]\nmax_bytes = 0", "run.max_bytes: expected a number of bytes"),
        (LEAST + INTO + "[run]\nper_batch = 1", "run.per_batch: expected true or false"),
        (LEAST + INTO + "[run]\ncollect = -1", "run.collect: expected a whole number of at least 0"),
        (LEAST + INTO + "[run]\ndeployment = ''", "run.deployment: expected a string that is not empty"),
        (LEAST + INTO + "[run]\ndelivery = 'twice'", "run.delivery: expected one of 'exactly-once', 'at-least-once'"),
        (LEAST + INTO + "[run]\ncommit = 'batches'", "run.commit: expected one of 'partition', 'batch'; did you mean"),
        (LEAST + "format = 'xml'\n" + INTO, "format: expected one of 'json', 'csv', 'text', 'bytes'"),
        (LEAST + "format = 'csv'\n" + INTO, "'fields' names the fields of a line of CSV"),
        (LEAST + "fields = ['a']\n" + INTO, "'fields' names the fields of a line of CSV"),
        (LEAST + "placeholder = 'gone'\n" + INTO, "'placeholder' is about change events"),
        (LEAST + "format = 'debezium-avro'\ndecimals = 'digits'\n" + INTO, "'decimals' is about change events in JSON"),
        (LEAST + "format = 'debezium-avro'\nkey_format = 'protobuf'\n" + INTO, "'key_format': the keys of change"),
        (LEAST + "delimiter = ';'\n" + INTO, "'delimiter' separates the fields of CSV"),
        (LEAST + "format = 'csv'\nfields = ['a']\n" + INTO + "[schema]\nb = 'text'", "schema.b: is none of 'fields'"),
        (LEAST + "format = 'text'\n" + INTO + "[schema]\nb = 'text'", "'schema' has no effect with format = \"text\""),
        (LEAST + "format = 'bytes'\n" + INTO, "'columns' has to say where the value goes"),
        (LEAST + "sql = 'select 1'\nwhere = 'true'\n" + INTO, "'where' and 'sql' contradict each other"),
        (LEAST + "sql = 'select 1'\n" + INTO + "[columns]\na = 'key'", "'columns' and 'sql' contradict each other"),
        (LEAST + "sql = 'select 1'\n" + INTO + "[run]\ncommit = 'partition'", "run.commit: a query may bring records"),
        (LEAST + "sql = ' '\n" + INTO, "sql: expected a string that is not empty"),
        (LEAST + INTO + "[columns]\na = 7", "columns.a: expected a string"),
        (
            LEAST + INTO + "[columns]\na.b = 'key'",
            "columns.a: expected a string, a number, or true or false, not a table",
        ),
        (LEAST + INTO + "[kafka.client]\ngroup.id = 'a'", "kafka: the client setting 'group.id' is refused"),
        (LEAST + "ledger = '${NOT_THERE}'\n" + INTO, "ledger: the environment variable NOT_THERE is not set"),
        (LEAST + "into = 'orders'", "into: expected a table, not a string"),
        ("topics = ", "is not TOML"),
    ],
)
def test_what_a_pipeline_cannot_be_is_refused_with_file_and_key_and_without_the_value(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(text)
    assert said in str(refused.value)
    assert str(refused.value).startswith("orders.toml")
    assert PLANTED not in str(refused.value)


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.toml: cannot be read: No such file"):
        PipelineSettings.load("gone.toml", {})


ROUTE = """
topics = ["shop.orders", "shop.lines"]
group = "shop"
kafka = "one:9092"

[route]
unmatched = "ignore"
parent_wait = "5s"

[route.parts.lines]
table = "lines"
key = ["order_id", "n"]
mode = "upsert"
each = "value.lines"
columns = { order_id = "value.id", n = "index", sku = "each.sku" }

[route.parts.rest]
table = "raw_{topic}"
where = { topic = "shop.lines" }
"""


def test_a_route_is_written_as_that_of_a_sink(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(ROUTE)
    settings = PipelineSettings.load(file, {})
    expected = Route(
        [
            Part(
                Table("lines", key=["order_id", "n"], mode="upsert"),
                each="value.lines",
                columns={"order_id": "value.id", "n": "index", "sku": "each.sku"},
            ),
            Part(Table("raw_{topic}"), where={"topic": "shop.lines"}),
        ],
        unmatched="ignore",
        parent_wait=5,
    )
    with open_ledger(f"sqlite:///{tmp_path / 'shop.db'}") as ledger:
        assert configured(settings, ledger).spec.route == settings.target() == expected
    assert settings.shown()["route"]["parts"]["rest"]["table"] == "raw_{topic}"
    file.write_text(ROUTE.partition("[route]")[0] + '[into]\ntable = "{topic}"\n')
    with open_ledger(f"sqlite:///{tmp_path / 'shop.db'}") as ledger:
        assert configured(PipelineSettings.load(file, {}), ledger).spec.route == Route(Table("{topic}"))


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ('[into]\ntable = "orders"\n', "contradict each other: one table, or several"),
        ('where = "value.id > 1"\n', "'where' and 'route' contradict each other"),
        ('sql = "select 1"\n', "'sql' and 'route' contradict each other"),
        ('[columns]\nid = "value.id"\n', "'columns' and 'route' contradict each other"),
        ('[schema]\nid = "integer"\n', "'schema' and 'route' contradict each other"),
    ],
)
def test_what_belongs_to_one_table_is_refused_beside_a_route(tmp_path: Path, more: str, match: str) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(ROUTE + more if more.startswith("[") else more + ROUTE)
    with pytest.raises(ConfigurationError, match=match):
        PipelineSettings.load(file, {})


def test_a_pipeline_needs_a_table_or_a_route(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(ROUTE.partition("[route]")[0])
    with pytest.raises(ConfigurationError, match="'into' is missing, the table; or 'route'"):
        PipelineSettings.load(file, {})
