"""The settings of apps and pipelines, which come from a TOML file and the environment, with their defaults."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import (
    Accepts,
    Amount,
    ByteCount,
    ClientConfig,
    Count,
    Label,
    Seconds,
    ThreadCount,
    argument,
    convert_arguments,
)
from tidegate.core.batches import BatchBounds
from tidegate.core.columns import (
    BASE64,
    COMMA,
    EMPTY,
    PLACEHOLDER,
    DecimalText,
    Delimiter,
    Evolution,
    Evolve,
    FieldPath,
    Nulls,
    Tombstones,
    TypeWord,
    UnknownFields,
    Unrouted,
)
from tidegate.core.masks import Masked, shown
from tidegate.core.policies import (
    Backoff,
    CommitMode,
    CommitStrategy,
    Delivery,
    Earliest,
    FailurePolicy,
    GroupProtocol,
    LagGuard,
    OutOfRange,
    Recreated,
    Retry,
    SessionTimeout,
    Start,
    StartStrategy,
)
from tidegate.core.records import check_group, check_topic
from tidegate.core.schemas import SCHEMA_FORMATS
from tidegate.errors import ConfigurationError, InvalidName
from tidegate.kafka.config import refuse_unsafe
from tidegate.kafka.registry import RegistrySettings
from tidegate.ledger.transaction import Limits
from tidegate.settings_file import Key, Leaf, Tree, plant, read, written
from tidegate.tables.route import Part, Route
from tidegate.tables.table import Table

__all__ = [
    "IntoSettings",
    "KafkaSettings",
    "KeyFormat",
    "LedgerSettings",
    "ListenerSettings",
    "ObserveSettings",
    "OnError",
    "PartSettings",
    "PipelineFormat",
    "PipelineSettings",
    "RouteSettings",
    "RunSettings",
    "Settings",
    "SinkFormat",
    "SinkSettings",
    "SparkSettings",
    "TableMode",
    "settings_file",
]


class OnError(StrEnum):
    """What to do with a record whose handler still fails after all retries."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"

    @property
    def policy(self) -> FailurePolicy:
        """The corresponding failure policy."""
        policy: FailurePolicy = argument("on_error", FailurePolicy, self.value)
        return policy


class TableMode(StrEnum):
    """How a record changes the table."""

    APPEND = "append"
    UPSERT = "upsert"
    ACCUMULATE = "accumulate"
    IGNORE = "ignore"
    UPDATE = "update"


class SinkFormat(StrEnum):
    """The format of record values."""

    JSON = "json"
    CSV = "csv"
    AVRO = "avro"
    CONNECT_JSON = "connect-json"
    CONNECT_AVRO = "connect-avro"
    DEBEZIUM = "debezium"
    DEBEZIUM_AVRO = "debezium-avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json-schema"


class KeyFormat(StrEnum):
    """The format of record keys."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json-schema"


_UNKNOWN = UnknownFields(Table.unknown)
_UNROUTED = Unrouted(Route.unmatched)


@dataclass(frozen=True, slots=True, repr=False)
class IntoSettings(Masked):
    """The table that records are written to; ``types`` declares columns and their types."""

    table: Label
    schema: Label | None = None
    key: tuple[str, ...] = ()
    mode: TableMode = TableMode.APPEND
    create: bool = Table.create
    evolve: Evolve = Table.evolve
    types: Mapping[Label, TypeWord] = field(default_factory=dict)
    add: tuple[str, ...] = ()
    tombstones: Tombstones | None = None
    exact: bool = Table.exact
    unknown: UnknownFields = _UNKNOWN
    ignore_case: bool = Table.ignore_case
    most_columns: Count = Table.most_columns
    soft_delete: Label | None = Table.soft_delete
    guard: Label | None = Table.guard
    guard_table: Label | None = Table.guard_table

    def __post_init__(self) -> None:
        convert_arguments(self)
        for name in ("key", "add"):
            if not all(column.strip() for column in getattr(self, name)):
                raise ConfigurationError(f"{name}: expected names of columns, and one of them is empty")
        if self.mode is not TableMode.APPEND and not self.key:
            raise ConfigurationError(f"mode = \"{self.mode}\" needs 'key', the columns that identify a row")

    def shown(self) -> dict[str, Any]:
        """Return all settings unmasked. The setting ``key`` has names of columns and is not a secret."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return found | ({"evolve": self.evolve.shown()} if isinstance(self.evolve, Evolution) else {})

    def described(self) -> Table:
        """Return the equivalent :class:`Table`."""
        given = {item.name: getattr(self, item.name) for item in fields(IntoSettings)}
        del given["table"], given["types"]
        return Table(self.table, columns=self.types, **given | {"mode": self.mode.value})


