"""Commands with --execute whose connection to the ledger breaks: they tell what was changed, and what is not known."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from tests.kafka.producer import topics
from tests.ledger.cutting import Cut, Moment, Wire
from typer.testing import CliRunner, Result

from tidegate import Ledger, Producer, Record, Span, TopicPartition, open_ledger
from tidegate.cli import ExitCode
from tidegate.cli import main as _registered  # noqa: F401
from tidegate.cli.options import app
from tidegate.core.journal import Kind
from tidegate.ledger import FailedRecord
from tidegate.sandbox import Kafka

ORDERS = TopicPartition("orders", 0)
LAST = 9
"""So many requests of a command are broken: those before only look."""

_numbers = itertools.count()


@dataclass
class Place:
    """A ledger, and how commands find it through a proxy."""

    ledger: Ledger[Any]
    wire: Wire
    environ: dict[str, str]

    def run(self, *arguments: str, **environ: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env=self.environ | environ)


@pytest.fixture(scope="module", params=["mariadb", "mysql", "postgres", "redis_server"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    server = request.getfixturevalue(request.param)
    wire = Wire(server.host, server.port)
    name = f"t{secrets.token_hex(5)}"
    prefix = f"{{{name}}}:" if request.param == "redis_server" else f"{name}_"
    with open_ledger(server.url, prefix=prefix) as ledger:
        ledger.create()
        yield Place(ledger, wire, {"TIDEGATE_LEDGER__URL": wire.url(server.url), "TIDEGATE_LEDGER__PREFIX": prefix})
    wire.close()


@dataclass
class Skip:
    """A skip from 100 to 150, while a consumer reads 30 records."""

    ledger: Ledger[Any]
    group: str

    def __post_init__(self) -> None:
        self.ledger.claim(self.group, [ORDERS], 100)

    @property
    def arguments(self) -> list[str]:
        where = ["--to", "150", "--force", "--no-kafka"]
        return ["positions", "skip", self.group, "orders", *where, "--execute"]

    @property
    def is_done(self) -> bool:
        return any(entry.kind is Kind.EDIT for entry in self.ledger.journal(self.group))

    def meanwhile(self) -> None:
        claims = self.ledger.claim(self.group, [ORDERS])
        start = claims[ORDERS].position
        self.ledger.transact(claims, [Span(ORDERS, start, start + 30, 30)])

    def check(self, shown: str) -> None:
        (edit,) = (entry for entry in self.ledger.journal(self.group) if entry.kind is Kind.EDIT)
        assert re.search(rf"orders +0 +{edit.start} +150 +{150 - edit.start}\b", shown), shown
        assert "done, and journalled" in shown
        assert self.ledger.read(self.group).positions[ORDERS].next_offset in {150, 180}


@dataclass
class Pause:
    """A pause, while somebody resumes the group, or pauses it first."""

    ledger: Ledger[Any]
    group: str
    paused_by_another: bool = False

    def __post_init__(self) -> None:
        self.ledger.claim(self.group, [ORDERS])

    @property
    def arguments(self) -> list[str]:
        return ["pause", self.group, "--execute"]

    @property
    def is_done(self) -> bool:
        return any(entry.kind is Kind.PAUSE for entry in self.ledger.journal(self.group))

    def meanwhile(self) -> None:
        if not self.ledger.resume(self.group):
            self.paused_by_another = self.ledger.pause(self.group)

    def check(self, shown: str) -> None:
        kinds = [entry.kind for entry in self.ledger.journal(self.group)]
        assert kinds.count(Kind.PAUSE) == 1
        assert ("is paused already" if self.paused_by_another else "was paused (1 partition") in shown


@dataclass
class Adopt:
    """An adoption of a group, while a consumer reads 30 records as soon as there is a position."""

    ledger: Ledger[Any]
    group: str
    topic: str

    @property
    def arguments(self) -> list[str]:
        return ["adopt", "group", "old", "--topic", self.topic, "--into", self.group, "--execute"]

    def meanwhile(self) -> None:
        if self.ledger.read(self.group).positions:
            partition = TopicPartition(self.topic, 0)
            claims = self.ledger.claim(self.group, [partition])
            self.ledger.transact(claims, [Span(partition, 10, 40, 30)])

    def check(self, shown: str) -> None:
        (start,) = (entry for entry in self.ledger.journal(self.group) if entry.kind is Kind.START)
        assert (start.end, "adopted from Kafka group 'old'" in str(start.note)) == (10, True)
        assert "done, and journalled" in shown
        (row,) = self.ledger.read(self.group).positions.values()
        assert row.next_offset in {10, 40}


@dataclass
class GiveBack:
    """A hand-back to a group."""

    ledger: Ledger[Any]
    group: str
    topic: str

    def __post_init__(self) -> None:
        self.ledger.edit(self.group, {TopicPartition(self.topic, 0): 20})

    @property
    def arguments(self) -> list[str]:
        return ["hand-back", self.group, "--to", f"{self.topic}-{self.group}", "--execute"]

    def meanwhile(self) -> None:
        pass

    def check(self, shown: str) -> None:
        kinds = [entry.kind for entry in self.ledger.journal(self.group)]
        assert (kinds.count(Kind.PAUSE), kinds.count(Kind.EDIT)) == (1, 1)
        assert "done, and journalled; the group is paused" in shown
        assert self.ledger.verify(self.group).ok


@dataclass
class Drop:
    """Two letters dropped, while somebody drops the second."""

    ledger: Ledger[Any]
    group: str
    by_another: int = 0

    def __post_init__(self) -> None:
        letters = [FailedRecord(Record(*ORDERS, number), "no") for number in range(2)]
        claims = self.ledger.claim(self.group, [ORDERS])
        self.ledger.transact(claims, [Span(ORDERS, 0, 2, 2)], lambda tx: [tx.park(letter) for letter in letters])
        self.second = self.ledger.dead_letters(self.group)[1].id

    @property
    def arguments(self) -> list[str]:
        return ["dead-letters", "drop", self.group, "--all", "--execute"]

    @property
    def is_done(self) -> bool:
        return not self.ledger.dead_letters(self.group)

    def meanwhile(self) -> None:
        self.by_another = self.ledger.drop_letters(self.group, [self.second])

    def check(self, shown: str) -> None:
        assert self.is_done
        assert ("dropped 1 dead letter\n" if self.by_another else "dropped 2 dead letters\n") in shown


Command = Callable[[Ledger[Any], str], Any]


def broken(place: Place, command: Command) -> Iterator[tuple[Any, Cut]]:
    """The command once for each of its last requests, the answer to which will be lost."""
    place.wire.cut = uncut = Cut(0, Moment.AFTER)
    place.run(*command(place.ledger, f"group-{next(_numbers)}").arguments)
    for request in range(max(1, uncut.seen - LAST), uncut.seen + 1):
        ready = command(place.ledger, f"group-{next(_numbers)}")
        place.wire.cut = cut = Cut(request, Moment.AFTER, ready.meanwhile)
        yield ready, cut
        place.wire.cut = None
        assert cut.error is None


@pytest.mark.parametrize("command", [Skip, Pause, Drop])
def test_execute_tells_what_was_changed_though_an_answer_was_lost(place: Place, command: Command) -> None:
    fired = 0
    for ready, cut in broken(place, command):
        done = place.run(*ready.arguments)
        if "cannot open the ledger" in done.stderr:  # whoever cannot be reached at first is an error at once
            continue
        assert done.exit_code == ExitCode.OK, done.output
        ready.check(done.stdout)
        fired += cut.fired
    assert fired > 1


@pytest.fixture(scope="module")
def old(kafka: Kafka) -> tuple[str, str]:
    """A broker, and a topic of 50 records, of which the group "old" has committed 10."""
    topic = topics.create(kafka.bootstrap, 1)
    with Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True}) as producer:
        for number in range(50):
            producer.send(topic, b"%d" % number)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "old", "log_level": 0})
    consumer.commit(offsets=[KafkaPartition(topic, 0, 10)], asynchronous=False)
    consumer.close()
    return kafka.bootstrap, topic


@pytest.mark.parametrize("command", [Adopt, GiveBack])
def test_positions_come_over_and_go_back_once_though_an_answer_was_lost(
    place: Place, old: tuple[str, str], command: Callable[[Ledger[Any], str, str], Any]
) -> None:
    bootstrap, topic = old
    place.environ |= {"TIDEGATE_KAFKA": bootstrap}
    fired = 0
    for ready, cut in broken(place, lambda ledger, group: command(ledger, group, topic)):
        done = place.run(*ready.arguments)
        if "cannot open the ledger" in done.stderr:
            continue
        assert done.exit_code == ExitCode.OK, done.output
        ready.check(done.stdout)
        fired += cut.fired
    assert fired > 0


@pytest.mark.parametrize("command", [Skip, Pause, Drop])
def test_execute_does_not_say_that_nothing_was_changed_if_nobody_can_know(place: Place, command: Command) -> None:
    known = set()
    for ready, cut in broken(place, command):
        cut.for_good, cut.meanwhile = True, lambda: None
        done = place.run(*ready.arguments, TIDEGATE_LEDGER__LIMITS__ATTEMPTS="2")
        place.wire.mend()
        if not cut.fired or done.exit_code == ExitCode.OK:  # it broke when all was done
            continue
        assert done.exit_code == ExitCode.UNREACHABLE
        known.add("not known" in done.stderr)
        if "not known" not in done.stderr:
            assert not ready.is_done, done.stderr
            assert "nothing was changed" not in done.stderr
    assert True in known


def test_an_interrupt_leaves_open_whether_it_was_done(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    place.ledger.claim("interrupted", [ORDERS])
    monkeypatch.setattr(Ledger, "pause", interrupted)
    done = place.run("pause", "interrupted", "--execute")
    assert done.exit_code == ExitCode.INTERRUPTED
    assert "interrupted; it is not known whether this was done" in done.stderr
