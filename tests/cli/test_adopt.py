"""`tidegate adopt` and `hand-back`, on each ledger, beside a real broker."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from tidegate import TopicPartition
from tidegate.cli import ExitCode
from tidegate.core.journal import Kind

from .golden import check_golden
from .test_operating import Place, place, small  # noqa: F401 - fixtures


def committed(there: Place, group: str, *offsets: tuple[int, int]) -> list[int]:
    """Commit offsets of partitions as a plain consumer does, and return those that the group has."""
    settings = {"bootstrap.servers": there.environ["TIDEGATE_KAFKA"], "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "log_level": 0})
    try:
        if offsets:
            consumer.commit(offsets=[KafkaPartition(there.topic, *each) for each in offsets], asynchronous=False)
        wanted = [KafkaPartition(there.topic, number) for number in range(3)]
        return [each.offset for each in consumer.committed(wanted, timeout=30)]
    finally:
        consumer.close()


def golden(there: Place, name: str, old: str, *arguments: str) -> None:
    for suffix, options in (("txt", []), ("json", ["--json"])):
        shown = there.plain(there(*arguments, *options)).replace(old, "old")
        check_golden(f"{name}.{suffix}", re.sub(r" {2,}", "  ", shown) if suffix == "txt" else shown)


def test_a_group_is_adopted_and_handed_back_on_every_ledger(place: Place) -> None:  # noqa: F811
    old = f"old-{secrets.token_hex(5)}"
    committed(place, old, (0, 7), (1, 10))
    adopt = ["adopt", "group", old, "--into", "bills"]
    golden(place, "adopt_group_preview", old, *adopt)
    assert not place.ledger.read("bills").positions
    done = place(*adopt, "--execute", "--user", "ada", "--reason", "we move")
    assert done.endswith("done, and journalled\n")
    rows = place.ledger.read("bills").positions
    assert {tp.partition: row.next_offset for tp, row in rows.items()} == {0: 7, 1: 10, 2: 0}
    assert all(row.identity.topic_id and row.identity.cluster_id for row in rows.values())
    assert "the group has these positions already; nothing was changed" in place(*adopt, "--execute")
    starts = [entry for entry in place.ledger.journal("bills") if entry.kind is Kind.START]
    assert [entry.note for entry in starts] == [
        f"adopted from Kafka group '{old}', in doubt: repeat by ada: we move"
    ] * 3
    claims = place.ledger.claim("bills", [TopicPartition(place.topic, 0)])
    place.ledger.release(claims)

    back = ["hand-back", "bills", "--to", old]
    golden(place, "hand_back_preview", old, *back)
    assert not place.ledger.read("bills").paused
    assert "done, and journalled; the group is paused" in place(*back, "--execute", "--user", "ada")
    assert committed(place, old) == [7, 10, 0]
    assert place.ledger.read("bills").paused
    assert "this was done already; nothing was changed" in place(*back, "--execute")
    assert place("verify", "bills").count(" ok ") == 1


CONNECTOR: dict[str, Any] = {
    "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
    "connection.url": "jdbc:postgresql://db:5432/shop?user=etl&password=pl4nted",
    "connection.user": "etl",
    "connection.password": "pl4nted",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "insert.mode": "upsert",
    "pk.mode": "record_value",
    "pk.fields": "id",
    "auto.create": True,
    "tasks.max": 2,
    "sasl.jaas.config": "pl4nted",
}


def test_a_connector_is_adopted_with_its_settings(small: Place, tmp_path: Path) -> None:  # noqa: F811
    name = f"c{secrets.token_hex(5)}"
    committed(small, f"connect-{name}", (0, 4))
    file, settings = tmp_path / "orders.json", tmp_path / "sink.toml"
    file.write_text(json.dumps({"name": name, "config": {**CONNECTOR, "topics": small.topic}}))
    adopt = ["adopt", "connect", str(file), "--toml", str(settings), "--start", "latest"]
    shown = small(*adopt)
    assert "pl4nted" not in shown
    assert not settings.exists()
    assert f"sink-{name}: 3 positions from Kafka group of the connector 'connect-{name}'" in shown
    assert "in doubt are 6 records at most" in shown
    assert "tasks.max: tidegate run --workers N" in shown
    refused = small.done("adopt", "connect", str(file), "--toml", str(tmp_path / "gone" / "sink.toml"), "--execute")
    assert (refused.exit_code, "cannot be written: No such file" in refused.stderr) == (2, True)
    assert not small.ledger.read(f"sink-{name}").positions, "a file that fails is known before"
    done = json.loads(small(*adopt, "--execute", "--json"))
    assert settings.read_text() == done["toml"]
    assert "pl4nted" not in json.dumps(done)
    assert 'url = "postgresql+psycopg://etl:${DB_PASSWORD}@db:5432/shop"' in done["toml"]
    assert (
        done["left_out"]["connection.password"] == "set DB_PASSWORD in the environment, percent-encoded as in any URL"
    )
    rows = small.ledger.read(f"sink-{name}").positions
    assert {tp.partition: row.next_offset for tp, row in rows.items()} == {0: 4, 1: 10, 2: 0}
    again = small(*adopt, "--execute")
    assert "has these positions already" in again
    assert f"the settings are in {settings}" in again
    settings.write_text("other")
    refused = small.done(*adopt, "--execute")
    assert (refused.exit_code, "is there already, and has another content" in refused.stderr) == (2, True)


def test_nothing_of_a_checkpoint_is_adopted_before_it_is_told_to(small: Place, tmp_path: Path) -> None:  # noqa: F811
    for name in ("offsets", "commits"):
        (tmp_path / "ck" / name).mkdir(parents=True)
    (tmp_path / "ck/offsets/0").write_text(f'v1\n{{}}\n{{"{small.topic}":{{"0":2}}}}')
    (tmp_path / "ck/commits/0").write_text("v1\n{}")
    (tmp_path / "ck/offsets/1").write_text(f'v1\n{{}}\n{{"{small.topic}":{{"0":5}}}}')
    adopt = ["adopt", "checkpoint", str(tmp_path / "ck"), "--into", "bills"]
    shown = small(*adopt)
    assert "in doubt are exactly these 3 records, of which any may be written: look whether" in shown
    assert re.search(rf"{small.topic} +0 +2 +5 +3\n", shown)
    assert json.loads(small(*adopt, "--json"))["exact"] is True
    for options, said in (
        ([], "say so with --stopped"),
        (["--stopped"], "s ago: the query may still run"),
        (["--stopped", "--in-doubt", "maybe"], "'repeat', 'skip'"),
        (["--start", "noon"], "--start: expected"),
    ):
        done = small.done(*adopt, "--execute", *options)
        assert (done.exit_code, said in done.stderr) == (ExitCode.CONFIGURATION, True), done.output
    assert "they are skipped" in small(*adopt, "--in-doubt", "skip")
    assert not small.ledger.read("bills").positions


@pytest.mark.parametrize("command", ["adopt group {old} --into bills", "hand-back billing --to {old}"])
def test_what_is_away_is_told_with_its_code(small: Place, command: str) -> None:  # noqa: F811
    old = f"old-{secrets.token_hex(5)}"
    committed(small, old, (0, 7))
    small.ledger.release({tp: r.claim("billing") for tp, r in small.ledger.read("billing").positions.items()})
    arguments = [*command.format(old=old).split(), "--execute"]
    done = small.done(*arguments, TIDEGATE_KAFKA="127.0.0.1:1")
    assert (done.exit_code, "Kafka cannot be asked" in done.stderr) == (ExitCode.UNREACHABLE, True), done.output
    done = small.done(*arguments, TIDEGATE_LEDGER__URL="postgresql+psycopg://me:pl4nted@127.0.0.1:1/shop")
    assert (done.exit_code, "pl4nted" in done.output) == (ExitCode.UNREACHABLE, False)
    assert not small.ledger.read("billing").paused
    assert not small.ledger.read("bills").positions


@pytest.mark.parametrize("moment", ["before commit", "after commit", "before edit", "after edit"])
def test_a_hand_back_that_was_killed_is_finished_by_the_next(small: Place, moment: str) -> None:  # noqa: F811
    old = f"old-{secrets.token_hex(5)}"
    claims = {tp: row.claim("billing") for tp, row in small.ledger.read("billing").positions.items()}
    small.ledger.release(claims)
    when, name = moment.split()
    back = ["hand-back", "billing", "--to", old, "--execute"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, when, name, *back],
        env={**os.environ, **small.environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert small.ledger.read("billing").paused, "nobody reads on"
    had = committed(small, old)
    assert had == ([-1001] * 3 if moment == "before commit" else [10, 6, -1001])
    shown = small(*back)
    assert ("this was done already" if moment == "after edit" else "done, and journalled; the group is paused") in shown
    assert committed(small, old) == [10, 6, -1001]
    edits = [entry for entry in small.ledger.journal("billing") if entry.kind is Kind.EDIT]
    assert {(entry.start, entry.end) for entry in edits} == {(10, 10), (6, 6)}
    assert len(edits) == 2
    assert small("verify", "billing").count(" ok ") == 1


KILLED = """
import os, signal, sys
from tidegate.cli import main
from tidegate.kafka.cluster import Survey
from tidegate.ledger.ledger import Ledger

when, name = sys.argv[1:3]
del sys.argv[1:3]
home = Survey if name == "commit" else Ledger
method = getattr(home, name)

def killed(*given, **named):
    if when == "after":
        method(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(home, name, killed)
main()
"""