def _values(given: Any) -> tuple[Any, ...] | None:
    several = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    return several if several and all(isinstance(each, (str, int)) for each in several) else None


_Values: TypeAlias = Annotated[
    tuple[Any, ...], Accepts("text, a whole number, true or false, or an array of these", _values)
]


@dataclass(frozen=True, slots=True, repr=False)
class PartSettings(IntoSettings):
    """One table of a route, and what of a record goes into it."""

    columns: Mapping[Label, Label] = field(default_factory=dict)
    where: Mapping[Label, _Values] = field(default_factory=dict)
    each: Label | None = None

    def part(self) -> Part:
        """Return the equivalent :class:`Part`."""
        return Part(self.described(), self.columns or None, dict(self.where), self.each)


@dataclass(frozen=True, slots=True, repr=False)
class RouteSettings(Masked):
    """The tables that the records of a sink or a pipeline go into; the names of the parts are only for reading."""

    parts: Mapping[Label, PartSettings]
    unmatched: Unrouted = _UNROUTED
    replace: Mapping[Label, str] | None = None
    lower: bool = Route.lower
    most_tables: Count = Route.most_tables
    parent_wait: Seconds = Route.parent_wait

    def __post_init__(self) -> None:
        convert_arguments(self)
        self.route()

    def route(self) -> Route:
        """Return the equivalent :class:`Route`."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("parts", "replace")}
        given |= {} if self.replace is None else {"replace": self.replace}
        return Route([part.part() for part in self.parts.values()], **given)

    def shown(self) -> dict[str, Any]:
        """Return all settings unmasked; none is a secret."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "parts"}
        return plain | {"parts": {name: part.shown() for name, part in self.parts.items()}}


def _check_target(into: IntoSettings | None, route: RouteSettings | None) -> None:
    """Raise unless either a table or a route is given."""
    if into is None and route is None:
        raise ConfigurationError("'into' is missing, the table; or 'route', for several tables")
    if into is not None and route is not None:
        raise ConfigurationError("'into' and 'route' contradict each other: one table, or several; keep one")


def _target(into: IntoSettings | None, route: RouteSettings | None) -> Table | Route:
    """Return the table or the route that is given."""
    if route is not None:
        return route.route()
    assert into is not None  # noqa: S101 - checked before
    return into.described()


def check_csv(settings: Any, *, is_csv: bool) -> None:
    """Raise if CSV settings are used with another format, or if CSV lacks the names of its fields."""
    if is_csv != bool(settings.fields):
        raise ConfigurationError("'fields' names the fields of a line of CSV: it goes with format = \"csv\"")
    for name, usual, what in (
        ("delimiter", COMMA, "separates the fields of CSV"),
        ("header", False, "sets whether CSV has a header line with names"),
        ("nulls", EMPTY, "lists the texts of CSV that mean null"),
    ):
        if getattr(settings, name) != usual and not is_csv:
            raise ConfigurationError(f"'{name}' {what}: it goes with format = \"csv\"")


def check_flatten(settings: Any, *, has_schema: bool) -> None:
    """Raise if nested records are to become columns, and the format has no schema that names their fields."""
    if settings.flatten is not None and not has_schema:
        listed = " or ".join(f'"{name}"' for name in SCHEMA_FORMATS)
        raise ConfigurationError(f"'flatten' makes columns of nested records: it goes with format = {listed}")


