"""The commands that look at groups and change them: what they print, on each ledger, beside a real broker.

Outputs are compared with files in golden/; see golden.py on how to renew them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.kafka.producer import topics
from tests.operate.leading import wait_for_leaders
from tests.patience import next_millisecond
from typer.testing import CliRunner, Result

from tidegate import Ledger, Producer, Span, TopicPartition, open_ledger
from tidegate.cli import ExitCode
from tidegate.cli import main as _registered  # noqa: F401
from tidegate.cli.options import app, complete_groups, complete_topics
from tidegate.cli.output import Heading, table
from tidegate.operate import Survey
from tidegate.sandbox import Kafka

from .conftest import Run, Start
from .golden import TIME, check_golden
from .terminal import on_a_terminal

OWNER = re.compile(r"[^\s\",]+:\d+:[0-9a-f]{12}")
LONG_AGO = 1_700_000_000_000


class Place(NamedTuple):
    """A ledger with a group in it, and the topic that the group reads; how commands find them."""

    environ: dict[str, str]
    ledger: Ledger[Any]
    topic: str

    def __call__(self, *arguments: str, code: int = 0, **environ: str) -> str:
        """What a command prints."""
        done = self.done(*arguments, **environ)
        assert done.exit_code == code, done.output
        return done.stdout

    def done(self, *arguments: str, **environ: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env=self.environ | environ)

    def golden(self, name: str, *arguments: str, code: int = 0) -> None:
        """Compare what a command prints, as text and as JSON, with what it printed before."""
        text = re.sub(r" {2,}", "  ", self.plain(self(*arguments, code=code)))
        check_golden(f"{name}.txt", text)
        check_golden(f"{name}.json", self.plain(self(*arguments, "--json", code=code)))

    def plain(self, text: str) -> str:
        """Without what differs from run to run."""
        text = text.replace(self.topic, "orders")
        text = OWNER.sub("<owner>", TIME.sub("<time>", text))
        text = re.sub(r"\d+ d \d+ h", "<age>", text)
        text = re.sub(r'("lag_seconds"): \d{5,}\.\d+', r'\1: "<age>"', text)
        text = re.sub(r"(id |_id\": \")[\w+/-]{22}", r"\1<id>", text)
        return re.sub(r"127\.0\.0\.1:\d+", "<address>", text)


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres", "redis"])
def place(request: pytest.FixtureRequest, kafka: Kafka, tmp_path: Path) -> Iterator[Place]:
    name = f"t{secrets.token_hex(5)}"
    prefix = f"{{{name}}}:" if request.param == "redis" else f"{name}_"
    server = "redis_server" if request.param == "redis" else request.param
    url = f"sqlite:///{tmp_path / 'shop.db'}" if server == "sqlite" else request.getfixturevalue(server).url
    with open_ledger(url, prefix=prefix) as ledger:
        yield filled(ledger, kafka, {"TIDEGATE_LEDGER__URL": url, "TIDEGATE_LEDGER__PREFIX": prefix})


@pytest.fixture
def small(kafka: Kafka, tmp_path: Path) -> Iterator[Place]:
    """The same on SQLite alone."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with open_ledger(url) as ledger:
        yield filled(ledger, kafka, {"TIDEGATE_LEDGER__URL": url})


def filled(ledger: Ledger[Any], kafka: Kafka, environ: dict[str, str]) -> Place:
    topic = topics.create(kafka.bootstrap, 3, config={"retention.ms": "-1"})
    wait_for_leaders(Survey({"bootstrap.servers": kafka.bootstrap}, seconds=20.0), topic, 3)
    with Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True}) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=number % 2, timestamp=LONG_AGO)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    claims = ledger.claim("billing", [first, second], 0)
    next_millisecond()
    ledger.transact(claims, [Span(first, 0, 10, 10), Span(second, 0, 6, 6)])
    ledger.pause("idle", note="not yet")
    return Place({**environ, "TIDEGATE_KAFKA": kafka.bootstrap, "COLUMNS": "200"}, ledger, topic)


