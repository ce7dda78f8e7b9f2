"""A process with sinks for all tables, some of them by one route, which may be killed at any moment."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, field

from tests.chaos.consumer import SESSION_TIMEOUT, wait_for
from tests.replication.source import TABLES

from tidegate import App, BatchBounds, Limits, Table, open_ledger
from tidegate.core.policies import GroupProtocol
from tidegate.ledger.ledger import TABLE_PREFIX


@dataclass(frozen=True)
class Work:
    bootstrap: str
    prefix: str
    url: str = field(repr=False)  # has a password in it
    count: int = 500
    own: str = ""
    """What the names of its tables begin with: those of sinks and pipelines are beside each other."""

    routed: bool = False
    """Whether one sink writes several of the tables, each under the name of its topic."""

    def routes(self, table: str) -> bool:
        return self.routed and table in ROUTED

    def group(self, table: str) -> str:
        """Each target has groups of its own."""
        kind = "route" if self.routes(table) else table
        return f"{self.prefix}-{self.own}{self.url.partition(':')[0]}-{kind}"

    def topic(self, table: str) -> str:
        return f"{self.prefix}.public.{table}"

    def name(self, table: str) -> str:
        return self.topic(table).replace(".", "_") if self.routes(table) else f"{self.own}{table}"

    @property
    def ledger(self) -> str:
        """The prefix of the ledger's tables."""
        return f"{self.own}{TABLE_PREFIX}"


ROUTED = ("accounts", "items")
"""Two tables whose keys have other names."""
LIMITS = Limits(hold=1.0, lock_wait=3.0)


def table_of(name: str, key: tuple[str, ...], guard: str | None = None) -> Table:
    """MariaDB's keys are not TEXT; the keys of these tables are numbers, so every column may be inferred."""
    return Table(name, key=key, mode="upsert", create=True, evolve=True, guard=guard)


def replicate(work: Work) -> None:
    try:
        ledger = open_ledger(work.url, prefix=work.ledger, limits=LIMITS)
        wait_for(ledger)
        app = App({"bootstrap.servers": work.bootstrap, "log_level": 0}, ledger)
        sinks: dict[str, tuple[list[str], Table]] = {}
        for table in TABLES:
            into = table_of(work.name(table.name), table.key)
            sinks[work.group(table.name)] = [work.topic(table.name)], into
        if work.routed:
            sinks[work.group(ROUTED[0])] = list(map(work.topic, ROUTED)), table_of("{topic}", ("{key}",))
        for group, (topics, into) in sinks.items():
            app.sink(
                topics,
                into=into,
                group=group,
                format="debezium",
                protocol=GroupProtocol.COOPERATIVE,
                session_timeout=SESSION_TIMEOUT,
                batch=BatchBounds(count=work.count, age=0.05),
                kafka={"heartbeat.interval.ms": 300, "topic.metadata.refresh.interval.ms": 500},
            )
        app.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
