"""What is particular to MariaDB, MySQL, PostgreSQL and Redis."""

from __future__ import annotations

import pytest
import redis
import sqlalchemy as sa

from tidegate.sandbox import MariaDB, MySQL, Postgres, Redis

from .clients import connection


def setting(server, name: str) -> str:
    with connection(server.url) as sql:
        statement = "SHOW {}" if isinstance(server, Postgres) else "SELECT @@{}"
        return str(sql.exec_driver_sql(statement.format(name)).scalar_one())


@pytest.mark.parametrize("name", ["postgres", "mariadb", "mysql"])
def test_the_user_owns_everything_and_may_make_other_users(name, request) -> None:
    server = request.getfixturevalue(name)
    with connection(server.url) as sql:
        autocommit = sql.execution_options(isolation_level="AUTOCOMMIT")
        if name == "postgres":
            autocommit.exec_driver_sql("CREATE ROLE \"o'reader\" LOGIN PASSWORD 'p@ss/word'")
        else:
            autocommit.exec_driver_sql("CREATE USER `o'reader`@'%%' IDENTIFIED BY 'p@ss/word'")
            autocommit.exec_driver_sql("GRANT SELECT ON tidegate.* TO `o'reader`@'%%'")
        autocommit.exec_driver_sql("CREATE DATABASE other")
    with connection(server.url_for("o'reader", "p@ss/word")) as sql:
        assert sql.exec_driver_sql("SELECT 1").scalar_one() == 1
    with connection(server.url_for(database="other")) as sql:
        assert sql.exec_driver_sql("SELECT 1").scalar_one() == 1


@pytest.mark.parametrize("name", ["postgres", "mariadb", "mysql"])
def test_a_wrong_password_is_refused(name, request) -> None:
    server = request.getfixturevalue(name)
    with (
        pytest.raises(sa.exc.OperationalError, match=r"password authentication failed|Access denied"),
        connection(server.url_for(password="wrong")),
    ):
        pass


def test_redis_wants_its_password(redis_server) -> None:
    with (
        redis.Redis(host=redis_server.host, port=redis_server.port, retry=None) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()
    with (
        redis.Redis.from_url(redis_server.url_for(password="wrong"), retry=None) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_durability_is_the_servers_own(postgres, mariadb, mysql, redis_server) -> None:
    assert setting(postgres, "fsync") == setting(postgres, "synchronous_commit") == "on"
    assert setting(postgres, "full_page_writes") == "on"
    for server in (mariadb, mysql):
        assert setting(server, "innodb_flush_log_at_trx_commit") == "1"
        assert setting(server, "innodb_doublewrite") in {"1", "ON"}
    assert setting(mysql, "sync_binlog") == setting(mysql, "log_bin") == "1"
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        assert client.config_get("append*")["appendonly"] == "yes"
        assert client.config_get("append*")["appendfsync"] == "everysec"


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_load_data_local_is_allowed_and_any_character_stored(name, request) -> None:
    server = request.getfixturevalue(name)
    assert setting(server, "local_infile") == "1"
    with connection(server.url) as sql:
        sql.exec_driver_sql("CREATE TEMPORARY TABLE t (word TEXT)")
        sql.execute(sa.text("INSERT INTO t VALUES (:word)"), {"word": "Flut 🌊"})
        assert sql.exec_driver_sql("SELECT word FROM t").scalar_one() == "Flut 🌊"


def test_settings_win_over_what_the_sandbox_chose() -> None:
    with Postgres(settings={"fsync": False, "max_connections": 7, "search_path": "'it''s', public"}) as server:
        assert setting(server, "fsync") == "off"
        assert setting(server, "max_connections") == "7"
    for kind in (MariaDB, MySQL):
        with kind(settings={"local-infile": False, "innodb_page_size": "8k"}) as server:
            assert setting(server, "local_infile") == "0"
            assert setting(server, "innodb_page_size") == "8192"
    with (
        Redis(settings={"maxmemory": "64mb", "appendonly": False}) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        assert client.config_get("maxmemory")["maxmemory"] == str(64 * 2**20)
        assert client.config_get("appendonly")["appendonly"] == "no"
