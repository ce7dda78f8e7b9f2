"""What a file and the environment say becomes settings, and what they cannot say is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.batches import BatchBounds
from tidegate.core.policies import (
    Backoff,
    CommitStrategy,
    DeadLetter,
    Delivery,
    Earliest,
    Fail,
    GroupProtocol,
    LagGuard,
    Latest,
    OutOfRange,
    Recreated,
    Retry,
    StartStrategy,
    Timestamp,
)
from tidegate.errors import ConfigurationError
from tidegate.ledger import Limits
from tidegate.settings import (
    KafkaSettings,
    LedgerSettings,
    ListenerSettings,
    OnError,
    Settings,
)

Load = Callable[..., Settings]

EVERYTHING = """
[kafka]
bootstrap = "one:9092,two:9092"

[kafka.client]
security.protocol = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
fetch.wait.max.ms = 50
socket.keepalive.enable = true

[ledger]
url = "sqlite:///shop.db"
prefix = "shop_"
limits = { hold = 5, lock_wait = 8.5, attempts = 9, answer = "30s" }

[listener]
delivery = "at-least-once"
commit = "asynchronous"
protocol = "consumer"
start = "latest"
deployment = "2026-11"
buffer_bytes = 1000
on_error = "dead-letter"
retries = 2
out_of_range = "skip"
recreated = "restart"
mirror = true
threads = 3
session_timeout = 30

[listener.batch]
count = 7
bytes = 70
age = 0.5

[listener.backoff]
first = 1
factor = 3
most = 9

