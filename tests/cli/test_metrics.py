"""`tidegate run --metrics-port`: what is served is what the ledger says."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tidegate import open_ledger
from tidegate.cli import serve
from tidegate.cli.serve import HealthServer, serve_metrics
from tidegate.errors import ConfigurationError
from tidegate.ledger import Kind
from tidegate.observe import ReadPosition
from tidegate.operate import Overview
from tidegate.sandbox import Kafka

from .conftest import Start

PATIENCE = 60.0
PARTITIONS, GOOD, BAD = 3, 300, 7


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(ask: Callable[[], Any]) -> Any:
    """The answer, once it is one."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := _asked(ask)):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
    return answer


def _asked(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except urllib.error.URLError:  # nobody listens there yet
        return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def samples(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(get(port, "/metrics")[1]):
        for sample in family.samples:
            if sample.name.startswith("tidegate_"):
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def total(found: dict[str, list[tuple[dict[str, str], float]]], name: str) -> float:
    return sum(value for _, value in found.get(name, []))


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"orders-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(GOOD + BAD):
        producer.produce(name, b"bad" if number < BAD else b"good", partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    return name


def test_a_scrape_during_a_run_says_what_the_ledger_says(
    start: Start, directory: Path, kafka: Kafka, topic: str
) -> None:
    shutil.copy(Path(__file__).with_name("metered.py"), directory)
    database = directory / "shop.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE bills (at INTEGER)")
    db.close()
    port, url = free_port(), f"sqlite:///{database}"
    arguments = ["run", "metered:app", "--metrics-port", str(port), "--metrics-host", "127.0.0.1"]
    process = start(*arguments, TIDEGATE_KAFKA=kafka.bootstrap, TIDEGATE_LEDGER=url, TOPIC=topic)
    until(lambda: get(port, "/readyz")[0] == 200)
    assert get(port, "/healthz") == (200, '{"status": "ok"}\n')
    until(lambda: total(samples(port), "tidegate_records_committed_total") == GOOD + BAD)
    # Metrics and positions are told just after a commit: both are complete once the end of each log is.
    ends = Counter(number % PARTITIONS for number in range(GOOD + BAD))
    expected = [ReadPosition("billing", topic, number, ends[number], ends[number])._asdict() for number in sorted(ends)]
    until(lambda: sorted(_positions(port), key=itemgetter("partition")) == expected)
    found = samples(port)
    with open_ledger(url) as ledger:
        entries = list(ledger.journal("billing"))
        letters = ledger.dead_letters("billing")
        seen = Overview(ledger).group("billing", members=[f"127.0.0.1:{port}"]).partitions
    assert {each.partition: each.current for each in seen} == ends
    advances = [entry for entry in entries if entry.kind is Kind.ADVANCE]
    records: Counter[str] = Counter()
    for entry in advances:
        assert entry.partition is not None
        records[str(entry.partition.partition)] += entry.records
    committed = {labels["partition"]: value for labels, value in found["tidegate_records_committed_total"]}
    assert committed == records
    assert total(found, "tidegate_commits_total") >= len({entry.token for entry in advances}), "an entry for several"
    assert total(found, "tidegate_commit_seconds_count") == total(found, "tidegate_commits_total")
    assert total(found, "tidegate_handler_seconds_count") == total(found, "tidegate_commits_total")
    assert total(found, "tidegate_batch_records_sum") == GOOD + BAD
    assert total(found, "tidegate_claims_total") == sum(entry.kind is Kind.CLAIM for entry in entries)
    assert total(found, "tidegate_dead_letters_total") == len(letters) == BAD
    assert total(found, "tidegate_fences_total") == 0
    used = {label for each in found.values() for labels, _ in each for label in labels}
    assert used == {"group", "topic", "partition", "kind", "le"}
    said = {value for each in found.values() for labels, _ in each for name, value in labels.items() if name != "le"}
    assert said == {"billing", topic, *map(str, range(PARTITIONS)), "assigned"}
    process.terminate()
    assert process.wait(PATIENCE) == 0


def _positions(port: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(get(port, "/positions")[1])["positions"]
    return found


class Patient:
    """A health that the test decides."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def failing(self) -> list[str]:
        return self.wrong

    def unready(self) -> list[str]:
        return ["not claimed yet", *self.wrong]

    def positions(self) -> list[ReadPosition]:
        return [ReadPosition("g", "orders", 0, 9, 7)]


def test_what_is_wrong_is_told_with_a_status_and_reasons_and_without_secrets() -> None:
    patient = Patient()
    server = HealthServer("127.0.0.1", 0, patient)
    try:
        assert get(server.port, "/healthz?verbose=1") == (200, '{"status": "ok"}\n')
        patient.wrong.append("cannot reach mysql+pymysql://me:pl4nted@db/shop")
        status, text = get(server.port, "/healthz")
        assert (status, json.loads(text)["status"]) == (503, "failing")
        assert json.loads(text)["reasons"] == ["cannot reach mysql+pymysql://me:***@db/shop"]
        status, text = get(server.port, "/readyz")
        assert (status, json.loads(text)["reasons"][0]) == (503, "not claimed yet")
        assert "pl4nted" not in text
        assert json.loads(get(server.port, "/positions")[1]) == {
            "positions": [{"group": "g", "topic": "orders", "partition": 0, "current": 9, "committed": 7}]
        }
    finally:
        server.close()


def test_a_page_that_fails_is_an_error_and_the_others_are_served(caplog: pytest.LogCaptureFixture) -> None:
    patient = Patient()
    patient.positions = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    server = HealthServer("127.0.0.1", 0, patient)
    try:
        assert get(server.port, "/positions") == (500, '{"error": "ZeroDivisionError"}\n')
        assert "/positions could not be answered" in caplog.text
        assert get(server.port, "/healthz")[0] == 200
    finally:
        server.close()


def test_other_pages_and_methods_are_refused() -> None:
    server = HealthServer("127.0.0.1", 0, Patient())
    try:
        assert get(server.port, "/")[0] == 404
        assert get(server.port, "/healthz", "POST")[0] == 501
        assert get(server.port, "/healthz", "HEAD") == (200, "")
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"nonsense\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.0 400") or b"400" in client.recv(100)
    finally:
        server.close()


def test_it_listens_where_it_is_told_to() -> None:
    server = HealthServer("::1", 0, Patient())
    try:
        with urllib.request.urlopen(f"http://[::1]:{server.port}/healthz", timeout=30) as answer:
            assert answer.status == 200
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port), timeout=5)
    finally:
        server.close()
    with pytest.raises(ConfigurationError, match="metrics cannot be served on port 1"):
        HealthServer("192.0.2.1", 1, Patient())


def test_it_listens_on_this_machine_only_unless_told_otherwise() -> None:
    server = serve_metrics(0, health=Patient())
    try:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", server.port), timeout=5)  # another address of this machine
        assert get(server.port, "/healthz")[0] == 200
    finally:
        server.close()


def test_a_request_that_drips_is_dropped_and_does_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_PATIENCE", 0.5)
    server = HealthServer("127.0.0.1", 0, Patient())
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.05) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\nX: ")
            dropped = time.monotonic() + PATIENCE
            while not _is_over(client):
                assert time.monotonic() < dropped, "it still listens"
        assert get(server.port, "/healthz")[0] == 200
    finally:
        server.close()


def _is_over(client: socket.socket) -> bool:
    """Drip a byte, and see whether the server has hung up."""
    try:
        client.sendall(b"x")
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_many_open_connections_use_few_threads_and_probes_are_answered() -> None:
    server = HealthServer("127.0.0.1", 0, Patient())
    before = threading.active_count()
    try:
        with ExitStack() as stack:
            for _ in range(200):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
                client.sendall(b"GET /healthz HT")
            assert get(server.port, "/healthz")[0] == 200
            assert threading.active_count() - before <= 40
    finally:
        server.close()
