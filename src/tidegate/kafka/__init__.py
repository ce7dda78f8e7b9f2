"""Kafka: the only part that talks to brokers."""

from __future__ import annotations

from tidegate.kafka.errors import (
    BufferFull,
    CommitUnknown,
    InvalidArgument,
    ProducerClosed,
    ProducerError,
    ProducerFailed,
    ProducerFenced,
    RecordRejected,
    SendAgain,
    SerializationError,
    TransactionAborted,
)
from tidegate.kafka.handle import Handle
from tidegate.kafka.hooks import Interceptor, SendListener
from tidegate.kafka.outgoing import Delivered, Outgoing, Undelivered
from tidegate.kafka.own_loop import OwnLoop
from tidegate.kafka.producer import Producer
from tidegate.kafka.producer_metrics import ProducerMetrics
from tidegate.kafka.topic_check import OnWeakTopic, Weakness, WeakTopic
from tidegate.kafka.topic_producer import TopicProducer
from tidegate.kafka.transactions import KafkaTransaction

__all__ = [
    "BufferFull",
    "CommitUnknown",
    "Delivered",
    "Handle",
    "Interceptor",
    "InvalidArgument",
    "KafkaTransaction",
    "OnWeakTopic",
    "Outgoing",
    "OwnLoop",
    "Producer",
    "ProducerClosed",
    "ProducerError",
    "ProducerFailed",
    "ProducerFenced",
    "ProducerMetrics",
    "RecordRejected",
    "SendAgain",
    "SendListener",
    "SerializationError",
    "TopicProducer",
    "TransactionAborted",
    "Undelivered",
    "WeakTopic",
    "Weakness",
]