def check_changes(settings: Any) -> None:
    """Raise if settings about change events are used with another format."""
    if settings.decimals != BASE64 and settings.format != "debezium":
        raise ConfigurationError("'decimals' is about change events in JSON: it goes with format = \"debezium\"")
    if settings.placeholder != PLACEHOLDER and settings.format not in ("debezium", "debezium-avro"):
        raise ConfigurationError(
            '\'placeholder\' is about change events: it goes with format = "debezium" or "debezium-avro"'
        )
    if settings.format == "debezium-avro" and settings.key_format not in ("json", "avro"):
        raise ConfigurationError("'key_format': the keys of change events in Avro are Avro, too; leave it out")


@dataclass(frozen=True, slots=True, repr=False)
class SinkSettings(Masked):
    """One sink: into one table, or by a route into several.

    ``columns`` maps columns to their sources; ``fields`` names the fields of a CSV line. ``decimals`` and
    ``placeholder`` are those of :class:`~tidegate.tables.DebeziumFormat`.
    ``flatten`` joins the names of nested fields, which become columns of their own; ``key_format`` is the format of
    keys.
    """

    topics: tuple[str, ...]
    into: IntoSettings | None = None
    route: RouteSettings | None = None
    group: Label | None = None
    format: SinkFormat = SinkFormat.JSON
    fields: tuple[str, ...] = ()
    delimiter: Delimiter = COMMA
    header: bool = False
    nulls: Nulls = EMPTY
    flatten: Label | None = None
    key_format: KeyFormat = KeyFormat.JSON
    decimals: DecimalText = BASE64
    placeholder: Label = PLACEHOLDER
    columns: Mapping[Label, Label] = field(default_factory=dict)
    on_error: OnError = OnError.DEAD_LETTER

    def __post_init__(self) -> None:
        convert_arguments(self)
        if not self.topics:
            raise ConfigurationError("'topics' is empty; name one, several, or a pattern that begins with ^")
        if any(topic.startswith("^") for topic in self.topics) and len(self.topics) > 1:
            raise ConfigurationError("'topics' is either one pattern that begins with ^, or names")
        _check_target(self.into, self.route)
        check_csv(self, is_csv=self.format is SinkFormat.CSV)
        check_flatten(self, has_schema=self.format in SCHEMA_FORMATS)
        check_changes(self)

    def target(self) -> Table | Route:
        """Return the equivalent table or route."""
        return _target(self.into, self.route)

    def shown(self) -> dict[str, Any]:
        """Return all settings unmasked; none is a secret."""
        csv = ("fields", "delimiter", "header", "nulls")
        plain = (
            "topics",
            "group",
            "format",
            *csv,
            "flatten",
            "key_format",
            "decimals",
            "placeholder",
            "columns",
            "on_error",
        )
        into = {} if self.into is None else {"into": self.into.shown()}
        route = {} if self.route is None else {"route": self.route.shown()}
        return {name: getattr(self, name) for name in plain} | into | route


# With age=0, a transaction takes the records that arrived during the previous one. So latency is low with few records,
# and batches are large with many.
_WHATEVER_IS_THERE = BatchBounds(count=10_000, bytes=4 << 20, age=0.0)
_EARLIEST = Earliest()
_BACKOFF = Backoff()
_LIMITS = Limits()


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSettings(Masked):
    """The Kafka cluster; ``client`` is passed to librdkafka unchanged.

    With ``create_topics``, apps and pipelines create the topics that they read and that do not exist.
    """

    bootstrap: Label | None = None
    client: Mapping[str, Any] = field(default_factory=dict)
    create_topics: bool = False

    def __post_init__(self) -> None:
        convert_arguments(self)
        argument("client", ClientConfig, self.client)
        refuse_unsafe(self.client)
        if self.bootstrap is not None and "bootstrap.servers" in self.client:
            raise ConfigurationError("the brokers are named twice, as 'bootstrap' and as 'bootstrap.servers'; keep one")

    def configuration(self) -> dict[str, Any]:
        """Return the librdkafka configuration for clients of this cluster."""
        return {**({} if self.bootstrap is None else {"bootstrap.servers": self.bootstrap}), **self.client}

    def creates_topics_of(self, kafka: Mapping[str, Any]) -> bool:
        """Return whether missing topics are created on the cluster of these client settings: only on this one."""
        own = self.configuration().get("bootstrap.servers")
        return self.create_topics and own is not None and own == kafka.get("bootstrap.servers")


