"""A Spark driver with a pipeline for each table and target, as a program that may be killed at any moment.

    python -m tests.replication.driver

Its work is the first line of its input; it ends when its input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import asdict

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from tests.chaos.consumer import wait_for
from tests.patience import wait_until
from tests.replication.member import LIMITS, Work, table_of
from tests.replication.source import GUARD, TABLES, Replicated

from tidegate import open_ledger
from tidegate.cli.run import stop_with_parent
from tidegate.spark import Pipeline, SparkOptions
from tidegate.spark.session import open_session

BY_TASKS = ("accounts", "items")
"""The tables whose micro-batches executors commit, by partition; the driver commits those of the others."""


def written(works: Sequence[Work]) -> str:
    return json.dumps([asdict(work) for work in works])


def pipe(work: Work, table: Replicated, spark: SparkSession) -> None:
    try:
        ledger = open_ledger(work.url, prefix=work.ledger, limits=LIMITS)
        wait_for(ledger)
        Pipeline(
            work.topic(table.name),
            table_of(work.name(table.name), table.key, GUARD),  # events that were not newer would be missing
            group=work.group(table.name),
            format="debezium",
            kafka={"bootstrap.servers": work.bootstrap, "log_level": 0},
            ledger=ledger,
            collect=0 if table.name in BY_TASKS else 1000,
            spark=spark,
        ).run(every=1.0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(works: Sequence[Work]) -> None:
    spark = open_session(SparkOptions(master="local[2]", conf={"spark.ui.enabled": False}))
    admin = AdminClient({"bootstrap.servers": works[0].bootstrap, "log_level": 0})
    topics = {works[0].topic(table.name) for table in TABLES}
    wait_until(lambda: topics <= admin.list_topics(timeout=10).topics.keys(), "the topics of the tables")
    pipes = [threading.Thread(target=pipe, args=(work, table, spark)) for work in works for table in TABLES]
    for thread in pipes:
        thread.start()
    for thread in pipes:
        thread.join()


if __name__ == "__main__":
    given = [Work(**each) for each in json.loads(sys.stdin.readline())]
    stop_with_parent()
    main(given)
