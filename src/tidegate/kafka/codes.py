"""Maps error codes of librdkafka and of brokers to Tidegate's producer errors, each with advice."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from tidegate.errors import ProducerError, ProducerFailed, ProducerFenced, RecordRejected, SendAgain

__all__ = ["LOGIN", "LOGIN_ADVICE", "error_of", "producer_error"]


def _codes(*names: str) -> frozenset[int]:
    return frozenset(getattr(KafkaError, name) for name in names)


_FENCED = _codes("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
LOGIN = _codes("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "ILLEGAL_SASL_STATE", "_SSL")
_FATAL = LOGIN | _codes(
    "_FATAL",
    "_GAPLESS_GUARANTEE",
    "INVALID_PRODUCER_ID_MAPPING",
    "UNKNOWN_PRODUCER_ID",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "TRANSACTION_COORDINATOR_FENCED",
)
_PASSING = _codes(
    "_MSG_TIMED_OUT",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
    "_QUEUE_FULL",
    "_ISR_INSUFF",
    "_WAIT_COORD",
    "REQUEST_TIMED_OUT",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "REPLICA_NOT_AVAILABLE",
    "BROKER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "KAFKA_STORAGE_ERROR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "THROTTLING_QUOTA_EXCEEDED",
    "CONCURRENT_TRANSACTIONS",
)

_UNKNOWN_TOPIC = "create the topic, or check its name"
_REPLICAS = "too few replicas are in sync: bring brokers back, or lower min.insync.replicas knowing what that risks"
_ADVICE: dict[int, str] = {
    KafkaError._MSG_TIMED_OUT: (
        "no broker acknowledged it within 'message.timeout.ms': look whether the cluster can be reached. It may have "
        "been written all the same, so that sending it again may write it twice"
    ),
    KafkaError._PURGE_QUEUE: "it was still in the buffer when the producer was closed: give close() more time",
    KafkaError._PURGE_INFLIGHT: "the producer was closed before a broker answered, so that it may have been written",
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "make it smaller, or raise 'message.max.bytes' here and max.message.bytes of the topic"
    ),
    KafkaError.RECORD_LIST_TOO_LARGE: "lower 'batch.size', or raise max.message.bytes of the topic",
    KafkaError._UNKNOWN_TOPIC: _UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _UNKNOWN_TOPIC,
    KafkaError.TOPIC_EXCEPTION: "letters, digits, '.', '_' and '-' are allowed in the name of a topic",
    KafkaError._UNKNOWN_PARTITION: "the topic has no such partition",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the login may not write to this topic: grant it WRITE",
    KafkaError.NOT_ENOUGH_REPLICAS: _REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _REPLICAS,
    KafkaError.INVALID_TIMESTAMP: "its timestamp is too far from the broker's time",
    KafkaError.INVALID_RECORD: "a compacted topic takes only records with a key; otherwise, check the broker's log",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the login may not use this transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the login may not produce idempotently: grant it IDEMPOTENT_WRITE",
}
_FENCED_ADVICE = (
    "another producer has begun with the same 'transactional.id', or the transaction took longer than "
    "'transaction.timeout.ms'; close this one, and give each producer a different id"
)
LOGIN_ADVICE = "check the settings 'security.protocol', 'sasl.*' and 'ssl.*'"
_FATAL_ADVICE = "close this producer and make another one"
_PASSING_ADVICE = "send it again, or wait until the cluster is well"


def producer_error(what: str, error: KafkaError) -> ProducerError:
    """Convert the client's error to a :class:`ProducerError`; ``what`` begins its message: what failed, and where."""
    code = error.code()
    kind, advice = _kind(error, code)
    return kind(f"{what}: {_reason(error)} ({error.name()}); {_ADVICE.get(code, advice)}", error.name())


def error_of(exception: BaseException) -> KafkaError:
    """Return the :class:`KafkaError` inside a client's exception; raises the exception itself if it holds none."""
    if isinstance(exception, (KafkaException, BufferError)) and exception.args:
        return exception.args[0]
    raise exception


def _kind(error: KafkaError, code: int) -> tuple[type[ProducerError], str]:
    if code in _FENCED:
        return ProducerFenced, _FENCED_ADVICE
    if error.fatal() or code in _FATAL:
        return ProducerFailed, LOGIN_ADVICE if code in LOGIN else _FATAL_ADVICE
    if error.retriable() or code in _PASSING:
        return SendAgain, _PASSING_ADVICE
    return RecordRejected, "it would be rejected again; fix it or leave it out"


def _reason(error: KafkaError) -> str:
    return str(error.str()).removeprefix("Unable to produce message: ").removeprefix("Local: ").removeprefix("Broker: ")
