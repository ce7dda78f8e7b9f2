"""A server that is there, acknowledges every packet, and answers nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeAlias

import pytest
from sqlalchemy import create_engine, text
from tests.crash.place import GROUP, ORDERS, Place, span_at

from tidegate import Ledger, Limits, Span, TidegateError, TopicPartition, open_ledger
from tidegate.errors import LedgerBusy, LedgerUnavailable, StatementTooLong
from tidegate.ledger.sql.ledger import SqlLedger
from tidegate.sandbox import Postgres, Proxy
from tidegate.sandbox.database import Database

LIMITS = Limits(hold=0.5, lock_wait=1.0, answer=2.0)
BOUND = 20.0
"""Seconds for a wait of 2, what is tried again after it, and a machine that has other things to do."""

Fall: TypeAlias = Callable[[], None]
Question: TypeAlias = Callable[[Ledger[Any], Fall], object]


class Silence:
    """What is asked of a server, by ledgers of their own, while it falls silent."""

    def __init__(self, place: Place, proxy: Proxy, url: str) -> None:
        self._place, self._proxy, self._url = place, proxy, url
        self._fallen = threading.Event()
        self._pool = ThreadPoolExecutor(16)
        self._ready: list[threading.Event] = []
        self._asked: dict[str, Future[float]] = {}

    def ask(self, name: str, question: Question) -> None:
        """``question`` calls what it is given when nothing is to be answered any more: the first time, that waits."""
        self._ready.append(threading.Event())
        self._asked[name] = self._pool.submit(self._ask, question, self._ready[-1])

    def _ask(self, question: Question, ready: threading.Event) -> float:
        """How long it took to fail."""
        began: list[float] = []

        def fall() -> None:
            ready.set()
            assert self._fallen.wait(BOUND)
            began.append(time.monotonic())

        deadline = time.monotonic() + BOUND
        try:
            with pytest.raises(LedgerUnavailable):
                self._until_it_falls(lambda: question(self._place.ledger(LIMITS, url=self._url), fall), began, deadline)
        finally:
            ready.set()
        return time.monotonic() - began[0]

    @staticmethod
    def _until_it_falls(ask: Callable[[], object], began: list[float], deadline: float) -> None:
        """Ask; and again if it failed while the server still spoke: a busy machine may exceed such short limits."""
        while True:
            try:
                ask()
                return
            except LedgerUnavailable:
                if began or time.monotonic() > deadline:
                    raise

    def fall(self) -> dict[str, float]:
        """Let the server fall silent; how long each question took to fail."""
        for ready in self._ready:
            assert ready.wait(BOUND)
        self._proxy.black_hole()
        self._fallen.set()
        took = {name: asked.result(2 * BOUND) for name, asked in self._asked.items()}
        self._pool.shutdown()
        return took


def orders(number: int) -> TopicPartition:
    return TopicPartition("orders", number)


@pytest.fixture
def proxy(server: Database) -> Iterator[Proxy]:
    with Proxy(server.host, server.port) as proxy:
        yield proxy


def test_whatever_is_asked_of_a_silent_server_fails_within_the_bound_and_is_done_once_when_it_speaks_again(
    server: Database, proxy: Proxy, fresh: Callable[[str], Place]
) -> None:
    place = fresh(server.url)
    silence = Silence(place, proxy, server.url_for(port=proxy.port))

    def plain(ask: Callable[[Ledger[Any]], object]) -> Question:
        def question(ledger: Ledger[Any], fall: Fall) -> object:
            ledger.read(GROUP)
            fall()
            return ask(ledger)

        return question

    def working(number: int, before: Callable[[Any], object], after: Callable[[Any], object]) -> Question:
        def question(ledger: Ledger[Any], fall: Fall) -> object:
            def handler(tx: Any) -> None:
                before(tx)
                fall()
                after(tx)

            return ledger.transact(ledger.claim(GROUP, [orders(number)]), [Span(orders(number), 0, 10, 10)], handler)

        return question

    def write(tx: Any) -> None:
        place.write(tx, span_at(0))

    silence.ask("claim", plain(lambda ledger: ledger.claim(GROUP, [orders(9)])))
    silence.ask("read", plain(lambda ledger: ledger.read(GROUP)))
    silence.ask("journal", plain(lambda ledger: list(ledger.journal(GROUP))))
    silence.ask("pause", plain(lambda ledger: ledger.pause("another")))
    silence.ask("commit", working(0, write, lambda tx: None))
    if not place.is_redis:
        silence.ask("handler", working(1, write, write))
        silence.ask("bulk", working(2, write, bulk(place)))
        silence.ask("fetch", working(3, write, lambda tx: tx.connection.exec_driver_sql("SELECT 1").all()))
    took = silence.fall()
    assert max(took.values()) < BOUND, took
    assert place.offsets() == []

    proxy.restore()
    ledger = place.ledger(url=server.url_for(port=proxy.port))
    claims = ledger.claim(GROUP, [ORDERS])
    assert claims[ORDERS].position == 0
    ledger.transact(claims, [span_at(0)], write)
    assert place.check(ledger) == 10


def bulk(place: Place) -> Callable[[Any], object]:
    def load(tx: Any) -> None:
        driver = tx.connection.connection.dbapi_connection
        if "psycopg" in type(driver).__module__:
            with driver.cursor() as cursor, cursor.copy(f"COPY {place.data} FROM STDIN") as copy:
                for _ in range(64):
                    copy.write(b"7\n" * 100_000)  # more than fits into the buffers on the way
        else:
            tx.connection.exec_driver_sql(f"INSERT INTO {place.data} VALUES (7){',(7)' * 2_000_000}")

    return load


@pytest.fixture(params=["mariadb", "mysql", "postgres"])
def sql_server(request: pytest.FixtureRequest) -> Database:
    server: Database = request.getfixturevalue(request.param)
    return server


def sleeping(server: Database, seconds: float) -> Any:
    return text(f"SELECT {'pg_sleep' if isinstance(server, Postgres) else 'SLEEP'}({seconds:g})")


@pytest.mark.parametrize("owned", [True, False])
def test_a_statement_of_a_handler_that_takes_longer_than_the_bound_ends_in_an_error_that_names_it(
    sql_server: Database, fresh: Callable[[str], Place], owned: bool
) -> None:
    place = fresh(sql_server.url)
    engine = create_engine(sql_server.url)
    slow = sleeping(sql_server, LIMITS.answer + 1)
    with open_ledger(sql_server.url if owned else engine, prefix=place.prefix, limits=LIMITS) as ledger:
        claims = ledger.claim(GROUP, [ORDERS])
        refused: list[TidegateError] = []  # the first time it may be the connection's fault
        while not refused or isinstance(refused[-1], LedgerUnavailable | LedgerBusy):
            assert len(refused) < 5, refused
            with pytest.raises(TidegateError) as raised:
                ledger.transact(claims, [span_at(0)], lambda tx: tx.execute(slow))
            refused.append(raised.value)
        assert isinstance(refused[-1], StatementTooLong)
        assert "'answer'" in str(refused[-1])
        wait_until_free(ledger, claims)
        ledger.transact(claims, [span_at(0)], lambda tx: place.write(tx, span_at(0)))
        assert place.check(ledger) == 10
    engine.dispose()


def wait_until_free(ledger: Ledger[Any], claims: Any) -> None:
    """Until the server has noticed that the client of the slow statement is gone."""
    deadline = time.monotonic() + BOUND
    while True:
        try:
            ledger.reclaim(claims)
        except LedgerBusy:
            assert time.monotonic() < deadline
        else:
            return


def test_a_connection_of_the_users_engine_is_watched_only_while_the_ledger_has_it(
    sql_server: Database, fresh: Callable[[str], Place]
) -> None:
    place = fresh(sql_server.url)
    engine = create_engine(sql_server.url, pool_size=1, max_overflow=0)
    with open_ledger(engine, prefix=place.prefix, limits=LIMITS) as ledger:
        ledger.transact(ledger.claim(GROUP, [ORDERS]), [span_at(0)])
        with engine.connect() as conn:  # the one that the ledger has used
            conn.execute(sleeping(sql_server, LIMITS.answer + 1))
        assert ledger.silence == 0
    engine.dispose()


def test_a_statement_that_waits_for_a_lock_is_not_taken_for_one_that_is_never_answered(
    sql_server: Database, fresh: Callable[[str], Place]
) -> None:
    place = fresh(sql_server.url)
    # InnoDB looks for waits that are over once a second, and the answer has to find a busy machine's attention.
    waiting = Limits(hold=0.5, lock_wait=1.0, answer=10.0)
    holder, waiter = place.ledger(Limits(hold=20, lock_wait=30)), place.ledger(waiting)
    claims = holder.claim(GROUP, [ORDERS])
    with holder.transaction(claims, [span_at(0)]), pytest.raises(LedgerBusy, match="not free within"):
        waiter.transact(claims, [span_at(0)])


def test_a_process_that_is_to_end_waits_no_longer_for_a_silent_server_and_asks_it_nothing_more(
    server: Database, proxy: Proxy, fresh: Callable[[str], Place]
) -> None:
    place = fresh(server.url)
    patient = Limits(hold=5, lock_wait=30, answer=60)
    ledger = place.ledger(patient, url=server.url_for(port=proxy.port))
    claims = ledger.claim(GROUP, [ORDERS])
    began: list[float] = []

    def handler(tx: Any) -> None:
        place.write(tx, span_at(0))
        proxy.black_hole()
        ledger.hurry(1.0)
        began.append(time.monotonic())

    with pytest.raises(LedgerUnavailable):
        ledger.transact(claims, [span_at(0)], handler)
    with pytest.raises(LedgerUnavailable, match="this process is shutting down"):
        ledger.release(claims)
    assert time.monotonic() - began[0] < BOUND
    proxy.restore()
    ledger.hurry(None)
    assert ledger.claim(GROUP, [ORDERS])[ORDERS].position == place.check(ledger)


def test_a_server_that_lets_nobody_in_is_given_up_within_the_bound(server: Database, proxy: Proxy) -> None:
    proxy.black_hole()
    began = time.monotonic()
    with open_ledger(server.url_for(port=proxy.port), limits=LIMITS) as ledger, pytest.raises(LedgerUnavailable):
        ledger.create()
    assert time.monotonic() - began < BOUND


def test_engines_of_the_ledgers_have_time_outs_and_keepalives_that_the_url_overrides(
    sql_server: Database, fresh: Callable[[str], Place]
) -> None:
    place = fresh(sql_server.url)
    limits = Limits(answer=90)
    ledger = place.ledger(limits)
    assert isinstance(ledger, SqlLedger)
    with ledger.engine.connect() as conn:
        driver: Any = conn.connection.dbapi_connection
        if isinstance(sql_server, Postgres):
            found = driver.info.get_parameters()
            wanted = {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "90000"}
            assert {name: found[name] for name in wanted} == wanted
        else:
            kept = driver._sock
            assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 90000
            assert (driver.connect_timeout, driver._read_timeout) == (10, None)  # the watch bounds what comes after
    separator = "&" if "?" in place.url else "?"
    name = "keepalives_idle" if isinstance(sql_server, Postgres) else "read_timeout"
    other = place.ledger(limits, url=f"{place.url}{separator}{name}=77")
    assert isinstance(other, SqlLedger)
    with other.engine.connect() as conn:
        driver = conn.connection.dbapi_connection
        if isinstance(sql_server, Postgres):
            assert driver.info.get_parameters()[name] == "77"
        else:
            assert driver._read_timeout == 77


def test_a_pool_that_others_have_emptied_is_waited_for_within_the_bound(
    sql_server: Database, fresh: Callable[[str], Place]
) -> None:
    ledger = fresh(sql_server.url).ledger(LIMITS)
    assert isinstance(ledger, SqlLedger)
    ledger.read(GROUP)
    with ExitStack() as taken:
        for _ in range(15):
            taken.enter_context(ledger.engine.connect())
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="QueuePool"):
            ledger.read(GROUP)
        assert time.monotonic() - began < BOUND
        assert ledger.silence == 0, "the server has nothing to do with it"
