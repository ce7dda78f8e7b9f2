"""The table of arguments: for each parameter what is refused, and what text becomes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import redis
from confluent_kafka import Consumer
from sqlalchemy import create_engine

from tidegate import (
    App,
    Backoff,
    BatchBounds,
    DeadLetter,
    Delivery,
    Earliest,
    Fail,
    GroupProtocol,
    Latest,
    Limits,
    Ordering,
    Outgoing,
    OwnLoop,
    Producer,
    Retry,
    Skip,
    StartStrategy,
    Table,
    Timestamp,
    TopicPartition,
    open_ledger,
)
from tidegate.app import CommitStrategy, LagGuard, ListenerSpec, OutOfRange, Recreated, Topics
from tidegate.core.columns import (
    AddedColumns,
    DecimalText,
    Evolution,
    NullableColumns,
    Tombstones,
    UnknownFields,
    Unrouted,
    WiderColumns,
)
from tidegate.core.policies import CommitMode
from tidegate.core.schemas import SchemaKind, SubjectName
from tidegate.kafka import (
    OnWeakTopic,
    RegistryClient,
    RegistrySettings,
    SchemaSerializer,
    TopicProducer,
    java_partition,
)
from tidegate.ledger import MemoryLedger, SqlLedger, Subscription
from tidegate.ledger.duckdb import DuckdbLedger
from tidegate.ledger.redis import RedisLedger
from tidegate.observe import LoggingObserver, OpenTelemetryObserver, PrometheusObserver
from tidegate.operate import (
    Adoption,
    By,
    Checkpoint,
    HandBack,
    InDoubt,
    KafkaGroup,
    Operator,
    Overview,
    Survey,
    To,
    target,
)
from tidegate.settings import (
    IntoSettings,
    KafkaSettings,
    KeyFormat,
    LedgerSettings,
    ListenerSettings,
    ObserveSettings,
    OnError,
    PartSettings,
    PipelineFormat,
    PipelineSettings,
    RouteSettings,
    RunSettings,
    Settings,
    SinkFormat,
    SinkSettings,
    SparkSettings,
    TableMode,
)
from tidegate.spark import ExactlyOnce, Pipeline, SparkOptions
from tidegate.tables import (
    ColumnType,
    ConnectAvroFormat,
    ConnectJsonFormat,
    CsvFormat,
    DebeziumAvroFormat,
    DebeziumFormat,
    Mode,
    OwnFormat,
    Part,
    Route,
    SchemaFormat,
    Target,
)
from tidegate.tables.types import TypeName
from tidegate.testing import Crash, Fence, LostAnswer, Rebalance, Step, TestKit, crash_everywhere, fault_everywhere

__all__ = ["PLACES", "Place", "Row"]

NAN, INFINITE = float("nan"), float("inf")


class Foreign(StrEnum):
    """Members are text, and each is a word of something else."""

    WORD = "right"


def foreign(word: str) -> StrEnum:
    """A member of another enum that has this word."""
    return StrEnum("Other", {"WORD": word}).WORD  # type: ignore[attr-defined, no-any-return]


class Row(NamedTuple):
    """One parameter: values that are refused, and values that are converted, each with what it becomes."""

    refused: tuple[object, ...]
    converted: tuple[tuple[object, object], ...] = ()
    anything: bool = False
    """Whether every value has a meaning: nothing can be refused."""


def row(*refused: object, **converted: object) -> Row:
    """A row whose texts become values: ``key="…"`` is given by the pairs under ``becomes``."""
    return Row(refused, tuple(converted.get("becomes", ())), bool(converted.get("anything")))  # type: ignore[arg-type]


def choice(*members: Any) -> Row:
    """Words of a closed choice; what looks like them is refused."""
    first = members[0]
    other = foreign(first.value)
    wrong = (first.value + "x", first.name, "", 5, True, type(first), object(), b"x", [first.value], other, type(other))
    return Row(wrong, tuple((member.value, member) for member in members))


class Several:
    """Has ``__index__`` and is not one number, as an array of NumPy."""

    def __index__(self) -> int:
        raise TypeError("only arrays of one number can be converted")


NOT_UNICODE = "\udcff"
"""What Python makes of a byte in the environment that is not UTF-8."""

_NOT_NUMBERS = ("many", "", True, None, object(), NAN, INFINITE, [1], b"1", int, "9" * 5000, foreign("7"), Several())


def count(least: int = 1, *more: object, optional: bool = False) -> Row:
    wrong = tuple(each for each in _NOT_NUMBERS if each is not None or not optional)
    return Row((*wrong, *more, least - 1, str(least - 1), 1.5, "1.5"), (("2", 2), (" 3 ", 3), (7, 7)))


def seconds(*more: object) -> Row:
    pairs = (("5s", 5.0), ("10 min", 600.0), ("500ms", 0.5), ("7", 7.0), (3, 3.0), (timedelta(seconds=4), 4.0))
    return Row((*_NOT_NUMBERS, -1, "-1s", "5 parsecs", 10**10, "101y", *more), pairs)


def size() -> Row:
    return Row(
        (*_NOT_NUMBERS, 0, -1, "32 MT", 1.5, "2.5", "2.5 b", "9" * 400 + "GB"),
        (("2.5kB", 2500), ("32MB", 32_000_000), ("4MiB", 4 << 20), ("1 kB", 1000), ("9", 9)),
    )


def flag(*, optional: bool = False) -> Row:
    wrong = ("perhaps", "", 1, 0, object(), bool, foreign("yes"), *(() if optional else (None,)))
    return Row(wrong, (("yes", True), ("no", False), ("true", True), ("off", False)))


def text(*refused: object, optional: bool = False) -> Row:
    return Row(
        (
            "",
            5,
            True,
            object(),
            b"x",
            str,
            Foreign.WORD,
            Foreign,
            NOT_UNICODE,
            *(() if optional else (None,)),
            *refused,
        ),
        (("right", "right"),),
    )


START = Row(
    (
        "soon",
        "latests",
        "",
        1.5,
        True,
        -1,
        object(),
        Latest,
        datetime(2026, 11, 1),
        "2026-11-01T00:00:00",
        b"latest",
        foreign("latest"),
        foreign("1793491200000"),
    ),
    (
        ("latest", Latest()),
        ("earliest", Earliest()),
        ("2026-11-01T00:00:00Z", Timestamp(1793491200000)),
        (datetime(2026, 11, 1, tzinfo=UTC), Timestamp(1793491200000)),
        (1793491200000, Timestamp(1793491200000)),
    ),
)
STRATEGY = Row(
    (*START.refused, StartStrategy),
    (*((given, StartStrategy(start)) for given, start in START.converted), (StartStrategy(), StartStrategy())),  # type: ignore[arg-type]
)
POLICY = Row(
    ("fial", "Fail", "", 5, None, True, Fail, DeadLetter, Retry, object(), b"fail", OutOfRange.SKIP, OutOfRange),
    (("fail", Fail()), ("skip", Skip()), ("dead-letter", DeadLetter()), (Retry(2), Retry(2))),
)
GROUP = Row(
    ("", 5, None, True, object(), "a\0b", "g" * 256, b"g", " ", "\n", Foreign.WORD, Foreign), (("billing", "billing"),)
)
TOPIC = Row(("", 5, None, True, object(), "no/topic", "a,b", b"t", Foreign.WORD), (("orders", "orders"),))
CLIENT = Row(
    (
        5,
        None,
        "localhost:9092",
        {5: "x"},
        {"fetch.min.bytes": None},
        {"fetch.min.bytes": [1]},
        {"a": NAN},
        {"": 1},
        {"client.id": NOT_UNICODE},
        {NOT_UNICODE: 1},
        {"client.id": "a\0b"},
        dict,
    )
)
KAFKA = Row(
    (
        5,
        "",
        True,
        object(),
        [],
        {5: "x"},
        {"bootstrap.servers": None},
        {"bootstrap.servers": ""},
        {"bootstrap.servers": 9092},
        {"bootstrap.servers": NOT_UNICODE},
        {"bootstrap.servers": "a", "client.id": NOT_UNICODE},
        {"bootstrap.servers": "a\0b"},
        NOT_UNICODE,
        "a\0b",
        {"bootstrap.servers": "a", "fetch.min.bytes": [1]},
        {"bootstrap.servers": "a", "fetch.min.bites": 1},
        {"bootstrap.servers": "a", "fetch.min.bytes": "few"},
    ),
    (("localhost:9092", {"bootstrap.servers": "localhost:9092"}),),
)
LEDGER = Row(
    (
        "",
        "memory:",
        "memory://shop",
        "sqlite+aiosqlite:///shop.db",
        "shop.db",
        "oracle://db",
        "no url",
        5,
        True,
        object(),
        SqlLedger,
        Consumer,
    ),
    (("memory://", MemoryLedger),),
)
LIMITS = Row((5, "10s", True, object(), Limits, {"hold": 1}))
FORMAT = Row(("yaml", "JSON", "", 5, None, CsvFormat, object(), foreign("json")), (("json", "json"),))
KEY_FORMAT = Row(("yaml", "JSON", "", 5, None, CsvFormat(["a"]), object(), len))
OF_A_FORMAT = Row((5, "http://a", True, object(), RegistryClient))
REGISTRY = Row((5, "", True, "nowhere", "ftp://a", object(), RegistrySettings, ["http://a"]))
COLUMNS = Row((5, "id", {}, {"id": 5}, {"id": "id"}, {"id": "offset.x"}, {5: "value"}, [("id", "value.id")], dict))
INTO = Row((5, None, "", " ", True, Table, object(), b"orders", Foreign.WORD), (("orders", Table("orders")),))
CALLBACK = Row((5, "print", object(), True))
OBSERVERS = Row((5, "print", [5], [object()], [Backoff]))
SERIALIZER = Row(("yaml", "", 5, True, object(), foreign("json")))
NAMES = Row(
    (5, True, [5], object(), {"a": 1}, Foreign, Foreign.WORD, [Foreign.WORD], [""], [" "]),
    (("id", ("id",)), (["id", "at"], ("id", "at"))),
)
PREFIX = text(optional=True)
TABLE_PREFIX = ("a b", 'a"b', "1a", "p" * 41, "ü" * 21)
WHOLE_PARTITION = Row(("1", -1, True, 1.5, object(), 2**31, 10**30))
MILLISECONDS = Row(("now", -1, True, 1.5, 2**63, 10**30, datetime(2026, 11, 1, tzinfo=UTC)))


@dataclass(frozen=True)
class Place:
    """Something that is called with arguments: the arguments that it needs, how to find what it made of them, and the
    rows of its parameters."""

    call: Callable[..., Any]
    needs: Mapping[str, Any]
    rows: Mapping[str, Row]
    held: Callable[[Any, str], Any] = getattr
    also: tuple[Callable[..., Any], ...] = field(default=())
    """Where its ``**options`` go to."""
    called: Mapping[str, str] = field(default_factory=dict)
    """What errors call a parameter, where that is not its name."""


def app() -> App:
    return App("nowhere:1", "sqlite:///unused.db", settings=Settings())


def listener(*arguments: Any, **options: Any) -> ListenerSpec:
    made = app()

    def handle(record: bytes) -> None:
        """Do nothing."""

    declare = made.listener(*arguments, **options)
    declare(handle)
    return made.listeners[0].spec


def sink(*arguments: Any, **options: Any) -> Any:
    return app().sink(*arguments, **options)


class Sender:
    """What a producer for one topic needs of a producer."""

    def send(self, *arguments: Any, **options: Any) -> None: ...


def sent(**arguments: Any) -> object:
    with Producer("127.0.0.1:1") as producer:
        return producer.send(**arguments)


def sent_to(**arguments: Any) -> object:
    with Producer("127.0.0.1:1") as producer:
        return producer.to("orders").send(**arguments)


_SPEC: dict[str, Row] = {
    "delivery": choice(*Delivery),
    "commit": Row(choice(CommitStrategy.SYNCHRONOUS).refused, choice(*CommitStrategy).converted),
    "start": STRATEGY,
    "batch": Row(
        (*_NOT_NUMBERS, 0, -1, {"count": 5}, BatchBounds),
        ((100, BatchBounds(100)), ("100", BatchBounds(100)), (BatchBounds(7), BatchBounds(7))),
    ),
    "buffer_bytes": size(),
    "on_error": POLICY,
    "protocol": choice(*GroupProtocol),
    "out_of_range": choice(*OutOfRange),
    "recreated": choice(*Recreated),
    "lag_guard": Row((100, "100", True, LagGuard, object(), {"limit": 5})),
    "mirror": flag(),
    "threads": count(1, 1001, 10**30),
    "workers": count(1, 1001, 10**30, optional=True),
    "concurrency": count(1, 10_001, 10**30, optional=True),
    "timeout": Row(tuple(each for each in (*seconds().refused, 0, "0s") if each is not None), seconds().converted),
    "ordering": choice(*Ordering),
    "session_timeout": seconds(0, "0s", "2h"),
    "on_assigned": CALLBACK,
    "on_revoked": CALLBACK,
    "on_lost": CALLBACK,
    "kafka": CLIENT,
}
_TOPICS = Row(
    (5, True, "", "no/topic", [5], [], object(), "^(", b"orders", {"a": 1}, Foreign, Foreign.WORD, [Foreign.WORD])
)
_PARTITIONS = Row(
    (5, "orders", [("orders", "0")], [("orders", -1)], [("orders", True)], ["orders"], [5], object(), Foreign)
)
_LISTENER = {"topics": _TOPICS, "group": GROUP, "partitions": _PARTITIONS, **_SPEC}
_STEP = choice(*Step)
_FAULT = {"step": _STEP, "turn": count()}
_LIMITS = {
    "hold": seconds("2h", 0, "0s", 0.0001, "49ms"),
    "lock_wait": seconds(0, "40ms", 86_401, 10**8, "25h"),
    "attempts": count(),
    "answer": Row(  # longer than lock_wait, which is an hour here
        (*_NOT_NUMBERS, -1, "-1s", "5 parsecs", 0, "40ms", "1h", 10**8, "49h"),
        (("2h", 7200.0), ("90 min", 5400.0), ("3601", 3601.0), (7201, 7201.0), (timedelta(hours=2), 7200.0)),
    ),
    "retention": seconds("101y", 10**10),
}
_PRODUCER = {
    "registry": REGISTRY,
    "kafka": KAFKA,
    "key_serializer": SERIALIZER,
    "value_serializer": SERIALIZER,
    "partitioner": Row(("murmur3", "", 5, None, True, object(), Backoff)),
    "interceptors": Row((5, "x", [5], [object()], [Backoff])),
    "listeners": Row((5, "x", [5], [object()], [Backoff])),
    "max_block": seconds(),
    "traces": flag(),
}
_SEND = {
    "value": Row((), anything=True),
    "key": Row((), anything=True),
    "partition": WHOLE_PARTITION,
    "headers": Row((5, "x", True)),
    "timestamp": MILLISECONDS,
}
_TABLE = {
    "name": Row(("", " ", "\u3000", 5, None, True, "a\0b", object(), b"x", Foreign.WORD), (("orders", "orders"),)),
    "key": NAMES,
    "mode": choice(Mode.APPEND),
    "create": flag(),
    "evolve": flag(),
    "columns": Row(
        (
            5,
            "id",
            {"id": "varchar"},
            {"id": 5},
            {"id": set},
            {"": "text"},
            {" ": "text"},
            {Foreign.WORD: "text"},
            {"id": foreign("text")},
            None,
        )
    ),
    "add": Row(NAMES.refused),
    "tombstones": Row(("perhaps", "", 1, True, object()), (("ignore", Tombstones.IGNORE),)),
    "schema": Row(("", 5, True, object(), "a\nb"), (("shop", "shop"),)),
    "unknown": choice(*UnknownFields),
    "ignore_case": flag(),
    "most_columns": count(),
    "soft_delete": Row(("", 5, True, object(), "a\nb", "deleted")),  # which mode append has no use for
    "guard": Row(("", 5, True, object(), "a\nb", "lsn")),
    "guard_table": Row(("", 5, True, object(), "a\nb", "marks")),
    "exact": flag(),
}
_WHERE = Row((5, "topic", {"nowhere": 1}, {"value.a": 1.5}, {5: "x"}, {"value.a": object()}, None))
_REPLACE = Row((5, ".", {".": "a b"}, {"..": "_"}, {".": 5}, {5: "x"}))
_RUN = {
    "commit": Row(choice(CommitMode.BATCH).refused, (("batch", CommitMode.BATCH),)),
    "delivery": choice(*Delivery),
    "out_of_range": choice(*OutOfRange),
    "recreated": choice(*Recreated),
    "max_records": count(),
    "max_bytes": size(),
    "collect": count(0),
    "per_batch": flag(),
}
_MODES = Row(
    (*choice(*TableMode).refused, "upsert", "accumulate", "ignore", "update"), choice(TableMode.APPEND).converted
)


def _in_spec(made: Any, name: str) -> Any:
    return getattr(made.spec, name)


def _of_sink(made: Any, name: str) -> Any:
    return getattr(made.sink if name in {"into", "format", "columns"} else made.spec, name)


def _private(made: Any, name: str) -> Any:
    return made._trace is not None if name == "traces" else getattr(made, f"_{name}")


def _in_own_loop(made: Any, name: str) -> Any:
    within = {"start": "_claimer", "recreated": "_claimer", "session_timeout": "_assignment"}.get(name)
    return getattr(getattr(made, within) if within else made, f"_{name}")


def _kind(made: Any, name: str) -> Any:
    return type(made)


def _of_pipeline(made: Any, name: str) -> Any:
    return (
        made._kafka if name == "kafka" else type(made._given_ledger) if name == "ledger" else getattr(made.spec, name)
    )


def _of_query(made: Any, name: str) -> Any:
    if name == "ledger":
        return type(made._given_ledger)
    return getattr(made.spec, {"name": "group"}.get(name, name))


def _of_app(made: Any, name: str) -> Any:
    return type(made.ledger) if name == "ledger" else made.kafka


_OWN = {
    "bootstrap.servers": "127.0.0.1:1",
    "group.id": "g",
    "log_level": 0,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
}


def _unused() -> Consumer:
    return Consumer(_OWN)


_PIPELINE = {"topics": "orders", "into": "orders", "group": "g", "kafka": "a:1", "ledger": "sqlite:///unused.db"}
_ENGINE = create_engine("sqlite:///unused.db")

_INTO_SETTINGS = {
    "table": text(),
    "schema": text(optional=True),
    "key": NAMES,
    "mode": _MODES,
    "create": flag(),
    "evolve": flag(),
    "types": Row((5, "id", {"id": 5}, {5: "text"}, {"id": "intger"}, {"": "text"}, {" ": "text"}, None)),
    "add": NAMES,
    "tombstones": Row(("perhaps", "", 1, True, object()), (("ignore", Tombstones.IGNORE),)),
    "unknown": choice(*UnknownFields),
    "ignore_case": flag(),
    "most_columns": count(),
    "soft_delete": text(optional=True),
    "guard": text(optional=True),
    "guard_table": text(optional=True),
    "exact": flag(),
}

PLACES: dict[str, Place] = {
    "App": Place(
        App,
        {"kafka": "nowhere:1", "ledger": "memory://", "settings": Settings()},
        {
            "kafka": KAFKA,
            "ledger": LEDGER,
            "settings": Row((5, "", True, object(), Settings, {"kafka": "a"}, "\ud800", "a\0b")),
            "observers": OBSERVERS,
            "registry": REGISTRY,
        },
        _of_app,
    ),
    "App.listener": Place(
        listener,
        {"topics": "orders", "group": "g"},
        _LISTENER
        | {
            "decoder": Row(("yaml", "", 5, True, object())),
            "concurrency": Row(_SPEC["concurrency"].refused),  # the function is no coroutine
            "timeout": Row(_SPEC["timeout"].refused),
        },
        also=(App.listener, ListenerSpec),
    ),
    "App.sink": Place(
        sink,
        {"topics": "orders", "into": "orders"},
        _LISTENER
        | {
            "into": INTO,
            "format": FORMAT,
            "key_format": KEY_FORMAT,
            "columns": COLUMNS,
            "workers": Row((*count(optional=True).refused, 2, "2")),  # there is no function
            "concurrency": Row((*count(optional=True).refused, 2, "2")),  # likewise
            "timeout": Row((*(each for each in seconds().refused if each is not None), 2, "2s")),  # likewise
            "group": Row(tuple(each for each in GROUP.refused if each)),
        },
        _of_sink,
        also=(App.sink, ListenerSpec),
    ),
    "ListenerSpec": Place(
        ListenerSpec,
        {"topics": "orders", "group": "g"},
        _SPEC
        | {
            "group": GROUP,
            "topics": Row(_TOPICS.refused, (("orders", Topics(("orders",))), ("^o", Topics(pattern="^o")))),
        },
    ),
    "Topics": Place(
        Topics,
        {},
        {
            "names": Row((5, True, "no/topic", [5], object(), b"orders"), (("orders", ("orders",)),)),
            "pattern": Row((5, True, object(), "(", re.compile("x"))),
            "partitions": Row(_PARTITIONS.refused, (([("orders", 0)], (TopicPartition("orders", 0),)),)),
        },
    ),
    "BatchBounds": Place(BatchBounds, {}, {"count": count(), "bytes": size(), "age": seconds()}),
    "Backoff": Place(
        Backoff,
        {"first": 0.1, "most": "1h"},
        {
            "first": seconds("2h"),
            "factor": Row((*_NOT_NUMBERS, 0.5, -1), (("2.5", 2.5), (3, 3.0))),
            "most": seconds("50ms"),
        },
    ),
    "Retry": Place(
        Retry,
        {},
        {"times": count(), "backoff": Row((5, "1s", True, Backoff, object(), None)), "then": POLICY},
    ),
    "LagGuard": Place(
        LagGuard,
        {"limit": 1000},
        {"limit": count(0), "keep": Row((*count(0).refused, 1001), (("10", 10),)), "every": seconds(0, "0s")},
    ),
    "Timestamp": Place(
        Timestamp,
        {},
        {
            "at": Row(
                ("soon", "latest", "", -1, True, 1.5, None, datetime(2026, 11, 1), 10**15),
                (
                    ("2026-11-01T00:00:00Z", 1793491200000),
                    (datetime(2026, 11, 1, tzinfo=UTC), 1793491200000),
                    ("1793491200000", 1793491200000),
                ),
            )
        },
    ),
    "StartStrategy": Place(
        StartStrategy, {}, {"start": START, "deployment": Row(("", 5, True, object(), b"x"), (("v2", "v2"),))}
    ),
    "Limits": Place(Limits, {"hold": "50ms", "lock_wait": "1h", "answer": "2h"}, _LIMITS),
    "open_ledger": Place(
        open_ledger,
        {"target": "memory://"},
        {"target": Row((*LEDGER.refused, None), LEDGER.converted), "prefix": Row(PREFIX.refused), "limits": LIMITS},
        _kind,
        called={"target": "ledger"},
    ),
    "MemoryLedger": Place(MemoryLedger, {}, {"limits": LIMITS, "runtime": Row((5, None, "threads", object(), time))}),
    "SqlLedger": Place(
        SqlLedger,
        {"engine": _ENGINE},
        {
            "engine": Row((5, None, "sqlite:///unused.db", object(), SqlLedger)),
            "prefix": Row((*text().refused, *TABLE_PREFIX), (("shop_", "shop_"),)),
            "limits": LIMITS,
            "owned": Row(flag().refused),
        },
    ),
    "DuckdbLedger": Place(
        DuckdbLedger,
        {"path": "unused.duckdb"},
        {
            "path": Row((5, None, "", " ", True, object(), b"x", Foreign.WORD, "a\0b", NOT_UNICODE)),
            "prefix": Row((*text().refused, *TABLE_PREFIX)),
            "limits": LIMITS,
        },
    ),
    "DuckdbLedger.from_url": Place(
        DuckdbLedger.from_url,
        {"url": "duckdb:///unused.duckdb"},
        {
            "url": Row((5, None, "", "duckdb://", "duckdb:///x?access_mode=read_only", object())),
            "prefix": Row((*text().refused, *TABLE_PREFIX)),
            "limits": Row(LIMITS.refused),
        },
    ),
    "OwnLoop": Place(
        OwnLoop,
        {"consumer": _unused(), "ledger": MemoryLedger(), "topics": "orders", "kafka": _OWN},
        {
            "consumer": Row((5, None, "localhost:9092", Consumer, object())),
            "ledger": Row((5, None, "memory://", MemoryLedger, object())),
            "topics": Row((5, None, True, "", ["no/topic"], [5], [], (), Foreign, Foreign.WORD, [Foreign.WORD])),
            "kafka": Row((5, None, "localhost:9092", object(), {5: 5}, {"group.id": object()})),
            "start": STRATEGY,
            "out_of_range": choice(*OutOfRange),
            "recreated": choice(*Recreated),
            "session_timeout": Row(
                tuple(each for each in seconds(0).refused if each is not None), (("5s", 5.0), (3, 3.0))
            ),
            "observers": Row(tuple(each for each in OBSERVERS.refused if each is not None)),
        },
        _in_own_loop,
    ),
    "RedisLedger": Place(
        RedisLedger,
        {"client": redis.Redis()},
        {
            "client": Row((5, None, "redis://localhost", object(), redis.Redis)),
            "prefix": Row(text().refused, (("{shop}:", b"{shop}:"),)),
            "limits": LIMITS,
        },
        lambda made, name: getattr(made, "limits" if name == "limits" else f"_{name}"),
    ),
    "RedisLedger.from_url": Place(
        RedisLedger.from_url,
        {"url": "redis://127.0.0.1:1"},
        {
            "url": Row((5, None, "", "http://localhost", object())),
            "prefix": Row(text().refused),
            "limits": Row(LIMITS.refused),
        },
    ),
    "LoggingObserver": Place(
        LoggingObserver,
        {},
        {"logger": Row((5, "tidegate", logging, object())), "clock": Row((5, None, "now", object()))},
    ),
    "PrometheusObserver": Place(PrometheusObserver, {}, {"registry": Row((5, "default", object()))}),
    "OpenTelemetryObserver": Place(OpenTelemetryObserver, {}, {"provider": Row((5, "default", object()))}),
    "Subscription": Place(
        Subscription,
        {"partitions": set, "beginnings": dict},
        dict.fromkeys(("partitions", "beginnings"), Row((5, None, True, "", {}, object()))),
    ),
    "Producer": Place(Producer, {"kafka": "127.0.0.1:1"}, {**_PRODUCER, "kafka": Row(KAFKA.refused)}, _private),
    "Producer.safe": Place(
        Producer.safe,
        {"kafka": "127.0.0.1:1"},
        {
            **{name: Row(each.refused) for name, each in _PRODUCER.items()},
            "topics": Row((5, True, [5], "no/topic", object())),
            "on_weak_topic": Row(choice(*OnWeakTopic).refused),
        },
        also=(Producer.safe, Producer),
    ),
    "Producer.send": Place(
        sent,
        {"topic": "orders"},
        {"topic": Row((5, None, True, "", b"t", Foreign.WORD)), **_SEND},
        also=(Producer.send,),
    ),
    "TopicProducer": Place(
        TopicProducer,
        {"producer": Sender(), "topic": "orders"},
        {"producer": Row((5, None, "x", Producer, object())), "topic": TOPIC},
    ),
    "TopicProducer.send": Place(sent_to, {}, _SEND, also=(TopicProducer.send,)),
    "Outgoing": Place(Outgoing, {"topic": "orders"}, {"topic": Row((5, None, True, "", b"t", Foreign.WORD)), **_SEND}),
    "java_partition": Place(
        java_partition, {"key": b"a", "partitions": 1}, {"key": Row(("a", 5, None)), "partitions": Row(count().refused)}
    ),
    "Table": Place(Table, {"name": "orders"}, _TABLE),
    "Evolution": Place(
        Evolution,
        {},
        {"add": choice(*AddedColumns), "widen": choice(*WiderColumns), "nullable": choice(*NullableColumns)},
    ),
    "Part": Place(
        Part,
        {"table": "orders"},
        {
            "table": INTO,
            "columns": COLUMNS,
            "where": _WHERE,
            "each": Row((5, "", True, object(), "lines", "key.lines")),
        },
    ),
    "Route": Place(
        Route,
        {"parts": ["orders"]},
        {
            "parts": Row((5, None, [], [5], "", Table, object(), ["orders", "orders"])),
            "unmatched": choice(*Unrouted),
            "replace": _REPLACE,
            "lower": flag(),
            "most_tables": count(),
            "parent_wait": seconds(),
        },
    ),
    "ColumnType": Place(
        ColumnType,
        {"name": "decimal", "precision": 5, "scale": 2},
        {
            "name": Row(choice(*TypeName).refused, (("decimal", TypeName.DECIMAL),)),
            "precision": Row((*count(optional=True).refused, 1), (("7", 7),)),
            "scale": Row((*count(0, optional=True).refused, 6), (("3", 3),)),
            "unit": Row((5, "", "min", "ms", object())),  # which only a timestamp has
            "required": flag(),
            "default": Row((), anything=True),  # the table knows what fits
        },
    ),
    "CsvFormat": Place(
        CsvFormat,
        {"fields": ["a"]},
        {
            "fields": Row((5, "a", [], [5], ["a", "a"], [""], None, object(), {"a", "b"}), ((["a", "b"], ("a", "b")),)),
            "delimiter": Row(("", ";;", '"', "\n", 5, None, b";"), ((";", ";"),)),
            "header": flag(),
            "nulls": Row((5, None, [5], object()), (("NA", frozenset({"NA"})),)),
        },
    ),
    "ConnectJsonFormat": Place(ConnectJsonFormat, {}, {}),
    "ConnectAvroFormat": Place(ConnectAvroFormat, {}, {"registry": OF_A_FORMAT}),
    "DebeziumAvroFormat": Place(DebeziumAvroFormat, {}, {"placeholder": text(), "registry": OF_A_FORMAT}),
    "DebeziumFormat": Place(DebeziumFormat, {}, {"decimals": choice(*DecimalText), "placeholder": text()}),
    "SchemaFormat": Place(
        SchemaFormat,
        {},
        {
            "kind": Row(("yaml", "", 5, None, True, object()), (("avro", SchemaKind.AVRO),)),
            "flatten": text(optional=True),
            "registry": OF_A_FORMAT,
        },
    ),
    "SchemaSerializer": Place(
        SchemaSerializer,
        {"schema": '"long"'},
        {
            "schema": Row((5, True, "", "nonsense", object(), {"type": "nonsense"})),
            "format": Row(("yaml", "", 5, None, True, object())),
            "subject": choice(*SubjectName),
            "register": flag(),
            "references": Row((5, "x", [5], None, object())),
            "registry": REGISTRY,
        },
    ),
    "RegistrySettings": Place(
        RegistrySettings,
        {"url": "http://a", "user": "u", "password": "p", "certificate": "c", "key": "k"},
        {
            "url": Row((*text(optional=True).refused, "nowhere", "ftp://a", "http://a?b")),
            "user": Row((*text(optional=True).refused, None, "a\nb")),
            "password": Row((*text(optional=True).refused, None, "a\nb")),
            "token": Row((*text(optional=True).refused, "beside a user")),
            "ca": text(optional=True),
            "certificate": Row((*text(optional=True).refused, None)),
            "key": text(optional=True),
            "key_password": text(optional=True),
            "timeout": Row((0, -1, "x", True, None, object())),
        },
    ),
    "RegistryClient": Place(
        RegistryClient,
        {"settings": RegistrySettings("http://a")},
        {"settings": Row((5, None, "http://a", object(), RegistrySettings)), "clock": Row((5, None, "x", object()))},
        _private,
    ),
    "OwnFormat": Place(OwnFormat, {}, {"function": Row((5, "json", None, object()))}),
    "Target": Place(
        Target,
        {"engine": _ENGINE, "table": "orders"},
        {
            "engine": Row((5, None, "sqlite:///unused.db", object())),
            "table": INTO,
            "format": Row(FORMAT.refused),
            "key_format": KEY_FORMAT,
            "columns": Row(COLUMNS.refused),
            "layout": Row((5, "x", object())),
        },
    ),
    "Pipeline": Place(
        Pipeline,
        _PIPELINE,
        _RUN
        | {
            "topics": Row((5, True, "", "no/topic", [5], [], object(), Foreign), (("orders", ("orders",)),)),
            "into": INTO,
            "group": GROUP,
            "kafka": KAFKA,
            "ledger": Row((*LEDGER.refused, None)),
            "format": Row(("yaml", "JSON", "", 5, None, CsvFormat, object()), (("json", "json"),)),
            "schema": Row(
                (5, "id", {}, {"id": "varchar"}, {"id": 5}, {5: "text"}, {"": "text"}, {"a..b": "text"}, dict)
            ),
            "columns": Row((5, "id", {}, {"id": 5}, {"id": ""}, {5: "value"}, {"": "value"}, {" ": "value"}, dict)),
            "where": Row(("", 5, True, object(), b"x"), (("value.id > 0", "value.id > 0"),)),
            "transform": Row(("", 5, True, object(), Backoff)),
            "start": STRATEGY,
            "spark": Row((5, "local[2]", True, object(), SparkOptions)),
            "observers": OBSERVERS,
            "on_batch": CALLBACK,
            "key_format": KEY_FORMAT,
            "registry": REGISTRY,
        },
        _of_pipeline,
    ),
    "ExactlyOnce": Place(
        ExactlyOnce,
        {"into": "orders", "ledger": "sqlite:///unused.db", "name": "orders"},
        {
            "into": INTO,
            "ledger": Row((*LEDGER.refused, None)),
            "name": GROUP,
            "collect": count(0),
            "observers": OBSERVERS,
        },
        _of_query,
    ),
    "SparkOptions": Place(
        SparkOptions,
        {},
        {
            "master": text(),
            "connector": text(optional=True),
            "conf": Row(
                (5, "x", {"ui": 1}, {5: 1}, {"spark.ui": [1]}, {"spark.master": "local"}, {"spark.x": NAN}, None)
            ),
            "name": text(),
        },
    ),
    "To": Place(To, {}, {"offset": count(0)}),
    "By": Place(By, {}, {"count": Row((*_NOT_NUMBERS, 1.5), (("-3", -3), ("4", 4)))}),
    "target": Place(target, {}, {"text": Row((5, None, True, object()))}, called={"text": "target"}),
    "Operator": Place(
        Operator,
        {"ledger": MemoryLedger(), "survey": None},
        {"ledger": Row((5, None, "memory://", MemoryLedger)), "survey": Row((5, "a:1", Survey))},
    ),
    "Operator.rewind": Place(
        Operator(MemoryLedger(), None).rewind,
        {"group": "g", "topic": "orders", "target": "earliest"},
        {
            "group": Row(GROUP.refused),
            "topic": Row(TOPIC.refused),
            "target": Row((5, None, True, Earliest, object())),
            "partitions": Row(([-1], ["x"], [True], "x", object())),
            "force": Row(flag().refused),
        },
    ),
    "KafkaGroup": Place(
        KafkaGroup,
        {"survey": Survey("a:1"), "group": "g"},
        {"survey": Row((5, None, "a:1", Survey)), "group": Row(GROUP.refused), "what": Row((5, None, ""))},
    ),
    "Checkpoint": Place(
        Checkpoint,
        {"directory": "."},
        {
            "directory": Row((5, None, True, object(), "")),
            "stopped": Row(flag().refused),
            "source": Row(count(0, optional=True).refused),
            "without_state": Row(flag().refused),
            "clock": Row((5, "now", None)),
        },
    ),
    "Adoption": Place(
        Adoption,
        {
            "ledger": MemoryLedger(),
            "survey": Survey("a:1"),
            "source": KafkaGroup(Survey("a:1"), "old"),
            "into": "g",
        },
        {
            "ledger": Row((5, None, "memory://", MemoryLedger)),
            "survey": Row((5, None, "a:1", Survey)),
            "source": Row((5, None, "old", KafkaGroup)),
            "into": Row(GROUP.refused),
            "topics": Row((5, None, "or/ders", [5], ["no/topic"])),
            "start": Row(START.refused),
            "in_doubt": Row(choice(*InDoubt).refused),
            "replace": Row(flag().refused),
            "force": Row(flag().refused),
        },
        called={"into": "group"},
    ),
    "HandBack": Place(
        HandBack,
        {"ledger": MemoryLedger(), "survey": Survey("a:1"), "group": "g", "to": "old"},
        {
            "ledger": Row((5, None, "memory://", MemoryLedger)),
            "survey": Row((5, None, "a:1", Survey)),
            "group": Row(GROUP.refused),
            "to": Row(GROUP.refused),
            "replace": Row(flag().refused),
            "fence": Row(flag().refused),
        },
        called={"to": "group"},
    ),
    "Overview": Place(
        Overview,
        {"ledger": MemoryLedger()},
        {
            "ledger": Row((5, None, "memory://", MemoryLedger)),
            "survey": Row((5, "a:1", Survey)),
            "window": Row(seconds(0).refused, seconds().converted),
            "clock": Row((5, "now", None)),
        },
        _private,
    ),
    "Survey": Place(
        Survey,
        {"kafka": "a:1"},
        {"kafka": Row(KAFKA.refused[:-2], KAFKA.converted), "seconds": Row(seconds(0).refused, seconds().converted)},
        _private,
    ),
    "Crash": Place(Crash, {"step": Step.POLLED}, _FAULT),
    "Fence": Place(Fence, {"step": Step.POLLED}, _FAULT),
    "Rebalance": Place(Rebalance, {"step": Step.POLLED}, _FAULT | {"to_another": flag(), "lost": flag()}),
    "LostAnswer": Place(LostAnswer, {"committed": True}, {"committed": flag(), "turn": count()}),
    "TestKit": Place(
        TestKit,
        {"app": app(), "broker": "local"},
        {
            "app": Row((5, None, "shop:app", App, object())),
            "ledger": Row(LEDGER.refused),
            "broker": Row((5, "", True, object(), {5: "x"})),
            "batch": Row(count(optional=True).refused),
        },
    ),
    "crash_everywhere": Place(
        crash_everywhere, {"make": print, "check": print}, {"make": Row((5, None, "x")), "check": Row((5, None, "x"))}
    ),
    "fault_everywhere": Place(
        fault_everywhere, {"make": print, "check": print}, {"make": Row((5, None, "x")), "check": Row((5, None, "x"))}
    ),
    "Settings": Place(
        Settings,
        {},
        {
            "kafka": Row((5, "a:1", None, KafkaSettings)),
            "ledger": Row((5, "memory://", None)),
            "registry": Row((5, "http://a", None)),
            "listener": Row((5, "x", None)),
            "observe": Row((5, "x", None, True)),
            "sink": Row((5, "x", None, {"a": 5})),
        },
    ),
    "ObserveSettings": Place(ObserveSettings, {}, {"traces": flag()}),
    "KafkaSettings": Place(
        KafkaSettings,
        {},
        {
            "bootstrap": text(optional=True),
            "client": Row((*CLIENT.refused[:1], *CLIENT.refused[2:], {"group.id": "x"})),
            "create_topics": flag(),
        },
    ),
    "LedgerSettings": Place(
        LedgerSettings, {}, {"url": text(optional=True), "prefix": text(optional=True), "limits": Row((5, "1s", None))}
    ),
    "ListenerSettings": Place(
        ListenerSettings,
        {},
        {
            **{name: each for name, each in _SPEC.items() if name in ListenerSettings.__dataclass_fields__},
            "start": START,
            "deployment": text(optional=True),
            "batch": Row((5, "5", None, True, object())),
            "on_error": choice(*OnError),
            "retries": count(0),
            "backoff": Row((5, "1s", None)),
        },
    ),
    "IntoSettings": Place(
        IntoSettings,
        {"table": "orders"},
        _INTO_SETTINGS,
    ),
    "PartSettings": Place(
        PartSettings,
        {"table": "orders"},
        {
            **_INTO_SETTINGS,
            "columns": Row((5, "id", {"id": 5}, {5: "value.id"}, None)),
            "where": Row((5, "topic", {"value.a": 1.5}, {5: "x"}, None)),
            "each": text(optional=True),
        },
    ),
    "RouteSettings": Place(
        RouteSettings,
        {"parts": {"orders": PartSettings("orders")}},
        {
            "parts": Row((5, "orders", {}, {"orders": "orders"}, None)),
            "unmatched": choice(*Unrouted),
            "replace": _REPLACE,
            "lower": flag(),
            "most_tables": count(),
            "parent_wait": seconds(),
        },
    ),
    "SinkSettings": Place(
        SinkSettings,
        {"topics": "orders", "into": IntoSettings("orders")},
        {
            "topics": Row((5, None, [5], [], Foreign), (("orders", ("orders",)),)),
            "into": Row((5, "orders", None)),
            "route": Row((5, "orders", RouteSettings({"orders": PartSettings("orders")}))),  # beside into
            "group": text(optional=True),
            "format": Row(choice(*SinkFormat).refused, (("json", SinkFormat.JSON),)),
            "fields": Row((5, [5])),
            "delimiter": Row((5, None, ";", "", ";;", "\n")),
            "header": Row((*flag().refused, "yes")),  # without CSV
            "nulls": Row((5, None, [5], "NA")),
            "decimals": Row((*choice(*DecimalText).refused, "digits")),  # without change events
            "placeholder": Row((*text().refused, "missing")),
            "flatten": Row((*text(optional=True).refused, "_")),  # without a schema
            "key_format": choice(*KeyFormat),
            "columns": Row((5, {"a": 5}, {"a": ""}, {"": "value.a"}, None)),
            "on_error": choice(*OnError),
        },
    ),
    "PipelineSettings": Place(
        PipelineSettings,
        {"topics": "orders", "group": "g", "into": IntoSettings("orders")},
        {
            "topics": Row((5, None, [5], [], "no/topic", Foreign, Foreign.WORD), (("orders", ("orders",)),)),
            "group": GROUP,
            "into": Row((5, "orders", None)),
            "route": Row((5, "orders", RouteSettings({"orders": PartSettings("orders")}))),  # beside into
            "kafka": Row((5, "a:1")),
            "ledger": Row((5, "memory://")),
            "registry": Row((5, "http://a")),
            "flatten": Row((*text(optional=True).refused, "_")),  # without a schema
            "key_format": choice(*KeyFormat),
            "decimals": Row((*choice(*DecimalText).refused, "digits")),  # without change events
            "placeholder": Row((*text().refused, "missing")),
            "format": Row(choice(*PipelineFormat).refused, (("json", PipelineFormat.JSON),)),
            "fields": Row((5, [5])),
            "delimiter": Row((5, None, ";", "", ";;", "\n")),
            "header": Row((*flag().refused, "yes")),  # without CSV
            "nulls": Row((5, None, [5], "NA")),
            "schema": Row((5, {"a": 5}, {"a": "intger"}, {"": "text"}, {"a..b": "text"}, None)),
            "columns": Row((5, {"a": 5}, {"a": ""}, {"a": " "}, {"": "value"}, None)),
            "where": text(optional=True),
            "sql": text(optional=True),
            "run": Row((5, "1s", None)),
            "spark": Row((5, "local", None)),
        },
    ),
    "RunSettings": Place(
        RunSettings,
        {},
        _RUN
        | {
            "every": Row(tuple(each for each in seconds().refused if each is not None), seconds().converted),
            "available_now": flag(),
            "once": flag(),
            "start": START,
            "deployment": text(optional=True),
        },
    ),
    "SparkSettings": Place(
        SparkSettings,
        {},
        {
            "master": text(),
            "connector": text(optional=True),
            "name": text(optional=True),
            "conf": Row((5, "x", None, {5: 1})),
        },
    ),
}