def test_what_is_shown_is_the_same_on_every_ledger(place: Place) -> None:
    place.golden("status", "status")
    place.golden("status_group", "status", "billing")
    place.golden("status_no_kafka", "status", "billing", "--no-kafka")
    place.golden("positions_list", "positions", "list", "billing")
    place.golden("rewind_preview", "positions", "rewind", "billing", place.topic, "--to", "-4")
    place.golden("skip_preview", "positions", "skip", "billing", place.topic, "--to", "latest")
    place.golden("pause_preview", "pause", "billing")
    place.golden("verify", "verify")
    place.golden("topics_describe", "topics", "describe", place.topic)
    before = place.ledger.read("billing")
    check_unknown_to_kafka(place)

    rewind = ["positions", "rewind", "billing", place.topic, "--to", "2", "--partition", "0"]
    done = place(*rewind, "--execute", "--user", "ada", "--reason", "wrong prices")
    check_golden("rewind_done.txt", re.sub(r" {2,}", "  ", place.plain(done)))
    place("pause", "billing", "--execute", "--user", "ada", "--reason", "lunch")
    place.golden("journal", "journal", "billing", "--topic", place.topic)
    place.golden("status_paused", "status", "billing")
    after = place.ledger.read("billing")
    assert (before.paused, after.paused) == (False, True)
    assert {tp.partition: row.next_offset for tp, row in after.positions.items()} == {0: 2, 1: 6}
    assert place("verify", "billing").count(" ok ") == 1


def check_unknown_to_kafka(place: Place) -> None:
    """A group that the ledger alone knows, under a name that no other test gives to a consumer."""
    name = f"g{secrets.token_hex(5)}"
    place.ledger.claim(name, [TopicPartition(place.topic, 0)])
    for suffix, options in (("txt", []), ("json", ["--json"])):
        shown = place("groups", "describe", name, *options)
        check_golden(f"groups_describe.{suffix}", shown.replace(name, "reports"))


def test_nothing_is_changed_before_it_is_told_to(small: Place) -> None:
    before = small.ledger.read_all(), list(small.ledger.journal("billing"))
    for command in (
        ["positions", "rewind", "billing", small.topic, "--to", "earliest"],
        ["positions", "skip", "billing", small.topic, "--to", "+1", "--partition", "1"],
        ["pause", "billing"],
        ["resume", "idle"],
    ):
        assert "nothing was changed; add --execute to do it" in small(*command)
        assert json.loads(small(*command, "--json"))["executed"] is False
    assert (small.ledger.read_all(), list(small.ledger.journal("billing"))) == before


def test_changes_are_journalled_with_the_login_or_the_name_given(small: Place) -> None:
    small("pause", "billing", "--execute", LOGNAME="grace")
    small("resume", "billing", "--execute", "--user", "ada", "--reason", "go\x1b[31m on")
    shown = small("journal", "billing", "--kind", "pause", "--kind", "resume")
    assert "pause by grace" in shown
    assert "resume by ada: go\\x1b[31m on" in shown, "a terminal obeys nothing of it"
    said = small("pause", "idle", "--execute")
    assert said == "idle: is paused already\n"


def test_the_journal_is_filtered_and_cut(small: Place) -> None:
    claims = small.ledger.claim("billing", [TopicPartition(small.topic, 1)])
    for offset in range(6, 10):
        small.ledger.transact(claims, [Span(TopicPartition(small.topic, 1), offset, offset + 1, 1)])
        claims = small.ledger.claim("billing", [TopicPartition(small.topic, 1)])

    def shown(*options: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in small("journal", "billing", "--json", *options).splitlines()]

    newest = [(entry["kind"], entry["end"]) for entry in shown("--limit", "3")]
    assert newest == [("claim", 9), ("advance", 10), ("claim", 10)], "the newest, in the order of time"
    assert {entry["partition"] for entry in shown("--topic", small.topic, "--partition", "0")} == {0}
    assert [entry["kind"] for entry in shown("--kind", "start")] == ["start", "start"]
    assert shown("--since", "2999-01-01T00:00:00Z") == []
    assert len(shown("--since", "24h")) == len(shown())
    assert "there are no such entries" in small("journal", "billing", "--kind", "loss")
    wrong = small.done("journal", "billing", "--since", "noon")
    assert (wrong.exit_code, "--since: 'noon' is not a time" in wrong.stderr) == (ExitCode.CONFIGURATION, True)
    wrong = small.done("journal", "billing", "--partition", "1")
    assert (wrong.exit_code, "give --topic as well" in wrong.stderr) == (ExitCode.CONFIGURATION, True)


