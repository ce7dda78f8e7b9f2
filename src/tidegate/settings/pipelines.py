"""The settings of a pipeline: its file, section by section."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidegate.core.arguments import Amount, ByteCount, Count, Label, Seconds, convert_arguments
from tidegate.core.columns import Delimiter, FieldPath, TypeWord
from tidegate.core.delivery import CommitMode, Delivery
from tidegate.core.errors import ConfigurationError, InvalidName
from tidegate.core.names import check_group, check_topic
from tidegate.core.recovery import OutOfRange, Recreated
from tidegate.core.start import Earliest, Start
from tidegate.settings.masking import Masked, shown
from tidegate.settings.reading import read
from tidegate.settings.settings import KafkaSettings, LedgerSettings, Settings
from tidegate.settings.sinks import IntoSettings

__all__ = ["PipelineFormat", "PipelineSettings", "RunSettings", "SparkSettings"]

_EARLIEST = Earliest()
_COMMA = ","


class PipelineFormat(StrEnum):
    """How the values of records are written."""

    JSON = "json"
    CSV = "csv"
    TEXT = "text"
    BYTES = "bytes"


def _is_said(value: object) -> bool:
    return value is not None and value is not False  # every = 0 is said


@dataclass(frozen=True, slots=True, repr=False)
class RunSettings(Masked):
    """How a pipeline runs: how often, how much at once, from where, and what it promises."""

    every: Seconds | None = None
    available_now: bool = False
    once: bool = False
    max_records: Count = 200_000
    max_bytes: ByteCount = 256 << 20
    collect: Amount = 10_000
    per_batch: bool = False
    commit: CommitMode | None = None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    start: Start = _EARLIEST
    deployment: Label | None = None
    out_of_range: OutOfRange = OutOfRange.STOP
    recreated: Recreated = Recreated.STOP

    def __post_init__(self) -> None:
        convert_arguments(self)
        said = [name for name in ("every", "available_now", "once") if _is_said(getattr(self, name))]
        if len(said) > 1:
            raise ConfigurationError(f"'{said[0]}' and '{said[1]}' contradict each other; keep one")


@dataclass(frozen=True, slots=True, repr=False)
class SparkSettings(Masked):
    """The Spark that a pipeline runs on; ``conf`` goes to the session as it is."""

    master: Label = "local[*]"
    connector: Label | None = None
    name: Label | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_arguments(self)


def _check_names(topics: tuple[str, ...], group: str) -> None:
    """What the names themselves would say of it quotes them, and a setting is not to be quoted."""
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
    """A pipeline: from which topics, through what, into which table."""

    topics: tuple[str, ...]
    group: str
    into: IntoSettings
    kafka: KafkaSettings | None = None
    ledger: LedgerSettings | None = None
    format: PipelineFormat = PipelineFormat.JSON
    fields: tuple[str, ...] = ()
    delimiter: Delimiter = _COMMA
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
        self._check_format()
        self._check_contradictions()

    def _check_format(self) -> None:
        is_csv = self.format is PipelineFormat.CSV
        if is_csv != bool(self.fields):
            raise ConfigurationError("'fields' names the fields of a line of CSV: it goes with format = \"csv\"")
        if self.delimiter != _COMMA and not is_csv:
            raise ConfigurationError("'delimiter' stands between the fields of CSV: it goes with format = \"csv\"")
        has_fields = is_csv or self.format is PipelineFormat.JSON
        if self.schema and not has_fields:
            raise ConfigurationError(
                f"'schema' is of no use with format = \"{self.format}\": its values have no fields"
            )
        if not (has_fields or self.columns or self.sql):
            raise ConfigurationError(
                f'with format = "{self.format}" \'columns\' has to say where the value goes, as in text = "value"'
            )
        if is_csv and (unknown := [name for name in self.schema if name not in self.fields]):
            raise ConfigurationError(f"schema.{unknown[0]}: is none of 'fields', which are {', '.join(self.fields)}")

    def _check_contradictions(self) -> None:
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
        """Read the pipeline's file. A cluster or a ledger that it does not name is the one of the settings, which are
        read as by :meth:`Settings.load`; what the environment says goes before what either file says.
        """
        environ = os.environ if environ is None else environ
        own = read(cls, Path(path), environ, sections=("kafka", "ledger"))
        if own.kafka is not None and own.ledger is not None:
            return own
        common = Settings.load(config, environ)
        return replace(own, kafka=own.kafka or common.kafka, ledger=own.ledger or common.ledger)

    def shown(self) -> dict[str, Any]:
        """All of it, with the secrets of cluster, ledger and Spark masked; names of columns are none."""
        plain = ("topics", "group", "format", "fields", "delimiter", "schema", "columns", "where", "sql")
        masked = {name: shown(name, getattr(self, name)) for name in ("kafka", "ledger", "run", "spark")}
        return {name: getattr(self, name) for name in plain} | {"into": self.into.shown()} | masked
