"""Static membership: each member of a group has a name of its own, the same after a restart."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.app.listener.topic import Topic
from tests.patience import wait_until

from tidegate import App
from tidegate.sandbox import Kafka


def names(bootstrap: str, group: str) -> set[str]:
    """The names of the group's members, as the broker knows them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        described = admin.describe_consumer_groups([group])[group].result(30)
    except KafkaException:  # the coordinator is not there yet
        return set()
    return {member.group_instance_id for member in described.members}


def made(kafka: Kafka, store: Path, topics: list[str], group: str, *, threads: int, worker: int | None = None) -> App:
    app = App({"bootstrap.servers": kafka.bootstrap, "group.instance.id": "shop"}, f"sqlite:///{store}")
    app.worker = worker
    for topic in topics:

        @app.listener(topic, group=group, threads=threads)
        def handle(record: bytes) -> None: ...

    return app


@contextmanager
def running(*apps: App) -> Iterator[list[BaseException]]:
    failures: list[BaseException] = []

    def run(app: App) -> None:
        try:
            app.run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        for app in apps:
            app.stop()
        for thread in threads:
            thread.join(60)
    assert not failures


def test_the_threads_of_a_listener_have_names_of_their_own(kafka: Kafka, tmp_path: Path) -> None:
    topic = Topic.create(kafka.bootstrap, 4)
    group = f"static-{secrets.token_hex(4)}"
    with running(made(kafka, tmp_path / "shop.db", [topic.name], group, threads=2)) as failures:
        wait_until(
            lambda: bool(failures) or names(kafka.bootstrap, group) == {"shop-0-0", "shop-0-1"}, "both are members"
        )


def test_listeners_that_share_a_group_have_names_of_their_own(kafka: Kafka, tmp_path: Path) -> None:
    topics = [Topic.create(kafka.bootstrap, 1).name for _ in range(2)]
    group = f"static-{secrets.token_hex(4)}"
    with running(made(kafka, tmp_path / "shop.db", topics, group, threads=1)) as failures:
        wait_until(
            lambda: bool(failures) or names(kafka.bootstrap, group) == {"shop-0-0", "shop-0-1"}, "both are members"
        )


def test_worker_processes_have_names_of_their_own(kafka: Kafka, tmp_path: Path) -> None:
    topic = Topic.create(kafka.bootstrap, 4)
    group = f"static-{secrets.token_hex(4)}"
    apps = [made(kafka, tmp_path / "shop.db", [topic.name], group, threads=1, worker=number) for number in range(2)]
    with running(*apps) as failures:
        wait_until(
            lambda: bool(failures) or names(kafka.bootstrap, group) == {"shop-0-0", "shop-1-0"}, "both are members"
        )


def test_a_single_member_keeps_its_name(kafka: Kafka, tmp_path: Path) -> None:
    topic = Topic.create(kafka.bootstrap, 1)
    group = f"static-{secrets.token_hex(4)}"
    with running(made(kafka, tmp_path / "shop.db", [topic.name], group, threads=1)) as failures:
        wait_until(lambda: bool(failures) or names(kafka.bootstrap, group) == {"shop"}, "it is a member")
