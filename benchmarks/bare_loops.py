"""Loops that somebody who knows the client and the database would write by hand, without any guarantee."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pymysql
from confluent_kafka import Consumer, Message

__all__ = ["BATCH", "into_mariadb", "into_postgres", "into_sqlite", "one_by_one"]

BATCH = 20_000
AT_ONCE = 10_000

Write = Callable[[list[Message]], None]


def consume(bootstrap: str, topic: str, group: str, count: int, write: Write, batch: int = BATCH) -> float:
    """Read so many messages and write them, a batch at a time; the seconds from the first one to the last commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 32 << 10,
        }
    )
    consumer.subscribe([topic])
    while (first := consumer.poll(1)) is None or first.error():
        pass
    began = time.perf_counter()
    done, pending = 0, [first]
    while done < count:
        while len(pending) < min(batch, count - done):
            pending += consumer.consume(min(AT_ONCE, batch - len(pending), count - done - len(pending)), 1)
        write(pending)
        done, pending = done + len(pending), []
    took = time.perf_counter() - began
    consumer.close()
    return took


def lines(messages: list[Message]) -> bytes:
    """Rows as COPY and LOAD DATA read them, for texts without a character that would have to be escaped."""
    loads = orjson.loads
    rows = (loads(message.value()) for message in messages)
    return "".join([f"{row['id']}\t{row['customer']}\t{row['amount']}\t{row['note']}\n" for row in rows]).encode()


def into_postgres(connection: psycopg.Connection[Any]) -> Write:
    def write(messages: list[Message]) -> None:
        with connection.cursor() as cursor, cursor.copy("COPY bench (id, customer, amount, note) FROM STDIN") as copy:
            copy.write(lines(messages))
        connection.commit()

    return write


def one_by_one(connection: psycopg.Connection[Any]) -> Write:
    """A transaction for each record."""

    def write(messages: list[Message]) -> None:
        row = orjson.loads(messages[0].value())
        connection.execute(
            "INSERT INTO bench (id, customer, amount, note) VALUES (%s, %s, %s, %s)",
            (row["id"], row["customer"], row["amount"], row["note"]),
        )
        connection.commit()

    return write


def into_mariadb(connection: pymysql.Connection[Any]) -> Write:
    file = Path(tempfile.mkdtemp()) / "rows"

    def write(messages: list[Message]) -> None:
        file.write_bytes(lines(messages))
        with connection.cursor() as cursor:
            cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE bench (id, customer, amount, note)")
        connection.commit()

    return write


def into_sqlite(connection: sqlite3.Connection) -> Write:
    def write(messages: list[Message]) -> None:
        loads = orjson.loads
        rows = (loads(message.value()) for message in messages)
        connection.executemany(
            "INSERT INTO bench (id, customer, amount, note) VALUES (?, ?, ?, ?)",
            [(row["id"], row["customer"], row["amount"], row["note"]) for row in rows],
        )
        connection.commit()

    return write