@dataclass(frozen=True, slots=True, repr=False)
class LedgerSettings(Masked):
    """Where positions are stored. Without a URL, they are kept in Kafka and delivery is not exactly once."""

    url: Label | None = None
    prefix: Label | None = None
    limits: Limits = _LIMITS

    def __post_init__(self) -> None:
        convert_arguments(self)


@dataclass(frozen=True, slots=True, repr=False)
class ListenerSettings(Masked):
    """The defaults of listeners; each listener can override them."""

    delivery: Delivery = Delivery.EXACTLY_ONCE
    commit: CommitStrategy = CommitStrategy.SYNCHRONOUS
    protocol: GroupProtocol = GroupProtocol.COOPERATIVE
    start: Start = _EARLIEST
    deployment: Label | None = None
    batch: BatchBounds = _WHATEVER_IS_THERE
    buffer_bytes: ByteCount = 32 << 20
    on_error: OnError = OnError.FAIL
    retries: Amount = 0
    backoff: Backoff = _BACKOFF
    out_of_range: OutOfRange = OutOfRange.STOP
    recreated: Recreated = Recreated.STOP
    lag_guard: LagGuard | None = None
    mirror: bool = False
    threads: ThreadCount = 1
    session_timeout: SessionTimeout = 45.0

    def __post_init__(self) -> None:
        convert_arguments(self)

    def defaults(self) -> dict[str, Any]:
        """Return these settings as keyword arguments of a listener's specification."""
        policy = self.on_error.policy
        parts = ("deployment", "retries", "backoff")
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in parts}
        given["start"] = StartStrategy(self.start, self.deployment)
        given["on_error"] = Retry(self.retries, self.backoff, policy) if self.retries else policy
        return given


_LISTENER = ListenerSettings()


@dataclass(frozen=True, slots=True, repr=False)
class ObserveSettings(Masked):
    """What is reported beside the log; ``traces`` makes an OpenTelemetry span of each transaction."""

    traces: bool = False

    def __post_init__(self) -> None:
        convert_arguments(self)


@dataclass(frozen=True, slots=True, repr=False)
class Settings(Masked):
    """All settings of an app."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    ledger: LedgerSettings = LedgerSettings()
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    listener: ListenerSettings = _LISTENER
    observe: ObserveSettings = ObserveSettings()
    sink: Mapping[str, SinkSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_arguments(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from a file and the environment; the environment overrides the file.

        The file is ``path``, or else the one that ``TIDEGATE_CONFIG`` names, or else ``tidegate.toml`` in the current
        directory if it exists.
        """
        environ = os.environ if environ is None else environ
        return read(cls, settings_file(path, environ), environ)


def _file(given: Any) -> Any:
    return given if isinstance(given, (str, os.PathLike)) and os.fspath(given) else None


_FileArgument: TypeAlias = Annotated[Any, Accepts("the path of a file", _file)]