def test_what_is_old_in_the_journal_is_shown_and_deleted_on_request(small: Place) -> None:
    claims = small.ledger.claim("billing", [TopicPartition(small.topic, 1)])
    small.ledger.release(claims)
    time.sleep(0.01)  # an entry has to be older than the moment of pruning
    before = list(small.ledger.journal("billing"))
    shown = small("prune", "billing", "--older-than", "0s")
    assert re.search(rf"billing +{len(before)} +{len(before)}\n", shown)
    assert "nothing was changed; add --execute" in shown
    assert re.search(rf"billing +{len(before)} +0\n", small("prune"))
    assert list(small.ledger.journal("billing")) == before
    done = json.loads(small("prune", "billing", "--older-than", "0s", "--execute", "--json"))
    left = list(small.ledger.journal("billing"))
    assert done["executed"] is True
    assert done["groups"] == [{"group": "billing", "pruned": len(before) - len(left)}]
    assert 0 < len(left) < len(before)
    assert "billing: 0 entries were deleted" in small("prune", "billing", "--execute")
    wrong = small.done("prune", "billing", TIDEGATE_LEDGER__LIMITS__RETENTION="0")
    assert (wrong.exit_code, "pass --older-than" in wrong.stderr) == (ExitCode.CONFIGURATION, True)
    wrong = small.done("prune", "billing", "--older-than", "99999999999d")
    assert (wrong.exit_code, "--older-than" in wrong.stderr) == (ExitCode.CONFIGURATION, True)
    wrong = small.done("journal", "billing", "--since", "99999999999d")
    assert (wrong.exit_code, "--since" in wrong.stderr) == (ExitCode.CONFIGURATION, True)
    assert small("verify", "billing").count(" ok ") == 1


def test_a_journal_that_does_not_add_up_is_named_and_ends_with_a_code(small: Place, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("UPDATE tidegate_positions SET open_end = 9 WHERE partition_id = 0")
    db.close()
    shown = small("verify", code=ExitCode.FAILED)
    assert re.search(
        r"billing +1 broken .*\[0\], journal entry 3: the journal ends at offset 9, but .* is at 10\n", shown
    )
    found = json.loads(small("verify", "billing", "--json", code=ExitCode.FAILED))
    assert found["ok"] is False
    assert [(each["partition"], each["seq"]) for each in found["groups"][0]["breaks"]] == [(0, 3)]


def test_a_check_ends_with_a_code_if_something_is_wrong(small: Place) -> None:
    small("status", "billing", "--check")
    small.ledger.release(
        {tp: row.claim("billing") for tp, row in small.ledger.read("billing").positions.items() if tp.partition == 1}
    )
    small("status", "billing", "--check", code=ExitCode.FAILED)
    small("status", "--check", code=ExitCode.FAILED)
    small("status", code=ExitCode.OK)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "nobody"], "the ledger has no group 'nobody'; it has: billing, idle"),
        (["positions", "rewind", "billing", "TOPIC", "--to", "99"], "is beyond it"),
        (["positions", "rewind", "billing", "TOPIC", "--to", "noon"], "'noon' is not a position in a log"),
        (["positions", "rewind", "billing", "nothing", "--to", "1"], "no position in topic 'nothing'"),
        (["topics", "describe", "nothing"], "there is no topic nothing"),
        (["groups", "describe", "nobody"], "neither Kafka nor the ledger knows"),
        (["status", "--ledger", "mysql://me:pl4nted@db/shop"], "--ledger has a password in it"),
        (["status", "billing", "--member", "here"], "not the address of a member"),
    ],
)
def test_what_cannot_be_is_told_with_its_code(small: Place, arguments: list[str], said: str) -> None:
    done = small.done(*[small.topic if each == "TOPIC" else each for each in arguments])
    assert (done.exit_code, said in done.stderr) == (ExitCode.CONFIGURATION, True), done.output
    assert "pl4nted" not in done.output


def test_whatever_is_away_is_told_with_its_code(small: Place, start: Start) -> None:
    nowhere = {**small.environ, "TIDEGATE_KAFKA": "127.0.0.1:1"}
    asking, looking = start("groups", "list", **nowhere), start("status", **nowhere)
    listing = start("positions", "list", "billing", **nowhere)
    shown, said = asking.communicate(timeout=60)
    assert (asking.returncode, "Kafka cannot be asked" in said) == (ExitCode.UNREACHABLE, True)
    shown, said = looking.communicate(timeout=60)
    assert looking.returncode == ExitCode.OK
    assert "no lag is shown: Kafka cannot be asked" in shown
    assert re.search(r"billing +unknown +2 +2 +-", shown)
    shown, said = listing.communicate(timeout=60)
    assert (listing.returncode, shown.count(small.topic), said) == (ExitCode.OK, 2, "")
    assert "is not known: Kafka cannot be asked" in shown
    done = small.done("status", TIDEGATE_LEDGER__URL="postgresql+psycopg://me:pl4nted@127.0.0.1:1/shop")
    assert (done.exit_code, "pl4nted" in done.output) == (ExitCode.UNREACHABLE, False)


