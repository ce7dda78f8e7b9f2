"""Quix Streams' PostgreSQL sink, run by its own interpreter: it pins another confluent-kafka.

    python quix_sink.py BOOTSTRAP TOPIC GROUP COUNT HOST PORT DATABASE USER BATCH      (password: PGPASSWORD)

Prints the seconds from the first record to the last commit, and the rows that were written.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]
from quixstreams.sinks.community.postgresql import PostgreSQLSink  # type: ignore[import-not-found]


class Timed(PostgreSQLSink):  # type: ignore[misc]
    """Notes when the first record came and when the last batch was committed."""

    began = ended = 0.0
    rows = 0

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()
        self.add = super().add  # type: ignore[method-assign]  # once is enough
        self.add(*args, **kwargs)

    def write(self, batch: Any) -> None:
        super().write(batch)
        self.ended = time.perf_counter()
        self.rows += batch.size


def main(bootstrap: str, topic: str, group: str, count: str, *database: str) -> None:
    host, port, name, user, batch = database
    app = Application(
        broker_address=bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        commit_every=int(batch),  # how many records a checkpoint has, which is what its documentation says to tune
        commit_interval=30.0,
        consumer_extra_config={
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 32 << 10,
            "fetch.queue.backoff.ms": 50,
        },
        loglevel="WARNING",
    )
    sink = Timed(
        host=host,
        port=int(port),
        dbname=name,
        user=user,
        password=os.environ["PGPASSWORD"],
        table_name="bench",
        schema_auto_update=False,
        include_metadata=False,
    )
    app.dataframe(app.topic(topic, value_deserializer="json")).sink(sink)
    app.run(count=int(count), timeout=120)
    print(sink.ended - sink.began, sink.rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