def settings_file(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that :meth:`Settings.load` reads with the same arguments; ``None`` if it reads no file."""
    path = argument("path", _FileArgument | None, path)
    chosen = path or (os.environ if environ is None else environ).get("TIDEGATE_CONFIG")
    default = Path("tidegate.toml")
    return Path(chosen) if chosen else default if default.exists() else None


class PipelineFormat(StrEnum):
    """The format of record values."""

    JSON = "json"
    CSV = "csv"
    TEXT = "text"
    BYTES = "bytes"
    CONNECT_JSON = "connect-json"
    CONNECT_AVRO = "connect-avro"
    DEBEZIUM = "debezium"
    DEBEZIUM_AVRO = "debezium-avro"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json-schema"


def _is_set(value: object) -> bool:
    return value is not None and value is not False  # every = 0 counts as set


@dataclass(frozen=True, slots=True, repr=False)
class RunSettings(Masked):
    """How a pipeline runs: its trigger, the size of micro-batches, its start and its delivery guarantee."""

    every: Seconds | None = None
    available_now: bool = False
    once: bool = False
    max_records: Count = 200_000
    max_bytes: ByteCount = 256 << 20
    collect: Amount = 10_000
    per_batch: bool = False
    commit: CommitMode | None = None
    delivery: Delivery = _LISTENER.delivery
    start: Start = _LISTENER.start
    deployment: Label | None = None
    out_of_range: OutOfRange = _LISTENER.out_of_range
    recreated: Recreated = _LISTENER.recreated

    def __post_init__(self) -> None:
        convert_arguments(self)
        chosen = [name for name in ("every", "available_now", "once") if _is_set(getattr(self, name))]
        if len(chosen) > 1:
            raise ConfigurationError(f"'{chosen[0]}' and '{chosen[1]}' contradict each other; keep one")


@dataclass(frozen=True, slots=True, repr=False)
class SparkSettings(Masked):
    """The Spark session of a pipeline; ``connector`` is as in ``SparkOptions``, and ``conf`` is passed on unchanged."""

    master: Label = "local[*]"
    connector: Label | None = "auto"
    name: Label | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_arguments(self)


def _check_names(topics: tuple[str, ...], group: str) -> None:
    """Check the names, and replace the errors of :func:`check_topic` and :func:`check_group`, which quote the name:
    errors about settings must not quote values.
    """
    try:
        for topic in topics:
            check_topic(topic)
    except InvalidName:
        raise ConfigurationError(
            "topics: expected names of topics: letters, digits, '.', '_' and '-', at most 249 of them"
        ) from None
    try:
        check_group(group)
    except InvalidName:
        raise ConfigurationError("group: expected the name of a group, of at most 255 bytes") from None


@dataclass(frozen=True, slots=True, repr=False)
class PipelineSettings(Masked):
    """A pipeline: its topics, its transformation and its table, or by a route its tables."""

    topics: tuple[str, ...]
    group: str
    into: IntoSettings | None = None
    route: RouteSettings | None = None
    kafka: KafkaSettings | None = None
    ledger: LedgerSettings | None = None
    registry: RegistrySettings | None = None
    format: PipelineFormat = PipelineFormat.JSON
    fields: tuple[str, ...] = ()
    delimiter: Delimiter = COMMA
    header: bool = False
    nulls: Nulls = EMPTY
    flatten: Label | None = None
    key_format: KeyFormat = KeyFormat.JSON
    decimals: DecimalText = BASE64
    placeholder: Label = PLACEHOLDER
    schema: Mapping[FieldPath, TypeWord] = field(default_factory=dict)
    columns: Mapping[Label, Label] = field(default_factory=dict)
    where: Label | None = None
    sql: Label | None = None
    run: RunSettings = RunSettings()
    spark: SparkSettings = field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        convert_arguments(self)
        if not self.topics:
            raise ConfigurationError("'topics' is empty; name one, or several")
        _check_names(self.topics, self.group)
        _check_target(self.into, self.route)
        self._check_format()
        self._check_contradictions()

    def _check_format(self) -> None:
        is_csv = self.format is PipelineFormat.CSV
        check_csv(self, is_csv=is_csv)
        check_flatten(self, has_schema=self.format in SCHEMA_FORMATS)
        check_changes(self)
        has_fields = self.format not in (PipelineFormat.TEXT, PipelineFormat.BYTES)
        if self.schema and not has_fields:
            raise ConfigurationError(
                f"'schema' has no effect with format = \"{self.format}\": its values have no fields"
            )
        if not (has_fields or self.columns or self.sql):
            raise ConfigurationError(
                f'with format = "{self.format}" \'columns\' has to say where the value goes, as in text = "value"'
            )
        if is_csv and (unknown := [name for name in self.schema if name not in self.fields]):
            raise ConfigurationError(f"schema.{unknown[0]}: is none of 'fields', which are {', '.join(self.fields)}")

    def target(self) -> Table | Route:
        """Return the equivalent table or route."""
        return _target(self.into, self.route)

    def _check_contradictions(self) -> None:
        for name in ("columns", "schema", "where", "sql") if self.route is not None else ():
            if getattr(self, name):
                raise ConfigurationError(
                    f"'{name}' and 'route' contradict each other: it makes the rows of one table, and a part of a "
                    "route has its own columns, where and types; keep one"
                )
        for name in ("columns", "where"):
            if self.sql is not None and getattr(self, name):
                raise ConfigurationError(
                    f"'{name}' and 'sql' contradict each other: the query says which columns and records; keep one"
                )
        if self.sql is not None and self.run.commit is CommitMode.PARTITION:
            raise ConfigurationError(
                "run.commit: a query may bring records of several partitions together, so 'sql' commits by batch; "
                "leave 'commit' out, or use 'columns' and 'where'"
            )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        environ: Mapping[str, str] | None = None,
        *,
        config: str | os.PathLike[str] | None = None,
    ) -> PipelineSettings:
        """Read the pipeline's file. A cluster or a ledger that it lacks comes from the settings, which are read as by
        :meth:`Settings.load`. The environment overrides cluster and ledger, and no other setting of a pipeline.
        """
        environ = os.environ if environ is None else environ
        own = read(cls, Path(path), environ, sections=("kafka", "ledger", "registry"))
        if own.kafka is not None and own.ledger is not None and own.registry is not None:
            return own
        common = Settings.load(config, environ)
        return replace(
            own,
            kafka=own.kafka or common.kafka,
            ledger=own.ledger or common.ledger,
            registry=own.registry or common.registry,
        )

    def shown(self) -> dict[str, Any]:
        """Return all settings, with the secrets of cluster, ledger and Spark masked."""
        csv = ("fields", "delimiter", "header", "nulls")
        form = ("format", *csv, "flatten", "key_format", "decimals", "placeholder")
        plain = ("topics", "group", *form, "schema", "columns", "where", "sql")
        sections = ("kafka", "ledger", "registry", "run", "spark")
        masked = {name: shown(name, getattr(self, name)) for name in sections}
        into = {name: each.shown() for name in ("into", "route") if (each := getattr(self, name)) is not None}
        return {name: getattr(self, name) for name in plain} | into | masked


class Held(NamedTuple):
    """A setting in effect: its key, its value with secrets masked, and its origin.

    ``origin`` is ``"default"``, ``"environment"`` or ``"file"``; ``where`` is the variable or the file.
    """

    key: str
    value: Any
    origin: str
    where: str | None


def held_settings(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> list[Held]:
    """Return every setting that :meth:`Settings.load` reads with the same arguments, in the order of declaration."""
    environ = os.environ if environ is None else environ
    settings = Settings.load(path, environ)
    tree = plant(settings_file(path, environ), environ)
    return [_held(key, value, tree, environ) for key, value in _flat(settings.shown())]


def _flat(shown: Mapping[str, Any], key: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in shown.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*key, name))
        else:
            yield (*key, name), value


def _held(key: Key, value: Any, tree: Tree, environ: Mapping[str, str]) -> Held:
    node: Tree | Leaf | None = tree
    for name in key:
        node = node.get(name) if isinstance(node, dict) else node
    shown = list(value) if isinstance(value, tuple) else value
    if not isinstance(node, Leaf):
        return Held(".".join(key), shown, "default", None)
    if node.file is None:
        names = (written(key, None), written(key[:-1], None))  # the second is the short form
        return Held(".".join(key), shown, "environment", next(name for name in names if name in environ))
    return Held(".".join(key), shown, "file", str(Path(node.file)))
