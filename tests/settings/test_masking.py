"""Secrets are planted in every place that can hold one, and appear nowhere."""

from __future__ import annotations

import ast
import time
import traceback
from pathlib import Path

import pytest

import tidegate
from tidegate.core.masks import masked
from tidegate.errors import ConfigurationError
from tidegate.settings import KafkaSettings, LedgerSettings, Settings

SECRET = "pl4nted"
SOURCE = Path(tidegate.__file__).parent


def texts(settings: Settings) -> list[str]:
    parts = [settings, settings.kafka, settings.ledger, settings.listener]
    return [*(text for part in parts for text in (repr(part), str(part), f"{part}")), str(settings.shown())]


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://user:{SECRET}@host/db",
        f"postgresql+psycopg://user@tenant:{SECRET}@host/db",
        f"mysql+pymysql://user:a:{SECRET}/?#@host/db",
        f"mysql+pymysql://user:a b{SECRET}@host/db",
        f"redis://:x@{SECRET}@host:6379/0",
        f"rediss://host/0?password={SECRET}&db=1",
        f"postgresql://user@host/db?sslmode=require&sslpassword={SECRET}",
        f"host=h password={SECRET}",
        SECRET,
    ],
)
def test_the_password_of_a_ledger_is_not_shown(url: str) -> None:
    settings = Settings(ledger=LedgerSettings(url))
    assert settings.ledger.url == url
    assert not [text for text in texts(settings) if SECRET in text]


def test_the_rest_of_an_address_is_shown() -> None:
    assert LedgerSettings(f"mysql+pymysql://me:{SECRET}@db:3306/shop?a=b").shown()["url"] == (
        "mysql+pymysql://me:***@db:3306/shop?a=b"
    )
    assert LedgerSettings("sqlite:///shop.db").shown()["url"] == "sqlite:///shop.db"
    assert LedgerSettings("postgresql+psycopg://me@db/shop").shown()["url"] == "postgresql+psycopg://me@db/shop"


@pytest.mark.parametrize(
    "key",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "ssl.certificate.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.jaas.config",
        "SASL.Token",
        "some.api.key",
        "sasl.passwrd",  # misspelt, and refused only by the client itself
        "sasl.pasword",
        "oauth.secrt",
    ],
)
def test_the_secrets_of_the_client_are_not_shown(key: str) -> None:
    settings = Settings(KafkaSettings("host:9092", {key: SECRET, "sasl.username": "me"}))
    assert settings.kafka.configuration()[key] == SECRET
    assert settings.shown()["kafka"]["client"] == {key: "***", "sasl.username": "me"}
    assert not [text for text in texts(settings) if SECRET in text]


def test_a_number_and_a_function_are_not_shown_where_a_secret_may_be() -> None:
    settings = Settings(KafkaSettings(None, {"sasl.password": 12345, "oauth_cb": lambda _: SECRET}))
    assert settings.shown()["kafka"]["client"] == {"sasl.password": "***", "oauth_cb": "<function>"}


def test_a_secret_that_is_not_set_is_shown_as_that() -> None:
    assert Settings().shown()["registry"]["password"] is None


def test_a_password_in_an_address_is_not_shown_whatever_the_setting_is_called() -> None:
    settings = Settings(KafkaSettings(f"kafka://me:{SECRET}@host", {"some.proxy": f"http://me:{SECRET}@proxy"}))
    assert not [text for text in texts(settings) if SECRET in text]


