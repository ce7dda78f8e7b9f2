"""The configuration of a JDBC sink of Kafka Connect: its consumer group, and its settings here.

docs/coming-from-connect.md has the same answers; a test goes through each property of that page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidegate.errors import ChangeRefused

__all__ = ["ADVICE", "Connector", "new_file"]


_OUTAGE = "none: an outage of the database is waited for, and shown, as long as it lasts; see guarantees"
_BATCH = "[listener.batch]; the default suits most"
_NAMES = "name the table and the columns"
_LETTERS = (
    'the default, on_error = "dead-letter": a table beside the positions, not a topic. tidegate dead-letters list, '
    "show, replay, drop"
)
_COLUMNS = "columns: paths such as value.address.city, key, timestamp, topic; types such as timestamp(ms)"
_ROUTER = "a route; there is none by time"
_WHOLE = "a column from the whole value or key"
_BY_KEY = 'key, with columns = { id = "key.id" }, or "key" for a bare key; key = "{key}" where a route names the tables'
_BY_OFFSET = (
    'not needed against duplicates. To have the columns: columns = { topic = "topic", part = "partition", at_offset = '
    '"offset", … }'
)
_BY_HEADER = 'columns = { id = "headers.id" }'
_REGISTRY = "[registry]: url, user, password, token, ca, certificate, key"
_URL = "[ledger] url, as a URL of SQLAlchemy; PostgreSQL, MySQL, MariaDB, SQLite. Not Oracle, SQL Server, Db2"
_ZONES = "none: times keep their zone, and are stored in UTC where a type has none; see types"
_TIMES = "none: times are stored by the types of their columns"
_REDUCED = "always: rows of one key are merged where the result is the same"
_TRUNCATE = (
    'format = "debezium" and "debezium-avro" write truncates where they have an order: from a single partition, or '
    "with guard_table"
)
_VIEWS = "none: with append, views of PostgreSQL and SQLite that take rows are written to; others are refused at start"
_FIELDS = "columns names what is written; without it, fields without a column are left out"
_RENAMED = "replace and lower of a route; or a part for each topic"
_QUOTED = "none: names are quoted, always"
_DIALECT = "none: the database is that of the URL"
_POOL = "none: a member has one connection for its transactions"
_GEOMETRY = "none; geometry: see change events"
_TASKS = "tidegate run --workers N, or more processes with the same group"
_OFFSETS = "none: the position commits with the rows. [kafka.client] takes librdkafka's settings"

ADVICE: Mapping[str, str] = {
    "connection.attempts": _OUTAGE,
    "connection.backoff.ms": _OUTAGE,
    "max.retries": _OUTAGE,
    "retry.backoff.ms": _OUTAGE,
    "flush.max.retries": _OUTAGE,
    "flush.retry.delay.ms": _OUTAGE,
    "connection.pool.*": _POOL,
    "tasks.max": _TASKS,
    "batch.size": _BATCH,
    "max.batch.size": _BATCH,
    "consumer.override.max.poll.records": _BATCH,
    "truncate.enabled": _TRUNCATE,
    "use.reduction.buffer": _REDUCED,
    "table.name.normalize": _RENAMED,
    "topics.to.tables.mapping": _RENAMED,
    "collection.naming.*": _NAMES,
    "column.naming.*": _NAMES,
    "quote.sql.identifiers": _QUOTED,
    "quote.identifiers": _QUOTED,
    "table.types": _VIEWS,
    "field.exclude.list": _FIELDS,
    "dialect.postgres.postgis.schema": _GEOMETRY,
    "dialect.sqlserver.identity.insert": _GEOMETRY,
    "dialect.name": _DIALECT,
    "hibernate.*": _DIALECT,
    "dialect.*": _DIALECT,
    "db.timezone": _ZONES,
    "use.time.zone": _ZONES,
    "date.timezone": _TIMES,
    "timestamp.precision.mode": _TIMES,
    "mssql.*": "none: SQL Server is not among the databases",
    "trim.sensitive.log": "none: neither log nor errors quote a record's value",
    "replace.null.with.default": "none: let the table fill in defaults, or the producer",
    "value.converter.schema.registry.ssl.*": _REGISTRY,
    "value.converter.basic.auth.*": _REGISTRY,
    "errors.deadletterqueue.*": _LETTERS,
    "errors.retry.timeout": "on_error as a Retry, in Python",
    "errors.log.*": "dead letters are logged, a burst of them as one line, without their values",
    "offset.flush.interval.ms": _OFFSETS,
    "consumer.override.*": _OFFSETS,
}
"""What to do about properties that are not converted: names, or patterns with ``*``, the first that fits."""

_TRANSFORMS = {
    **dict.fromkeys(("ExtractField", "ReplaceField", "ValueToKey", "HoistField", "Flatten", "InsertField"), _COLUMNS),
    **dict.fromkeys(("TimestampConverter", "Cast"), _COLUMNS),
    **dict.fromkeys(("RegexRouter", "TimestampRouter"), _ROUTER),
    "Filter": "where of a route's part with unmatched = \"ignore\", in sinks and pipelines, or a pipeline's where",
    "ExtractNewRecordState": 'format = "debezium" reads change events as they are; without it, nothing to do',
}
_OWN_TRANSFORM = "a function as the format, or a listener"
_UNKNOWN = "not known here: look up what it does, and whether the sink needs it"

_CLASSES = {
    "io.confluent.connect.jdbc.JdbcSinkConnector",
    "io.aiven.connect.jdbc.JdbcSinkConnector",
    "io.debezium.connector.jdbc.JdbcSinkConnector",
}
_CONVERTED = {
    "name",
    "connector.class",
    "config.action.reload",
    "topics",
    "topics.regex",
    "connection.url",
    "connection.user",
    "connection.username",
    "insert.mode",
    "delete.enabled",
    "table.name.format",
    "collection.name.format",
    "auto.create",
    "auto.evolve",
    "schema.evolution",
    "fields.whitelist",
    "field.include.list",
    "pk.mode",
    "primary.key.mode",
    "pk.fields",
    "primary.key.fields",
    "key.converter",
    "key.converter.schemas.enable",
    "key.converter.schema.registry.url",
    "header.converter",
    "value.converter",
    "value.converter.schemas.enable",
    "value.converter.schema.registry.url",
    "value.converter.basic.auth.credentials.source",
    "value.converter.basic.auth.user.info",
    "consumer.override.group.id",
    "consumer.override.auto.offset.reset",
    "errors.tolerance",
    "transforms",
    "predicates",
}
_FORMATS = {
    "AvroConverter": "avro",
    "ProtobufConverter": "protobuf",
    "JsonSchemaConverter": "json-schema",
}
_MODES = {"insert": "append", "upsert": "upsert", "update": "update"}
_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mysql+pymysql"}
_JDBC = re.compile(r"jdbc:(postgresql|mysql|mariadb)://(?:[^@/?]*@)?([\w.-]+(?::\d+)?)/([\w$.-]+)(?:\?.*)?")
_JDBC_FILE = re.compile(r"jdbc:sqlite:(?:file:)?([^?:]+)(?:\?.*)?")
_COORDINATES = ("topic", "partition", "offset")


class Connector:
    """The configuration of a connector. No value of a property that may be a secret leaves it."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self._properties = properties
        kind = properties.get("connector.class", "")
        if kind not in _CLASSES:
            raise ChangeRefused(
                f"connector.class of {name!r} is {kind[:80]!r}, and not a JDBC sink of Confluent, Aiven or Debezium. "
                f"Its offsets alone are those of a group: tidegate adopt group {self.group}"
            )
        if not (self._list("topics") or "topics.regex" in properties):
            raise ChangeRefused(f"the configuration of {name!r} has neither topics nor topics.regex")
        if (mode := properties.get("insert.mode", "insert").lower()) not in _MODES:
            raise ChangeRefused(f"insert.mode of {name!r} is {mode[:40]!r}; expected one of {', '.join(_MODES)}")
        self._mode = _MODES[mode]
        self._is_debezium = ".debezium." in kind

    @classmethod
    def read(cls, file: Path) -> Connector:
        """Read the JSON that Connect's REST API takes or returns: with ``name`` and ``config``, or the config alone."""
        try:
            found: Any = json.loads(file.read_text(encoding="utf-8"))
            json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair cannot be written again
        except OSError as error:
            raise ChangeRefused(f"{file}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise ChangeRefused(f"{file}: is not JSON, as Connect's REST API takes and returns it") from None
        config = found.get("config", found) if isinstance(found, dict) else None
        name = found.get("name", config.get("name")) if isinstance(config, dict) else None
        if not isinstance(config, dict) or not isinstance(name, str) or not name:
            raise ChangeRefused(f"{file}: is not the configuration of a connector: an object with its name and config")
        return cls(name, {key: _plain(value) for key, value in config.items() if value is not None})

    @property
    def group(self) -> str:
        """The consumer group of the connector's tasks."""
        return self._properties.get("consumer.override.group.id", f"connect-{self.name}")

    def left_out(self) -> dict[str, str]:
        """Return each property that the settings do not express, with what to do about it."""
        found = {}
        for name in sorted(self._properties):
            advice = self._advice(name)
            if advice is not None:
                found[name] = advice
        return found

    def toml(self, group: str) -> str:
        """Return the settings of the sink, with places such as ``${DB_PASSWORD}`` for secrets."""
        lines = [f"# from connector {json.dumps(self.name)}; [kafka] bootstrap is the bootstrap.servers of its worker"]
        if (url := self._url()) is not None:
            lines += ["[ledger]", f'url = "{url}"', ""]
        form = self._format()
        if form in _FORMATS.values() and (address := self._list("value.converter.schema.registry.url")):
            lines += ["[registry]", f"url = {_text(re.sub('//[^@/]*@', '//', address[0]))}"]
            if "value.converter.basic.auth.user.info" in self._properties:
                lines += ['user = "${REGISTRY_USER}"', 'password = "${REGISTRY_PASSWORD}"']
            lines.append("")
        sink = f"sink.{_key(self.name)}"
        lines += [f"[{sink}]", f"topics = {self._topics()}", f"group = {_text(group)}"]
        lines.append(f'format = "{form}"')
        if (key_format := _FORMATS.get(_leaf(self._properties.get("key.converter", "")))) is not None:
            lines.append(f'key_format = "{key_format}"')
        tolerance = self._properties.get("errors.tolerance", "none").lower()
        lines.append(f'on_error = "{"dead-letter" if tolerance == "all" else "fail"}"')
        columns = self._columns()
        schema, table = self._table()
        is_routed = "{" in table
        where = f"{sink}.route.parts.all" if is_routed else f"{sink}.into"
        if columns and not is_routed:
            lines.append(f"columns = {columns}")
        lines += ["", f"[{where}]", f"table = {_text(table)}", *([f"schema = {_text(schema)}"] if schema else [])]
        if columns and is_routed:
            lines.append(f"columns = {columns}")
        return "\n".join([*lines, *self._into(is_routed=is_routed), ""])

    def _into(self, *, is_routed: bool) -> Iterator[str]:
        fields = self._key_fields()
        if fields:
            yield f"key = [{', '.join(map(_quoted, fields))}]"
        elif self._by == "record_key" and is_routed:
            yield 'key = "{key}"'
        elif self._mode != "append":
            yield "key = []  # name the columns of the key: the configuration does not"
        yield f'mode = "{self._mode}"'
        if self._mode == "upsert" and not self._is("delete.enabled"):
            yield f'tombstones = "{"ignore" if self._is_debezium else "refuse"}"'
        evolves = self._properties.get("schema.evolution", "").lower() == "basic"
        if self._is("auto.create") or evolves:
            yield "create = true"
        if self._is("auto.evolve") or evolves:
            yield "evolve = true"

    def _advice(self, name: str) -> str | None:
        value = self._properties[name]
        if name == "connection.password":
            return "set DB_PASSWORD in the environment, percent-encoded as in any URL"
        if name == "connection.url" and self._url() is None:
            return _URL
        if name == "value.converter.basic.auth.user.info":
            return "set REGISTRY_USER and REGISTRY_PASSWORD in the environment"
        if name == "value.converter" and _leaf(value) in ("StringConverter", "ByteArrayConverter"):
            return _WHOLE
        if name in ("pk.mode", "primary.key.mode") and not self._columns():
            return {"record_key": _BY_KEY, "kafka": _BY_OFFSET, "record_header": _BY_HEADER}.get(self._by)
        if name in _CONVERTED:
            return None
        if name.startswith(("transforms.", "predicates.")):
            if name.startswith("transforms.") and name.endswith(".type"):
                return _TRANSFORMS.get(_leaf(value).partition("$")[0], _OWN_TRANSFORM)
            return None
        return next((advice for pattern, advice in ADVICE.items() if fnmatchcase(name, pattern)), _UNKNOWN)

    @property
    def _by(self) -> str:
        """The kind of the key."""
        return (self._properties.get("pk.mode") or self._properties.get("primary.key.mode") or "none").lower()

    def _key_fields(self) -> list[str]:
        if self._by == "none":
            return []
        fields = self._list("pk.fields") or self._list("primary.key.fields")
        if self._by == "kafka":
            return (fields or [f"__connect_{name}" for name in _COORDINATES]) if self._mode != "append" else []
        return fields

    def _columns(self) -> str | None:
        """Return the inline table of columns; ``None`` if the configuration does not list the fields of values."""
        listed = self._list("fields.whitelist") + [
            each.partition(":")[2] or each for each in self._list("field.include.list")
        ]
        if not listed:
            return None
        keys = self._list("pk.fields") or self._list("primary.key.fields")
        sources = {}
        if self._by == "kafka":
            sources = dict(zip(keys or [f"__connect_{name}" for name in _COORDINATES], _COORDINATES, strict=False))
        elif self._by in ("record_key", "record_header"):
            part = "key" if self._by == "record_key" else "headers"
            sources = {name: f"{part}.{name}" for name in keys}
        sources |= {name: f"value.{name}" for name in listed if name not in sources}
        return f"{{ {', '.join(f'{_key(name)} = {_text(source)}' for name, source in sources.items())} }}"

    def _format(self) -> str:
        converter = _leaf(self._properties.get("value.converter", ""))
        if converter == "JsonConverter":
            has_schemas = self._properties.get("value.converter.schemas.enable", "true").lower() == "true"
            return "connect-json" if has_schemas else "json"
        return _FORMATS.get(converter, "json")

    def _topics(self) -> str:
        if topics := self._list("topics"):
            return _text(topics[0]) if len(topics) == 1 else f"[{', '.join(map(_quoted, topics))}]"
        pattern = self._properties["topics.regex"].removeprefix("^").removesuffix("$")
        return _text(f"^({pattern})$" if "|" in pattern else f"^{pattern}$")

    def _table(self) -> tuple[str | None, str]:
        """Return the schema, if one is named, and the table; with places if records name it."""
        properties = self._properties
        named = properties.get("table.name.format") or properties.get("collection.name.format") or "${topic}"
        topics = self._list("topics")
        if len(topics) == 1:
            named = named.replace("${topic}", topics[0].replace(".", "_") if self._is_debezium else topics[0])
        named = re.sub(r"\$\{(?!topic\})([\w.]+)\}", r"{value.\1}", named).replace("${topic}", "{topic}")
        place = named.find("{")
        schema, _, table = named.rpartition(".") if place < 0 else (*named[:place].rpartition(".")[:2], "")
        if place >= 0:
            table = named[len(schema) + 1 :] if schema else named
        return schema.rpartition(".")[2] or None, table

    def _url(self) -> str | None:
        """Return the URL of the ledger; ``None`` if it cannot be one of the databases here."""
        given = self._properties.get("connection.url", "")
        if found := _JDBC_FILE.fullmatch(given):
            return f"sqlite:///{found[1]}"
        found = _JDBC.fullmatch(given)
        if found is None:
            return None
        user = self._properties.get("connection.user") or self._properties.get("connection.username") or ""
        login = "${DB_USER}" if "${" in user else quote(user, safe="")
        if "connection.password" in self._properties:
            login += ":${DB_PASSWORD}"
        return f"{_DRIVERS[found[1]]}://{login}{'@' if login else ''}{found[2]}/{found[3]}"

    def _is(self, name: str) -> bool:
        return self._properties.get(name, "false").lower() == "true"

    def _list(self, name: str) -> list[str]:
        return [part for each in self._properties.get(name, "").split(",") if (part := each.strip())]


def new_file(path: Path, text: str) -> None:
    """Write a new file; one that has this text already stays."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        if path.read_bytes() != text.encode():
            raise ChangeRefused(f"{path} is there already, and has another content; name a new file") from None
    except OSError as error:
        raise ChangeRefused(f"{path} cannot be written: {error.strerror}") from None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _leaf(kind: str) -> str:
    return kind.rpartition(".")[2]


def _text(value: str) -> str:
    """Return a setting that is a string; ``${`` is kept from being read as a place."""
    return _quoted(value.replace("${", "$${"))


def _quoted(value: str) -> str:
    """Return a string of TOML. In an array, there are no places."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
