"""A ledger on the user's own engine: executors connect as the driver does, or the pipeline does not begin."""

from __future__ import annotations

import secrets
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from tests.spark.orders import Orders

from tidegate import ConfigurationError, Table, open_ledger
from tidegate.sandbox import Kafka, MariaDB, Postgres
from tidegate.spark import Pipeline, Report
from tidegate.spark.address import LedgerAddress

GROUP = "etl"
SCHEMA = {"id": "integer", "user": "text", "total": "decimal(12,2)"}
WAYS: dict[str, dict[str, Any]] = {
    "partition": {},
    "staged": {"transform": "select id, user, total from records", "schema": SCHEMA},
}


@pytest.fixture(scope="module")
def few(kafka: Kafka) -> Orders:
    return Orders.create(kafka.bootstrap, partitions=2, count=40)


@pytest.fixture(scope="module")
def tls_folder() -> Iterator[Path]:
    """Where the server can read as well, which may run as another user."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def guarded(tls_folder: Path) -> Iterator[tuple[MariaDB, Path]]:
    """A MariaDB that talks to nobody without TLS, and the certificate to know it by."""
    certificate, key = tls_folder / "server.pem", tls_folder / "server.key"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files],
        check=True,
        capture_output=True,
    )
    key.chmod(0o644)
    settings = {"ssl_cert": str(certificate), "ssl_key": str(key), "require_secure_transport": "ON"}
    with MariaDB(settings=settings) as server:
        yield server, certificate


def run(orders: Orders, engine: Engine, table: str, spark: SparkSession, **options: Any) -> Report:
    ledger = open_ledger(engine, prefix=f"{table}_")
    into = Table(table, create=True, columns=SCHEMA)
    pipeline = Pipeline(
        *(orders.name, into),
        group=GROUP,
        kafka=orders.bootstrap,
        ledger=ledger,
        spark=spark,
        **{"collect": 0, **options},
    )
    return pipeline.run(available_now=True)


@pytest.mark.parametrize("way", WAYS)
def test_connect_args_of_the_users_engine_reach_executors(
    way: str, few: Orders, postgres: Postgres, spark: SparkSession
) -> None:
    schema = f"s{secrets.token_hex(5)}"
    admin = create_engine(postgres.url)
    with admin.begin() as conn:
        conn.execute(text(f"CREATE SCHEMA {schema}"))
    # Without a password in the URL either: it goes along with the rest.
    url = make_url(postgres.url)
    bare = URL.create(url.drivername, host=url.host, port=url.port)
    login = {"user": url.username, "password": url.password, "dbname": url.database}
    engine = create_engine(bare, connect_args={**login, "options": f"-c search_path={schema}"})
    report = run(few, engine, "landed", spark, **WAYS[way])
    with admin.connect() as conn:
        assert conn.execute(text(f"SELECT count(*) FROM {schema}.landed")).scalar() == len(few.good)
    assert (report.lag, report.records) == (0, few.count)
    engine.dispose()
    admin.dispose()


def test_tls_of_the_users_engine_reaches_executors(
    few: Orders, guarded: tuple[MariaDB, Path], spark: SparkSession
) -> None:
    server, certificate = guarded
    engine = create_engine(server.url, connect_args={"ssl": {"ca": str(certificate)}, "connect_timeout": 10})
    report = run(few, engine, f"t{secrets.token_hex(5)}", spark)
    assert (report.lag, report.rows) == (0, len(few.good))
    engine.dispose()


def listened(url: str) -> Engine:
    engine = create_engine(url)
    event.listen(engine, "do_connect", lambda *_: None)
    return engine


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda url: create_engine(url, creator=lambda: None), "creator"),
        (lambda url: create_engine(url, connect_args={"ssl": ssl.create_default_context()}), "'ssl'.*SSLContext"),
        (lambda url: create_engine(url, connect_args={"ssl": {"check": print}}), "'ssl'.*builtin_function"),
        (listened, "do_connect"),
    ],
    ids=["creator", "context", "function", "listener"],
)
def test_what_cannot_travel_is_refused_at_the_start(
    make: Any, why: str, few: Orders, mariadb: MariaDB, spark: SparkSession
) -> None:
    engine = make(mariadb.url)
    with pytest.raises(ConfigurationError, match=why) as refused:
        run(few, engine, "never", spark, collect=1_000_000)
    assert str(make_url(mariadb.url).password) not in str(refused.value)


def test_the_address_of_a_ledger_shows_no_secret() -> None:
    engine = create_engine("postgresql+psycopg://u:s3cret@h/db", connect_args={"sslpassword": "h1dden"})
    address = LedgerAddress.of(open_ledger(engine))  # type: ignore[arg-type]
    assert "s3cret" not in repr(address)
    assert "h1dden" not in repr(address)