def leaf_keys() -> list[str]:
    """Every key that a file may have, dotted."""

    def below(shown: dict[str, object], prefix: str) -> list[str]:
        return [
            key
            for name, value in shown.items()
            for key in (below(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [prefix + name])
        ]

    return [*below(Settings().shown(), ""), "listener.lag_guard.limit", "kafka", "ledger", "listener", "unknown"]


@pytest.mark.parametrize("key", leaf_keys())
@pytest.mark.parametrize("value", [f'"{SECRET}"', f'["{SECRET}"]', f'{{ a = "{SECRET}" }}'])
def test_a_secret_in_the_wrong_place_of_a_file_is_in_no_error(tmp_path: Path, key: str, value: str) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text(f"{key} = {value}")
    try:
        shown = texts(Settings.load(file, {}))
        # What is no secret by name or form, a prefix or the name of a deployment, is shown.
        named = {"kafka", "kafka.bootstrap", "ledger.prefix", "listener.deployment"}
        public = key in named | {"registry.ca", "registry.certificate"} or "client" in key  # the latter name files
        assert public or not [text for text in shown if SECRET in text]
    except ConfigurationError as error:
        assert SECRET not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("key", leaf_keys())
def test_a_secret_in_the_wrong_variable_is_in_no_error(key: str) -> None:
    name = "TIDEGATE_" + key.replace(".", "__").upper()
    try:
        Settings.load(environ={name: SECRET})
    except ConfigurationError as error:
        assert SECRET not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("text", [f'a = "{SECRET}', f"a = {SECRET}", f'a = "{SECRET}"\na = "{SECRET}"', f"{{{SECRET}"])
def test_a_file_that_is_not_toml_does_not_show_what_it_holds(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(file, {})
    assert SECRET not in str(caught.value)


def test_a_secret_that_a_reference_brings_in_is_masked(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text('ledger = "redis://:${PW}@host"\n[kafka.client]\nsasl.password = "${PW}"')
    settings = Settings.load(file, {"PW": SECRET})
    assert settings.kafka.client == {"sasl.password": SECRET}
    assert not [text for text in texts(settings) if SECRET in text]


def test_a_text_is_masked_wherever_it_holds_a_password() -> None:
    text = f"cannot reach 'mysql+pymysql://me:{SECRET}@db/shop', nor redis://:{SECRET}@r/0; sasl.password={SECRET}"
    assert masked(text) == "cannot reach 'mysql+pymysql://me:***@db/shop', nor redis://:***@r/0; sasl.password=***"
    assert masked(f"{{'sasl.password': '{SECRET} x', 'a': 1}}") == "{'sasl.password': ***, 'a': 1}"
    assert masked("are address, user and password right?") == "are address, user and password right?"


@pytest.mark.parametrize(
    "text",
    [
        f"sasl.password={SECRET}",
        f"ssl.key.password={SECRET}, ssl.key.location=/etc/key",
        f"ssl.key.pem={SECRET}",
        f"api_key={SECRET}",
        f"AccountKey={SECRET};EndpointSuffix=x",
        f"aws-secret-access-key={SECRET}",
        f"token={SECRET}&a=b",
        f'required username="me" password="two {SECRET}";',
        f"password='two {SECRET}'",
        f'password="quo\\"te {SECRET}"',
        f'{{"sasl.password": "quo\\"te {SECRET}"}}',
        f"{{'client_secret': '{SECRET}'}}",
        f"{{'private.key': '{SECRET}'}}",
        f"redis://:{SECRET}@host",
    ],
)
def test_a_secret_in_a_text_is_masked(text: str) -> None:
    assert SECRET not in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "mode 'upsert' needs key=…, the columns that identify a row",
        "Table('orders', key='id') has no column 'id'",
        "Table('orders', key=['id', 'line'], mode='upsert')",
        "record_key=b'42' and primary_key=id, partition_key=customer",
        "the record {'key': 'a', 'value': 'b'} cannot be decoded",
        "duplicate key value violates unique constraint: Key (id)=(1) already exists",
        "are address, user and password right?",
        "the login has no password: set one",
        "group 'billing': orders[0]@[0, 10): note='by hand', key=7",
    ],
)
def test_an_ordinary_message_stays_whole(text: str) -> None:
    assert masked(text) == text


def messages() -> dict[str, str]:
    """Every text in the source, whatever it is for; what is put into one is some word."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts: set[int] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts |= {id(part) for part in node.values}
                text = "".join(part.value if isinstance(part, ast.Constant) else "word" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            else:
                continue
            found[text] = f"{path.relative_to(SOURCE)}:{node.lineno}"
    return found


MASKED_RIGHTLY = (
    "://word:word@",
    "redis://user:password@host",
    "``password=``",
    "password=word;",
    "Bearer word",
    "://(?:[^@/?]*@)?",  # a pattern of URLs
    'password = "${REGISTRY_PASSWORD}"',  # written into a file
    "org.apache.spark:spark-token-provider",  # the name of a jar, in no message
)


def test_no_message_of_our_own_is_eaten() -> None:
    eaten = [
        f"{place}: {masked(text)}"
        for text, place in messages().items()
        if masked(text) != text and not any(known in text for known in MASKED_RIGHTLY)
    ]
    assert not eaten


@pytest.mark.parametrize(
    "word",
    [
        "a",
        "a.",
        "key",
        "a://",
        "a:",
        "password",
        "'key",
        "ssl",
        "password='",
        "'token':\"",
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_a_long_text_is_masked_in_no_time(word: str) -> None:
    began = time.process_time()  # the machine may be busy with something else
    masked(word * 30_000)
    assert time.process_time() - began < 5
