"""Kafka: one broker, and three."""

from __future__ import annotations

import socket

import pytest

from tidegate.sandbox import Kafka, KafkaCluster, SandboxError
from tidegate.sandbox.handshake import brokers_known_to
from tidegate.sandbox.jars import kafka_jars

from .clients import create_topic, topics


def test_a_broker_has_the_topics_that_were_made(kafka: Kafka) -> None:
    assert kafka.bootstrap == f"{kafka.host}:{kafka.port}"
    create_topic(kafka, "sandbox-orders", partitions=4)
    assert "sandbox-orders" in topics(kafka)


def test_a_broker_is_ready_on_other_ports_if_its_own_are_taken() -> None:
    kafka_jars()
    server = Kafka(settings={"auto.create.topics.enable": True, "num.partitions": 7}, advertised=("127.0.0.1", 9))
    with socket.create_server((server.host, server.controller_port)) as squatter, server:
        assert server.controller_port != squatter.getsockname()[1]
        text = (server.directory / "server.properties").read_text()
        assert "auto.create.topics.enable=true" in text
        assert "num.partitions=7" in text
        assert server.bootstrap == "127.0.0.1:9"
        assert f"cluster.id={server.cluster_id}" in (server.directory / "data" / "meta.properties").read_text()


def test_three_brokers_survive_the_loss_of_one_and_take_it_back() -> None:
    with KafkaCluster(3, settings={"broker.session.timeout.ms": 3000}) as cluster:
        first, second, third = cluster.nodes
        assert cluster.bootstrap.count(",") == 2
        create_topic(first, "replicated", partitions=3, replicas=3)
        second.kill()
        assert not second.running
        create_topic(third, "made-by-two", replicas=2)
        second.restart()
        assert "made-by-two" in topics(second)
        assert brokers_known_to(second.host, second.port).ids == {1, 2, 3}
        directories = [node.directory for node in cluster.nodes]
    assert not any(directory.exists() for directory in directories)


def test_a_cluster_has_at_least_one_broker() -> None:
    with pytest.raises(SandboxError, match="at least one broker"):
        KafkaCluster(0)
