"""Bad input gets a clear error, and secrets stay secret."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import StaticPool, create_engine, event, make_url, text
from tests.ports import refused_port

from tidegate import ConfigurationError, Limits, Span, TidegateError, TopicPartition, open_ledger
from tidegate.errors import LedgerDenied, LedgerUnavailable
from tidegate.sandbox import Database, MySQL, Postgres, Redis

from .stores import fresh_name

ORDERS = TopicPartition("orders", 0)
SECRET = "hunter2-is-secret"
QUICK = Limits(hold=1, lock_wait=2)


@pytest.fixture(params=["mariadb", "mysql", "postgres", "redis_server"])
def server(request: pytest.FixtureRequest) -> Database:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Database)
    return found


def told(call: Callable[[], object]) -> str:
    """Everything that an error tells: its message, its causes, their tracebacks."""
    try:
        call()
    except TidegateError as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError("there was no error")


@pytest.mark.parametrize(
    ("scheme", "usual"),
    [
        ("mysql+mysqlconnector", "mysql+pymysql"),
        ("mysql+mysqldb", "mysql+pymysql"),
        ("mariadb+mariadbconnector", "mariadb+pymysql"),
        ("postgresql+psycopg2", "postgresql+psycopg"),
        ("postgresql+asyncpg", "postgresql+psycopg"),
        ("sqlite+aiosqlite", "sqlite+pysqlite"),
    ],
)
def test_a_driver_that_the_ledger_was_never_run_on_is_refused(scheme: str, usual: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no ledger for the driver .*; use {re.escape(usual)}://"):
        open_ledger(f"{scheme}://u:{SECRET}@localhost/x")


def test_an_engine_with_a_driver_that_the_ledger_was_never_run_on_is_refused() -> None:
    engine = create_engine("mysql+mysqldb://u@localhost/x", module=pymysql)  # which can stand in for the other
    with pytest.raises(ConfigurationError, match=r"no ledger for the driver 'mysqldb'; use mysql\+pymysql://"):
        open_ledger(engine)


def test_a_store_that_is_not_there_is_an_error_at_once(server: Database) -> None:
    ledger = open_ledger(server.url_for(port=refused_port()), limits=QUICK)
    with pytest.raises(LedgerUnavailable, match="cannot open the ledger at .*Is the database running"):
        ledger.claim("billing", [ORDERS])


def test_a_wrong_password_is_an_error_that_does_not_tell_it(server: Database) -> None:
    ledger = open_ledger(server.url_for(password=SECRET), limits=QUICK)
    with pytest.raises(LedgerUnavailable):
        ledger.create()
    assert SECRET not in told(ledger.create)


@pytest.mark.parametrize(
    "url",
    [
        f"oracle://scott:{SECRET}@localhost/x",
        f"kafka://u:{SECRET}@localhost",
        f"not a url {SECRET}",
        f"postgresql+nosuch://u:{SECRET}@localhost/x",
        f"mysql+pymysql://u:{SECRET}@localhost:port/x",
    ],
)
def test_an_address_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_ledger(url)
    assert SECRET not in told(lambda: open_ledger(url))


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("sqlite:///shop.db?mode=bogus", "no option 'mode'"),
        ("sqlite:///shop.db?timout=3", "did you mean 'timeout'"),
        ("sqlite:///shop.db?timeout=soon", "cannot be read"),
        ("sqlite:///shop.db?uri=false&mode=ro", "no option 'mode'"),
        ("postgresql+psycopg://me@localhost:1/shop?uri=true&sslmod=require", "did you mean 'sslmode'"),
        ("mysql+pymysql://me@localhost:1/shop?self=1", "no option 'self'"),
        ("postgresql+psycopg://me@localhost:1/shop?sslmod=require", "did you mean 'sslmode'"),
        ("mysql+pymysql://me@localhost:1/shop?chrset=utf8mb4", "did you mean 'charset'"),
        ("mysql+pymysql://me@localhost:1/shop?connect_timeout=soon", "cannot be read"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_an_option_that_the_driver_would_ignore_or_stumble_over_is_refused(url: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        open_ledger(url)


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql+psycopg://u@localhost/x", "psycopg", "postgres"),
        ("postgresql://u@localhost/x", "psycopg", "postgres"),
        ("mysql+pymysql://u@localhost/x", "pymysql", "mysql"),
        ("mysql://u@localhost/x", "pymysql", "mysql"),
        ("redis://localhost", "redis", "redis"),
        ("duckdb:///shop.duckdb", "duckdb", "duckdb"),
    ],
)
def test_a_missing_driver_names_the_extra_to_install(url: str, module: str, extra: str) -> None:
    script = (
        "import sys\n"
        f"class Absent:\n"
        f"    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {module!r}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import tidegate\n"
        f"try: tidegate.open_ledger({url!r})\n"
        "except tidegate.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert f"pip install 'tidegate[{extra}]'" in done.stdout


def test_a_read_only_database_file_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        claims = ledger.claim("billing", [ORDERS])
    before = path.read_bytes()
    with open_ledger(f"sqlite:///file:{path}?mode=ro&uri=true") as frozen:
        with pytest.raises(LedgerDenied, match="read.?only"):
            frozen.claim("billing", [ORDERS])
        with pytest.raises(LedgerDenied, match="read.?only"):
            frozen.transact(claims, [Span(ORDERS, 0, 1)])
    assert path.read_bytes() == before


def test_a_read_only_postgres_is_refused(postgres: Postgres) -> None:
    admin = create_engine(postgres.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn, open_ledger(postgres.url) as ledger:
        claims = ledger.claim("only-reading", [ORDERS])
        conn.execute(text("CREATE ROLE reader LOGIN PASSWORD 'reader'"))
        conn.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"))
        with open_ledger(postgres.url_for("reader", "reader")) as reader:
            assert reader.read("only-reading").positions[ORDERS].next_offset == 0
            with pytest.raises(LedgerDenied, match="needs SELECT, INSERT, UPDATE"):
                reader.transact(claims, [Span(ORDERS, 0, 1)])
        assert ledger.read("only-reading").positions[ORDERS].next_offset == 0
        conn.execute(text("DROP OWNED BY reader"))
        conn.execute(text("DROP ROLE reader"))
    admin.dispose()


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_a_read_only_mysql_is_refused(name: str, request: pytest.FixtureRequest) -> None:
    server: Database = request.getfixturevalue(name)
    admin = create_engine(server.url)
    with admin.connect() as conn, open_ledger(server.url) as ledger:
        claims = ledger.claim("only-reading", [ORDERS])
        conn.execute(text("CREATE USER reader IDENTIFIED BY 'reader'"))
        conn.execute(text("GRANT SELECT ON tidegate.* TO reader"))
        with open_ledger(server.url_for("reader", "reader")) as reader:
            assert reader.read("only-reading").positions[ORDERS].next_offset == 0
            with pytest.raises(LedgerDenied, match="needs SELECT, INSERT, UPDATE"):
                reader.transact(claims, [Span(ORDERS, 0, 1)])
        assert ledger.read("only-reading").positions[ORDERS].next_offset == 0
        conn.execute(text("DROP USER reader"))
    admin.dispose()


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
@pytest.mark.parametrize("command", ["SET sql_mode='NONSENSE'", "SET nonsense=1", "SELEKT 1", "SELECT * FROM nowhere"])
def test_a_command_that_fails_after_the_login_does_not_ask_for_the_password(
    name: str, command: str, request: pytest.FixtureRequest
) -> None:
    url = make_url(request.getfixturevalue(name).url)
    error = told(lambda: open_ledger(url.update_query_dict({"init_command": command})).read("group"))
    assert "check init_command" in error
    assert "password" not in error
    for wrong in (url.set(password="wrong"), url.set(database="nowhere"), url.set(port=refused_port())):
        error = told(lambda wrong=wrong: open_ledger(wrong, limits=QUICK).read("group"))
        assert error.rstrip().endswith("Is the database running, and are address, user and password right?")


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("sql_select_limit=1", "sql_select_limit is 1, .* SET SESSION sql_select_limit = 18446744073709551615"),
        ("sql_select_limit=1000", "sql_select_limit is 1000, "),
        ("sql_safe_updates=1", "sql_safe_updates is on, "),
    ],
)
def test_a_session_that_bounds_queries_or_refuses_changes_is_refused(
    name: str, setting: str, said: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(name).url
    said = f"the ledger at .*: the session's {said}"
    bounded = make_url(url).update_query_dict({"init_command": f"SET {setting}"})
    prefix = fresh_name()
    with pytest.raises(ConfigurationError, match=said):
        open_ledger(bounded, prefix=prefix).read("group")
    partitions = [TopicPartition("t", number) for number in range(3)]
    with open_ledger(url, prefix=prefix) as ledger:
        ledger.claim("group", partitions, start_at=dict.fromkeys(partitions, 0))
    with pytest.raises(ConfigurationError, match=said):
        open_ledger(bounded, prefix=prefix).claim("group", partitions, start_at=dict.fromkeys(partitions, 0))


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_a_new_connection_whose_session_bounds_the_rows_of_a_query_is_refused(
    name: str, request: pytest.FixtureRequest
) -> None:
    engine = create_engine(request.getfixturevalue(name).url)
    bounds: list[str] = []

    @event.listens_for(engine, "connect")
    def bounded(driver: Any, _: object) -> None:
        for bound in bounds:
            driver.cursor().execute(f"SET SESSION sql_select_limit = {bound}")

    partitions = [TopicPartition("t", number) for number in range(3)]
    with open_ledger(engine, prefix=fresh_name()) as ledger:
        ledger.claim("group", partitions, start_at=dict.fromkeys(partitions, 0))
        bounds.append("1")
        engine.dispose()
        with pytest.raises(ConfigurationError, match="the session's sql_select_limit is 1, "):
            ledger.read("group")
    engine.dispose()


def test_a_login_without_tls_that_needs_a_package_names_it(mysql: MySQL) -> None:
    user = fresh_name()
    admin = create_engine(mysql.url)
    with admin.begin() as conn:
        conn.execute(text(f"CREATE USER {user} IDENTIFIED BY '{SECRET}'"))
        conn.execute(text(f"GRANT ALL ON *.* TO {user}"))
    admin.dispose()
    plain = f"{mysql.url_for(user, SECRET)}&ssl_disabled=true"
    with open_ledger(plain, prefix=user) as ledger, pytest.raises(LedgerUnavailable, match=r"TLS.*pymysql\[rsa\]"):
        ledger.create()
    for url in (mysql.url_for(user, SECRET), plain):  # the server knows the password from the first one
        with open_ledger(url, prefix=user) as ledger:
            ledger.create()


def test_a_directory_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(LedgerUnavailable, match="unable to open database file") as refused:
        open_ledger("sqlite:////no/such/directory/ledger.db").create()
    assert "password" not in str(refused.value), "a file has none"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:shared?mode=memory&cache=shared&uri=true",
        "sqlite:///file:shared?vfs=memdb&uri=true",
    ],
)
@pytest.mark.filterwarnings("ignore:Selection of the SingletonThreadPool")
def test_a_database_in_memory_is_refused_because_threads_would_not_share_it(url: str) -> None:
    engine = create_engine(url, poolclass=StaticPool)
    for target in (url, engine):
        with pytest.raises(ConfigurationError, match="use a file, such as sqlite:///"):
            open_ledger(target)
    engine.dispose()


def test_a_database_in_memory_is_refused_where_only_its_connection_tells() -> None:
    engine = create_engine("sqlite:///shop.db", creator=lambda: sqlite3.connect(":memory:"), poolclass=StaticPool)
    with pytest.raises(ConfigurationError, match="use a file, such as sqlite:///"):
        open_ledger(engine).claim("billing", [ORDERS])
    engine.dispose()


@pytest.mark.parametrize("prefix", ["", "a b", "x`; DROP TABLE y", 'quo"te', "p" * 41, "ü" * 21])
def test_a_prefix_that_cannot_be_a_name_is_refused(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        open_ledger(f"sqlite:///{tmp_path / 'x.db'}", prefix=prefix)


@pytest.mark.parametrize("limits", [{"hold": 5, "lock_wait": 2}, {"hold": -1}, {"attempts": 0}, {"answer": 15}])
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        Limits(**limits)


def test_the_password_is_in_no_error_when_the_store_goes_away(redis_server: Redis) -> None:
    ledger = open_ledger(redis_server.url_for(port=refused_port()), limits=QUICK)
    assert redis_server.password not in told(lambda: ledger.claim("billing", [ORDERS]))