@pytest.mark.parametrize(("protocol", "assignor"), [("classic", "range"), ("consumer", "uniform")])
def test_kafkas_own_view_of_a_group_has_its_members_and_what_they_were_assigned(
    small: Place, kafka: Kafka, protocol: str, assignor: str
) -> None:
    from confluent_kafka import Consumer

    group = f"members-{secrets.token_hex(5)}"
    assigned: list[object] = []
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "client.id": "till-7", "log_level": 0}
    consumer = Consumer({**settings, "group.protocol": protocol})
    consumer.subscribe([small.topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    try:
        for _ in range(600):
            consumer.poll(0.1)
            if assigned:
                break
        found = json.loads(small("groups", "describe", group, "--json"))
        assert found["ledger"] is None
        assert (found["kafka"]["state"], found["kafka"]["protocol"], found["kafka"]["assignor"]) == (
            "stable",
            protocol,
            assignor,
        )
        assert found["kafka"]["coordinator"].endswith("(broker 1)")
        (member,) = found["kafka"]["members"]
        assert member["client_id"] == "till-7"
        assert member["host"] == "127.0.0.1"
        assert member["partitions"] == [f"{small.topic}[{number}]" for number in range(3)]
        text = small("groups", "describe", group)
        assert "till-7" in text
        assert "ledger: no positions" in text
        listed = {each["group"]: each for each in json.loads(small("groups", "list", "--json"))["groups"]}
        assert listed[group]["kafka"] == {"state": "stable", "protocol": protocol}
        assert listed["billing"]["ledger"] == {"partitions": 2, "owned": 2, "paused": False}
    finally:
        consumer.close()
    names = [each["topic"] for each in json.loads(small("topics", "list", "--json"))["topics"]]
    assert small.topic in names
    assert not any(name.startswith("__") for name in names)


def test_watching_and_following_go_on_until_they_are_interrupted(small: Place, start: Start) -> None:
    tp = TopicPartition(small.topic, 1)
    claims = small.ledger.claim("billing", [tp])
    watching = start("status", "billing", "--watch", "--every", "0.1", "--json", **small.environ)
    following = start("journal", "billing", "--follow", "--json", "--limit", "1", **small.environ)
    assert watching.stdout is not None
    assert following.stdout is not None
    assert json.loads(watching.stdout.readline())["lag_records"] == 4
    assert json.loads(following.stdout.readline())["kind"] == "claim"
    small.ledger.transact(claims, [Span(tp, 6, 9, 3)])
    assert any(json.loads(line)["lag_records"] == 1 for line in watching.stdout), "what is committed is seen"
    entry = json.loads(following.stdout.readline())
    assert (entry["kind"], entry["start"], entry["end"]) == ("advance", 6, 9)
    for process in (watching, following):
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == ExitCode.OK


def test_names_are_completed(small: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"_TIDEGATE_COMPLETE": "complete_bash", "COMP_WORDS": "tidegate status b", "COMP_CWORD": "2"}
    done = run(**small.environ, **line)
    assert (done.stdout.split(), done.stderr) == (["billing"], "")
    for name, value in small.environ.items():
        monkeypatch.setenv(name, value)
    assert complete_topics(small.topic[:-1]) == [small.topic]
    monkeypatch.setenv("TIDEGATE_LEDGER__URL", "nonsense")
    assert complete_groups("") == [], "whoever types is not told of errors"


def test_on_a_terminal_it_is_a_table_in_colour(small: Place, directory: Path) -> None:
    environ = {**os.environ, **small.environ, "TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("NO_COLOR", None)
    code, shown = on_a_terminal("status", cwd=directory, env=environ)
    assert code == ExitCode.OK
    assert b"billing" in shown
    assert "─".encode() in shown
    assert b"\x1b[35mpaused" in shown


def test_a_narrow_terminal_goes_without_the_columns_that_can_be_spared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [Heading("topic"), Heading("position", is_number=True), Heading("owner", spare=1), Heading("at", spare=2)]
    rows = [("orders", 7, "x" * 30, "y" * 24)]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for width, missing in ((80, None), (60, "too narrow for: at"), (40, "too narrow for: owner, at")):
        monkeypatch.setenv("COLUMNS", str(width))
        table(columns, rows)
        shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        assert max(map(len, shown.splitlines())) <= width
        assert (missing or "") in " ".join(shown.split())
        assert ("narrow" in shown) == (missing is not None)
        assert "orders" in shown
