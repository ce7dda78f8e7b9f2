"""The tables of the DuckDB ledger, and its statements, apart from the compare-and-set."""

from __future__ import annotations

from tidegate.core.records import TOPIC_LENGTH

__all__ = [
    "HAS_TABLE",
    "HEADS",
    "INSERT",
    "INSERT_ENTRY",
    "INSERT_GROUP",
    "INSERT_LETTER",
    "JOURNAL",
    "LETTERS",
    "NEWEST",
    "OF_PARTITION",
    "OPEN",
    "POSITION",
    "PRUNE",
    "TABLES",
    "UPDATE",
    "VERSION",
]

# Times are in UTC, without a zone: DuckDB's type with a zone needs another Python package. AT is a reserved word.
TABLES = """
CREATE SEQUENCE IF NOT EXISTS {prefix}numbers;
CREATE TABLE IF NOT EXISTS {prefix}schema (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS {prefix}groups (
    consumer_group VARCHAR PRIMARY KEY, paused BOOLEAN NOT NULL, seq BIGINT NOT NULL, updated_at TIMESTAMP NOT NULL,
    pruned_at TIMESTAMP);
CREATE TABLE IF NOT EXISTS {prefix}positions (
    consumer_group VARCHAR NOT NULL, topic VARCHAR NOT NULL, partition_id INTEGER NOT NULL,
    next_offset BIGINT NOT NULL, epoch BIGINT NOT NULL, owner VARCHAR, commit_token VARCHAR, seq BIGINT NOT NULL,
    cluster_id VARCHAR, topic_id VARCHAR, deployment VARCHAR,
    open_seq BIGINT, open_start BIGINT, open_end BIGINT, open_records BIGINT, open_epoch BIGINT, open_owner VARCHAR,
    open_since TIMESTAMP, bucket BIGINT, bucket_records BIGINT, updated_at TIMESTAMP NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition_id));
CREATE TABLE IF NOT EXISTS {prefix}journal (
    id BIGINT DEFAULT nextval('{prefix}numbers'), consumer_group VARCHAR NOT NULL, topic VARCHAR NOT NULL,
    partition_id INTEGER NOT NULL, seq BIGINT NOT NULL, kind VARCHAR NOT NULL, start_offset BIGINT NOT NULL,
    end_offset BIGINT NOT NULL, records BIGINT NOT NULL, epoch BIGINT NOT NULL, owner VARCHAR, commit_token VARCHAR,
    note VARCHAR, "at" TIMESTAMP NOT NULL, since TIMESTAMP);
CREATE TABLE IF NOT EXISTS {prefix}dead_letters (
    id BIGINT DEFAULT nextval('{prefix}numbers'), consumer_group VARCHAR NOT NULL, topic VARCHAR NOT NULL,
    partition_id INTEGER NOT NULL, record_offset BIGINT NOT NULL, record_key BLOB, record_value BLOB,
    record_timestamp BIGINT, headers VARCHAR NOT NULL, error VARCHAR NOT NULL, attempts INTEGER NOT NULL,
    "at" TIMESTAMP NOT NULL);
CREATE TABLE IF NOT EXISTS {prefix}deployments (
    consumer_group VARCHAR, topic VARCHAR, deployment VARCHAR, "at" TIMESTAMP NOT NULL,
    PRIMARY KEY (consumer_group, topic, deployment));
CREATE TABLE IF NOT EXISTS {prefix}history (
    consumer_group VARCHAR NOT NULL, bucket BIGINT NOT NULL, records BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS {prefix}changes (id VARCHAR PRIMARY KEY, "at" TIMESTAMP NOT NULL);
"""
# Bytes are compared, also if the setting default_collation of the database ignores case.
TABLES = TABLES.replace("VARCHAR", "VARCHAR COLLATE C")
VERSION = 1
HAS_TABLE = """
SELECT 1 FROM duckdb_tables() WHERE lower(table_name) = lower(?)
   AND database_name = current_database() AND schema_name = current_schema()
"""

_STATE = ("next_offset", "epoch", "owner", "commit_token", "seq", "cluster_id", "topic_id", "deployment")
OPEN = ("open_seq", "open_start", "open_end", "open_records", "open_epoch", "open_owner", "open_since")
_SET = (*_STATE, *OPEN, "bucket", "bucket_records")
POSITION = ", ".join(f"p.{column}" for column in ("topic", "partition_id", *_SET, "updated_at"))
_ENTRY = ("seq", "kind", "start_offset", "end_offset", "records", "epoch", "owner", "commit_token", "note")
JOURNAL = ", ".join(("topic", "partition_id", *_ENTRY, '"at"', "since"))
_LETTER = (
    *("topic", "partition_id", "record_offset", "record_key", "record_value", "record_timestamp"),
    *("headers", "error", "attempts"),
)
OF_PARTITION = "consumer_group = $group AND topic = $topic AND partition_id = $partition_id"

UPDATE = f"""
UPDATE {{prefix}}positions SET {", ".join(f"{column} = ${column}" for column in _SET)}, updated_at = $now
 WHERE {OF_PARTITION}
"""
INSERT = f"""
INSERT INTO {{prefix}}positions (consumer_group, topic, partition_id, {", ".join(_SET)}, updated_at)
VALUES ($group, $topic, $partition_id, {", ".join(f"${column}" for column in _SET)}, $now)
"""
INSERT_ENTRY = f"""
INSERT INTO {{prefix}}journal (consumer_group, {JOURNAL})
VALUES ($group, $topic, $partition_id, {", ".join(f"${column}" for column in _ENTRY)}, $at, $since)
"""
INSERT_GROUP = "INSERT INTO {prefix}groups VALUES ($group, FALSE, 0, $now, NULL) ON CONFLICT DO NOTHING"
INSERT_LETTER = f"""
INSERT INTO {{prefix}}dead_letters (consumer_group, {", ".join(_LETTER)}, "at")
VALUES ($group, {", ".join(f"${column}" for column in _LETTER)}, $now)
"""
LETTERS = f"""
SELECT id, {", ".join(_LETTER)}, "at" FROM {{prefix}}dead_letters
 WHERE consumer_group = $group AND id > $after ORDER BY id LIMIT $limit
"""
HEADS = f"""
SELECT id, substr(topic, 1, {TOPIC_LENGTH}), partition_id, record_offset, record_timestamp, attempts, "at",
       substr(error, 1, $most + 1), record_key[1:$most], octet_length(record_key),
       record_value[1:$most], octet_length(record_value),
       CASE WHEN strlen(headers) <= $most THEN headers END, strlen(headers)
  FROM {{prefix}}dead_letters WHERE consumer_group = $group AND id > $after ORDER BY id LIMIT $limit
"""
NEWEST = f"""
SELECT id, {JOURNAL.replace("note", "substr(note, 1, 2000)")} FROM {{prefix}}journal
 WHERE consumer_group = $group AND id < $before
   AND ($topic IS NULL OR topic = $topic AND partition_id = $partition_id) ORDER BY id DESC LIMIT $limit
"""
# Each partition loses its oldest entries, up to the first one that is young enough. The last entry stays.
PRUNE = """
DELETE FROM {prefix}journal AS j USING (
    SELECT topic, partition_id, COALESCE(min(seq) FILTER (WHERE "at" >= $cutoff), max(seq)) AS first_kept
      FROM {prefix}journal WHERE consumer_group = $group GROUP BY topic, partition_id) AS k
 WHERE j.consumer_group = $group AND j.topic = k.topic AND j.partition_id = k.partition_id AND j.seq < k.first_kept
"""
