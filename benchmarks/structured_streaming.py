"""Structured Streaming with ``foreachBatch`` and JDBC, tuned: what pipelines are measured against."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.sandbox import MariaDB, Postgres
from tidegate.sandbox.database import Database
from tidegate.spark.kafka_options import kafka_options
from tidegate.spark.session import jars_of

SCHEMA = "id BIGINT, customer STRING, amount BIGINT, note STRING"
BATCH_SIZE = 10_000
DRIVERS = ("org.postgresql:postgresql:42.7.4", "org.mariadb.jdbc:mariadb-java-client:3.5.1")


@dataclass(frozen=True)
class Run:
    """One run: seconds in all, and of each micro-batch."""

    seconds: float
    batches: list[float] = field(default_factory=list)


def driver_jars() -> str:
    """The JDBC drivers, as ``spark.jars`` takes them."""
    return ",".join(str(jar) for driver in DRIVERS for jar in jars_of(driver))


def jdbc_options(place: Database) -> dict[str, str]:
    """Where to write, with each driver's own way to send many rows at once."""
    match place:
        case Postgres():
            driver, scheme, query = "org.postgresql.Driver", "postgresql", "reWriteBatchedInserts=true"
        case MariaDB():  # Spark knows the quotes of this scheme only, and the driver takes it if it is told to
            driver, scheme, query = "org.mariadb.jdbc.Driver", "mysql", "permitMysqlScheme=true&useBulkStmts=true"
        case _:
            raise ValueError(f"no JDBC driver for {place}")
    return {
        "url": f"jdbc:{scheme}://{place.host}:{place.port}/{place.database}?{query}",
        "user": place.user,
        "password": place.password,
        "driver": driver,
        "dbtable": "bench",
        "batchsize": str(BATCH_SIZE),
        "isolationLevel": "READ_COMMITTED",
    }


def stream(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    place: Database,
    most: int,
    columns: Mapping[str, str] | None = None,
) -> Run:
    """Everything in the topic into the table ``bench``, ``most`` records a micro-batch."""
    jdbc = jdbc_options(place)
    # The same settings of the consumer as ours: with those that the connector comes with it reads half as fast.
    consumer = {key: text for key, text in kafka_options(bootstrap, "x").items() if key != "kafka.group.id"}

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("jdbc").options(**jdbc).mode("append").save()

    with tempfile.TemporaryDirectory(prefix="tidegate-checkpoint-") as checkpoint:
        began = time.perf_counter()
        records = (
            spark.readStream.format("kafka")
            .options(**consumer)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", most)
            .load()
        )
        values = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("value"))
        rows = values.selectExpr(*(f"{text} AS {name}" for name, text in columns.items())) if columns else None
        query = (
            (values.select("value.*") if rows is None else rows)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - began
    done = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return Run(seconds, [progress["durationMs"]["triggerExecution"] / 1000 for progress in done])
