"""What is said wrongly never becomes a weaker promise, and errors say what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tidegate import (
    App,
    ConfigurationError,
    DeadLetter,
    Delivery,
    Fail,
    Outgoing,
    Producer,
    StartStrategy,
    Table,
    Timestamp,
)
from tidegate.app import CommitStrategy
from tidegate.core.policies import Stop, decide
from tidegate.ledger import MemoryLedger
from tidegate.operate import Survey
from tidegate.settings import Settings
from tidegate.spark import Pipeline
from tidegate.tables import CsvFormat

SECRET = "s3cret-pl4nted"
PIPELINE = {"topics": "orders", "into": "orders", "group": "g", "kafka": "a:1", "ledger": "sqlite:///unused.db"}


def app(**options: Any) -> App:
    return App(**{"kafka": "nowhere:1", "ledger": "memory://", "settings": Settings(), **options})


def handle(record: bytes) -> None: ...


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        call(*arguments, **options)
    return str(refused.value)


def test_exactly_once_as_text_is_exactly_once() -> None:
    made = app()
    made.listener("orders", group="g", delivery="exactly-once")(handle)
    assert made.listeners[0].spec.delivery is Delivery.EXACTLY_ONCE


def test_a_policy_as_text_stops_where_it_says_stop() -> None:
    made = app()
    made.listener("orders", group="g", on_error="fail")(handle)
    assert made.listeners[0].spec.on_error == Fail()
    assert isinstance(decide(made.listeners[0].spec.on_error, 1, ValueError()), Stop)


def test_a_class_in_place_of_a_value_is_named() -> None:
    said = refusal(app().listener, "orders", group="g", on_error=Fail)
    assert said.startswith("on_error: expected one of 'fail', 'skip', 'dead-letter', or Fail(), Skip()")
    assert said.endswith("not the class Fail; pass Fail(…), not the class")


def test_what_is_wrong_with_a_listener_is_told_before_it_has_a_function() -> None:
    assert "threads: expected a whole number from 1 to 1000" in refusal(
        app().listener, "orders", group="g", threads="two"
    )


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda: app().listener("orders", group="g", delivry="exactly-once"),
            "a listener has no argument 'delivry'; did you mean 'delivery'?",
        ),
        (
            lambda: app(ledger="sqlite:///unused.db").sink("orders", into="orders", on_eror="skip"),
            "a sink has no argument 'on_eror'; did you mean 'on_error'?",
        ),
        (
            lambda: Producer.safe("a:1", max_blok=5),
            "a safe producer has no argument 'max_blok'; did you mean 'max_block'?",
        ),
        (
            lambda: Pipeline(**PIPELINE, tranform="select 1"),
            "a pipeline has no argument 'tranform'; did you mean 'transform'?",
        ),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_one(call: Callable[[], object], hint: str) -> None:
    assert refusal(call) == hint


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ({"delivery": "exactly_once"}, "exactly-once"),
        ({"delivery": "EXACTLY_ONCE"}, "exactly-once"),
        ({"on_error": "deadletter"}, "dead-letter"),
        ({"start": "lastest"}, "latest"),
        ({"protocol": "rnage"}, "range"),
    ],
)
def test_a_near_miss_is_told_what_was_probably_meant(given: dict[str, str], near: str) -> None:
    assert refusal(app().listener, "orders", group="g", **given).endswith(f"; did you mean {near!r}?")


@pytest.mark.parametrize(
    "call",
    [
        lambda: app(ledger=f"oracle://user:{SECRET}@db/shop"),
        lambda: app(ledger=SECRET),
        lambda: app(kafka={"bootstrap.servers": "a:1", "sasl.password": [SECRET]}),
        lambda: app(kafka={"bootstrap.servers": "a:1", "sasl.pasword": SECRET}),
        lambda: app(settings=Settings()).listener("orders", group="g", delivery=f"postgresql://user:{SECRET}@db"),
        lambda: app().listener("orders", group="g", kafka={"sasl.password": {SECRET: 1}}),
        lambda: Producer({"bootstrap.servers": "a:1", "ssl.key.pem": SECRET.encode()}),
        lambda: Pipeline(**{**PIPELINE, "ledger": f"oracle://user:{SECRET}@db"}),
    ],
)
def test_no_error_shows_what_may_be_a_secret(call: Callable[[], object]) -> None:
    assert SECRET not in refusal(call)


@pytest.mark.parametrize("commit", ["asynchronous", "automatic", CommitStrategy.ASYNCHRONOUS, CommitStrategy.AUTOMATIC])
def test_at_most_once_waits_for_its_commits(commit: str) -> None:
    said = refusal(app(ledger=None).listener, "orders", group="g", delivery="at-most-once", commit=commit)
    assert said.startswith(f"commit: '{commit}' does not go with delivery='at-most-once'")


@pytest.mark.parametrize("commit", ["synchronous", "per-partition"])
def test_at_most_once_takes_commits_that_are_waited_for(commit: str) -> None:
    made = app(ledger=None)
    made.listener("orders", group="g", delivery="at-most-once", commit=commit)(handle)
    assert made.listeners[0].spec.commit == commit


def test_a_deployment_without_a_ledger_is_refused() -> None:
    start = StartStrategy("latest", deployment="v2")  # type: ignore[arg-type]
    listener = app(ledger=None).listener("orders", group="g", delivery="at-least-once", start=start)
    assert "the names of deployments are kept in the ledger, and the app has none" in refusal(listener, handle)


def test_a_deployment_of_a_copy_from_topic_to_topic_is_refused() -> None:
    def copy(value: bytes) -> Outgoing:
        return Outgoing("copies", value)

    listener = app(ledger=None).listener("orders", group="g", start=StartStrategy(deployment="v2"))
    assert "the names of deployments are kept in the ledger" in refusal(listener, copy)


@pytest.mark.parametrize(
    "call",
    [
        lambda: app(kafka={"bootstrap.servers": "127.0.0.1:1", "fetch.min.bites": 1}),
        lambda: app(kafka={"bootstrap.servers": "127.0.0.1:1", "linger.mss": 1}),
        lambda: app().listener("orders", group="g", kafka={"fetch.min.bites": 1}),
        lambda: Producer({"bootstrap.servers": "127.0.0.1:1", "linger.mss": 1}),
        lambda: Producer({"bootstrap.servers": "127.0.0.1:1", "fetch.min.bites": 1}),
        lambda: Pipeline(**{**PIPELINE, "kafka": {"bootstrap.servers": "a:1", "fetch.min.bites": 1}}),
        lambda: Survey({"bootstrap.servers": "127.0.0.1:1", "socket.timeot.ms": 1}).partitions(["orders"]),
    ],
)
def test_a_mistyped_setting_of_librdkafka_is_told_as_that(call: Callable[[], object]) -> None:
    said = refusal(call)
    assert "librdkafka refused" in said
    assert 'No such configuration property: "' in said


def test_what_a_listener_makes_of_the_settings_of_librdkafka_is_looked_at_as_a_whole() -> None:
    kafka = {"max.poll.interval.ms": 10_000}
    said = refusal(app().listener, "orders", group="g", session_timeout="45s", kafka=kafka)
    assert "`max.poll.interval.ms`must be >= `session.timeout.ms`" in said.replace(" must", "must")


def test_python_takes_what_a_file_takes(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    said = {
        "delivery": "at-least-once",
        "start": "2026-11-01T00:00:00Z",
        "on_error": "dead-letter",
        "protocol": "range",
        "buffer_bytes": "8MB",
        "session_timeout": "30s",
        "threads": "2",
        "mirror": "yes",
    }
    file.write_text("[listener]\n" + "\n".join(f'{name} = "{value}"' for name, value in said.items()))
    by_file, by_python = app(settings=Settings.load(file, {})), app()
    by_file.listener("orders", group="g")(handle)
    by_python.listener("orders", group="g", **said)(handle)
    assert by_file.listeners[0].spec == by_python.listeners[0].spec
    assert by_python.listeners[0].spec.start == StartStrategy(Timestamp(1793491200000))


def test_times_and_sizes_within_other_values_are_text_in_files_as_well(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text('[listener.batch]\nage = "200ms"\nbytes = "2MiB"\n[ledger.limits]\nhold = "5s"\nlock_wait = "10 s"')
    found = Settings.load(file, {})
    assert (found.listener.batch.age, found.listener.batch.bytes) == (0.2, 2 << 20)
    assert (found.ledger.limits.hold, found.ledger.limits.lock_wait) == (5.0, 10.0)


def test_a_name_is_a_table_that_rows_are_appended_to() -> None:
    sink = app(ledger="sqlite:///unused.db").sink("orders", into="orders")
    assert sink.sink.into == Table("orders")  # type: ignore[attr-defined]
    assert sink.spec.on_error == DeadLetter()


def test_a_time_without_a_zone_is_refused() -> None:
    assert "start: expected" in refusal(app().listener, "orders", group="g", start=datetime(2026, 11, 1))
    app().listener("orders", group="g", start=datetime(2026, 11, 1, tzinfo=UTC))


def test_named_partitions_are_read_by_one_thread_of_one_process() -> None:
    said = refusal(app().listener, partitions=[("orders", 0)], group="g", threads=2)
    assert said.startswith("threads: 2 of them would each read the named partitions")
    made = app()
    made.listener(partitions=[("orders", 0)], group="g")(handle)
    made.worker = 1
    assert "a listener names its partitions: several workers would each read them" in refusal(made.run)


def test_a_topic_that_is_named_twice_is_read_once() -> None:
    made = app()
    made.listener(["orders", "orders"], group="g")(handle)
    assert made.listeners[0].spec.topics.subscription == ["orders"]


def test_a_source_that_the_csv_does_not_have_is_refused_where_the_sink_is_declared() -> None:
    columns = {"id": "value.number"}
    said = refusal(
        app(ledger="sqlite:///unused.db").sink, "orders", into="orders", format=CsvFormat(["id"]), columns=columns
    )
    assert "column 'id' cannot come from 'value.number': the CSV's fields are id" in said


@pytest.mark.parametrize("ledger", ["memory://", "redis://localhost:1", MemoryLedger()])
def test_a_pipeline_without_tables_is_refused_where_it_is_declared(ledger: object) -> None:
    assert "it needs a ledger in a SQL database" in refusal(Pipeline, **{**PIPELINE, "ledger": ledger})
