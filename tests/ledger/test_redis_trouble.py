"""The ledger on Redis when Redis, its network or its settings are in the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidegate.core.journal import Kind
from tidegate.core.records import FailedRecord, Record, StoredLetter, TopicPartition
from tidegate.errors import (
    ConfigurationError,
    Fenced,
    LedgerBusy,
    LedgerDenied,
    LedgerUnavailable,
    NotCommitted,
    WritesRefused,
)
from tidegate.ledger.redis import RedisLedger, RedisTransaction
from tidegate.ledger.redis.transaction import RedisCommands
from tidegate.ledger.transaction import Limits, Outcome, Result
from tidegate.sandbox import Proxy, Redis
from tidegate.sandbox.ports import free_port

from .samples import FIRST, GROUP, PARTITIONS, SECOND, offsets, span
from .stores import fresh_name

IMPATIENT = Limits(hold=0.1, lock_wait=0.5)
COMMIT = b"this is the commit"
"""Stands in the data of a transaction, and so in the one message that commits it."""


@pytest.fixture
def tag() -> str:
    return "{" + fresh_name() + "}"


@pytest.fixture
def server() -> Iterator[Redis]:
    """A Redis for one test, which answers only when its disk has everything."""
    with Redis(settings={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def proxy(redis_server: Redis) -> Iterator[Proxy]:
    with Proxy(redis_server.host, redis_server.port) as proxy:
        yield proxy


def write(tx: RedisTransaction) -> None:
    tx.redis.rpush("{tidegate}data", COMMIT)
    tx.execute("NONSENSE")


# Replies that are lost


def client_through(proxy: Proxy, server: Redis, retries: int) -> Any:
    url = server.url_for(port=proxy.port)
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), retries))


@pytest.fixture(params=[0, 3], ids=["a client that never retries", "a client that retries by itself"])
def unreliable(request: pytest.FixtureRequest, proxy: Proxy, redis_server: Redis, tag: str) -> Iterator[RedisLedger]:
    """A ledger whose connection can be made to lose something, before it has lost anything."""
    with client_through(proxy, redis_server, request.param) as client:
        client.delete("{tidegate}data")
        yield RedisLedger(client, prefix=f"{tag}:")


def test_a_ledger_that_was_met_waits_for_a_server_that_is_away_when_it_is_created_again(
    unreliable: RedisLedger, proxy: Proxy
) -> None:
    unreliable.create()
    proxy.cut()
    back = threading.Timer(0.3, proxy.restore)
    back.start()
    unreliable.create()
    back.join()


def committed_data(ledger: RedisLedger) -> list[bytes]:
    data: list[bytes] = ledger._client.lrange("{tidegate}data", 0, -1)
    return data


def test_a_transaction_whose_reply_is_lost_is_committed_once(unreliable: RedisLedger, proxy: Proxy) -> None:
    claims = unreliable.claim(GROUP, [FIRST])
    trap = proxy.swallow_one_reply(COMMIT)
    result = unreliable.transact(claims, [span(0, 3)], write)
    assert trap.fired
    retried_by_client = unreliable._client.get_retry().get_retries() > 0
    tries = (1, 0) if retried_by_client else (2, 1)
    assert result == Result(Outcome.COMMITTED, *tries, (span(0, 3),))
    assert committed_data(unreliable) == [COMMIT]
    assert len(unreliable.dead_letters(GROUP)) == 1
    assert unreliable.verify(GROUP) == (1, 3, ())


def test_a_transaction_that_never_arrived_is_sent_again(unreliable: RedisLedger, proxy: Proxy) -> None:
    claims = unreliable.claim(GROUP, [FIRST])
    trap = proxy.swallow_one_request(COMMIT)
    assert unreliable.transact(claims, [span(0, 3)], write).outcome is Outcome.COMMITTED
    assert trap.fired
    assert committed_data(unreliable) == [COMMIT]
    assert unreliable.verify(GROUP) == (1, 3, ())


def test_a_block_whose_reply_is_lost_is_committed(unreliable: RedisLedger, proxy: Proxy) -> None:
    claims = unreliable.claim(GROUP, [FIRST])
    trap = proxy.swallow_one_reply(COMMIT)
    with unreliable.transaction(claims, [span(0, 3)]) as tx:
        write(tx)
    assert trap.fired
    assert committed_data(unreliable) == [COMMIT]


def test_a_block_that_never_arrived_can_be_run_again(proxy: Proxy, redis_server: Redis, tag: str) -> None:
    with client_through(proxy, redis_server, retries=0) as client:
        client.delete("{tidegate}data")
        ledger = RedisLedger(client, prefix=f"{tag}:")
        claims = ledger.claim(GROUP, [FIRST])
        proxy.swallow_one_request(COMMIT)
        with pytest.raises(NotCommitted), ledger.transaction(claims, [span(0, 3)]) as tx:
            write(tx)
        with ledger.transaction(claims, [span(0, 3)]) as tx:
            write(tx)
        assert committed_data(ledger) == [COMMIT]


@pytest.mark.parametrize(
    ("change", "epoch", "owned"),
    [
        (lambda ledger, _: ledger.claim(GROUP, [FIRST]), 2, True),
        (lambda ledger, _: ledger.edit(GROUP, {FIRST: 9}, note="marked"), 2, False),
        (lambda ledger, claims: ledger.release(claims), 1, False),
    ],
    ids=["claim", "edit", "release"],
)
def test_a_change_that_the_client_sends_again_is_made_once(
    proxy: Proxy, redis_server: Redis, tag: str, change: Any, epoch: int, owned: bool
) -> None:
    with client_through(proxy, redis_server, retries=3) as client:
        ledger = RedisLedger(client, prefix=f"{tag}:")
        claims = ledger.claim(GROUP, [FIRST])
        sha = ledger._commit.sha.encode()
        trap = proxy.swallow_one_reply(sha)
        made = change(ledger, claims)
        assert trap.fired
        assert set(made) == {FIRST}
        row = ledger.read(GROUP).positions[FIRST]
        assert (row.epoch, row.owner is not None, row.seq) == (epoch, owned, 3)
        assert ledger.verify(GROUP).ok


def test_a_detached_transaction_that_the_client_sends_again_writes_once(
    proxy: Proxy, redis_server: Redis, tag: str
) -> None:
    with client_through(proxy, redis_server, retries=3) as client:
        client.delete("{tidegate}data")
        ledger = RedisLedger(client, prefix=f"{tag}:")
        claims = ledger.claim(GROUP, [FIRST])
        trap = proxy.swallow_one_reply(COMMIT)
        with ledger.detached(claims, [span(0, 3)]) as tx:
            write(tx)
        assert trap.fired
        assert tx.failed == 1
        assert committed_data(ledger) == [COMMIT]
        assert len(ledger.dead_letters(GROUP)) == 1


def test_a_replay_whose_reply_is_lost_happens_once_and_is_told_as_such(unreliable: RedisLedger, proxy: Proxy) -> None:
    claims = unreliable.claim(GROUP, [FIRST])
    unreliable.transact(claims, [span(0, 3)], lambda tx: tx.park(FailedRecord(Record(*FIRST, 1), "no")))
    (parked,) = unreliable.dead_letters(GROUP)
    trap = proxy.swallow_one_reply(COMMIT)
    result = unreliable.replay(parked, lambda tx: tx.redis.rpush("{tidegate}data", COMMIT))
    assert trap.fired
    assert result.outcome is Outcome.COMMITTED
    assert committed_data(unreliable) == [COMMIT]
    assert unreliable.dead_letters(GROUP) == []


def parked_letters(ledger: RedisLedger) -> list[StoredLetter]:
    claims = ledger.claim(GROUP, [FIRST])

    def park(tx: RedisTransaction) -> None:
        for offset in range(2):
            tx.park(FailedRecord(Record(*FIRST, offset), "no"))

    ledger.transact(claims, [span(0, 3)], park)
    return ledger.dead_letters(GROUP)


def test_letters_that_are_dropped_are_counted_though_the_reply_is_lost(unreliable: RedisLedger, proxy: Proxy) -> None:
    letters = parked_letters(unreliable)
    assert unreliable.drop_letters(GROUP, [99]) == 0  # Redis has the script by now
    trap = proxy.swallow_one_reply(b"letters:")
    assert unreliable.drop_letters(GROUP, [letter.id for letter in letters]) == 2
    assert trap.fired
    assert unreliable.drop_letters(GROUP, [letter.id for letter in letters]) == 0


def test_a_failed_replay_is_counted_once_though_the_reply_is_lost(unreliable: RedisLedger, proxy: Proxy) -> None:
    letter, other = parked_letters(unreliable)
    unreliable.failed_again(other, "failed")  # Redis has the script by now
    trap = proxy.swallow_one_reply(b"failed once more")
    assert unreliable.failed_again(letter, "failed once more")
    assert trap.fired
    (again,) = (each for each in unreliable.dead_letters(GROUP) if each.id == letter.id)
    assert again.letter.attempts == letter.letter.attempts + 1


def test_entries_that_are_pruned_are_counted_though_the_reply_is_lost(unreliable: RedisLedger, proxy: Proxy) -> None:
    claims = unreliable.claim(GROUP, [FIRST])
    for start in range(5):
        unreliable.transact(claims, [span(start, start + 1)])
    before = len(list(unreliable.journal(GROUP)))
    assert unreliable.prune(timedelta(days=1)) == 0  # Redis has the script by now
    trap = proxy.swallow_one_reply(unreliable._prune.sha.encode())
    pruned = unreliable.prune(timedelta(0))
    assert trap.fired
    assert pruned == before - len(list(unreliable.journal(GROUP))) > 0


def test_a_turn_that_the_client_asks_for_again_is_taken(proxy: Proxy, redis_server: Redis, tag: str) -> None:
    """Or nobody could change the group before it expires."""
    with client_through(proxy, redis_server, retries=3) as client:
        ledger = RedisLedger(client, prefix=f"{tag}:")
        ledger.claim(GROUP, [FIRST])
        really, tries = ledger._changed_at_once, []

        def changed_at_once(*args: Any) -> bool:
            tries.append(args)
            return len(tries) > 1 and really(*args)

        ledger._changed_at_once = changed_at_once  # type: ignore[method-assign, assignment]
        trap = proxy.swallow_one_reply(b"SET\r\n")
        ledger.claim(GROUP, [FIRST])
        assert trap.fired
        assert len(tries) == 2


def test_a_pause_that_the_client_sends_again_is_made_once(proxy: Proxy, redis_server: Redis, tag: str) -> None:
    with client_through(proxy, redis_server, retries=3) as client:
        ledger = RedisLedger(client, prefix=f"{tag}:")
        ledger.claim(GROUP, [FIRST])
        trap = proxy.swallow_one_reply(ledger._commit.sha.encode())
        assert ledger.pause(GROUP)
        assert trap.fired
        assert [entry.kind for entry in ledger.journal(GROUP)].count(Kind.PAUSE) == 1


def test_whoever_was_fenced_after_a_lost_reply_is_told_so(proxy: Proxy, redis_server: Redis, tag: str) -> None:
    other = RedisLedger.from_url(redis_server.url, prefix=f"{tag}:")
    with other, client_through(proxy, redis_server, retries=0) as client:
        client.delete("{tidegate}data")
        ledger = RedisLedger(client, prefix=f"{tag}:")
        claims = ledger.claim(GROUP, [FIRST])
        proxy.swallow_one_reply(COMMIT)
        attempts: list[RedisTransaction] = []

        def handler(tx: RedisTransaction) -> None:
            attempts.append(tx)
            write(tx)

        texts = ledger._texts

        def texts_after_a_claim(*args: Any) -> Any:
            if attempts:
                other.claim(GROUP, [FIRST])
            return texts(*args)

        ledger._texts = texts_after_a_claim  # type: ignore[method-assign, assignment]
        with pytest.raises(Fenced):
            ledger.transact(claims, [span(0, 3)], handler)
        assert committed_data(ledger) == [COMMIT]
        assert offsets(other) == {FIRST: 3}


# Servers that die, freeze or are not there


def test_what_was_acknowledged_survives_a_kill(server: Redis) -> None:
    with RedisLedger.from_url(server.url) as ledger:
        claims = ledger.claim(GROUP, [FIRST])
        for start in range(50):
            ledger.transact(claims, [span(start, start + 1)], lambda tx: tx.redis.incr("{tidegate}total"))
        server.kill()
        server.start()
        assert offsets(ledger) == {FIRST: 50}
        assert ledger._client.get("{tidegate}total") == b"50"
        ledger.transact(claims, [span(50, 51)], lambda tx: tx.redis.incr("{tidegate}total"))
        assert ledger.verify(GROUP) == (1, 3, ())


def test_data_and_position_agree_after_a_kill_in_the_middle(server: Redis) -> None:
    acknowledged = 0
    with RedisLedger.from_url(server.url) as ledger:
        claims = ledger.claim(GROUP, [FIRST, SECOND])

        def work() -> None:
            nonlocal acknowledged
            for start in range(100_000):
                spans = [span(start, start + 1), span(start, start + 1, SECOND)]
                with ledger.transaction(claims, spans) as tx:
                    tx.redis.incr("{tidegate}total")
                    tx.redis.rpush("{tidegate}list", start)
                acknowledged = start + 1

        ledger.limits = IMPATIENT
        with ThreadPoolExecutor(1) as executor:
            working = executor.submit(work)
            while acknowledged < 200:
                time.sleep(0.001)
            server.kill()
            with pytest.raises((LedgerUnavailable, NotCommitted)):
                working.result()
        server.start()
        reached = offsets(ledger)[FIRST]
        assert reached in {acknowledged, acknowledged + 1}
        assert offsets(ledger) == {FIRST: reached, SECOND: reached}
        assert int(ledger._client.get("{tidegate}total")) == ledger._client.llen("{tidegate}list") == reached
        assert ledger.verify(GROUP).ok


def test_a_restart_goes_unnoticed(server: Redis) -> None:
    with RedisLedger.from_url(server.url) as ledger:
        claims = ledger.claim(GROUP, [FIRST])
        server.kill()
        restarting = threading.Thread(target=server.start)
        restarting.start()
        result = ledger.transact(claims, [span(0, 3)], lambda tx: tx.redis.incr("{tidegate}total"))
        restarting.join()
        assert result.outcome is Outcome.COMMITTED
        assert ledger._client.get("{tidegate}total") == b"1"


def test_a_server_that_stays_away_is_an_error_within_the_bound(server: Redis) -> None:
    with RedisLedger.from_url(server.url, limits=IMPATIENT) as ledger:
        claims = ledger.claim(GROUP, [FIRST])
        server.pause()
        for attempt in (
            lambda: ledger.transact(claims, [span(0, 3)]),
            lambda: ledger.claim(GROUP, [FIRST]),
            ledger.read_all,
            lambda: ledger.pause(GROUP),
        ):
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable):
                attempt()
            assert time.monotonic() - began < 10
        server.resume()


def test_a_server_that_was_never_there_is_an_error_at_once(server: Redis) -> None:
    server.kill()
    with RedisLedger.from_url(server.url) as ledger:
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=str(server.port)) as error:
            ledger.claim(GROUP, [FIRST])
        assert time.monotonic() - began < 10
        assert server.password not in str(error.value)


def test_a_wrong_password_is_an_error_at_once_that_does_not_print_it(redis_server: Redis) -> None:
    with RedisLedger.from_url(redis_server.url_for(password="open-sesame")) as ledger:
        with pytest.raises(LedgerUnavailable, match="refused the login") as error:
            ledger.read(GROUP)
        assert "open-sesame" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://:open-sesame/x@host:1", "redis://:open-sesame@host:port", "http://open-sesame"),
        *("redis://:open-sesame@host/shop", "redis://:open-sesame@host/0?bogus=1"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_printing_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not the URL of a Redis") as error:
        RedisLedger.from_url(url)
    assert "sesame" not in str(error.value)
    assert error.value.__suppress_context__


# Servers that refuse


def test_a_replica_is_refused_and_nothing_is_written(server: Redis) -> None:
    with RedisLedger.from_url(server.url) as ledger:
        ledger._client.config_set("repl-diskless-sync-delay", 0)
        claims = ledger.claim(GROUP, [FIRST])
    settings = {"replicaof": f"{server.host} {server.port}", "masterauth": server.password}
    with Redis(settings=settings) as replica:
        with redis.Redis.from_url(replica.url) as client:
            while not client.exists("{tidegate}:schema"):
                time.sleep(0.01)
        with RedisLedger.from_url(replica.url, limits=IMPATIENT) as ledger:
            assert offsets(ledger) == {FIRST: 0}
            with pytest.raises(WritesRefused, match="read-only replica"):
                ledger.transact(claims, [span(0, 3)], write)
            with pytest.raises(WritesRefused, match="read-only replica"):
                ledger.pause(GROUP)
        new = RedisLedger.from_url(replica.url, prefix="new:")
        with new, pytest.raises(WritesRefused, match="read-only replica"):
            new.create()


def test_a_failover_is_survived(server: Redis) -> None:
    settings = {"replicaof": f"{server.host} {server.port}", "masterauth": server.password}
    with Redis(settings=settings) as successor, Proxy(server.host, server.port) as proxy:
        old: Any = redis.Redis.from_url(server.url)
        new: Any = redis.Redis.from_url(successor.url)
        url = server.url_for(port=proxy.port)
        with old, new, RedisLedger.from_url(url) as ledger:
            old.config_set("repl-diskless-sync-delay", 0)
            new.config_set("requirepass", server.password)
            claims = ledger.claim(GROUP, [FIRST])
            ledger.transact(claims, [span(0, 3)], write)
            assert old.execute_command("WAIT", 1, 10_000) == 1
            new.replicaof("NO", "ONE")
            proxy.target_port = successor.port  # for new connections: those of the ledger still lead to the old primary
            old.config_set("masterauth", server.password)
            old.replicaof(successor.host, successor.port)
            ledger.transact(claims, [span(3, 5)], write)
            assert offsets(ledger) == {FIRST: 5}
            assert new.llen("{tidegate}data") == 2
            assert ledger.verify(GROUP).ok


def test_a_full_redis_is_an_error_and_nothing_is_written(server: Redis) -> None:
    with RedisLedger.from_url(server.url, limits=IMPATIENT) as ledger:
        claims = ledger.claim(GROUP, [FIRST])
        before = ledger.read(GROUP)
        ledger._client.config_set("maxmemory", "1mb")
        with pytest.raises(LedgerUnavailable, match="maxmemory"):
            ledger.transact(claims, [span(0, 3)], lambda tx: tx.redis.set("{tidegate}data", 1))
        assert ledger.read(GROUP) == before
        assert ledger._client.get("{tidegate}data") is None
        ledger._client.config_set("maxmemory", "0")
        ledger.transact(claims, [span(0, 3)])


def test_a_redis_that_may_evict_positions_is_refused() -> None:
    with (
        Redis(settings={"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"}) as server,
        RedisLedger.from_url(server.url) as ledger,
        pytest.raises(ConfigurationError, match=r"allkeys-lru.*noeviction"),
    ):
        ledger.claim(GROUP, [FIRST])


def test_the_rights_that_the_documentation_lists_suffice(redis_server: Redis, tag: str) -> None:
    with redis.Redis.from_url(redis_server.url) as admin:
        rights = [f"~{tag}*", "+@read", "+@write", "+evalsha", "+script|load", "+time", "+info"]
        admin.execute_command("ACL", "SETUSER", "clerk", "on", ">secret", *rights)
        with RedisLedger.from_url(redis_server.url_for("clerk", "secret"), prefix=f"{tag}:") as ledger:
            claims = ledger.claim(GROUP, [FIRST])
            ledger.transact(claims, [span(0, 3)], lambda tx: tx.redis.set(f"{tag}data", 1))
            ledger.pause(GROUP)
            assert ledger.verify(GROUP).ok
            assert ledger.dead_letters(GROUP) == []
        with (
            RedisLedger.from_url(redis_server.url_for("clerk", "secret"), prefix="elsewhere:") as ledger,
            pytest.raises(LedgerDenied, match="lacks a right"),
        ):
            ledger.claim(GROUP, [FIRST])
        admin.execute_command("ACL", "DELUSER", "clerk")


def test_a_script_that_keeps_redis_busy_is_waited_for(server: Redis) -> None:
    ledger = RedisLedger.from_url(server.url)
    impatient = RedisLedger.from_url(server.url, limits=IMPATIENT)
    with ledger, impatient, redis.Redis.from_url(server.url) as other, ThreadPoolExecutor(1) as executor:
        other.config_set("busy-reply-threshold", 10)
        claims = ledger.claim(GROUP, [FIRST])
        impatient.create()
        endless = executor.submit(other.eval, "while true do end", 0)
        try:
            with pytest.raises(redis.ResponseError, match="busy"):
                while not endless.done():
                    impatient._client.ping()
            with pytest.raises(LedgerBusy, match="SCRIPT KILL"):
                impatient.transact(claims, [span(0, 3)])
        finally:
            threading.Timer(0.2, impatient._client.script_kill).start()
        ledger.transact(claims, [span(0, 3)])
        assert endless.exception() is not None
        assert offsets(ledger) == {FIRST: 3}


# Many at once


def test_a_claim_gets_through_though_others_never_pause(redis_server: Redis, tag: str) -> None:
    many = [TopicPartition("orders", number) for number in range(400)]
    contenders = 3
    started = threading.Barrier(contenders + 1)
    stop = threading.Event()

    def advance(mine: list[TopicPartition]) -> int:
        """Advance one partition after the other until someone else has them; how often."""
        with RedisLedger.from_url(redis_server.url, prefix=f"{tag}:") as ledger:
            claims = ledger.claim(GROUP, mine)
            started.wait(30)
            advanced = 0
            while not stop.is_set():
                turn, number = divmod(advanced, len(mine))
                try:
                    ledger.transact(claims, [span(turn, turn + 1, mine[number])])
                except Fenced:
                    return advanced
                advanced += 1
            return 0

    with (
        ThreadPoolExecutor(contenders) as executor,
        RedisLedger.from_url(redis_server.url, prefix=f"{tag}:", limits=Limits(hold=1, lock_wait=4)) as ledger,
    ):
        working = [executor.submit(advance, many[number::contenders]) for number in range(contenders)]
        started.wait(30)
        try:
            time.sleep(0.1)
            claims = ledger.claim(GROUP, many)
            assert min(future.result(10) for future in working) > 0
        finally:
            stop.set()
    assert len(claims) == 400


# Clusters


@pytest.fixture
def cluster() -> Iterator[Any]:
    with Redis(settings={"cluster-enabled": True, "cluster-port": free_port()}) as server:
        with redis.Redis.from_url(server.url) as node:
            node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            while node.cluster("INFO")["cluster_state"] != "ok":
                time.sleep(0.01)
        with redis.RedisCluster(host=server.host, port=server.port, password=server.password) as client:
            yield client


def test_a_cluster_keeps_ledger_and_data_together(cluster: Any) -> None:
    ledger = RedisLedger(cluster)
    claims = ledger.claim(GROUP, PARTITIONS)
    ledger.transact(claims, [span(0, 3, tp) for tp in PARTITIONS], lambda tx: tx.redis.incr("{tidegate}total"))
    ledger.pause(GROUP)
    assert ledger.read_all()[GROUP].paused
    assert ledger.verify(GROUP) == (3, 9, ())
    assert ledger.dead_letters(GROUP) == []
    assert cluster.get("{tidegate}total") == b"1"


def test_a_prefix_without_a_hash_tag_is_refused_for_a_cluster(cluster: Any) -> None:
    with pytest.raises(ConfigurationError, match="hash tag"):
        RedisLedger(cluster, prefix="tidegate:")
    RedisLedger(cluster, prefix="shop:{tidegate}:").claim(GROUP, [FIRST])


def test_the_commands_of_a_transaction_do_not_need_its_connection() -> None:
    assert RedisCommands(str.encode).connection is None
