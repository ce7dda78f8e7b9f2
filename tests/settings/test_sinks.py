"""Sinks in the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate import ConfigurationError
from tidegate.app.app import configured
from tidegate.core.columns import Evolution
from tidegate.settings import IntoSettings, OnError, Settings, SinkFormat, SinkSettings, TableMode
from tidegate.tables import DebeziumAvroFormat

ORDERS = """
[sink.orders]
topics = ["orders", "returns"]
group = "shop"
columns = { id = "value.id", at = "timestamp" }
on_error = "skip"

[sink.orders.into]
table = "orders"
key = ["id"]
mode = "upsert"
create = true
types = { id = "integer", at = "timestamp" }
"""


def load(path: Path, text: str, **environ: str) -> Settings:
    file = path / "tidegate.toml"
    file.write_text(text)
    return Settings.load(file, environ)


def test_a_sink_is_described_in_the_file(tmp_path: Path) -> None:
    types = {"id": "integer", "at": "timestamp"}
    into = IntoSettings("orders", key=("id",), mode=TableMode.UPSERT, create=True, types=types)
    assert load(tmp_path, ORDERS).sink == {
        "orders": SinkSettings(
            ("orders", "returns"),
            into,
            group="shop",
            columns={"id": "value.id", "at": "timestamp"},
            on_error=OnError.SKIP,
        )
    }


def test_one_string_is_a_list_of_one(tmp_path: Path) -> None:
    text = "[sink.a]\ntopics = '^a'\nformat = 'csv'\nfields = ['x']\n[sink.a.into]\ntable = 'a'"
    settings = load(tmp_path, text)
    assert settings.sink["a"] == SinkSettings(("^a",), IntoSettings("a"), format=SinkFormat.CSV, fields=("x",))


def test_csv_may_have_headers_nulls_and_another_delimiter(tmp_path: Path) -> None:
    csv = "format = 'csv'\nfields = ['x']\ndelimiter = ';'\nheader = true\nnulls = ['', 'NULL']"
    settings = load(tmp_path, f"[sink.a]\ntopics = 'a'\n{csv}\n[sink.a.into]\ntable = 'a'\nexact = true")
    said = settings.sink["a"]
    assert (said.delimiter, said.header, said.nulls, said.into.exact) == (";", True, ("", "NULL"), True)
    assert said.shown()["nulls"] == ("", "NULL")


@pytest.mark.parametrize("line", ["delimiter = ';'", "header = true", "nulls = 'NULL'"])
def test_what_is_said_of_csv_goes_with_csv(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError, match="it goes with format = "):
        load(tmp_path, f"[sink.a]\ntopics = 'a'\n{line}\n[sink.a.into]\ntable = 'a'")


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path, ORDERS, TIDEGATE_SINK__ORDERS__INTO__TABLE="other", TIDEGATE_SINK__ORDERS__TOPICS="one, two"
    )
    assert settings.sink["orders"].into.table == "other"
    assert settings.sink["orders"].topics == ("one", "two")


def test_nothing_of_a_sink_is_masked_and_a_sink_prints(tmp_path: Path) -> None:
    settings = load(tmp_path, ORDERS)
    assert settings.shown()["sink"]["orders"]["into"]["key"] == ("id",)
    assert "upsert" in repr(settings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sink.a]\ntopic = 'a'", "sink.a.topic: there is no such setting; did you mean sink.a.topics?"),
        ("[sink.a]\ntopics = 'a'\n[sink.a.into]\ntabel = 'a'", "did you mean sink.a.into.table?"),
        ("[sink.a]\ntopics = 'a'", "sink.a: 'into' is missing"),
        ("[sink.a]\ntopics = 'a'\n[sink.a.into]\nmode = 'append'", "sink.a.into: 'table' is missing"),
        (
            "[sink.a]\ntopics = 7\n[sink.a.into]\ntable = 'a'",
            "sink.a.topics: expected a string, or an array of strings",
        ),
        ("[sink.a]\ntopics = [7]\n[sink.a.into]\ntable = 'a'", "sink.a.topics: expected a string, or an array of"),
        ("[sink.a]\ntopics = []\n[sink.a.into]\ntable = 'a'", "'topics' is empty"),
        ("[sink.a]\ntopics = ['^a', 'b']\n[sink.a.into]\ntable = 'a'", "either one pattern"),
        ("[sink.a]\ntopics = 'a'\nformat = 'xml'\n[sink.a.into]\ntable = 'a'", "expected one of 'json', 'csv'"),
        ("[sink.a]\ntopics = 'a'\nformat = 'csv'\n[sink.a.into]\ntable = 'a'", "'fields' names the fields"),
        ("[sink.a]\ntopics = 'a'\ninto = 'a'", "sink.a.into: expected a table"),
        ("sink = 'a'", "sink: expected a table"),
    ],
)
def test_what_a_sink_cannot_be_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, text)
    assert said in str(refused.value)
    assert "tidegate.toml" in str(refused.value)


def test_a_sink_of_change_events_in_avro_needs_a_registry_and_is_made_with_its_placeholder(tmp_path: Path) -> None:
    rest = "placeholder = 'gone'\n[sink.a.into]\ntable = 'a'\nkey = ['id']\nmode = 'upsert'\n"
    text = (
        f"kafka = 'a:1'\nledger = 'sqlite:///{tmp_path}/a.db'\n[sink.a]\ntopics = 'a'\nformat = 'debezium-avro'\n{rest}"
    )
    with pytest.raises(ConfigurationError, match=r"sink\.a: the format needs a schema registry"):
        configured(load(tmp_path, text))
    app = configured(load(tmp_path, text, TIDEGATE_REGISTRY="http://r:1"))
    (listener,) = app.listeners
    assert (type(listener.sink.format), listener.sink.format.placeholder) == (DebeziumAvroFormat, "gone")
    assert set(listener.sink.schemas) == {"key", "value"}
    assert listener.sink.parts == {"value", "key", "headers"}


FOLLOWS = "[sink.a]\ntopics = 'a'\n[sink.a.into]\ntable = 'a'\nevolve = "


def test_a_table_may_have_a_policy_for_each_kind_of_change(tmp_path: Path) -> None:
    into = load(tmp_path, FOLLOWS + '{ widen = "widen", nullable = "drop" }').sink["a"].into
    assert into is not None
    assert into.described().evolution == Evolution(widen="widen", nullable="drop")
    assert into.shown()["evolve"] == {"add": "add", "widen": "widen", "nullable": "drop"}
    part = "[sink.a]\ntopics = 'a'\n[sink.a.route.parts.b]\ntable = 'b'\nevolve = { add = 'ignore', widen = 'widen' }"
    route = load(tmp_path, part).sink["a"].route
    assert route is not None
    assert route.parts["b"].part().table.evolution == Evolution(add="ignore", widen="widen")
    plain = load(tmp_path, FOLLOWS + "false", TIDEGATE_SINK__A__INTO__EVOLVE="yes").sink["a"].into
    assert plain is not None
    assert plain.described().evolution == Evolution()
    text = load(tmp_path, FOLLOWS + "{ widen = 'widen' }", TIDEGATE_SINK__A__INTO__EVOLVE__NULLABLE="drop").sink["a"]
    assert text.into is not None
    assert text.into.described().evolution == Evolution(widen="widen", nullable="drop")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("{ widen = 'narrow' }", "sink.a.into.evolve.widen: expected one of 'widen', 'refuse'"),
        ("{ wide = 'widen' }", "there is no such setting; did you mean sink.a.into.evolve.widen?"),
        ("{ add = true }", "sink.a.into.evolve.add: expected one of 'add', 'ignore', 'refuse'"),
        ("'all'", "sink.a.into.evolve: expected true or false, or a policy for each kind of change"),
        ("5", "sink.a.into.evolve: expected true or false, or a policy for each kind of change"),
    ],
)
def test_a_policy_that_there_is_not_is_refused_by_name(tmp_path: Path, policy: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, FOLLOWS + policy)
    assert said in str(refused.value)
