"""What holds for the ledger on Redis beyond the contract."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.exceptions import DataError

from tidegate.core.positions import Identity, Position
from tidegate.core.records import FailedRecord, Record, TopicPartition
from tidegate.core.work import Span
from tidegate.errors import ConfigurationError, Fenced, LedgerError, SchemaError
from tidegate.ledger.redis import RedisCommands, RedisLedger, RedisTransaction, codec
from tidegate.ledger.transaction import Outcome
from tidegate.sandbox import Redis

from .samples import FIRST, GROUP, PARTITIONS, SECOND, kinds, offsets, span
from .stores import fresh_name


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def tag() -> str:
    return "{" + fresh_name() + "}"


@pytest.fixture
def ledger(client: Any, tag: str) -> RedisLedger:
    return RedisLedger(client, prefix=f"{tag}:")


# Commands


def test_commands_run_in_the_order_in_which_they_were_called(ledger: RedisLedger, client: Any, tag: str) -> None:
    def handler(tx: RedisTransaction) -> None:
        tx.redis.set(f"{tag}total", 5)
        tx.redis.incrby(f"{tag}total", 7)
        tx.execute("APPEND", f"{tag}total", "0")
        tx.redis.hset(f"{tag}hash", mapping={"a": 1, "b": 2})
        tx.redis.xgroup_create(f"{tag}stream", "group", mkstream=True)
        with tx.redis as pipeline:
            pipeline.rpush(f"{tag}list", *range(6_000))

    ledger.transact(ledger.claim(GROUP, [FIRST]), [span(0, 3)], handler)
    assert client.get(f"{tag}total") == b"120"
    assert client.hgetall(f"{tag}hash") == {b"a": b"1", b"b": b"2"}
    assert client.xinfo_groups(f"{tag}stream")[0]["name"] == b"group"
    assert client.llen(f"{tag}list") == 6_000
    assert ledger.dead_letters(GROUP) == []


def test_arguments_may_be_any_bytes(ledger: RedisLedger, client: Any, tag: str) -> None:
    every = bytes(range(256))

    def handler(tx: RedisTransaction) -> None:
        tx.redis.set(tag.encode() + every, every * 1000)
        tx.execute(b"set", f"{tag}ünï", "🌊")
        tx.execute("SET", f"{tag}float", 0.1)
        tx.execute("SET", f"{tag}empty", "")
        tx.execute("SET", f"{tag}large", 2**63 - 1)

    ledger.transact(ledger.claim(GROUP, [FIRST]), [span(0, 3)], handler)
    assert client.get(tag.encode() + every) == every * 1000
    keys = [f"{tag}{name}" for name in ("ünï", "float", "empty", "large")]
    assert client.mget(keys) == ["🌊".encode(), b"0.1", b"", b"9223372036854775807"]


def test_many_commands_are_one_transaction(ledger: RedisLedger, client: Any, tag: str) -> None:
    def handler(tx: RedisTransaction) -> None:
        for number in range(20_000):
            tx.redis.rpush(f"{tag}list", number)

    ledger.transact(ledger.claim(GROUP, [FIRST]), [span(0, 20_000)], handler)
    assert client.llen(f"{tag}list") == 20_000


@pytest.mark.parametrize(
    "misuse",
    [
        lambda tx: tx.redis.execute(),
        lambda tx: tx.redis.multi(),
        lambda tx: tx.redis.watch("key"),
        lambda tx: tx.redis.pipeline().set("key", 1).execute(),
        lambda tx: tx.redis.transaction(lambda _: None),
        lambda tx: tx.redis.pubsub().subscribe("channel"),
        lambda tx: tx.redis.lock("name").acquire(),
        lambda tx: tx.redis.eval("return 1", 0),
        lambda tx: tx.redis.flushdb(),
        lambda tx: tx.execute("select", 1),
        lambda tx: tx.execute("script load", "return 1"),
        lambda tx: tx.execute(),
        lambda tx: tx.execute(" "),
        lambda tx: tx.redis.rpush("list", *range(8_000)),
    ],
)
def test_what_would_leave_the_transaction_is_refused_and_nothing_is_written(ledger: RedisLedger, misuse: Any) -> None:
    with pytest.raises(ConfigurationError):
        ledger.transact(ledger.claim(GROUP, [FIRST]), [span(0, 3)], misuse)
    assert offsets(ledger) == {FIRST: 0}


def test_a_value_that_redis_cannot_hold_is_refused_where_it_is_given(ledger: RedisLedger) -> None:
    def handler(tx: RedisTransaction) -> None:
        with pytest.raises(DataError):
            tx.redis.set("key", None)  # type: ignore[arg-type]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.transact(ledger.claim(GROUP, [FIRST]), [span(0, 3)], handler)


def test_more_words_than_a_script_can_take_are_refused(ledger: RedisLedger) -> None:
    def handler(tx: RedisTransaction) -> None:
        for _ in range(150):
            tx.redis.rpush("list", *range(6_990))

    with pytest.raises(ConfigurationError, match="smaller batches"):
        ledger.transact(ledger.claim(GROUP, [FIRST]), [span(0, 3)], handler)
    assert offsets(ledger) == {FIRST: 0}


def test_the_collected_commands_know_nothing_of_a_server() -> None:
    commands = RedisCommands(str.encode)
    assert commands.execute_command("GET", "key") is commands
    assert commands.command_stack == [([b"GET", b"key"], None)]


# Commands that fail


def test_a_command_that_fails_is_parked_with_its_record_and_the_rest_is_done(
    ledger: RedisLedger, client: Any, tag: str
) -> None:
    record = Record("orders", 0, 1, b"k\xff", None, (("h", b"\x00"),), 1_700_000_000_000)
    client.set(f"{tag}text", "not a number")

    with ledger.transaction(ledger.claim(GROUP, [FIRST]), [span(0, 3)]) as tx:
        tx.park(FailedRecord(Record("orders", 0, 0), "by the handler"))
        tx.redis.set(f"{tag}before", 1)
        tx.execute("INCRBY", f"{tag}text", 5, record=record)
        tx.redis.set(f"{tag}after", 1)

    assert offsets(ledger) == {FIRST: 3}
    assert client.mget(f"{tag}before", f"{tag}text", f"{tag}after") == [b"1", b"not a number", b"1"]
    by_handler, failed = (parked.letter for parked in ledger.dead_letters(GROUP))
    assert by_handler.error == "by the handler"
    assert failed.record == record
    assert failed.error.startswith("INCRBY failed, command 2 of 3 of group 'billing': orders[0]@[0, 3): ")
    assert "not an integer" in failed.error
    assert tx.failed == 1
    assert ledger.verify(GROUP).ok


def test_a_command_without_a_record_is_parked_by_name_and_span_without_its_values(
    ledger: RedisLedger, client: Any, tag: str
) -> None:
    client.set(f"{tag}text", "x")
    claims = ledger.claim("Größe", [FIRST, SECOND], 7)
    spans = [span(7, 9), span(7, 8, SECOND)]
    ledger.transact(claims, spans, lambda tx: tx.redis.lpush(f"{tag}text", "secret"))
    (parked,) = ledger.dead_letters("Größe")
    assert parked.letter.record == Record("orders", 0, 7)
    assert "LPUSH failed" in parked.letter.error
    assert "WRONGTYPE" in parked.letter.error
    assert "orders[1]@[7, 8)" in parked.letter.error
    assert "secret" not in parked.letter.error


def test_a_command_that_does_not_exist_is_parked(ledger: RedisLedger) -> None:
    ledger.transact(ledger.claim(GROUP, [FIRST]), [span(0, 3)], lambda tx: tx.execute("NO\xff\nSUCH", "secret"))
    (parked,) = ledger.dead_letters(GROUP)
    assert parked.letter.error.startswith("NO??")
    assert "secret" not in parked.letter.error


# Keys


def test_every_key_begins_with_the_prefix(client: Any) -> None:
    name = fresh_name()
    before = set(client.keys())
    ledger = RedisLedger(client, prefix=f"{name}/")
    ledger.transact(ledger.claim(GROUP, [FIRST]), [span(0, 1)], lambda tx: tx.execute("NONSENSE"))
    ledger.pause(GROUP)
    made = {key.decode() for key in set(client.keys()) - before}
    keys = ["schema", "groups", "positions:billing", "journal:orders:0:billing", "journal:::billing", "letters:billing"]
    passing = {key for key in made if key.startswith(f"{name}/attempt:")}
    assert made - passing == {f"{name}/{key}" for key in keys}
    assert len(passing) == 2, "the claim and the pause"
    assert all(client.ttl(key) > 0 for key in passing)


def test_the_default_prefix_keeps_the_ledger_in_one_slot_of_a_cluster(redis_server: Redis) -> None:
    with redis.Redis.from_url(redis_server.url_for(database="9")) as client:
        RedisLedger(client).claim("{other}", [FIRST])
        keys: Any = client.scan_iter()
        assert {key[: key.index(b"}") + 1] for key in keys} == {b"{tidegate}"}
        client.flushdb()


def test_two_prefixes_are_two_ledgers(client: Any) -> None:
    first, second = (RedisLedger(client, prefix=fresh_name()) for _ in range(2))
    first.claim(GROUP, [FIRST], 3)
    second.claim(GROUP, [FIRST], 5)
    first.pause(GROUP)
    assert (offsets(first), offsets(second)) == ({FIRST: 3}, {FIRST: 5})
    assert not second.read(GROUP).paused


def test_offsets_above_2_to_the_53_keep_every_digit(ledger: RedisLedger, client: Any, tag: str) -> None:
    claims = ledger.claim(GROUP, [FIRST], 2**53 + 1)
    ledger.transact(claims, [Span(FIRST, 2**53 + 1, 2**62 + 1)])
    assert json.loads(client.hget(f"{tag}:positions:{GROUP}", "orders:0"))[2] == 2**62 + 1
    assert json.loads(client.lrange(f"{tag}:journal:orders:0:{GROUP}", -1, -1)[0])[2:4] == [2**53 + 1, 2**62 + 1]


def test_a_key_that_holds_something_else_is_found_before_anything_is_written(
    ledger: RedisLedger, client: Any, tag: str
) -> None:
    claims = ledger.claim(GROUP, PARTITIONS)
    before = ledger.read(GROUP)

    def advance() -> None:
        ledger.transact(claims, [span(0, 1, tp) for tp in PARTITIONS], lambda tx: tx.redis.set(f"{tag}data", 1))

    changes = dict.fromkeys(
        (f"{tag}:journal:orders:2:{GROUP}", f"{tag}:letters:{GROUP}", f"{tag}:turn:{GROUP}"), advance
    )
    changes[f"{tag}:groups"] = lambda: ledger.claim(GROUP, PARTITIONS)  # which stores the group, unlike an advance
    for key, change in changes.items():
        client.copy(key, f"{tag}saved", replace=True)
        client.delete(key)
        client.zadd(key, {"x": 1})
        with pytest.raises(LedgerError, match="prefix of its own"):
            change()
        client.delete(key)
        client.copy(f"{tag}saved", key)
        client.delete(f"{tag}saved")
    assert ledger.read(GROUP) == before
    assert client.get(f"{tag}data") is None


@pytest.mark.parametrize("name", ["plain", "größe", "🌊", "\udc80", 'quo"te\\', "\x00\x7f"])
def test_texts_are_ascii_whatever_they_say(name: str) -> None:
    letter = FailedRecord(Record("orders", 0, 2**62, None, b"\xff", ((name, b"\x00"),)), name)
    text = f"{codec.letter_text(letter)},0]"
    assert text.isascii()
    assert codec.as_letter(1, GROUP, text).letter == letter


# Clients


def test_a_client_that_decodes_its_replies_can_be_used(redis_server: Redis, tag: str) -> None:
    letter = FailedRecord(Record("orders", 0, 0, b"\xff", b"\x00", (("h", b"\xfe"),)), "odd 🌊")

    def handler(tx: RedisTransaction) -> None:
        tx.park(letter)
        tx.execute("SET", f"{tag}bytes", b"\xff\xfe")

    for encoding in ("utf-8", "latin-1"):
        with redis.Redis.from_url(redis_server.url, decode_responses=True, encoding=encoding) as client:
            ledger = RedisLedger(client, prefix=f"{tag}{encoding}:")
            ledger.transact(ledger.claim("注文", [FIRST]), [span(0, 3)], handler)
            ledger.pause("注文")
            assert list(ledger.read_all()) == ["注文"]
            assert [parked.letter for parked in ledger.dead_letters("注文")] == [letter]
            assert kinds(ledger.journal("注文")) == ["pause", "start", "claim", "advance"]
            time.sleep(0.01)  # an entry has to be older than the moment of pruning
            assert ledger.prune(timedelta(0)) == 1
            assert ledger.verify("注文").ok


def test_only_a_client_of_its_own_is_closed(redis_server: Redis, client: Any, tag: str) -> None:
    with RedisLedger(client, prefix=tag) as ledger:
        ledger.claim(GROUP, [FIRST])
    assert client.connection_pool._available_connections
    with RedisLedger.from_url(redis_server.url, prefix=tag) as ledger:
        ledger.claim(GROUP, [FIRST])
    assert not any(connection.is_connected for connection in ledger._client.connection_pool._available_connections)


def test_a_newer_schema_is_refused(redis_server: Redis, ledger: RedisLedger, client: Any, tag: str) -> None:
    ledger.create()
    ledger.create()
    client.set(f"{tag}:schema", 4)
    other = RedisLedger(client, prefix=f"{tag}:")
    for attempt in (other.create, lambda: other.claim(GROUP, [FIRST]), lambda: other.read(GROUP)):
        with pytest.raises(SchemaError, match=r"version 4.*up to 3; upgrade Tidegate") as refused:
            attempt()
        assert redis_server.password not in str(refused.value)


def test_a_missing_package_is_named_with_its_extra() -> None:
    program = "import sys; sys.modules['redis'] = None\nimport tidegate.ledger.redis"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ConfigurationError" in done.stderr
    assert "pip install 'tidegate[redis]'" in done.stderr


# Reading much


def test_a_journal_is_read_on_where_it_was_left_though_it_is_pruned_meanwhile(ledger: RedisLedger) -> None:
    claim_often(ledger, 1_099)
    journal = ledger.journal(GROUP, FIRST)
    seen = [next(journal).seq for _ in range(1_000)]
    ledger._client.ltrim(ledger._journal_key(GROUP, FIRST), 700, -1)
    assert seen + [entry.seq for entry in journal] == list(range(1, 1_101))
    assert ledger.verify(GROUP) == (1, 400, ())


def claim_often(ledger: RedisLedger, times: int) -> None:
    for _ in range(times):
        ledger.claim(GROUP, [FIRST])


def test_a_journal_in_which_an_entry_comes_again_and_again_is_read_to_an_end(ledger: RedisLedger) -> None:
    ledger.claim(GROUP, [FIRST])
    key = ledger._journal_key(GROUP, FIRST)
    ledger._client.rpush(key, *[ledger._client.lindex(key, 1)] * 2_500)
    (found,) = ledger.verify(GROUP).breaks
    assert found.reason == "it comes behind entry 2"
    assert len(list(ledger.journal(GROUP))) >= 1_000
    assert len(list(ledger.newest(GROUP))) >= 2


def test_an_advance_replaces_no_entry_but_the_one_that_it_extends(ledger: RedisLedger, client: Any, tag: str) -> None:
    claims = ledger.claim(GROUP, [FIRST])
    ledger.transact(claims, [span(0, 3)])
    key = f"{tag}:journal:{codec.field(FIRST)}:{GROUP}"
    *before, _ = client.lrange(key, 0, -1)
    assert client.rpop(key) is not None  # the open entry is gone, behind the ledger's back
    ledger.transact({FIRST: claims[FIRST]._replace(position=3)}, [span(3, 6)])
    assert client.lrange(key, 0, len(before) - 1) == before
    assert client.llen(key) == len(before) + 1


def test_more_rows_than_one_command_takes_move_together_or_not_at_all(ledger: RedisLedger) -> None:
    many = [TopicPartition("orders", number) for number in range(4_001)]
    claims = ledger.claim(GROUP, many)
    for start in (0, 10):  # the first advance opens the entries, the second extends them
        ledger.transact(claims, [span(start, start + 10, tp) for tp in many])
        claims = {tp: claim._replace(position=start + 10) for tp, claim in claims.items()}
    assert offsets(ledger) == dict.fromkeys(many, 20)
    assert ledger.verify(GROUP) == (4_001, 3 * 4_001, ())
    ledger.edit(GROUP, {many[-1]: 5})
    with pytest.raises(Fenced):
        ledger.transact(claims, [span(20, 30, tp) for tp in many])
    assert offsets(ledger) == dict.fromkeys(many[:-1], 20) | {many[-1]: 5}


@pytest.mark.parametrize("text", ["", "no JSON", "[1,2]", "7", '[1,"new",0,0,0,0,null,null,null,1]'])
def test_a_text_of_another_form_is_an_error_of_the_ledger_and_is_not_quoted(
    ledger: RedisLedger, client: Any, tag: str, text: str
) -> None:
    claims = ledger.claim(GROUP, [FIRST, SECOND])
    client.rpush(f"{tag}:journal:{codec.field(FIRST)}:{GROUP}", text)
    for read in (ledger.verify, lambda group: list(ledger.newest(group)), lambda group: list(ledger.journal(group))):
        with pytest.raises(
            LedgerError, match=r"an entry of the journal in Redis cannot be read \(\w+\): a newer version"
        ):
            read(GROUP)
    client.hset(f"{tag}:positions:{GROUP}", codec.field(FIRST), text or "null")
    for use in (
        lambda: ledger.read(GROUP),
        lambda: ledger.claim(GROUP, [FIRST]),
        lambda: ledger.transact(claims, [span(0, 3), span(0, 3, SECOND)]),
    ):
        with pytest.raises(LedgerError, match="the row of a position in Redis cannot be read"):
            use()


def test_a_note_of_several_lines_is_one_entry(ledger: RedisLedger) -> None:
    ledger.claim(GROUP, [FIRST])
    ledger.edit(GROUP, {FIRST: 7}, note="first line\nsecond line")
    assert [entry.note for entry in ledger.journal(GROUP, FIRST)][-1] == "first line\nsecond line"
    assert ledger.verify(GROUP).ok


def test_pruning_a_long_journal_keeps_its_last_entry(ledger: RedisLedger) -> None:
    claim_often(ledger, 2_100)
    assert ledger.prune(timedelta(0)) == 2_100
    assert ledger.verify(GROUP) == (1, 1, ())


def test_a_hundred_thousand_positions_are_read_in_one_command(ledger: RedisLedger, client: Any, tag: str) -> None:
    pipeline = client.pipeline(transaction=False)
    end = f"{1_700_000_000_000_000}]"
    for number in range(1_000):
        group = f"group {number}"
        rows = [
            Position(TopicPartition("orders", n), n, 1, "owner", "token", 3, Identity("c", "t")) for n in range(100)
        ]
        texts = {codec.field(row.partition): f"{codec.position_text(row, 'attempt')},{end}" for row in rows}
        pipeline.hset(f"{tag}:groups", group, f"{codec.group_text(codec.GroupRow(group), 'attempt')},{end}")
        pipeline.hset(f"{tag}:positions:{group}", mapping=texts)
    pipeline.execute()
    ledger.create()
    sent = client.info("stats")["total_commands_processed"]
    states = ledger.read_all()
    scripted = 1 + 2 * 1_000  # the commands of the script count too
    assert client.info("stats")["total_commands_processed"] - sent <= scripted + 10
    assert sum(len(state.positions) for state in states.values()) == 100_000
    assert states["group 7"].positions[TopicPartition("orders", 99)].next_offset == 99


# Fenced between beginning and end


def test_a_claim_that_comes_while_the_handler_runs_fences_it(ledger: RedisLedger, client: Any, tag: str) -> None:
    claims = ledger.claim(GROUP, [FIRST])

    def handler(tx: RedisTransaction) -> None:
        ledger.claim(GROUP, [FIRST])
        tx.redis.set(f"{tag}data", 1)

    with pytest.raises(Fenced):
        ledger.transact(claims, [span(0, 3)], handler)
    assert client.get(f"{tag}data") is None


def test_the_same_work_done_while_the_handler_runs_is_done_already(ledger: RedisLedger, client: Any, tag: str) -> None:
    claims = ledger.claim(GROUP, [FIRST])

    def twin(tx: RedisTransaction) -> None:
        tx.redis.incr(f"{tag}data")

    def handler(tx: RedisTransaction) -> None:
        twin(tx)
        ledger.transact(claims, [span(0, 3)], twin)

    assert ledger.transact(claims, [span(0, 3)], handler).outcome is Outcome.ALREADY_DONE
    assert client.get(f"{tag}data") == b"1"
