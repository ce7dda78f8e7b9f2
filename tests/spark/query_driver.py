"""A driver of a query in a process of its own, which kills itself at a statement, or waits after a batch to be told."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import event
from tests.spark.queries import NAME, Query

from tidegate import Table, open_ledger
from tidegate.spark import ExactlyOnce

TYPES = {"id": "integer", "user": "text", "total": "decimal(12,2)"}


def main(given: dict[str, Any]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    ledger = open_ledger(given["url"], prefix=given["prefix"])
    table = Table(given["table"], create=True, columns=TYPES)
    writer = ExactlyOnce(table, ledger=ledger, name=NAME, collect=given["collect"])
    left = given["statements"]

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def each(rows: DataFrame, number: int) -> None:
        if left and number == 1:
            for step in ("before_cursor_execute", "after_cursor_execute", "commit"):
                event.listen(ledger.engine, step, count)
        writer(rows, number)
        if left and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # after the database's commit, and before Spark's
        if given["waits"] == number:
            print("written", flush=True)
            input()

    Query(session, Path(given["files"]), Path(given["checkpoint"])).run(each)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