[listener.lag_guard]
limit = 1000
keep = 10
every = 5
"""

EXPECTED = Settings(
    KafkaSettings(
        "one:9092,two:9092",
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "fetch.wait.max.ms": 50,
            "socket.keepalive.enable": True,
        },
    ),
    LedgerSettings("sqlite:///shop.db", "shop_", Limits(5.0, 8.5, 9, 30.0)),
    listener=ListenerSettings(
        delivery=Delivery.AT_LEAST_ONCE,
        commit=CommitStrategy.ASYNCHRONOUS,
        protocol=GroupProtocol.CONSUMER,
        start=Latest(),
        deployment="2026-11",
        batch=BatchBounds(7, 70, 0.5),
        buffer_bytes=1000,
        on_error=OnError.DEAD_LETTER,
        retries=2,
        backoff=Backoff(1.0, 3.0, 9.0),
        out_of_range=OutOfRange.SKIP,
        recreated=Recreated.RESTART,
        lag_guard=LagGuard(1000, 10, 5.0),
        mirror=True,
        threads=3,
        session_timeout=30.0,
    ),
)

ENVIRONMENT = {
    "TIDEGATE_KAFKA": "one:9092,two:9092",
    "TIDEGATE_KAFKA__CLIENT__SECURITY_PROTOCOL": "SASL_SSL",
    "TIDEGATE_KAFKA__CLIENT__SASL_MECHANISM": "PLAIN",
    "TIDEGATE_LEDGER": "sqlite:///shop.db",
    "TIDEGATE_LEDGER__PREFIX": "shop_",
    "TIDEGATE_LEDGER__LIMITS__HOLD": "5",
    "TIDEGATE_LEDGER__LIMITS__LOCK_WAIT": "8.5",
    "TIDEGATE_LEDGER__LIMITS__ANSWER": "30s",
    "TIDEGATE_LEDGER__LIMITS__ATTEMPTS": "9",
    "TIDEGATE_LISTENER__DELIVERY": "at-least-once",
    "TIDEGATE_LISTENER__COMMIT": "asynchronous",
    "TIDEGATE_LISTENER__PROTOCOL": "consumer",
    "TIDEGATE_LISTENER__START": "latest",
    "TIDEGATE_LISTENER__DEPLOYMENT": "2026-11",
    "TIDEGATE_LISTENER__BATCH__COUNT": "7",
    "TIDEGATE_LISTENER__BATCH__BYTES": "70",
    "TIDEGATE_LISTENER__BATCH__AGE": "0.5",
    "TIDEGATE_LISTENER__BUFFER_BYTES": "1000",
    "TIDEGATE_LISTENER__ON_ERROR": "dead-letter",
    "TIDEGATE_LISTENER__RETRIES": "2",
    "TIDEGATE_LISTENER__BACKOFF__FIRST": "1",
    "TIDEGATE_LISTENER__BACKOFF__FACTOR": "3",
    "TIDEGATE_LISTENER__BACKOFF__MOST": "9",
    "TIDEGATE_LISTENER__OUT_OF_RANGE": "skip",
    "TIDEGATE_LISTENER__RECREATED": "restart",
    "TIDEGATE_LISTENER__LAG_GUARD__LIMIT": "1000",
    "TIDEGATE_LISTENER__LAG_GUARD__KEEP": "10",
    "TIDEGATE_LISTENER__LAG_GUARD__EVERY": "5",
    "TIDEGATE_LISTENER__MIRROR": "yes",
    "TIDEGATE_LISTENER__THREADS": "3",
    "TIDEGATE_LISTENER__SESSION_TIMEOUT": "30",
}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def settings(text: str = "", **environ: str) -> Settings:
        file = tmp_path / "tidegate.toml"
        file.write_text(text)
        return Settings.load(file, environ)

    return settings


def refusal(load: Load, text: str = "", **environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(text, **environ)
    return str(caught.value)


def test_every_setting_is_read_from_a_file(load: Load) -> None:
    assert load(EVERYTHING) == EXPECTED


def test_every_setting_is_read_from_the_environment(load: Load) -> None:
    found = load("", **ENVIRONMENT)
    assert (found.ledger, found.listener) == (EXPECTED.ledger, EXPECTED.listener)
    assert found.kafka.configuration() == {
        "bootstrap.servers": "one:9092,two:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
    }


def test_without_a_file_and_variables_the_defaults_hold() -> None:
    assert Settings.load(environ={}) == Settings()


def test_the_defaults_are_those_of_a_listener_and_of_the_ledger() -> None:
    topics = Topics(("orders",))
    assert ListenerSpec(topics=topics, group="g", **ListenerSettings().defaults()) == ListenerSpec(
        topics=topics, group="g"
    )
    limits = Limits()
    assert Limits(limits.hold, limits.lock_wait, limits.attempts, limits.answer) == Limits()


def test_a_listener_is_specified_by_what_the_settings_say(load: Load) -> None:
    defaults = load(EVERYTHING).listener.defaults()
    assert defaults["start"] == StartStrategy(Latest(), "2026-11")
    assert defaults["on_error"] == Retry(2, Backoff(1.0, 3.0, 9.0), DeadLetter())
    assert load("").listener.defaults()["on_error"] == Fail()
    assert ListenerSpec(topics=Topics(("orders",)), group="g", **defaults).threads == 3


def test_the_environment_goes_before_the_file_and_leaves_the_rest_of_a_table_alone(load: Load) -> None:
    found = load(EVERYTHING, TIDEGATE_LISTENER__BATCH__COUNT="8", TIDEGATE_LEDGER="memory://")
    assert found.listener.batch == BatchBounds(8, 70, 0.5)
    assert found.ledger == LedgerSettings("memory://", "shop_", Limits(5.0, 8.5, 9, 30.0))


def test_a_client_setting_of_the_environment_replaces_that_of_the_file(load: Load) -> None:
    text = '[kafka.client]\nsasl.username = "a"\nsasl.password = "b"'
    assert load(text, TIDEGATE_KAFKA__CLIENT__SASL_PASSWORD="c").kafka.client == {
        "sasl.username": "a",
        "sasl.password": "c",
    }


def test_what_a_table_leaves_out_is_as_by_default(load: Load) -> None:
    assert load("[listener.batch]\ncount = 7").listener.batch == BatchBounds(7, 4 << 20, 0.0)


def test_short_forms_name_the_brokers_and_the_ledger(load: Load) -> None:
    found = load('kafka = "one:9092"\nledger = "memory://"')
    assert (found.kafka.bootstrap, found.ledger.url) == ("one:9092", "memory://")


def test_none_takes_back_what_the_file_says(load: Load) -> None:
    found = load(EVERYTHING, TIDEGATE_LEDGER="none", TIDEGATE_LISTENER__LAG_GUARD="none")
    assert found.ledger.url is None
    assert found.listener.lag_guard is None


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ('"earliest"', Earliest()),
        ('"latest"', Latest()),
        ("2026-11-01T00:00:00Z", Timestamp(1793491200000)),
        ('"2026-11-01T01:00:00+01:00"', Timestamp(1793491200000)),
        ("1793491200000", Timestamp(1793491200000)),
        ('"1793491200000"', Timestamp(1793491200000)),
    ],
)
def test_a_start_is_a_word_or_a_time(load: Load, text: str, start: object) -> None:
    assert load(f"[listener]\nstart = {text}").listener.start == start


@pytest.mark.parametrize("text", ['"2026-11-01T00:00:00"', "2026-11-01T00:00:00", "2026-11-01", "-1", "true", '"soon"'])
def test_a_start_without_a_zone_or_sense_is_refused(load: Load, text: str) -> None:
    said = refusal(load, f"[listener]\nstart = {text}")
    assert "tidegate.toml: listener.start: expected 'earliest', 'latest', a time with its zone" in said


def test_the_file_is_named_found_in_the_current_directory_or_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tidegate.toml").write_text('kafka = "here"')
    Path("other.toml").write_text('kafka = "other"')
    Path("third.toml").write_text('kafka = "third"')
    assert Settings.load(environ={}).kafka.bootstrap == "here"
    assert Settings.load(environ={"TIDEGATE_CONFIG": "other.toml"}).kafka.bootstrap == "other"
    assert Settings.load("third.toml", {"TIDEGATE_CONFIG": "other.toml"}).kafka.bootstrap == "third"


def test_references_are_resolved_from_the_environment(load: Load) -> None:
    found = load('ledger = "redis://:${PW}@${HOST}/0"\n[kafka.client]\na.b = "$${PW} $x ${}"', PW="p", HOST="h")
    assert found.ledger.url == "redis://:p@h/0"
    assert found.kafka.client == {"a.b": "${PW} $x ${}"}


def test_a_reference_to_nothing_names_file_key_and_variable(load: Load, tmp_path: Path) -> None:
    said = refusal(load, '[kafka.client]\nsasl.password = "${KAFKA_PW}"')
    assert said == (
        f"{tmp_path}/tidegate.toml: kafka.client.sasl.password: the environment variable KAFKA_PW is not set"
    )


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("[listener]\ntreads = 2", "listener.treads", "listener.threads"),
        ("[listner]\nthreads = 2", "listner.threads", "listener.threads"),
        ("[listener.batch]\ncuont = 2", "listener.batch.cuont", "listener.batch.count"),
        ("[batch]\ncount = 2", "batch.count", "listener.batch.count"),
        ("[listener.limits]\nhold = 2", "listener.limits.hold", "ledger.limits.hold"),
        ('legder = "memory://"', "legder", "ledger"),
        ("[listner]", "listner", "listener"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(load: Load, text: str, key: str, near: str) -> None:
    said = refusal(load, text)
    assert f"tidegate.toml: {key}: there is no such setting" in said
    assert f"did you mean {near}?" in said


def test_an_unknown_key_that_is_like_no_other_names_those_that_there_are(load: Load) -> None:
    assert refusal(load, "zzz = 1").endswith("known are kafka, ledger, registry, listener, observe, sink")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TIDEGATE_LEGDER", "TIDEGATE_LEDGER"),
        ("TIDEGATE_LISTENER_BATCH__COUNT", "TIDEGATE_LISTENER__BATCH__COUNT"),
        ("TIDEGATE_BATCH__COUNT", "TIDEGATE_LISTENER__BATCH__COUNT"),
        ("TIDEGATE_LISTENER__TREADS", "TIDEGATE_LISTENER__THREADS"),
    ],
)
def test_an_unknown_variable_names_the_nearest_known_one(load: Load, name: str, near: str) -> None:
    assert refusal(load, "", **{name: "1"}) == f"{name}: there is no such setting; did you mean {near}?"


def test_variables_that_are_not_settings_are_left_alone(load: Load) -> None:
    others = {
        "TIDEGATE_SERVICE_HOST": "10.0.0.1",
        "TIDEGATE_PORT": "tcp://10.0.0.1:80",
        "TIDEGATE_PORT_80_TCP_ADDR": "10.0.0.1",
        "TIDEGATE_WEB_SERVICE_PORT_HTTP": "80",
        "TIDEGATE_CACHE": "/var/cache",
        "TIDEGATE_IVY_SETTINGS": "ivy.xml",
    }
    assert load("", **others) == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[listener]\nthreads = true", "listener.threads: expected a whole number from 1 to 1000, not a boolean"),
        ("[listener]\nthreads = 1.5", "listener.threads: expected a whole number from 1 to 1000, not a number"),
        ('[listener]\nthreads = "one"', "listener.threads: expected a whole number from 1 to 1000"),
        ("[listener]\nsession_timeout = nan", "listener.session_timeout: expected a number"),
        ("[listener]\nmirror = 1", "listener.mirror: expected true or false, not a whole number"),
        ("[listener]\nbatch = 5", "listener.batch: expected a table, not a whole number"),
        ("[listener.threads]\nx = 1", "listener.threads: expected a whole number from 1 to 1000, not a table"),
        ("[ledger]\nurl = 5", "ledger.url: expected a string that is not empty, not a whole number"),
        ("kafka = 5", "kafka: expected a table, not a whole number"),
        ("[kafka]\nclient = 5", "kafka.client: expected a table, not a whole number"),
        ("[kafka.client]\na.b = [1]", "kafka.client.a.b: expected a string, a number, or true or false, not an array"),
        (
            '[listener]\nprotocol = "cooperative"',
            "listener.protocol: expected one of 'range', 'roundrobin', 'cooperative-sticky', 'consumer'",
        ),
        ('[listener]\ndelivery = "exactly_once"', "did you mean 'exactly-once'?"),
        ("[listener]\nthreads = 0", "listener.threads: expected a whole number from 1 to 1000"),
        ("[listener]\nretries = -1", "listener.retries: expected a whole number of at least 0"),
        ("[listener]\nsession_timeout = 0", "listener.session_timeout: expected a number of seconds"),
        ('[listener]\ndeployment = ""', "listener.deployment: expected a string that is not empty"),
        ("[listener.batch]\ncount = 0", "listener.batch.count: expected a whole number of at least 1"),
        ("[listener.lag_guard]\nkeep = 1", "listener.lag_guard: 'limit' is missing"),
        ("[listener.lag_guard]\nlimit = 1\nkeep = 2", "listener.lag_guard: keep: expected at most"),
        ("[ledger.limits]\nhold = 20", "ledger.limits: lock_wait (15.0 s) has to be at least as long as hold (20.0 s)"),
        ("[ledger.limits]\nanswer = 15", "ledger.limits: answer (15.0 s) has to be longer than lock_wait (15.0 s)"),
        ('ledger = ""', "ledger.url: expected a string that is not empty"),
        ('[kafka]\nbootstrap = "a"\n[kafka.client]\nbootstrap.servers = "b"', "kafka: the brokers are named twice"),
        ("a = ", "is not TOML"),
    ],
)
def test_a_wrong_value_names_file_key_and_what_was_expected(load: Load, tmp_path: Path, text: str, said: str) -> None:
    found = refusal(load, text)
    assert found.startswith(f"{tmp_path}/tidegate.toml: ")
    assert said in found


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TIDEGATE_LISTENER__THREADS", "many", "TIDEGATE_LISTENER__THREADS: expected a whole number from 1 to 1000"),
        ("TIDEGATE_LISTENER__MIRROR", "maybe", "TIDEGATE_LISTENER__MIRROR: expected true or false"),
        ("TIDEGATE_LISTENER__RETRIES", "inf", "TIDEGATE_LISTENER__RETRIES: expected a whole number of at least 0"),
        ("TIDEGATE_LISTENER", "x", "TIDEGATE_LISTENER: expected a table, not a string"),
        ("TIDEGATE_LISTENER__THREADS", "0", "TIDEGATE_LISTENER__THREADS: expected a whole number from 1 to 1000"),
    ],
)
def test_a_wrong_variable_is_named(load: Load, name: str, value: str, said: str) -> None:
    assert refusal(load, "", **{name: value}) == said


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone.toml: cannot be read: No such file"):
        Settings.load(tmp_path / "gone.toml", {})


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b'kafka = "\xe4"')
    with pytest.raises(ConfigurationError, match=r"latin.toml: is not UTF-8"):
        Settings.load(file, {})
