"""A query over files, one file a batch, and what tests do to its checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate.core.records import TopicPartition, query_source

NAME = "clicks"
SCHEMA = "id long, user string, total decimal(12,2)"


@dataclass(frozen=True)
class Query:
    """The files that a query reads, and its checkpoint."""

    spark: SparkSession
    files: Path
    checkpoint: Path

    @property
    def source(self) -> TopicPartition:
        """Where its position is."""
        return query_source(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def put(self, number: int, rows: list[dict[str, Any]]) -> None:
        """Write the file of a batch."""
        hidden = self.files / f".{number}"
        hidden.write_text("\n".join(map(json.dumps, rows)))
        os.utime(hidden, (number, number))  # Spark reads files in this order
        hidden.rename(self.files / f"{number:05}.json")

    def run(
        self,
        each: Callable[[DataFrame, int], None],
        made: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        *,
        schema: str = SCHEMA,
        output: str = "append",
    ) -> None:
        """Run all that is there. Raises the error of the query."""
        rows = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.files))
        writer = made(rows).writeStream.foreachBatch(each).outputMode(output)
        running = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert running.awaitTermination(120)
        finally:
            running.stop()
            for thread in threading.enumerate():  # those that release positions
                if thread.name == f"tidegate-query-{NAME}":
                    thread.join(30)

    def forget_commit(self, number: int) -> None:
        """Leave what a driver leaves that dies after the database's commit of a batch and before Spark's."""
        (self.checkpoint / "commits" / str(number)).unlink()
        (self.checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)

    def beside(self, name: str) -> Query:
        """Return a query over the same files with another checkpoint, which does not exist yet."""
        return replace(self, checkpoint=self.checkpoint.with_name(name))

    def copied(self, name: str) -> Query:
        """Copy the checkpoint."""
        other = self.beside(name)
        shutil.copytree(self.checkpoint, other.checkpoint)
        return other


def orders(batch: int, count: int = 20) -> list[dict[str, Any]]:
    """The rows of a batch."""
    numbers = range(batch * count, (batch + 1) * count)
    return [{"id": number, "user": f"u{number % 7}", "total": f"{number}.25"} for number in numbers]
