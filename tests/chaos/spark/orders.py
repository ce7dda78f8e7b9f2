"""What a driver of the ordeal is asked to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, Numeric, Table

from tidegate.ledger import Limits
from tidegate.tables.table import Table as Into

GROUP = "ordeal"
KEYS = 40
LIMITS = Limits(hold=1.5, lock_wait=4.0)

_metadata = MetaData()

# Sums that every record adds to, whatever its partition: one that comes twice or not at all is in them for ever.
TOTALS = Table(
    "totals",
    _metadata,
    Column("k", Integer, primary_key=True, autoincrement=False),
    Column("total", Numeric(20, 2), nullable=False),
    Column("n", BigInteger, nullable=False),
)

# No key that could hide a record that comes twice.
LANDED = Table(
    "landed",
    _metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("partition_id", Integer, nullable=False),
    Column("record_offset", BigInteger, nullable=False),
    Column("amount", Numeric(20, 2), nullable=False),
)


class Way(StrEnum):
    """How micro-batches are committed, and what they leave behind."""

    PARTITION_TOTALS = "partition, totals"
    PARTITION_ROWS = "partition, rows"
    DRIVER_TOTALS = "driver, totals"
    STAGED_ROWS = "staged, rows"
    STAGED_TOTALS = "staged, totals"

    @property
    def by_partition(self) -> bool:
        return self in (Way.PARTITION_TOTALS, Way.PARTITION_ROWS)

    @property
    def staged(self) -> bool:
        return self in (Way.STAGED_ROWS, Way.STAGED_TOTALS)

    @property
    def sums(self) -> bool:
        return self in (Way.PARTITION_TOTALS, Way.DRIVER_TOTALS, Way.STAGED_TOTALS)

    @property
    def table(self) -> Table:
        return TOTALS if self.sums else LANDED

    def settings(self) -> dict[str, Any]:
        """What the pipeline is given."""
        if self.sums:
            into = Into("totals", key=["k"], mode="accumulate", add=["total", "n"])
            columns = {"k": "value.k", "total": "value.amount", "n": "value.one"}
            transform = "SELECT k, sum(amount) AS total, count(*) AS n FROM records GROUP BY k"
        else:
            into = Into("landed")
            columns = {"partition_id": "partition", "record_offset": "offset", "amount": "value.amount"}
            transform = "SELECT partition AS partition_id, offset AS record_offset, amount FROM records"
        if self.by_partition:
            return {"into": into, "columns": columns, "collect": 0}
        schema = {"k": "integer", "amount": "decimal(12,2)"}
        return {"into": into, "schema": schema, "transform": transform, "collect": 0 if self.staged else 1_000_000}


@dataclass(frozen=True)
class Orders:
    """Handed to the driver's process as JSON."""

    bootstrap: str
    topic: str
    url: str = field(repr=False)  # has a password in it
    way: Way
    folder: str
    """Where traps and notes are."""
    name: str = ""
    """Tells one driver from the next."""
    master: str = "local[2,4]"
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        return Path(self.folder)

    @property
    def gate(self) -> Path:
        """The file that lets the driver go on, once its session is open."""
        return self.place / f"go-{self.name}"

    def named(self, name: str) -> Orders:
        return replace(self, name=name)

    def dumped(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loaded(cls, text: str) -> Orders:
        given = json.loads(text)
        return cls(**{**given, "way": Way(given["way"])})
