"""The proxy between clients and real servers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import redis
import sqlalchemy as sa

from tidegate.sandbox import Proxy, SandboxError
from tidegate.sandbox.trap import Loses, Trap

from .clients import connection


@pytest.fixture(params=["postgres", "mariadb", "mysql"])
def sql_server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def proxy(sql_server) -> Iterator[Proxy]:
    with Proxy(sql_server.host, sql_server.port) as proxy:
        yield proxy


@pytest.fixture
def table(sql_server) -> Iterator[str]:
    with connection(sql_server.url) as sql, sql.begin():
        sql.exec_driver_sql("CREATE TABLE words (word VARCHAR(100))")
    yield "words"
    with connection(sql_server.url) as sql, sql.begin():
        sql.exec_driver_sql("DROP TABLE words")


def words(server) -> list[str]:
    with connection(server.url) as sql:
        return list(sql.exec_driver_sql("SELECT word FROM words").scalars())


def write(sql, word: str) -> None:
    sql.execute(sa.text("INSERT INTO words VALUES (:word)"), {"word": word})
    sql.commit()


def test_a_swallowed_commit_reply_leaves_the_work_done_and_the_client_in_doubt(sql_server, proxy, table) -> None:
    with connection(sql_server.url_for(port=proxy.port)) as sql:
        write(sql, "before")
        trap = proxy.swallow_one_reply(after=b"COMMIT")
        with pytest.raises(sa.exc.OperationalError):
            write(sql, "in doubt")
        assert words(sql_server) == ["before", "in doubt"], "the reply is lost only after the work is done"
        assert trap.wait(0)
        assert trap.swallowed
        sql.invalidate()
    with connection(sql_server.url_for(port=proxy.port)) as sql:
        write(sql, "after: the trap fires once")


def test_a_swallowed_commit_request_leaves_the_work_undone(sql_server, proxy, table) -> None:
    with connection(sql_server.url_for(port=proxy.port)) as sql:
        trap = proxy.swallow_one_request(b"COMMIT")
        with pytest.raises(sa.exc.OperationalError):
            write(sql, "never arrived")
        assert trap.wait(60)
        assert b"COMMIT" in trap.swallowed
        sql.invalidate()
    with connection(sql_server.url_for(port=proxy.port)) as sql:
        write(sql, "after")
    assert words(sql_server) == ["after"]


def test_other_connections_and_other_messages_do_not_spring_a_trap(sql_server, proxy, table) -> None:
    trap = proxy.swallow_one_reply(after=b"INSERT INTO words VALUES ('marked')")
    with (
        connection(sql_server.url_for(port=proxy.port)) as bystander,
        connection(sql_server.url_for(port=proxy.port)) as victim,
    ):
        write(bystander, "one")
        assert not trap.fired
        with pytest.raises(sa.exc.OperationalError):
            victim.exec_driver_sql("INSERT INTO words VALUES ('marked')")
        victim.invalidate()
        write(bystander, "two")
    assert words(sql_server) == ["one", "two"], "the victim's transaction ended with its connection"


def test_a_cut_drops_connections_and_refuses_new_ones_until_restored(sql_server, proxy) -> None:
    url = sql_server.url_for(port=proxy.port)
    with connection(url) as sql:
        assert sql.exec_driver_sql("SELECT 1").scalar_one() == 1
        assert proxy.connections == 1
        proxy.cut()
        assert proxy.connections == 0
        with pytest.raises(sa.exc.OperationalError):
            sql.exec_driver_sql("SELECT 1")
        sql.invalidate()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address)
    proxy.restore()
    with connection(url) as sql:
        assert sql.exec_driver_sql("SELECT 1").scalar_one() == 1


def test_a_delay_holds_back_both_directions(sql_server, proxy) -> None:
    with connection(sql_server.url_for(port=proxy.port)) as sql:
        sql.exec_driver_sql("SELECT 1")
        proxy.delay(0.5)
        began = time.monotonic()
        sql.exec_driver_sql("SELECT 1")
        assert 1.0 <= time.monotonic() - began < 10
        proxy.restore()
        began = time.monotonic()
        sql.exec_driver_sql("SELECT 1")
        assert time.monotonic() - began < 1.0


def test_a_black_hole_swallows_everything_even_that_the_client_has_gone(sql_server, proxy, table) -> None:
    url = sql_server.url_for(port=proxy.port)
    with connection(url) as other, connection(url) as sql:
        sql.execute(sa.text("INSERT INTO words VALUES ('lost')"))
        proxy.black_hole()
        commit = threading.Thread(target=_fails, args=(sql.commit,))
        commit.start()
        with socket.create_connection(proxy.address) as newcomer:
            newcomer.settimeout(0.3)
            newcomer.sendall(b"hello?")
            with pytest.raises(TimeoutError):
                newcomer.recv(1)
        assert commit.is_alive()
        proxy.restore()
        commit.join(90)
        assert not commit.is_alive(), "a connection that lost bytes is dropped when the hole closes"
        sql.invalidate()
        write(other, "a connection that lost nothing goes on")
    assert words(sql_server) == ["a connection that lost nothing goes on"]


def _fails(action) -> None:
    with pytest.raises(sa.exc.OperationalError):
        action()


def test_in_a_black_hole_the_server_still_holds_the_locks_of_a_client_that_is_gone(sql_server, proxy, table) -> None:
    with connection(sql_server.url) as sql:
        write(sql, "locked")
    bound = "SET lock_timeout = '300ms'" if "postgres" in sql_server.url else "SET innodb_lock_wait_timeout = 1"
    lost = sa.create_engine(sql_server.url_for(port=proxy.port)).connect()
    lost.exec_driver_sql("SELECT word FROM words FOR UPDATE")
    proxy.black_hole()
    lost.invalidate()
    with connection(sql_server.url) as sql:
        sql.exec_driver_sql(bound)
        with pytest.raises(sa.exc.OperationalError):
            sql.exec_driver_sql("UPDATE words SET word = 'x'")
        sql.rollback()
        proxy.restore()
        sql.exec_driver_sql(bound.replace("300ms", "10s").replace("= 1", "= 10"))
        sql.exec_driver_sql("UPDATE words SET word = 'free again'")
        sql.commit()
    assert words(sql_server) == ["free again"]


@pytest.mark.parametrize("reply", [True, False])
def test_a_redis_script_is_recognised_by_a_function(redis_server, reply: bool) -> None:
    def calls_script(data: bytes) -> bool:
        return b"EVALSHA" in data and b"marked" in data

    key = f"proxy-{reply}"
    with Proxy(redis_server.host, redis_server.port) as proxy:
        trap = proxy.swallow_one_reply(calls_script) if reply else proxy.swallow_one_request(calls_script)
        with redis.Redis.from_url(redis_server.url_for(port=proxy.port), retry=None) as client:
            script = client.script_load("return redis.call('INCR', KEYS[1])")
            assert client.evalsha(script, 1, key) == 1
            with pytest.raises(redis.ConnectionError):
                client.evalsha(script, 1, key, "marked")
            assert trap.wait(60)
            assert client.get(key) == (b"2" if reply else b"1")


def test_replies_to_earlier_requests_do_not_end_the_wait_for_the_one_that_counts(postgres) -> None:
    with Proxy(postgres.host, postgres.port) as proxy:
        url = postgres.url_for(port=proxy.port)
        with connection(url) as sql:
            raw = sql.connection.driver_connection
            raw.autocommit = True
            raw.execute("CREATE TABLE IF NOT EXISTS slow (n INT)")
            trap = proxy.swallow_one_reply(after=b"INSERT INTO slow")
            with pytest.raises(Exception, match="closed"), raw.pipeline() as pipeline:
                raw.execute("SELECT 1")
                pipeline.sync()
                raw.execute("SELECT pg_sleep(0.3)")
                raw.execute("INSERT INTO slow VALUES (1)")
                pipeline.sync()
            sql.invalidate()
        assert trap.wait(60)
        with connection(postgres.url) as sql:
            assert sql.exec_driver_sql("SELECT count(*) FROM slow").scalar_one() == 1


def test_a_trap_sees_a_message_that_comes_in_pieces_of_one_connection() -> None:
    trap = Trap(b"COMMIT", Loses.REPLY)
    assert not trap.sees("one", b"...COM")
    assert not trap.sees("two", b"MIT")
    assert trap.sees("one", b"MIT")
    callable_trap = Trap(lambda data: data.startswith(b"XA") and data.endswith(b"MIT"), Loses.REPLY)
    assert not callable_trap.sees("one", b"XA COM")
    assert callable_trap.sees("one", b"MIT")


def test_a_proxy_to_a_dead_server_hangs_up_and_works_once_the_server_is_back(redis_server) -> None:
    with Proxy(redis_server.host, redis_server.port) as proxy:
        url = redis_server.url_for(port=proxy.port)
        redis_server.kill()
        with redis.Redis.from_url(url, retry=None) as client, pytest.raises(redis.ConnectionError):
            client.ping()
        redis_server.restart()
        with redis.Redis.from_url(url, retry=None) as client:
            assert client.ping()


def test_a_proxy_that_was_not_started_says_so() -> None:
    with pytest.raises(SandboxError, match="not running"):
        Proxy("127.0.0.1", 1).cut()


def test_a_client_that_connects_during_a_cut_is_refused_and_not_left_waiting(redis_server) -> None:
    ends: list[str] = []
    over = threading.Event()

    def connect(address: tuple[str, int]) -> None:
        while not over.is_set():
            try:
                with socket.create_connection(address, 10) as client:
                    client.settimeout(10)
                    client.sendall(b"PING\r\n")
                    ends.append("answered" if client.recv(1) else "refused")
            except TimeoutError:
                ends.append("left waiting")
            except OSError:
                ends.append("refused")

    with Proxy(redis_server.host, redis_server.port) as proxy:
        clients = [threading.Thread(target=connect, args=(proxy.address,)) for _ in range(4)]
        for client in clients:
            client.start()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            proxy.cut()
            proxy.restore()
            time.sleep(0.003)
        over.set()
        for client in clients:
            client.join()
    assert set(ends) == {"answered", "refused"}
