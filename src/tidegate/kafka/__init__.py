"""Kafka: consumers, producers, transactions and the admin client. No other package talks to brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tidegate.kafka.delivery import (
        Delivered,
        Handle,
        Interceptor,
        Outgoing,
        ProducerMetrics,
        SendListener,
        Undelivered,
    )
    from tidegate.kafka.own_loop import OwnLoop
    from tidegate.kafka.partitioners import Partitioning, java_partition
    from tidegate.kafka.producer import OnWeakTopic, Producer, TopicProducer, Weakness, WeakTopic
    from tidegate.kafka.registry import RegistryClient, RegistrySettings
    from tidegate.kafka.serializers import SchemaSerializer
    from tidegate.kafka.transactions import KafkaTransaction
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "kafka.delivery": (
                "Delivered",
                "Handle",
                "Interceptor",
                "Outgoing",
                "ProducerMetrics",
                "SendListener",
                "Undelivered",
            ),
            "kafka.own_loop": ("OwnLoop",),
            "kafka.partitioners": ("Partitioning", "java_partition"),
            "kafka.producer": ("OnWeakTopic", "Producer", "TopicProducer", "Weakness", "WeakTopic"),
            "kafka.registry": ("RegistryClient", "RegistrySettings"),
            "kafka.serializers": ("SchemaSerializer",),
            "kafka.transactions": ("KafkaTransaction",),
        },
    )

__all__ = [
    "Delivered",
    "Handle",
    "Interceptor",
    "KafkaTransaction",
    "OnWeakTopic",
    "Outgoing",
    "OwnLoop",
    "Partitioning",
    "Producer",
    "ProducerMetrics",
    "RegistryClient",
    "RegistrySettings",
    "SchemaSerializer",
    "SendListener",
    "TopicProducer",
    "Undelivered",
    "WeakTopic",
    "Weakness",
    "java_partition",
]
