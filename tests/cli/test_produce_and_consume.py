"""`tidegate produce` and `tidegate consume`, run as programs against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kafka.producer import topics

from tidegate import Producer
from tidegate.cli import ExitCode
from tidegate.cli.topics import LineReader, LineRefused, Pace
from tidegate.kafka import java_partition
from tidegate.sandbox import Kafka

from .conftest import COMMAND, Run, Start, environment
from .terminal import on_a_terminal

Feed = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def feed(directory: Path, kafka: Kafka) -> Feed:
    """Runs a command on a broker, with something on its standard input."""

    def command(text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments, "--kafka", kafka.bootstrap],
            cwd=directory,
            env=environment({}),
            input=text,
            capture_output=True,
            timeout=60,
        )

    return command


def test_lines_go_in_and_come_out_again(kafka: Kafka, feed: Feed) -> None:
    topic = topics.create(kafka.bootstrap)
    done = feed(b"eins\n\nzwei\r\ndrei - ohne Ende", "produce", topic)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert topics.values(kafka.bootstrap, topic) == [b"eins", b"", b"zwei", b"drei - ohne Ende"]
    assert feed(b"", "consume", topic).stdout == b"eins\n\nzwei\ndrei - ohne Ende\n"
    assert feed(b"", "consume", topic, "--from", "2", "-n", "1").stdout == b"zwei\n"
    assert feed(b"", "consume", topic, "--from=-1").stdout == b"drei - ohne Ende\n"
    assert feed(b"", "consume", topic, "--from", "latest").stdout == b""


def test_json_lines_have_their_key_at_a_path(kafka: Kafka, feed: Feed) -> None:
    topic = topics.create(kafka.bootstrap, 3)
    lines = [b'{"id": %d, "customer": {"name": "c%d"}}' % (number, number % 5) for number in range(20)]
    done = feed(b"\n".join([*lines, b"", b""]), "produce", topic, "--json", "--key", "customer.name")
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in feed(b"", "consume", topic, "--json").stdout.splitlines()]
    assert sorted(record["value"].encode() for record in shown) == sorted(lines), "as they were, byte for byte"
    for record in shown:
        assert record["key"] == json.loads(record["value"])["customer"]["name"]
        assert record["partition"] == java_partition(record["key"].encode(), 3)
    assert {record["topic"] for record in shown} == {topic}
    one = [json.loads(line) for line in feed(b"", "consume", topic, "--json", "--partition", "1").stdout.splitlines()]
    assert one == [record for record in shown if record["partition"] == 1]


def test_keys_are_what_a_separator_is_behind(kafka: Kafka, feed: Feed) -> None:
    topic = topics.create(kafka.bootstrap)
    assert feed(b"a\t1\nb\t2\t3\n", "produce", topic, "--separator", "\\t").returncode == 0
    assert feed(b"", "consume", topic, "--keys").stdout == b"a\t1\nb\t2\t3\n"


def test_everything_that_a_record_has_is_shown_as_json(kafka: Kafka, feed: Feed) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True}) as producer:
        producer.send(topic, b"\xff\x00", key="k", headers=[("h", b"w"), ("none", None)], timestamp=1_700_000_000_000)
        producer.send(topic, None)
    shown = feed(b"", "consume", topic, "--json")
    assert shown.returncode == 0, shown.stderr
    first, second = map(json.loads, shown.stdout.splitlines())
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20+00:00",
        "key": "k",
        "value_base64": "/wA=",
        "headers": [{"name": "h", "value": "w"}, {"name": "none", "value": None}],
    }
    assert second["value"] is None
    assert feed(b"", "consume", topic, "--from", "2023-11-14T22:13:21Z", "--json").stdout.count(b"\n") == 1


def test_following_goes_on_until_it_is_interrupted(kafka: Kafka, start: Start) -> None:
    topic = topics.create(kafka.bootstrap)
    following = start("consume", topic, "--follow", "--kafka", kafka.bootstrap)
    assert following.stdout is not None
    with Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True}) as producer:
        producer.send(topic, b"first").result(10)
        assert following.stdout.readline() == "first\n"
        producer.send(topic, b"second").result(10)
        assert following.stdout.readline() == "second\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(90) == ExitCode.OK


def test_a_reader_that_has_enough_is_no_error(kafka: Kafka, directory: Path) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True}) as producer:
        for number in range(20_000):
            producer.send(topic, b"%d" % number)
    consuming = subprocess.Popen(
        [*COMMAND, "consume", topic, "--kafka", kafka.bootstrap],
        cwd=directory, env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert consuming.stdout is not None
    assert consuming.stderr is not None
    assert consuming.stdout.readline() == b"0\n"
    consuming.stdout.close()
    assert (consuming.wait(90), consuming.stderr.read()) == (0, b"")
    consuming.stderr.close()


@pytest.mark.parametrize(
    ("text", "options", "said", "delivered"),
    [
        (b'{"a": 1}\n{"a":\n', ["--json"], "line 2 is not JSON at character 5", 1),
        (b'{"a": 1}\n{"b": 1}\n', ["--json", "--key", "a"], "line 2 has no a;", 1),
        (b"a:b\nc\n", ["--separator", ":"], "line 2 has no separator", 1),
        (b"small\n" + b"x" * 2_000_000, [], "Message size too large", 1),
    ],
)
def test_a_line_that_cannot_be_sent_is_told_and_those_before_it_are_sent(
    kafka: Kafka, feed: Feed, text: bytes, options: list[str], said: str, delivered: int
) -> None:
    topic = topics.create(kafka.bootstrap)
    done = feed(text, "produce", topic, *options)
    assert done.returncode == ExitCode.FAILED
    assert said in done.stderr.decode()
    assert len(topics.values(kafka.bootstrap, topic)) == delivered


def test_what_is_not_there_is_told_with_its_code(run: Run, feed: Feed) -> None:
    done = feed(b"v\n", "produce", "no-such-topic")
    assert (done.returncode, b"create the topic, or check its name" in done.stderr) == (ExitCode.FAILED, True)
    done = feed(b"", "consume", "no-such-topic")
    assert (done.returncode, b"there is no topic no-such-topic" in done.stderr) == (ExitCode.CONFIGURATION, True)
    nowhere = run("consume", "orders")
    assert (nowhere.returncode, "no broker is named" in nowhere.stderr) == (ExitCode.CONFIGURATION, True)
    wrong = run("consume", "orders", "--from", "yesterday", TIDEGATE_KAFKA="127.0.0.1:1")
    assert (wrong.returncode, "--from: expected 'earliest', 'latest'" in wrong.stderr) == (ExitCode.CONFIGURATION, True)


def test_options_that_do_not_go_together_are_refused() -> None:
    from tidegate import ConfigurationError

    for options in ({"key": "a"}, {"is_json": True, "separator": ":"}, {"separator": ""}):
        with pytest.raises(ConfigurationError):
            LineReader(**options)  # type: ignore[arg-type]


def test_a_key_in_json_is_text_as_it_is_and_anything_else_as_json() -> None:
    read = LineReader(is_json=True, key="k").read
    lines = [b'{"k": "a"}', b'{"k": 5}', b'{"k": null}', b'{"k": [1, 2]}']
    assert [key for key, _ in read(lines)] == [b"a", b"5", None, b"[1,2]"]
    with pytest.raises(LineRefused, match="line 1 has no k"):
        list(read([b"[]"]))


def test_a_rate_is_kept_to_and_what_was_not_used_is_not_saved_up() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = Pace(10, clock=lambda: now, sleep=sleep)
    for _ in range(50):
        pace.wait()
    assert now == pytest.approx(4.9)
    now += 60
    for _ in range(50):
        pace.wait()
    assert now == pytest.approx(64.9 + 4.8, abs=0.11)


def test_progress_is_shown_on_a_terminal(kafka: Kafka, directory: Path) -> None:
    topic = topics.create(kafka.bootstrap)
    arguments = ("produce", topic, "--rate", "200", "--kafka", kafka.bootstrap)
    code, shown = on_a_terminal(*arguments, cwd=directory, env=environment({}), given=b"line\n" * 120)
    assert code == 0
    assert shown.count(b"\r\x1b[K") >= 2, "it is written over while it goes on"
    assert f"120 records to {topic}, ".encode() in shown.rpartition(b"\r\x1b[K")[2]
