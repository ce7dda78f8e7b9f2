"""A plain query from Kafka into files, in a process of its own, which kills itself in the middle of a batch."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tidegate.spark.session import SparkOptions, open_session


def main(given: dict[str, Any]) -> None:
    session = open_session(SparkOptions(master="local[1]", conf={"spark.ui.enabled": False}, name="old query"))
    session.sparkContext.setLogLevel("OFF")
    source = {
        "kafka.bootstrap.servers": given["bootstrap"],
        "subscribe": given["topic"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": given["each"],
    }

    def each(rows: DataFrame, number: int) -> None:
        with Path(given["written"]).open("a") as file:
            for count, row in enumerate(rows.select("partition", "offset").collect()):
                if number == given["dies_in"] and count == given["each"] // 2:
                    file.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
                file.write(json.dumps([row["partition"], row["offset"]]) + "\n")

    rows = session.readStream.format("kafka").options(**source).load()
    writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", given["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
