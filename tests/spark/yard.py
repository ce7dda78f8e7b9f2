"""A yard: one database in which a sink and a pipeline write the same records into tables of their own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, event, inspect

from tidegate import App, Ledger, Table, open_ledger
from tidegate.spark import BatchReport, Pipeline, Report
from tidegate.tables import Part, Route

GROUP = "yard"
Letter = tuple[str, int, int, bytes | None, bytes | None, Any, str]


class Side:
    """The tables of one of the two, and its ledger."""

    def __init__(self, url: str, bootstrap: str) -> None:
        self.name = f"y{secrets.token_hex(4)}"
        self.bootstrap = bootstrap
        self.url = url
        self.database = url.partition(":")[0].partition("+")[0]
        self.engine = create_engine(url, hide_parameters=True)
        self.ledger: Ledger[Any] = open_ledger(url, prefix=f"{self.name}t_")
        if self.database == "sqlite":
            for engine in (self.engine, self.ledger.engine):
                event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
        self.batches: list[BatchReport] = []

    def close(self) -> None:
        self.ledger.close()
        self.engine.dispose()

    def table(self, name: str) -> str:
        return f"{self.name}_{name}"

    def sql(self, *statements: str) -> None:
        with self.engine.begin() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """All tables, with their rows."""
        mark = "`" if self.database in ("mysql", "mariadb") else '"'
        found = {}
        with self.engine.connect() as conn:
            for name in inspect(self.engine).get_table_names():
                if name.startswith(f"{self.name}_"):
                    rows = conn.exec_driver_sql(f"SELECT * FROM {mark}{name}{mark}").all()
                    found[name.removeprefix(f"{self.name}_")] = sorted((tuple(row) for row in rows), key=repr)
        return found

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return self.tables()[name]

    def letters(self) -> list[Letter]:
        """The dead letters whole, without what a sink puts in front of the error, and without the names of tables."""
        found = []
        for parked in self.ledger.dead_letters(GROUP, limit=100_000):
            record, error = parked.letter.record, parked.letter.error
            error = error.removeprefix("DecodingError: ").replace(self.name, "")
            found.append((*record[:3], record.key, record.value, tuple(record.headers or ()), error))
        return sorted(found, key=repr)

    def parked(self) -> list[tuple[int, int]]:
        return [(partition, offset) for _, partition, offset, *_ in self.letters()]

    def sink(self, topics: Sequence[str], into: Any, **settings: Any) -> None:
        """Run a sink until it has caught up."""
        app = App({"bootstrap.servers": self.bootstrap, "log_level": 0}, self.ledger)
        app.sink(list(topics), into=into, group=GROUP, **settings)
        assert app.run(until_caught_up=True, quiet=True) == 0

    def pipeline(self, spark: SparkSession, topics: Sequence[str], into: Any, **settings: Any) -> Pipeline:
        return Pipeline(
            *(topics, into),
            group=GROUP,
            kafka={"bootstrap.servers": self.bootstrap, "log_level": 0},
            ledger=self.ledger,
            spark=spark,
            on_batch=self.batches.append,
            **settings,
        )

    def pipe(self, spark: SparkSession, topics: Sequence[str], into: Any, **settings: Any) -> Report:
        """Run a pipeline until it has caught up."""
        self.batches.clear()
        return self.pipeline(spark, topics, into, **settings).run(available_now=True)

    @property
    def modes(self) -> set[str]:
        return {batch.mode for batch in self.batches if batch.records}


class Yard:
    """Both sides, and topics of their own."""

    def __init__(self, url: str, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.sides = Side(url, bootstrap), Side(url, bootstrap)
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True})

    def close(self) -> None:
        for side in self.sides:
            side.close()

    def topics(self, *names: str, partitions: int = 1) -> list[str]:
        """Create topics, each with an end of its own to its name."""
        made = [f"{name}.{secrets.token_hex(4)}" for name in names]
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(name, partitions, 1) for name in made]).values():
            future.result(60)
        return made

    def send(self, topic: str, *values: Any, partition: int = 0, key: Any = None, **headers: str) -> None:
        """Send records, by the next :meth:`flush` at last: bytes and nothing as they are, all else as JSON."""
        for value in values:
            data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            self._producer.produce(topic, data, key, partition, headers=list(headers.items()))  # type: ignore[arg-type]

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def both(
        self, spark: SparkSession, topics: Sequence[str], into: Callable[[Side], Any], *, form: Any = "json", **how: Any
    ) -> tuple[Side, Side, Report]:
        """Run a sink and a pipeline, each into the tables that ``into`` gives it."""
        self.flush()
        sink, pipe = self.sides
        sink.sink(topics, into(sink), format=form)
        return sink, pipe, pipe.pipe(spark, topics, into(pipe), format=form, **how)


def family(side: Side, **route: Any) -> Route:
    """Orders, their lines and a lot of each line, from one record; in the order of names, not of foreign keys."""
    keys = {"order_id": "value.id", "n": "index"}
    return Route(
        [
            Part(
                Table(side.table("lots"), key=["order_id", "n", "lot"], mode="upsert"),
                each="value.lines",
                columns={**keys, "lot": "each.lots"},
            ),
            Part(
                Table(side.table("lines"), key=["order_id", "n"], mode="upsert"),
                each="value.lines",
                columns={**keys, "sku": "each.sku"},
            ),
            Part(
                Table(side.table("orders"), key="id", mode="upsert"),
                columns={"id": "value.id", "customer": "value.customer"},
            ),
        ],
        **route,
    )


def create_family(side: Side) -> None:
    """Create its tables, with foreign keys and a check."""
    orders, lines, lots = map(side.table, ("orders", "lines", "lots"))
    side.sql(
        f"CREATE TABLE {orders} (id INTEGER NOT NULL PRIMARY KEY, customer VARCHAR(40) NOT NULL)",
        f"CREATE TABLE {lines} (order_id INTEGER NOT NULL, n INTEGER NOT NULL, "
        "sku VARCHAR(40) NOT NULL CHECK (sku <> 'bad'), "
        f"PRIMARY KEY (order_id, n), FOREIGN KEY (order_id) REFERENCES {orders} (id))",
        f"CREATE TABLE {lots} (order_id INTEGER NOT NULL, n INTEGER NOT NULL, lot INTEGER NOT NULL, "
        f"PRIMARY KEY (order_id, n, lot), FOREIGN KEY (order_id, n) REFERENCES {lines} (order_id, n))",
    )


def halves(side: Side, topics: Sequence[str], **route: Any) -> Route:
    """Orders from one topic, and their lines from another."""
    orders, lines = topics
    return Route(
        [
            Part(Table(side.table("lines"), key=["order_id", "n"], mode="upsert"), where={"topic": lines}),
            Part(Table(side.table("orders"), key="id", mode="upsert"), where={"topic": orders}),
        ],
        **route,
    )


def order(number: int, *skus: Any, customer: Any = "ann") -> dict[str, Any]:
    return {"id": number, "customer": customer, "lines": [{"sku": sku, "lots": number} for sku in skus]}
